"""Environments: tasks, verifiers, rewards and data sets. Speak messages, not tokens, and import no torch."""
