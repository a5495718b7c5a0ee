"""Writes a run's checkpoint as a Hugging Face folder with a model card."""
