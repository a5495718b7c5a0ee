"""Commands on tasks, completions and kernels: nothing is trained."""
