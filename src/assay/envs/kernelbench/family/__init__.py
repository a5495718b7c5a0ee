"""A generated family of problems: small modules over the rows of a matrix, and Triton kernels that solve them."""
