"""Policies behind an OpenAI-compatible endpoint: they can be evaluated, and not trained."""
