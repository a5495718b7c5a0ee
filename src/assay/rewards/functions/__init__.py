"""A plain Python function as a reward: what it may take, what it may return, where it runs."""
