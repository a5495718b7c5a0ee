"""What the text of a submission says before any of it runs: faults, advice, and the CUDA sources that stand in it."""
