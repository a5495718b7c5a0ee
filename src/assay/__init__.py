"""Reinforcement learning for language models from rewards that can be verified."""
