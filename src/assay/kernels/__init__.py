"""KernelBench: write a GPU kernel that does what a PyTorch module does; judged by a grader that trusts nothing."""
