"""One client for all processes of a machine."""
