"""What a submission does, as data: storages, windows onto them, kernels, and the operations and launches of a call."""
