"""Who wrote the outputs of a call."""
