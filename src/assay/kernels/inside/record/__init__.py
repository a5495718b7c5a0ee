"""Records what a candidate's module does, in a process that knows no values: shapes, dtypes and strides only."""
