"""Triton's own reductions and scans as a GPU makes them: in the type of the operands, with the signs of zeros."""

from __future__ import annotations

from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter as engine

from assay.kernels.inside.triton.ledger import WrongValueError, refuse
from assay.kernels.inside.triton.values import bfloat16
from assay.kernels.inside.triton.values.functions import canonical
from assay.kernels.inside.triton.values.handles import check_width

_ANY_OF_EQUALS = {
    tl.standard._argmax_combine_tie_break_fast: np.max,
    tl.standard._argmin_combine_tie_break_fast: np.min,
}
"""What finds an extreme with its place where any of several may be it."""

_OF_BITS: dict[Any, Any] = {tl.standard._xor_combine: np.bitwise_xor, tl.standard._or_combine: np.bitwise_or}
"""What combines bits, of which `tl.sort` makes many: they need no loop over elements."""


def install() -> None:
    """Put it into the interpreter."""
    engine.ReduceOps.sum, engine.ReduceOps.min_max = _sum, _extreme
    apply = engine.ReduceOps.apply_impl

    def apply_impl(self: Any, values: Any) -> Any:
        if (whole := _OF_BITS.get(self.combine_fn)) is not None:
            found = whole.reduce(values[0].handle.data, axis=self.axis, keepdims=True)
            return self.to_tensor(_shaped(self, found), values[0].dtype)
        extreme = _ANY_OF_EQUALS.get(self.combine_fn)
        return apply(self, values) if extreme is None else _any_place(self, values, extreme)

    engine.ReduceOps.apply_impl = apply_impl
    for name, function in (("cumsum", np.add), ("cumprod", np.multiply)):
        setattr(engine.ScanOps, name, _scanned(name, function))


def _sum(self: Any, values: Any) -> Any:
    data, kind = values.handle.data, values.dtype.scalar
    if kind in (tl.float16, tl.bfloat16):
        found = _sum_of_halves(values.handle, self.axis, kind == tl.bfloat16)
    elif data.dtype.kind == "f":
        found = _signed(np.add.reduce(data, axis=self.axis, keepdims=True, dtype=data.dtype), data, self.axis)
    else:
        add = np.logical_xor if data.dtype == np.bool_ else np.add
        found = add.reduce(data, axis=self.axis, keepdims=True, dtype=data.dtype)
    return self.to_tensor(_shaped(self, canonical(found)), values.dtype)


def _signed(found: Any, data: Any, axis: Any) -> Any:
    """Sums that begin with their first element: -0.0 of nothing but -0.0, of which NumPy's begin with 0.0."""
    if found.all():
        return found
    return np.where((found == 0) & np.signbit(data).all(axis, keepdims=True), found.dtype.type(-0.0), found)


def _sum_of_halves(handle: Any, axis: Any, is_bfloat16: bool) -> Any:
    """In a tree, each sum rounded: GPUs add halves as they are."""
    data = bfloat16.wide(handle.data) if is_bfloat16 else handle.data
    rank = data.ndim
    data = data.reshape(-1) if axis is None else np.moveaxis(data, axis, 0)
    while len(data) > 1:
        middle = len(data) // 2
        data = data[:middle] + data[middle:]
        data = bfloat16.wide(bfloat16.narrow(data)) if is_bfloat16 else data
    data = bfloat16.narrow(data) if is_bfloat16 else data
    return data.reshape((1,) * rank) if axis is None else np.moveaxis(data, 0, axis)


def _shaped(self: Any, found: Any) -> Any:
    """A result of which the axis still has its place, as the operation is to give it."""
    if self.keep_dims:
        return found
    return found.reshape(-1)[0] if self.axis is None else np.squeeze(found, self.axis)


def _extreme(self: Any, values: Any, val_reduce_op: Any, idx_reduce_op: Any = None) -> Any:
    values = values[0] if isinstance(values, tuple) else values
    data = values.handle.data
    if idx_reduce_op is not None:
        return _leftmost(self, data, values.dtype, idx_reduce_op)
    found = val_reduce_op(data, axis=self.axis, keepdims=True)
    if data.dtype.kind == "f" and (zero := found == 0).any():
        # Of zeros a GPU takes +0.0 for the larger one.
        minus, zeros = np.signbit(data), data == 0
        largest = val_reduce_op in (np.max, np.nanmax)
        signs = np.all(minus | ~zeros, self.axis, keepdims=True) if largest else None
        signs = np.any(minus & zeros, self.axis, keepdims=True) if signs is None else signs
        found = np.where(zero, np.where(signs, -0.0, 0.0), found).astype(data.dtype)
    return self.to_tensor(_shaped(self, canonical(found)), values.dtype)


def _leftmost(self: Any, data: Any, dtype: Any, first_of: Any) -> Any:
    """The first of the extremes, with its own sign where it is a zero, and its place."""
    _refuse_nan(data)
    places = first_of(data, axis=self.axis, keepdims=True)
    found = data.reshape(-1)[places] if self.axis is None else np.take_along_axis(data, places, self.axis)
    return self.to_tensor(_shaped(self, found), dtype), self.to_tensor(_shaped(self, places), tl.int32)


def _refuse_nan(data: Any) -> None:
    if data.dtype.kind == "f" and np.isnan(data).any():
        refuse(WrongValueError("the place of an extreme among values of which one is NaN, which depends on an order"))


def _any_place(self: Any, values: Any, extreme: Any) -> Any:
    """An extreme and its place, with `tie_break_left=False`: a GPU has any of several."""
    data, places = (part.handle.data for part in values)
    _refuse_nan(data)
    alike = data == extreme(data, axis=self.axis, keepdims=True)
    first = np.argmax(alike, axis=self.axis, keepdims=True)
    chosen = [np.take_along_axis(each, first, self.axis) for each in (data, places)]
    parts = zip(chosen, values, strict=True)
    return [self.to_tensor(_shaped(self, each), part.dtype) for each, part in parts]


_OF_ONE_BIT = {np.add: np.logical_xor, np.multiply: np.logical_and}
"""What a sum and a product are of truth values."""


def _scanned(name: str, function: Any) -> Any:
    scan = getattr(engine.ScanOps, name)

    def scanned(self: Any, values: Any) -> Any:
        check_width(values.dtype.scalar)
        data = values.handle.data
        if data.dtype == np.float16:
            return [self.to_tensor(canonical(_scan_in_tree(data, self.axis, function)), values.dtype)]
        if data.dtype == np.bool_:  # in one bit, where NumPy counts
            return [self.to_tensor(_OF_ONE_BIT[function].accumulate(data, axis=self.axis), values.dtype)]
        (found,) = scan(self, values)
        found.handle.data = canonical(found.handle.data)
        return [found]

    return scanned


def _scan_in_tree(data: Any, axis: int, function: Any) -> Any:
    """As the lanes of a warp make it: with the neighbour, then with the pair before, and so on."""
    found, step = np.moveaxis(data, axis, 0).copy(), 1
    while step < len(found):
        found[step:] = function(found[step:], found[:-step].copy())
        step *= 2
    return np.moveaxis(found, 0, axis)
