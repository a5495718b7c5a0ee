"""Batched generation with a local model: decoding steps, CUDA graphs, drawing of tokens."""
