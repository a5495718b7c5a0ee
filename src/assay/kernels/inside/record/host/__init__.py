"""What host code sees of a GPU while it is recorded, and refusals of all that a GPU might show otherwise."""
