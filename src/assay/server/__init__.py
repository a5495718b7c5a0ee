"""Servers: what Assay offers to other machines."""
