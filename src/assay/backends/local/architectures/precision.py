"""When two ways to compute logits agree."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor

ROUNDING = 2e-3
"""Largest difference of float32 logits that is rounding, relative to their spread."""
HALF_ROUNDING = 0.2
"""The same of half precision, as the root mean square of the median position: a rounded score may send single tokens to
another expert."""


def agree(got: Tensor, want: Tensor, dtype: torch.dtype) -> bool:
    """Whether logits [*, V] computed with weights of `dtype` differ by no more than rounding."""
    return difference(got, want, dtype) <= (ROUNDING if dtype in (torch.float32, torch.float64) else HALF_ROUNDING)


def difference(got: Tensor, want: Tensor, dtype: torch.dtype) -> float:
    """The difference of logits [*, V] that `agree` judges; infinite where one of them is not finite."""
    got, want = got.detach().double().flatten(0, -2), want.detach().double().flatten(0, -2)
    if not (got.isfinite().all() and want.isfinite().all()):
        return float("inf")
    spread = want.std(-1).mean().clamp(min=1e-30)
    if dtype in (torch.float32, torch.float64):
        return float((got - want).abs().max() / spread)
    return float((got - want).square().mean(-1).sqrt().median() / spread)


@contextlib.contextmanager
def exact_products() -> Iterator[None]:
    """For the duration, float32 products on CUDA are not rounded to TF32."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
