"""Triton on a CPU: its interpreter, made as strict as a GPU, and ahead-of-time compilation."""
