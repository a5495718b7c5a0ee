"""Error bounds of sums, products of matrices, extremes and scans, which a GPU makes in an order of its own.

In any order a sum of n numbers is off by at most n - 1 roundings of what all of them come to without signs. Many
numbers are shared among threads, which add a part each (`threads`): no number then goes through n roundings.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter as engine

from assay.kernels.inside.triton.error_bounds import threads
from assay.kernels.inside.triton.error_bounds.bounds import (
    JOINS,
    LARGEST,
    Joins,
    above,
    apart,
    below,
    bound,
    epsilon,
    held,
    hull,
    least_of,
    loss,
    or_unknown,
    or_zero,
    total,
    wide,
)
from assay.kernels.inside.triton.error_bounds.memory import UNKNOWN
from assay.kernels.inside.triton.ledger import current

_WHOLE = 2.0**24
_MARGIN = 2.0
"""Times what an order of ours loses, since a GPU's is another one."""
_IEEE = engine._ir.INPUT_PRECISION.IEEE
_TF32 = engine._ir.INPUT_PRECISION.TF32
_TF32X3 = engine._ir.INPUT_PRECISION.TF32x3
_LOST_IN_TF32 = 2.0**-10
_NORMAL = 2.0**-126
"""Smaller numbers may be zeros to a tensor core."""
_ROUNDS_TO_INFINITY = (2.0 - 2.0**-11) * 2.0**127
"""Numbers from here on are closer to what follows the largest one of TF32."""
_LOST_IN_THREE = 2.0**-20
_AT_ONCE = 8
"""Products that a tensor core adds at once, each of them cut off at the last bit of the largest, and then the sum."""
_LAST_BIT_OF_EIGHT = 2.0**-12
"""That of the sums of products of eight bits: accumulators have 13 bits of them."""
_BELOW = 1.0 - 2.0**-9
_INT32 = 2.0**31


def added(values: Any, axis: int, dtype: Any, limits: Any, made: Any, most: float) -> Any:
    """The bounds of sums along an axis, which stays with one place. `values`: float64; `made`: the sums; `most`: how
    many roundings a number goes through (`threads`)."""
    found = np.zeros(_shape_without(values, axis))
    if limits is not None:
        found = np.sum(np.broadcast_to(limits, values.shape), axis, keepdims=True)
    magnitude = np.sum(np.abs(values), axis, keepdims=True) + found
    terms = np.count_nonzero((values != 0) | (or_zero(limits) != 0), axis, keepdims=True)
    own = _own(made, np.sum(values.astype(np.longdouble), axis, keepdims=True))
    lost = threads.roundings(terms, most) * epsilon(dtype) / 2.0 * magnitude + own
    found = found + np.where(_exact(values, axis, magnitude, dtype) & (found == 0), 0.0, lost)
    return _in_range(found, np.sum(finite_sizes(values), axis, keepdims=True), magnitude, dtype)


def finite_sizes(values: Any) -> Any:
    """The sizes of finite numbers."""
    return np.where(np.isfinite(values), np.abs(values), 0.0)


def _in_range(limits: Any, finite: Any, magnitude: Any, dtype: Any) -> Any:
    """Sums that pass the largest number in some order are anything, beside infinity too. `finite`: what the finite
    numbers come to; `magnitude`: all of them, with their bounds."""
    beyond = np.where(np.isfinite(magnitude), magnitude, finite) > LARGEST[dtype.scalar.name]
    return np.where(beyond, UNKNOWN, limits) if beyond.any() else limits


def _own(made: Any, exact: Any) -> Any:
    """What the interpreter's order has lost itself: a GPU may be off to the other side. `exact`: in 80 bits."""
    found = np.abs(made.reshape(exact.shape) - exact).astype(np.float64)
    return np.where(np.isfinite(found), found, 0.0)


def _shape_without(values: Any, axis: int) -> tuple[int, ...]:
    return (*values.shape[:axis], 1, *values.shape[axis + 1 :])


def _exact(values: Any, axis: int, magnitude: Any, dtype: Any) -> Any:
    """Which sums are the same in every order: of whole numbers with few enough bits, and of one or two terms."""
    whole = (np.rint(values) == values).all(axis, keepdims=True) & (magnitude <= 2.0 / epsilon(dtype))
    return whole | (np.count_nonzero(values, axis, keepdims=True) <= 2) | (magnitude == 0)


