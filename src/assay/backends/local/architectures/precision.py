"""When two ways to compute logits agree."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

ROUNDING = 5e-4
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
def in_float32(model: nn.Module) -> Iterator[None]:
    """For the duration, each module computes with its half-precision weights in float32.

    One module at a time has them so, while it runs; what is small would otherwise drown in the rounding of half
    precision. Where a module reads another's weights without calling it, PyTorch refuses to mix the two.
    """
    held: dict[nn.Parameter, Tensor] = {}

    def enter(module: nn.Module, _: Any) -> None:
        for parameter in module.parameters(recurse=False):
            if parameter.dtype in (torch.bfloat16, torch.float16):
                held[parameter] = parameter.data
                parameter.data = parameter.data.float()

    def leave(module: nn.Module, *_: Any) -> None:
        for parameter in module.parameters(recurse=False):
            if parameter in held:
                parameter.data = held.pop(parameter)

    hooks = [m.register_forward_pre_hook(enter) for m in model.modules()]
    hooks += [m.register_forward_hook(leave, always_call=True) for m in model.modules()]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
        for parameter, data in held.items():
            parameter.data = data


@contextlib.contextmanager
def exact_products() -> Iterator[None]:
    """For the duration, float32 products on CUDA are not rounded to TF32."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
