"""Assay's rewards inside other trainers: one adapter per host, and what all of them share. Only its own adapter imports
a host."""
