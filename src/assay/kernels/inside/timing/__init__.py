"""What runs in the processes that are timed: the harness, its clocks, and the two sides of a comparison."""
