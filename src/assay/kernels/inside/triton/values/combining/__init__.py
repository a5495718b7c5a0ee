"""Reductions and scans with functions of the kernel's own."""
