"""Runs a recorded program on real values, in a process that never ran a candidate's host code."""
