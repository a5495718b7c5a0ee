"""Commands that train, and commands that read what a run wrote."""