def scanned(values: Any, axis: int, dtype: Any, limits: Any, made: Any, most: float) -> Any:
    """The bounds of running sums, `made`. `most`: how many roundings a number goes through."""
    found = np.zeros(values.shape) if limits is None else np.cumsum(np.broadcast_to(limits, values.shape), axis)
    magnitude = np.cumsum(np.abs(values), axis) + found
    whole = np.logical_and.accumulate(np.rint(values) == values, axis) & (magnitude <= 2.0 / epsilon(dtype))
    few = np.cumsum(values != 0, axis) <= 2
    terms = np.cumsum((values != 0) | (or_zero(limits) != 0), axis)
    own = _own(made, np.cumsum(values.astype(np.longdouble), axis))
    lost = threads.roundings(terms, most) * epsilon(dtype) / 2.0 * magnitude + own
    limits = found + np.where((whole | few) & (found == 0), 0.0, lost)
    return _in_range(limits, np.cumsum(finite_sizes(values), axis), magnitude, dtype)


def multiplied(products: Any, values: Any, axis: int, dtype: Any, limits: Any) -> Any:
    """The bounds of running products."""
    size = np.abs(values)
    with np.errstate(all="ignore"):
        share = np.where(or_zero(limits) == 0, 0.0, or_zero(limits) / size) + epsilon(dtype)
    sums = np.cumsum(np.broadcast_to(share, values.shape), axis)
    exact = np.logical_and.accumulate((np.frexp(size)[0] == 0.5) | (size == 0), axis) & (sums <= epsilon(dtype) * 1e6)
    found = np.where(np.isfinite(products), np.abs(products), 0.0) * np.expm1(sums)
    found = np.where(exact & (np.cumsum(np.broadcast_to(or_zero(limits), values.shape), axis) == 0), 0.0, found)
    # Some order multiplies the large ones, or the small ones, first.
    with np.errstate(all="ignore"):
        powers = np.where((size > 0) & np.isfinite(size), np.log2(size), 0.0)
    upward, downward = (np.cumsum(np.maximum(sign * powers, 0.0), axis) for sign in (1.0, -1.0))
    certain = (upward < _HIGHEST[dtype.scalar.name]) & (
        (downward < _LOWEST[dtype.scalar.name]) | (products == 0) & _has_zero(size, axis)
    )
    return np.where(certain | np.logical_or.accumulate(np.isnan(values), axis), found, UNKNOWN)


def _has_zero(size: Any, axis: int) -> Any:
    return np.logical_or.accumulate(size == 0, axis)


_HIGHEST = {"fp16": 15.9, "bf16": 127.9, "fp32": 127.9, "fp64": 1023.9}
_LOWEST = {"fp16": 13.9, "bf16": 125.9, "fp32": 125.9, "fp64": 1021.9}
"""Powers of two between which products are, none of them infinite or denormal."""


def largest(values: Any, axis: int, limits: Any, *, negated: bool) -> Any:
    """The bounds of extremes along an axis, which stays with one place."""
    if limits is None:
        return np.zeros(_shape_without(values, axis))
    sign = -1.0 if negated else 1.0
    values = np.where(np.isnan(values), -np.inf, sign * values)
    low, high = below(values, limits), above(values, limits)
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
    least = np.take_along_axis(below(values, limits), places, axis)
    mine = np.arange(values.shape[axis]).reshape((-1,) + (1,) * (values.ndim - axis - 1)) == places
    own = np.take_along_axis(limits, places, axis)
    rivals = (above(values, limits) >= least) & ~mine & ((limits > 0) | (own > 0) | any_place)
    return np.where(rivals.any(axis, keepdims=True), UNKNOWN, 0.0)


