"""Reductions and scans with functions of the kernel's own: a GPU combines in a tree, the interpreter in a row.

A reduction also combines in an order of the GPU's, and lanes that exchange what they have do not agree on which of the
two comes first: its function must be commutative.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter as engine

from assay.kernels.inside.triton.arithmetic import MeaningError
from assay.kernels.inside.triton.ledger import WrongValueError, current, refuse
from assay.kernels.inside.triton.values.rounding import moved, settled_results

_RELATIVE, _ABSOLUTE = 1e-2, 1e-3
"""How far two associations may be apart, relative to a result and to the largest one."""


def install() -> None:
    """Put it into the interpreter."""
    reduce_, scan = engine.ReduceOps.generic_reduce, engine.ScanOps.generic_scan

    def generic_reduce(self: Any, values: Any) -> Any:
        found = reduce_(self, values)
        _check(self, values, [np.ravel(part.handle.data) for part in found], "tl.reduce")
        return _rounded(found, values)

    def generic_scan(self: Any, values: Any) -> Any:
        found = scan(self, values)
        last = [np.ravel(np.take(part.handle.data, -1, self.axis)) for part in found]
        _check(self, values, last, "tl.associative_scan")
        return _rounded(found, values)

    engine.ReduceOps.generic_reduce, engine.ScanOps.generic_scan = generic_reduce, generic_scan


def _rounded(found: Any, values: Sequence[Any]) -> Any:
    """Results of this call's rounding; what was chosen among the operands has none."""
    for part, operand in zip(found if current().rounding else (), values, strict=False):
        data = part.handle.data
        if data.dtype.kind == "f":
            settled = np.isin(data, operand.handle.data) | settled_results("", data, ())
            part.handle.data = moved(data, settled)
    return found


def _check(operation: Any, values: Sequence[Any], found: Sequence[Any], name: str) -> None:
    """Refuse what comes out otherwise in a tree, which may depend on the values: so every call is looked at."""
    parts = [part.handle.data for part in values]
    if operation.axis is None:
        parts = [part.reshape(-1) for part in parts]
    axis, any_order = operation.axis or 0, isinstance(operation, engine.ReduceOps)
    if any_order:
        order = np.random.default_rng(current().rounding).permutation(parts[0].shape[axis])
        parts = [np.take(part, order, axis) for part in parts]
    tree = _combined(operation.combine_fn.fn, parts, [part.dtype for part in values], axis)
    for one, other in zip(tree, found, strict=True):
        if not _alike(np.ravel(one), other):
            needs = "associative and commutative" if any_order else "associative"
            refuse(
                WrongValueError(
                    f"the combine function of a {name} is not {needs}, and a GPU combines in a tree"
                    f"{', in any order' if any_order else ''}: there the result is another one"
                )
            )


def _combined(combine: Callable[..., Any], parts: Sequence[Any], dtypes: list[Any], axis: int) -> list[Any]:
    """Neighbours first, then pairs of them, and so on; the sizes of blocks are powers of two."""
    parts, length = list(parts), parts[0].shape[axis]
    while length > 1:
        left, right = ([np.take(part, range(start, length, 2), axis) for part in parts] for start in (0, 1))
        try:
            parts = _results(
                combine, [_block(part, dtype) for part, dtype in zip(left + right, dtypes * 2, strict=True)]
            )
        except MeaningError:  # a branch: there are no blocks on a GPU, either
            parts = _each(combine, left + right, dtypes)
        length //= 2
    return parts


def _results(combine: Callable[..., Any], operands: Sequence[Any]) -> list[Any]:
    found = combine(*operands)
    shape = operands[0].handle.data.shape
    parts = found if isinstance(found, tuple) else (found,)
    return [part.handle.data if isinstance(part, tl.tensor) else np.full(shape, part) for part in parts]


def _each(combine: Callable[..., Any], operands: Sequence[Any], dtypes: list[Any]) -> list[Any]:
    """The same, one element after the other."""
    found = [np.empty_like(operand) for operand in operands[: len(dtypes)]]
    for place in np.ndindex(operands[0].shape):
        scalars = [_scalar(part[place], dtype) for part, dtype in zip(operands, dtypes * 2, strict=True)]
        for whole, one in zip(found, _results(combine, scalars), strict=True):
            whole[place] = one.item()
    return found


def _scalar(value: Any, dtype: Any) -> Any:
    return tl.tensor(engine.TensorHandle(np.array([value]), dtype.scalar), dtype.scalar)


def _block(data: Any, dtype: Any) -> Any:
    handle = engine.TensorHandle(np.ascontiguousarray(data), dtype.scalar)
    return tl.tensor(handle, tl.block_type(dtype.scalar, list(data.shape)))


def _alike(one: Any, other: Any) -> bool:
    if other.dtype.kind != "f":
        return bool(np.array_equal(one, other))
    largest = float(np.max(np.abs(other[np.isfinite(other)]), initial=0.0))
    return bool(np.allclose(one, other, rtol=_RELATIVE, atol=_ABSOLUTE * largest + 1e-30, equal_nan=True))
