"""Problems in the KernelBench format: where they come from, and their sizes."""
