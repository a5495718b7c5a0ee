"""Evaluations of kernel writers: what came of every sample, and the figures that are published of it."""
