"""Runs a recorded program on real values, in a process that never ran a candidate's host code."""

import os

os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is imported
