"""KernelBench: GPU kernels written by a model, judged by `assay.kernels`."""
