"""A PyTorch model on this machine: loading, forward passes with shared prompts, losses, the optimizer."""
