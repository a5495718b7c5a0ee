"""`assay grade-server`: the grader as an HTTP service, for trainers whose GPUs must not run untrusted code."""
