"""The sandbox's jobs in Modal's containers."""
