"""Triton's own reductions and scans as a GPU makes them: in a tree, in the type of the operands, in no known order."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter as engine

from assay.kernels.inside.triton.ledger import WrongValueError, current, refuse
from assay.kernels.inside.triton.unsettled import device
from assay.kernels.inside.triton.unsettled.certain import whole_results
from assay.kernels.inside.triton.unsettled.products import mark, may_fuse, summed, unrounded
from assay.kernels.inside.triton.values import bfloat16
from assay.kernels.inside.triton.values.rounding import all_orders_agree, canonical, moved, pairs, reordered

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
    engine.ScanOps.apply_impl = _backwards(engine.ScanOps.apply_impl)
    for name, function in (("cumsum", np.add), ("cumprod", np.multiply)):
        setattr(engine.ScanOps, name, _scanned(name, function))


def _backwards(apply: Callable[..., Any]) -> Callable[..., Any]:
    """Scans of one GPU in which products that go backwards stay products."""

    def apply_impl(self: Any, values: Any) -> Any:
        if not (self.reverse and current().device):
            return apply(self, values)
        turned = [self.to_tensor(np.flip(part.handle.data, self.axis), part.dtype) for part in values]
        for part, other in zip(values, turned, strict=True):
            if (known := unrounded(part.handle)) is not None:
                mark(other.handle, np.flip(known, self.axis))
        self.reverse = False
        found = apply(self, turned)
        for part in found:
            part.handle.data = np.flip(part.handle.data, self.axis)
        return found

    return apply_impl


def _sum(self: Any, values: Any) -> Any:
    data, kind = values.handle.data, values.dtype.scalar
    if kind in (tl.float16, tl.bfloat16):
        found = _sum_of_halves(values.handle, self.axis, kind == tl.bfloat16)
    else:
        add = np.logical_xor if data.dtype == np.bool_ else np.add
        found = _summed(values.handle, self.axis, add)
        if current().rounding and data.dtype.kind == "f":
            add_up = partial(np.sum, axis=self.axis, keepdims=True)
            found = reordered(found, *_orders(values.handle, add_up))
    return self.to_tensor(_shaped(self, canonical(found)), values.dtype)


def _summed(handle: Any, axis: Any, add: Any) -> Any:
    """Sums one after the other, or of halves of a block, as `_in_tree` says; of products that are not rounded yet."""
    data, product = handle.data, summed(handle)
    if current().device and data.dtype.kind == "f":
        return device.in_a_tree(data, axis, lambda sums: sums.astype(data.dtype), _first(handle))
    if product is not None and product.shape == data.shape and product.dtype == np.float64:
        return _signed(np.add.reduce(product, axis=axis, keepdims=True), product, axis).astype(data.dtype)
    if data.dtype.kind != "f":
        return add.reduce(data, axis=axis, keepdims=True, dtype=data.dtype)
    if not _in_tree():
        return _signed(add.reduce(data, axis=axis, keepdims=True, dtype=data.dtype), data, axis)
    found = data.reshape((-1,) + (1,) * (data.ndim - 1)) if axis is None else np.moveaxis(data, axis, 0)
    while len(found) > 1:
        middle = len(found) // 2
        found = found[:middle] + found[middle:]
    return found if axis is None else np.moveaxis(found, 0, axis)


def _first(handle: Any) -> Any:
    """What `device.in_a_tree` takes of products; None for all else."""
    product = summed(handle) if device.meet_in_a_thread(handle.data) else None
    return None if product is None or product.shape != handle.data.shape else (pairs, product)


def _signed(found: Any, data: Any, axis: Any) -> Any:
    """Sums that begin with their first element: -0.0 of nothing but -0.0, of which NumPy's begin with 0.0."""
    if found.all():
        return found
    return np.where((found == 0) & np.signbit(data).all(axis, keepdims=True), found.dtype.type(-0.0), found)


def _in_tree() -> bool:
    """Whether sums of this call are made in a tree: a thread adds one after the other, threads make a tree."""
    ledger = current()
    return bool(ledger.device or (ledger.rounding and (ledger.products or ledger.rounding & 16)))


