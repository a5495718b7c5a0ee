"""Light headers in place of PyTorch's: what a compiler needs to check host code, at a hundredth of the cost."""
