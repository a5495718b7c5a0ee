"""Whether float32 products may be rounded to TF32: one policy for PyTorch and Triton, candidate and baseline."""

from __future__ import annotations

import os

import torch


def set_torch_precision(tf32: bool) -> None:
    """The policy of PyTorch's own products and convolutions."""
    name = "tf32" if tf32 else "ieee"
    if hasattr(torch.backends.cuda.matmul, "fp32_precision"):
        torch.backends.cuda.matmul.fp32_precision = name
        torch.backends.cudnn.conv.fp32_precision = name  # type: ignore[attr-defined]
        torch.backends.cudnn.rnn.fp32_precision = name  # type: ignore[attr-defined]
    else:
        torch.backends.cuda.matmul.allow_tf32 = tf32
        torch.backends.cudnn.allow_tf32 = tf32


def set_precision_policy(tf32: bool) -> None:
    """The policy of PyTorch, and what `tl.dot` does where it is not told (`input_precision`)."""
    os.environ["TRITON_F32_DEFAULT"] = "tf32" if tf32 else "ieee"
    set_torch_precision(tf32)
