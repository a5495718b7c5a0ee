"""What can be wrong with an environment, found by playing answers that need no model."""
