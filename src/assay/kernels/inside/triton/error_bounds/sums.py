"""Error bounds of sums, products of matrices, extremes and scans, which a GPU makes in an order of its own.

A sum is off by what its partial sums lose to rounding: the most of that in several orders, twice over.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter as engine

from assay.kernels.inside.triton.error_bounds.bounds import (
    UNKNOWN,
    apart,
    bound,
    epsilon,
    hull,
    last_bits,
    loss,
    or_zero,
    times,
    total,
    wide,
)
from assay.kernels.inside.triton.ledger import current

_WHOLE = 2.0**24
_MARGIN = 2.0
"""Times what an order of ours loses, since a GPU's is another one."""
_TF32 = engine._ir.INPUT_PRECISION.TF32
_TF32X3 = engine._ir.INPUT_PRECISION.TF32x3
_LOST_IN_TF32 = 2.0**-10
_LOST_IN_THREE = 2.0**-20
_AT_ONCE = 4
"""At least so many products a tensor core adds before it cuts off."""
_INT32 = 2.0**31


def added(values: Any, axis: int, dtype: Any, limits: Any, *, order: bool = True) -> Any:
    """The bounds of sums along an axis, which stays with one place. `values`: float64. `order`: whether it is open."""
    found = np.zeros(_shape_without(values, axis)) if limits is None else np.sum(np.broadcast_to(limits, values.shape), axis, keepdims=True)
    if not order or values.shape[axis] < 2:
        return found
    magnitude = np.sum(np.abs(values), axis, keepdims=True)
    lost = _MARGIN * epsilon(dtype) / 2.0 * _partial_sums(values, axis)
    return found + np.where(_exact(values, axis, magnitude, dtype) & (found == 0), 0.0, lost)


def _shape_without(values: Any, axis: int) -> tuple[int, ...]:
    return (*values.shape[:axis], 1, *values.shape[axis + 1 :])


def _exact(values: Any, axis: int, magnitude: Any, dtype: Any) -> Any:
    """Which sums are the same in every order: of whole numbers with few enough bits, and of one or two terms."""
    whole = (np.rint(values) == values).all(axis, keepdims=True) & (magnitude <= 2.0 / epsilon(dtype))
    return whole | (np.count_nonzero(values, axis, keepdims=True) <= 2) | (magnitude == 0)


def _partial_sums(values: Any, axis: int) -> Any:
    """The sizes of all partial sums, one after the other or in a tree of halves or of neighbours: the most of it."""
    line = np.moveaxis(values, axis, -1)
    finite = np.where(np.isfinite(line), line, 0.0)
    sizes = np.abs(np.cumsum(finite, -1)).sum(-1)
    for neighbours in (False, True):
        rest, made = finite, np.zeros(sizes.shape)
        while rest.shape[-1] > 1:
            middle = rest.shape[-1] // 2
            rest = rest[..., 0::2] + rest[..., 1::2] if neighbours else rest[..., :middle] + rest[..., middle:]
            made = made + np.abs(rest).sum(-1)
        sizes = np.maximum(sizes, made)
    return np.expand_dims(sizes, axis)


def scanned(values: Any, axis: int, dtype: Any, limits: Any) -> Any:
    """The bounds of running sums."""
    found = np.zeros(values.shape) if limits is None else np.cumsum(np.broadcast_to(limits, values.shape), axis)
    sums = np.cumsum(np.where(np.isfinite(values), values, 0.0), axis)
    magnitude = np.cumsum(np.abs(values), axis)
    whole = np.logical_and.accumulate(np.rint(values) == values, axis) & (magnitude <= 2.0 / epsilon(dtype))
    few = np.cumsum(values != 0, axis) <= 2
    # A tree makes sums of parts that need not be partial sums of the row.
    parts = np.maximum(np.cumsum(np.abs(sums), axis), magnitude)
    lost = _MARGIN * epsilon(dtype) / 2.0 * parts
    return found + np.where((whole | few) & (found == 0), 0.0, lost)


def multiplied(products: Any, values: Any, axis: int, dtype: Any, limits: Any) -> Any:
    """The bounds of running products."""
    size = np.abs(values)
    with np.errstate(all="ignore"):
        share = np.where(or_zero(limits) == 0, 0.0, or_zero(limits) / size) + epsilon(dtype)
    sums = np.cumsum(np.broadcast_to(share, values.shape), axis)
    exact = np.logical_and.accumulate((np.frexp(size)[0] == 0.5) | (size == 0), axis) & (sums <= epsilon(dtype) * 1e6)
    found = np.where(np.isfinite(products), np.abs(products), 0.0) * np.expm1(sums)
    return np.where(exact & (np.cumsum(np.broadcast_to(or_zero(limits), values.shape), axis) == 0), 0.0, found)


def largest(values: Any, axis: int, limits: Any, *, negated: bool) -> Any:
    """The bounds of extremes along an axis, which stays with one place."""
    if limits is None:
        return np.zeros(_shape_without(values, axis))
    sign = -1.0 if negated else 1.0
    values = np.where(np.isnan(values), -np.inf, sign * values)
    with np.errstate(invalid="ignore"):
        low, high = values - limits, values + limits
    low = np.where(np.isnan(low), -np.inf, low)
    ends = low.max(axis, keepdims=True), high.max(axis, keepdims=True)
    return hull(values.max(axis, keepdims=True), *ends)


