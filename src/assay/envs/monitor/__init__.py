"""Monitor tasks: a policy predicts measurements, and a monitor that reads its reasoning guesses what they hide."""