def matrices(found: Any, a: Any, b: Any, d: Any, input_precision: Any) -> Any:
    """`dot`."""
    threads.spread(found)
    with np.errstate(all="ignore"):
        size = np.matmul(np.abs(wide(a)), np.abs(wide(b)))
        limits = or_zero(bound(d)) + _brought(a, b)
        sums = size + np.abs(wide(d)) + np.where(np.isfinite(limits), limits, 0.0)
    if found.data.dtype == np.int32:
        return np.where(sums >= _INT32, UNKNOWN, limits)
    if a.data.dtype == np.float32:
        limits = limits + _cut_off(a, b, size, input_precision)
    last_bit = _LAST_BIT_OF_EIGHT if a.data.itemsize == 1 else epsilon(found.dtype)
    whole = all((np.rint(wide(side)) == wide(side)).all() for side in (a, b, d))
    exact = (whole & (sums <= min(1.0 / last_bit, _WHOLE))) | (sums == 0)
    of_threads = a.data.dtype in (np.float32, np.float64) and input_precision == _IEEE
    rounds_as_ieee = of_threads or a.data.dtype == np.float64
    terms = wide(a).shape[-1]
    roundings = (terms + 1) / 2.0 if of_threads else (terms // _AT_ONCE + 1) * (_AT_ONCE + 1)
    kept = np.broadcast_to(exact & (limits == 0), found.data.shape)
    if not wide(d).any() and bound(d) is None:
        # A sum that takes the product is made with it: all its roundings count then, and most do already.
        factor = roundings * last_bit / epsilon(found.dtype)
        found.attr[JOINS] = Joins(np.where(kept, size, 0.0), size, kept & whole, factor, False)
    limits = limits + np.where(kept, 0.0, roundings * last_bit * sums)
    inexact = any(bound(side) is not None for side in (a, b, d))
    given = all(np.isfinite(wide(side)).all() for side in (a, b, d))
    limits = np.where(np.isfinite(wide(found)) | given, limits, UNKNOWN if inexact else 0.0)
    if not rounds_as_ieee:  # nobody says which zero a tensor core makes of -0.0 and products that are -0.0
        negative = (wide(found) == 0) & (wide(d) == 0) & np.signbit(wide(d))
        limits = np.where(negative, np.maximum(limits, least_of(found.dtype)), limits)
    # Beyond the largest number, before or after what TF32 cuts off, orders differ; beside infinity, too.
    reach = sums if given else np.matmul(*(finite_sizes(wide(side)) for side in (a, b))) + finite_sizes(wide(d))
    limits = np.where(np.isfinite(reach) & (reach > LARGEST[found.dtype.scalar.name] * _BELOW), UNKNOWN, limits)
    if a.data.dtype != np.float32 or input_precision not in (_TF32, _TF32X3):
        return limits
    cut = [_may_be_cut_to_infinity(side.data) for side in (a, b)]
    return np.where(cut[0].any(-1, keepdims=True) | cut[1].any(-2, keepdims=True), UNKNOWN, limits)


def _may_be_cut_to_infinity(values: Any) -> Any:
    """NaN of which TF32 has no bit that makes it one."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    return np.isnan(values) & (bits & np.uint32(0x007FE000) == 0)


def _brought(a: Any, b: Any) -> Any:
    """What the errors of two matrices make of their product."""
    left, right = bound(a), bound(b)
    found = 0.0 if left is None else np.matmul(left, np.abs(wide(b)) + or_zero(right))
    return found if right is None else found + np.matmul(np.abs(wide(a)), right)


def _cut_off(a: Any, b: Any, size: Any, input_precision: Any) -> Any:
    """What operands of float32 lose that a tensor core takes as TF32."""
    if input_precision not in (_TF32, _TF32X3):
        return 0.0
    sizes = [np.abs(wide(side)) for side in (a, b)]
    if input_precision == _TF32X3:
        # Of denormal numbers nothing is left, be they an operand or what its first part leaves of it.
        cut, lost = [np.minimum(each, _NORMAL) for each in sizes], _LOST_IN_THREE * size
    else:
        shares = [np.where(each < _NORMAL, 1.0, _share_cut_off(side)) for each, side in zip(sizes, (a, b), strict=True)]
        cut, lost = [each * share for each, share in zip(sizes, shares, strict=True)], 0.0
    lost = lost + np.matmul(cut[0], sizes[1] + cut[1]) + np.matmul(sizes[0], cut[1])
    left, right = (each + or_zero(bound(side)) >= _ROUNDS_TO_INFINITY for each, side in zip(sizes, (a, b), strict=True))
    beyond = left.any(-1, keepdims=True) | right.any(-2, keepdims=True)
    return np.where(beyond & np.isfinite(size), UNKNOWN, lost)


def _share_cut_off(side: Any) -> Any:
    return np.where(_fits_tf32(wide(side)) & (or_zero(bound(side)) == 0), 0.0, _LOST_IN_TF32)


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


def of_reduction(name: str, handle: Any, axis: int | None, made: Any) -> tuple[Any, ...]:
    """The bounds of what one of Triton's own reductions gives, the axis with one place. `made`: the first result."""
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
        lost = loss(handle) if current().fuses else None
        limits = total(limits, None if lost is None else lost.reshape(values.shape))
        return (added(values, axis, kind, limits, wide(made), threads.most_roundings(handle)),)
    if name in ("max", "min"):
        return (largest(values, axis, limits, negated=negated),)
    if name.startswith("arg"):
        places = place_of_largest(values, axis, limits, negated=negated, any_place=name.endswith("any"))
        return largest(values, axis, limits, negated=negated), places
    if limits is None:
        return (np.zeros(_shape_without(values, axis)),)
    sums = limits.sum(axis, keepdims=True)
    return (held(made, sums.reshape(made.data.shape)) if name == "sum" else or_unknown(sums),)


def of_orders(trees: Any, rows: Any) -> Any:
    """How far what several orders make is apart, for functions of a kernel's own."""
    return _MARGIN * 2.0 * np.maximum.reduce([apart(tree, rows) for tree in trees])
