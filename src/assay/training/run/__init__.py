"""The run directory: ledger, checkpoints, provenance, resume."""
