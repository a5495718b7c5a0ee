"""Runs: config, the training loop, the run directory, metrics and evaluation."""