def _orders(handle: Any, add: Callable[[Any], Any]) -> tuple[Any, Any]:
    """The magnitude of some sums, and which of them no order changes: a sum of two has one order, but either of two
    products may be rounded before, in half of the calls."""
    data = handle.data
    magnitude = add(np.abs(data).astype(np.float64))
    whole = add((np.rint(data) != data).astype(np.float64)) == 0
    few = add((data != 0).astype(np.float64)) <= (1 if may_fuse(handle) and current().rounding & 128 else 2)
    return magnitude, all_orders_agree(magnitude, whole) | few


def _sum_of_halves(handle: Any, axis: Any, is_bfloat16: bool) -> Any:
    """In a tree, each sum rounded: GPUs add halves as they are."""
    data = bfloat16.wide(handle.data) if is_bfloat16 else handle.data
    if current().device:
        found = device.in_a_tree(data, axis, _to_bfloat16 if is_bfloat16 else _to_half, _first(handle))
        return bfloat16.narrow(found) if is_bfloat16 else found
    rank = data.ndim
    data = data.reshape(-1) if axis is None else np.moveaxis(data, axis, 0)
    data = np.take(data, _order(len(data)), 0)
    while len(data) > 1:
        middle = len(data) // 2
        data = data[:middle] + data[middle:]
        data = bfloat16.wide(bfloat16.narrow(data)) if is_bfloat16 else data
    data = bfloat16.narrow(data) if is_bfloat16 else data
    return data.reshape((1,) * rank) if axis is None else np.moveaxis(data, 0, axis)


def _to_half(sums: Any) -> Any:
    return sums.astype(np.float16)


def _to_bfloat16(sums: Any) -> Any:
    return bfloat16.wide(bfloat16.narrow(sums))


def _order(length: int) -> Any:
    """The order in which elements meet: another one in each call with a secret, and of each GPU."""
    return np.random.default_rng(current().rounding or current().device).permutation(length)


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
    """An extreme and its place, with `tie_break_left=False`: any of several, another one in calls with a secret."""
    data, places = (part.handle.data for part in values)
    _refuse_nan(data)
    order = _order(data.shape[self.axis])
    alike = data == extreme(data, axis=self.axis, keepdims=True)
    first = np.argmax(np.take(alike, order, self.axis), axis=self.axis, keepdims=True)
    chosen = [np.take_along_axis(np.take(each, order, self.axis), first, self.axis) for each in (data, places)]
    parts = zip(chosen, values, strict=True)
    return [self.to_tensor(_shaped(self, each), part.dtype) for each, part in parts]


def _scanned(name: str, function: Any) -> Any:
    scan = getattr(engine.ScanOps, name)

    def scanned(self: Any, values: Any) -> Any:
        data = values.handle.data
        if data.dtype == np.float16 and not current().rounding & 1:
            return [self.to_tensor(canonical(_scan_in_tree(values.handle, self.axis, function)), values.dtype)]
        if data.dtype.kind == "f" and data.dtype != np.float16 and _in_tree():
            found = self.to_tensor(_scan_in_tree(values.handle, self.axis, function), values.dtype)
        else:
            (found,) = scan(self, values)
        found.handle.data = canonical(found.handle.data)
        if function is np.add and current().rounding and data.dtype.kind == "f":
            orders = _orders(values.handle, partial(np.cumsum, axis=self.axis))
            found.handle.data = reordered(found.handle.data, *orders)
        elif current().rounding and data.dtype.kind == "f":
            alike = _scan_in_tree(values.handle, self.axis, function) == function.accumulate(data, axis=self.axis)
            found.handle.data = moved(found.handle.data, alike & whole_results(found.handle.data))
        return [found]

    return scanned


def _scan_in_tree(handle: Any, axis: int, function: Any) -> Any:
    """As the lanes of a warp make it: with the neighbour, then with the pair before, and so on. A thread adds one
    after the other, which is done in some of the calls with a secret."""
    data = handle.data
    found, step = np.moveaxis(data, axis, 0).copy(), 1
    if current().device and function is np.add and len(found) > 1 and (first := _first(handle)) is not None:
        products = np.moveaxis(first[1], axis, -1)
        both = (np.stack([each[..., :-1], each[..., 1:]], -1) for each in (products, np.moveaxis(data, axis, -1)))
        found[1:], step = np.moveaxis(pairs(*both)[..., 0], -1, 0).astype(data.dtype), 2
    while step < len(found):
        found[step:] = function(found[step:], found[:-step].copy())
        step *= 2
    return np.moveaxis(found, 0, axis)
