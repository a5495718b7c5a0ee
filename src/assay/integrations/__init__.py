"""Assay's rewards inside other trainers: one adapter per host, which alone imports it, and what all of them share."""
