"""Where positions come from: files, self-play and endgames."""
