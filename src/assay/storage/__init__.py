"""Files that survive a kill: atomic writes and truncation."""
