"""How far each value of a kernel may be from what a GPU has in its place."""
