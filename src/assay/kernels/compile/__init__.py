"""Does a kernel compile for a GPU? Checked without one."""