def place_of_largest(values: Any, axis: int, limits: Any, *, negated: bool, any_place: bool) -> Any:
    """The bounds of the places of extremes: 0 where no other element can be the one. `any_place`: of several equals
    another one may be taken."""
    if limits is None:
        if not any_place:
            return np.zeros(_shape_without(values, axis))
        limits = np.zeros(values.shape)
    values = -values if negated else values
    limits = np.broadcast_to(limits, values.shape)
    best = values.argmax(axis)
    places = np.expand_dims(best, axis)
    least = np.take_along_axis(values - limits, places, axis)
    mine = np.arange(values.shape[axis]).reshape((-1,) + (1,) * (values.ndim - axis - 1)) == places
    own = np.take_along_axis(limits, places, axis)
    rivals = (values + limits >= least) & ~mine & ((limits > 0) | (own > 0) | any_place)
    return np.where(rivals.any(axis, keepdims=True), UNKNOWN, 0.0)


def matrices(found: Any, a: Any, b: Any, d: Any, input_precision: Any) -> Any:
    """`dot`."""
    left, right, start = (np.abs(wide(each)) for each in (a, b, d))
    kind = a.data.dtype
    with np.errstate(all="ignore"):
        size = np.matmul(left, right)
        limits = or_zero(bound(d)) + _product(left, bound(b)) + _product(bound(a), right)
        if bound(a) is not None and bound(b) is not None:
            limits = limits + np.matmul(bound(a), bound(b))
    if found.data.dtype == np.int32:
        outside = size + start + np.where(np.isfinite(limits), limits, 0.0) >= _INT32
        return np.where(outside, UNKNOWN, limits)
    terms = left.shape[-1]
    sums = size + start
    if kind == np.float32 and input_precision == _TF32:
        cut = [_LOST_IN_TF32 * np.where(_fits_tf32(side), 0.0, np.abs(side)) for side in (wide(a), wide(b))]
        limits = limits + np.matmul(cut[0], right) + np.matmul(left, cut[1]) + np.matmul(cut[0], cut[1])
    elif kind == np.float32 and input_precision == _TF32X3:
        limits = limits + _LOST_IN_THREE * size
    steps = terms / _AT_ONCE + 2.0
    whole = all((np.rint(wide(side)) == wide(side)).all() for side in (a, b, d))
    precise = 2.0 / epsilon(found.dtype)
    exact = (whole & (sums <= min(precise, _WHOLE))) | (sums == 0)
    lost = steps * epsilon(found.dtype) * sums
    limits = limits + np.where(exact & (limits == 0), 0.0, lost)
    values = wide(found)
    return np.where(np.isfinite(values), limits, np.where(limits > 0, UNKNOWN, 0.0) if bound(a) is not None or bound(b) is not None else 0.0)


def _product(left: Any, right: Any) -> Any:
    return 0.0 if left is None or right is None else np.matmul(left, right)


def _fits_tf32(values: Any) -> Any:
    bits = np.ascontiguousarray(values.astype(np.float32)).view(np.uint32)
    return bits & np.uint32(0x1FFF) == 0


def counted(found: Any, data: Any, bins: int, mask: Any = None) -> Any:
    """`histogram`: of numbers that are not certain nothing is known."""
    doubt = bound(data) is not None or (mask is not None and bound(mask) is not None)
    return np.full(found.data.shape, UNKNOWN if doubt else 0.0)


REDUCED = {
    tl.standard._sum_combine: "sum",
    tl.standard._elementwise_max: "max",
    tl.standard._elementwise_min: "min",
    tl.standard._argmax_combine_tie_break_left: "argmax",
    tl.standard._argmin_combine_tie_break_left: "argmin",
    tl.standard._argmax_combine_tie_break_fast: "argmax any",
    tl.standard._argmin_combine_tie_break_fast: "argmin any",
    tl.standard._xor_combine: "xor",
    tl.standard._or_combine: "or",
    tl.standard._prod_combine: "prod",
}
"""What Triton's own functions combine."""


def of_reduction(name: str, handle: Any, axis: int | None) -> tuple[Any, ...]:
    """The bounds of what one of Triton's own reductions gives, the axis with one place."""
    values, limits = wide(handle), bound(handle)
    if axis is None:
        values = values.reshape(-1)
        limits = None if limits is None else limits.reshape(-1)
        axis = 0
    if limits is not None:
        limits = np.broadcast_to(limits, values.shape)
    kind = handle.dtype.scalar
    negated = "min" in name
    if name == "sum" and kind.is_floating():
        lost = loss(handle) if current().may_fuse else None
        return (added(values, axis, kind, total(limits, None if lost is None else lost.reshape(values.shape))),)
    if name in ("max", "min"):
        return (largest(values, axis, limits, negated=negated),)
    if name.startswith("arg"):
        places = place_of_largest(values, axis, limits, negated=negated, any_place=name.endswith("any"))
        return largest(values, axis, limits, negated=negated), places
    if limits is None:
        return (np.zeros(_shape_without(values, axis)),)
    sums = limits.sum(axis, keepdims=True)
    return (sums if name == "sum" else np.where(sums > 0, UNKNOWN, 0.0),)


def unlike(trees: Any, rows: Any) -> Any:
    """How far what several orders make is apart, for functions of a kernel's own."""
    return _MARGIN * 2.0 * np.maximum.reduce([apart(tree, rows) for tree in trees])

