"""Combine functions, called with blocks, or with one element after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter as engine

from assay.kernels.inside.triton.error_bounds.bounds import apart, bound, give, or_zero
from assay.kernels.inside.triton.error_bounds.memory import UNKNOWN
from assay.kernels.inside.triton.error_bounds.sums import of_orders
from assay.kernels.inside.triton.ledger import current
from assay.kernels.inside.triton.values import bfloat16

RELATIVE = 1e-2
"""How far two orders may be apart, as a part of a result."""
Parts = list[Any]
"""The arrays of a tuple of blocks, the axis that is combined last."""


class Combine:
    """A combine function as one of arrays. `one_by_one`: it branches, so that it takes one element after the other;
    `any_order`: there is more than one order."""

    def __init__(self, function: Callable[..., Any], dtypes: Sequence[Any]) -> None:
        self.function, self.dtypes, self.one_by_one, self.any_order = function, list(dtypes), False, False

    def __call__(self, left: Parts, right: Parts) -> Parts:
        """What it makes of two sides."""
        if not self.one_by_one:
            blocks = [_block(part, dtype) for part, dtype in zip(left + right, self.dtypes * 2, strict=True)]
            return self._results(blocks)
        found = [np.empty_like(part) for part in left]
        for place in np.ndindex(left[0].shape):
            operands = [_scalar(part[place], dtype) for part, dtype in zip(left + right, self.dtypes * 2, strict=True)]
            for whole, one in zip(found, self._results(operands), strict=True):
                whole[place] = one.item()
        return found

    def either(self, one: Parts, other: Parts) -> Parts:
        """What was made in one way, and might have been in another one."""
        return one

    def _results(self, operands: Sequence[Any]) -> Parts:
        found = self.function(*operands)
        parts = found if isinstance(found, tuple) else (found,)
        shape = operands[0].handle.data.shape
        kinds = [operand.handle.data.dtype for operand in operands]
        return [
            part.to(dtype).handle.data if isinstance(part, tl.tensor) else np.full(shape, part, kind)
            for part, dtype, kind in zip(parts, self.dtypes, kinds, strict=False)
        ]


class Bounded(Combine):
    """The same with error bounds: each side has its arrays, and as many of bounds."""

    def __call__(self, left: Parts, right: Parts) -> Parts:
        """The same, and its bounds."""
        count = len(self.dtypes)
        sides = [(side[:count], side[count:]) for side in (left, right)]
        data, limits = ([part for side in sides for part in side[place]] for place in (0, 1))
        if not self.one_by_one:
            return self._bounded(
                [_block(part, dtype) for part, dtype in zip(data, self.dtypes * 2, strict=True)], limits
            )
        found = [np.empty_like(part) for part in left]
        for place in np.ndindex(left[0].shape):
            operands = [_scalar(part[place], dtype) for part, dtype in zip(data, self.dtypes * 2, strict=True)]
            for whole, one in zip(found, self._bounded(operands, [part[place] for part in limits]), strict=True):
                whole[place] = one.item()
        return found

    def either(self, one: Parts, other: Parts) -> Parts:
        """The same with bounds that hold for both."""
        count = len(self.dtypes)
        sides = zip(self.dtypes, one, other, one[count:], other[count:], strict=False)
        return [*one[:count], *(_of_both(*each) for each in sides)]

    def _bounded(self, operands: Sequence[Any], limits: Sequence[Any]) -> Parts:
        for operand, limit in zip(operands, limits, strict=True):
            give(operand.handle, np.reshape(limit, operand.handle.data.shape))
        ledger = current()
        ledger.any_order = self.any_order
        try:
            found = self.function(*operands)
        finally:
            ledger.any_order = False
        results = found if isinstance(found, tuple) else (found,)
        shape = operands[0].handle.data.shape
        parts = [
            part.to(dtype).handle if isinstance(part, tl.tensor) else engine.TensorHandle(np.full(shape, part), dtype)
            for part, dtype in zip(results, self.dtypes, strict=False)
        ]
        return [*(part.data for part in parts), *(np.broadcast_to(or_zero(bound(part)), shape) for part in parts)]


def _of_both(dtype: Any, one: Any, other: Any, limits: Any, others: Any) -> Any:
    """The bounds of what was made in two ways: those of roundings, or more where these do not explain it."""
    if not dtype.is_floating():  # float64 has not all of them
        return np.where(one == other, np.maximum(limits, others), UNKNOWN)
    one, other = (as_float64(each, dtype) for each in (one, other))
    limits, spread = np.maximum(limits, others), apart(one, other)
    if (explained := spread <= limits).all():
        return limits
    near = spread <= RELATIVE * np.maximum(np.abs(one), np.abs(other))
    return np.where(explained, limits, np.where(near, limits + of_orders([other], one), UNKNOWN))


def _scalar(value: Any, dtype: Any) -> Any:
    return tl.tensor(engine.TensorHandle(np.array([value]), dtype), dtype)


def _block(data: Any, dtype: Any) -> Any:
    return tl.tensor(engine.TensorHandle(np.ascontiguousarray(data), dtype), tl.block_type(dtype, list(data.shape)))


def as_float64(data: Any, dtype: Any) -> Any:
    """Numbers of a type as float64."""
    return (bfloat16.wide(data) if dtype == tl.bfloat16 else data).astype(np.float64)
