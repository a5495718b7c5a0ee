"""The values of kernels in Triton's interpreter: their types, and what a GPU means by arithmetic on them."""
