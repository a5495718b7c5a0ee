"""Reductions and scans with functions of the kernel's own: a GPU combines in a tree, the interpreter in a row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter as engine

from assay.kernels.inside.triton.ledger import WrongValueError, current, refuse

_RELATIVE, _ABSOLUTE = 1e-2, 1e-3
"""How far two associations may be apart, relative to a result and to the largest one."""


def install() -> None:
    """Put it into the interpreter."""
    reduce_, scan, extreme = engine.ReduceOps.generic_reduce, engine.ScanOps.generic_scan, engine.ReduceOps.min_max

    def generic_reduce(self: Any, values: Any) -> Any:
        found = reduce_(self, values)
        _check(self, values, [np.ravel(part.handle.data) for part in found], "tl.reduce")
        return found

    def generic_scan(self: Any, values: Any) -> Any:
        found = scan(self, values)
        last = [np.ravel(np.take(part.handle.data, -1, self.axis)) for part in found]
        _check(self, values, last, "tl.associative_scan")
        return found

    def min_max(self: Any, values: Any, val_reduce_op: Any, idx_reduce_op: Any = None) -> Any:
        data = (values[0] if isinstance(values, tuple) else values).handle.data
        if idx_reduce_op is not None and data.dtype.kind == "f" and np.isnan(data).any():
            refuse(
                WrongValueError("the place of an extreme among values of which one is NaN, which depends on an order")
            )
        return extreme(self, values, val_reduce_op, idx_reduce_op)

    engine.ReduceOps.generic_reduce, engine.ScanOps.generic_scan = generic_reduce, generic_scan
    engine.ReduceOps.min_max = min_max


def _check(operation: Any, values: Sequence[Any], found: Sequence[Any], name: str) -> None:
    """Refuse what comes out otherwise in a tree. Only calls that are followed pay for it."""
    if current().observer is None:
        return
    parts = [part.handle.data for part in values]
    if operation.axis is None:
        parts = [part.reshape(-1) for part in parts]
    tree = _combined(operation.combine_fn.fn, parts, [part.dtype for part in values], operation.axis or 0)
    for one, other in zip(tree, found, strict=True):
        if not _alike(np.ravel(one), other):
            refuse(
                WrongValueError(
                    f"the combine function of a {name} is not associative, and a GPU combines in a tree: in a tree the "
                    "result is another one"
                )
            )


def _combined(combine: Callable[..., Any], parts: Sequence[Any], dtypes: Sequence[Any], axis: int) -> list[Any]:
    """Neighbours first, then pairs of them, and so on; the sizes of blocks are powers of two."""
    parts, length = list(parts), parts[0].shape[axis]
    while length > 1:
        halves = [
            [
                _block(np.take(part, range(start, length, 2), axis), dtype)
                for part, dtype in zip(parts, dtypes, strict=True)
            ]
            for start in (0, 1)
        ]
        found = combine(*halves[0], *halves[1])
        parts = [part.handle.data for part in (found if isinstance(found, tuple) else (found,))]
        length //= 2
    return parts


def _block(data: Any, dtype: Any) -> Any:
    handle = engine.TensorHandle(np.ascontiguousarray(data), dtype.scalar)
    return tl.tensor(handle, tl.block_type(dtype.scalar, list(data.shape)))


def _alike(one: Any, other: Any) -> bool:
    if other.dtype.kind != "f":
        return bool(np.array_equal(one, other))
    largest = float(np.max(np.abs(other[np.isfinite(other)]), initial=0.0))
    return bool(np.allclose(one, other, rtol=_RELATIVE, atol=_ABSOLUTE * largest + 1e-30, equal_nan=True))
