"""More of what a GPU puts in order, and what not."""
