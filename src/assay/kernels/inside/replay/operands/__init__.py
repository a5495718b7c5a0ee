"""Operands of PyTorch's operators: where they lie, and what machines make of them otherwise."""
