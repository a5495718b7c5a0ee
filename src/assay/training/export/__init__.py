"""A run's checkpoint as a folder that others load: which one, its model card, and where it is put."""
