"""What CPU and GPU make of the same operands in ways of their own: signs that nothing settles, ranges, numbers (of
Python's, and tensors without a dimension) beside halves, and complex numbers."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from assay.kernels.inside.replay.operator_bounds import MARGIN, SUMS, least_of
from assay.kernels.inside.triton.error_bounds.bounds import unlike
from assay.kernels.inside.triton.error_bounds.memory import UNKNOWN

_HALVES = (torch.float16, torch.bfloat16)
_EXACT_COMPLEX = frozenset({"add", "sub", "neg", "eq", "ne", "where"})
_OF_EITHER_ZERO = SUMS | frozenset(
    {
        *("maximum", "minimum", "clamp", "clamp_min", "clamp_max", "relu", "hardtanh", "leaky_relu", "amax", "amin"),
        *("max", "min", "sort", "topk", "max_pool2d_with_indices", "remainder", "fmod", "floor_divide"),
    }
)
"""Operators that give one of several zeros, or begin with one of their own, which may have the other sign."""
_WHOLE = 2.0**24
"""Up to it float32 has all whole numbers."""
_FAR = 2.0**22
"""Quotients from here on need not be cut to the same whole number."""


def of_range(name: str, numbers: Sequence[float], values: torch.Tensor, last_bits: float) -> Any:
    """Bounds of `arange` and `linspace`, of which each machine makes steps and sums in its own way; exact where start
    and steps are whole numbers.

    Args:
        name: Which of the two.
        numbers: Start, end and step; of `linspace` how many numbers.
        values: What it gives.
        last_bits: How many last bits of the largest it may be off.
    """
    exact_in = _WHOLE if name == "linspace" else math.inf
    if values.dtype.is_floating_point:  # a processor rounds the start of a part, and each number once more
        exact_in = min(_WHOLE, 2.0 / torch.finfo(values.dtype).eps)
    if not values.numel() or _by_whole_steps(name, numbers, exact_in):
        return None
    if not values.dtype.is_floating_point:
        return np.full(tuple(values.shape), UNKNOWN)
    size = values.to(torch.float64).abs().numpy()
    return np.full(size.shape, last_bits * torch.finfo(values.dtype).eps * size.max())


def _by_whole_steps(name: str, numbers: Sequence[float], most: float) -> bool:
    start, end, step = numbers
    whole = all(float(each).is_integer() and abs(each) <= most for each in numbers)
    return whole and (name == "arange" or step < 2 or (end - start) % (step - 1) == 0)


def of_remainders(one: Any, other: Any, out: torch.Tensor) -> Any:
    """Bounds of remainders of fractions: where a number is much larger than its divisor, a processor's vector code may
    give NaN, or the remainder of a rounded quotient. Those of whole numbers are exact.

    Args:
        one: What is divided.
        other: The divisor.
        out: The result, for its type.
    """
    if not out.dtype.is_floating_point:
        return 0.0
    with np.errstate(all="ignore"):
        far = np.isfinite(one) & (np.abs(one) >= _FAR * np.abs(other)) & (np.abs(other) > 0)
    return np.where(far, UNKNOWN, 0.0)


def of_complex(name: str, operands: Sequence[torch.Tensor], outs: Sequence[torch.Tensor], *, inexact: bool) -> bool:
    """Whether results may be anything because they are made of complex numbers: products and quotients of these are
    sums of products, which machines fuse and scale in their own ways."""
    if not any(each.is_complex() for each in (*operands, *outs)):
        return False
    return name not in _EXACT_COMPLEX or inexact


def half_with_numbers(operands: Sequence[torch.Tensor], numbers: Sequence[float]) -> torch.dtype | None:
    """The narrow type in which an operator computes, if it does not hold one of the numbers beside it: one machine
    rounds such a number to it, where another keeps it in float32. None otherwise.

    Args:
        operands: Those without a dimension that are of another type count as numbers too.
        numbers: Of Python's.
    """
    kind = _type_of(operands)
    if kind not in _HALVES:
        return None
    beside = [*numbers, *(float(each) for each in operands if _is_number_beside(each, kind))]
    return kind if any(_rounded(number, kind) != number for number in beside) else None


def _type_of(operands: Sequence[torch.Tensor]) -> torch.dtype | None:
    """The type in which PyTorch computes with operands: numbers give way to tensors of their kind."""
    parts = [[each.dtype for each in operands if bool(each.dim()) == shaped] for shaped in (True, False)]
    kinds = [functools.reduce(torch.promote_types, part) if part else None for part in parts]
    if kinds[0] is None or kinds[1] is None:
        return kinds[0] or kinds[1]
    return torch.result_type(torch.empty(1, dtype=kinds[0]), torch.empty((), dtype=kinds[1]))


def _is_number_beside(operand: torch.Tensor, kind: torch.dtype) -> bool:
    return not operand.dim() and operand.dtype not in (kind, torch.bool)


def _rounded(number: float, kind: torch.dtype) -> float:
    return float(torch.tensor(number, dtype=kind))


def of_numbers(
    compute: Callable[[Sequence[torch.Tensor], Callable[[float], float]], list[torch.Tensor]],
    operands: Sequence[torch.Tensor],
    plain: Sequence[torch.Tensor],
    kind: torch.dtype,
) -> list[Any]:
    """How far results are moved by whether numbers are rounded to the narrow type of an operator.

    Args:
        compute: The results of operands and of what is made of each number of Python's.
        operands: Of `half_with_numbers`.
        plain: The results as they are.
        kind: The narrow type.
    """

    def way(change: Callable[[float], float]) -> list[torch.Tensor]:
        return compute([_widened(each, kind, change) for each in operands], change)

    ways = [way(lambda number: _rounded(number, kind)), way(lambda number: number)]
    return [_between(*results) for results in zip(*ways, plain, strict=True)]


def _widened(operand: torch.Tensor, kind: torch.dtype, change: Callable[[float], float]) -> torch.Tensor:
    if _is_number_beside(operand, kind):
        return torch.tensor(change(float(operand)), dtype=torch.float32)
    return operand.to(torch.float32) if operand.dtype in _HALVES else operand


def _between(one: torch.Tensor, other: torch.Tensor, plain: torch.Tensor) -> Any:
    least = least_of(plain.dtype)
    ends = [each.to(plain.dtype).to(torch.float64).numpy() for each in (one, other, plain)]
    off = np.maximum(unlike(ends[0], ends[2], least), unlike(ends[1], ends[2], least))
    return np.where(off > 0, MARGIN * off if plain.dtype.is_floating_point else UNKNOWN, 0.0)


def may_lose_signs(name: str, operands: Sequence[torch.Tensor]) -> bool:
    """Whether an operator may give a zero of either sign."""
    if name not in _OF_EITHER_ZERO:
        return False
    fractions = [each for each in operands if each.dtype.is_floating_point]
    return any(bool(((each == 0) & torch.signbit(each)).any()) for each in fractions)


def of_signs(result: torch.Tensor, *, zeros: bool) -> Any:
    """Bounds of results whose sign nothing settles: what is no number has any bits, and zeros may have the other sign.
    None where there are no such ones.

    Args:
        result: What an operator gave.
        zeros: Whether a zero may have either sign.
    """
    if result.is_complex():  # shown as whole numbers, the signs of its parts are anything
        doubt = torch.isnan(result)
        return np.where(doubt.numpy(), UNKNOWN, 0.0) if bool(doubt.any()) else None
    if not result.dtype.is_floating_point:
        return None
    doubt = torch.isnan(result)
    if zeros:
        doubt = doubt | (result == 0)
    return np.where(doubt.numpy(), least_of(result.dtype), 0.0) if bool(doubt.any()) else None
