"""Where a policy lives: the protocol (`base`), PyTorch on this machine (`torch_local`)."""
