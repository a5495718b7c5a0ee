"""Assay's rewards inside other trainers: one adapter per host, and what all of them share. Hosts are imported lazily."""
