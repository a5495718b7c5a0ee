"""Playing environments with a policy: messages to tokens, groups to trajectories."""
