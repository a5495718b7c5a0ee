"""Error bounds of values: how far a value of the interpreter may be from what a GPU has in its place.

A bound is an attribute of a handle, an array of float64 in the shape of its values; a value without one is exact:
every GPU has those bits. `UNKNOWN` is the bound of what may be anything. A truth value has 0 or 1: whether it may be
the other one.

Errors of two values may be one error: where one was moved to where the other is, or made of it. What a value shares
with others (`Lean`) cancels where it is taken from itself, as in `x - tl.max(x)`.

A product may be fused with the sum that takes it (`Ledger.fuses`). Until then it is exact, and what its rounding has
cost (`loss`) goes with it.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import triton.language as tl

from assay.kernels.inside.triton.error_bounds.memory import UNKNOWN
from assay.kernels.inside.triton.values import bfloat16, casts

_BOUND, _LOSS, _LOSS_IN, _LEAN = "error bound", "loss of a product", "type of that product", "shared error"
JOINS, NARROW, OF_WHOLE = "sum of many", "loss in a narrow type", "whole number"
"""Attributes: `Joins`; what a sum of narrow numbers in a wider type loses where it is made in the narrow one; and the
whole number that a fraction was made of."""
BITS = "bits of a product"
"""Attribute of whole numbers that are made of the bits of what rounding has cost something."""
TWINS = "may be made twice"
"""Attribute: made by a sum that may have taken a product unrounded, and by steps that a compiler makes again where
values are needed in another layout: there it may fuse otherwise. What was loaded, reduced or multiplied as matrices is
made once."""
_EPSILON = {"fp16": 2.0**-10, "bf16": 2.0**-7, "fp32": 2.0**-23, "fp64": 2.0**-52, "fp8e4nv": 2.0**-3, "fp8e5": 2.0**-2}
"""Last bits of numbers from 1 to 2."""
_LEAST = {"fp16": 2.0**-24, "bf16": 2.0**-133, "fp32": 2.0**-149, "fp64": 5e-324, "fp8e4nv": 2.0**-9, "fp8e5": 2.0**-16}
"""The least numbers above 0."""
WAS = "narrow type"
"""Attribute: the name of the type from which a fraction was cast to a wider one, or from which the operands were of
whose product it is made."""
_CARRIED = frozenset((_BOUND, _LOSS, JOINS, NARROW, OF_WHOLE, WAS))
_INEXACT = _CARRIED - {OF_WHOLE, WAS}
LARGEST = {
    **{"fp16": 65504.0, "bf16": 3.3895e38, "fp32": 3.4028235e38, "fp64": sys.float_info.max},
    **{"fp8e4nv": 448.0, "fp8e5": 57344.0},
}
"""The largest numbers below infinity."""
NORMAL = {
    "fp16": 2.0**-14,
    "bf16": 2.0**-126,
    "fp32": 2.0**-126,
    "fp64": 2.0**-1022,
    "fp8e4nv": 2.0**-6,
    "fp8e5": 2.0**-14,
}
"""The least numbers of full precision."""
_TINY = 5e-324
"""The least bound above 0."""
_WHOLE = 2.0**53
"""Up to it float64 has all whole numbers."""
_fresh = itertools.count(1)
_LANES = 1 << 24
MOST = 0.5
"""So much of an error a value has to share with what it was made of, to be known by that once it is moved."""


class Joins(NamedTuple):
    """A sum of many numbers, of which the compiler makes one with what it is added to."""

    size: Any
    """What the numbers come to without signs, where the roundings of a sum with it are still to be counted."""
    reach: Any
    """What they come to without signs, everywhere."""
    whole: Any
    """Which sums are of whole numbers alone."""
    roundings: float
    """How many last bits of all that a sum with it loses."""
    goes_on: bool
    """Whether sums with it go on in the same way: threads keep their parts through a loop."""


class Lean(NamedTuple):
    """What a value shares with others: the part of its error that is one error with theirs, and itself with copies."""

    origins: Any
    """Numbers, each of one error; 0 for none. Below 0: of an error that values made twice (`TWINS`) need not share."""
    parts: Any
    """How far the value is off where that error is the largest it can be, with a sign; no more than its bound."""
    copies: Any
    """Numbers, each of one value and all copies of it; 0 for none."""


def bound(handle: Any) -> Any:
    """The bound of a value; None for an exact one."""
    return handle.attr.get(_BOUND)


def loss(handle: Any) -> Any:
    """What rounding has cost a product that a sum of its type may take without; None for all else."""
    return loss_of_any(handle) if handle.attr.get(_LOSS_IN) == handle.dtype.scalar.name else None


def loss_of_any(handle: Any) -> Any:
    """The same, also of what was cast to another type since then."""
    found = handle.attr.get(_LOSS)
    if callable(found):
        found = handle.attr[_LOSS] = found()
    return found


def carries(handle: Any) -> bool:
    """Whether there is more to know of a value than what it holds."""
    return not _CARRIED.isdisjoint(handle.attr)


def is_made_inexact(handle: Any) -> bool:
    """Whether a value has lost something, or may be another number on a GPU."""
    return not _INEXACT.isdisjoint(handle.attr)


def give(handle: Any, limits: Any, shared: Lean | None = None) -> Any:
    """Give a value its bound, and what it shares of it; None, and zeros, for an exact one."""
    for name in (_BOUND, _LEAN):
        handle.attr.pop(name, None)
    if limits is None:
        return handle
    limits = np.where(np.isnan(limits), UNKNOWN, limits)
    if limits.any():
        handle.attr[_BOUND] = limits = np.broadcast_to(limits, handle.data.shape)
        if shared is not None:
            parts = np.clip(np.where(np.isfinite(limits), shared.parts, 0.0), -limits, limits)
            handle.attr[_LEAN] = Lean(
                np.broadcast_to(shared.origins, limits.shape), parts, np.broadcast_to(shared.copies, limits.shape)
            )
    return handle


def give_loss(handle: Any, lost: Any, of: Any = None) -> Any:
    """Note what rounding has cost a product: an array, or what computes it once it is asked for. `of`: the handle whose
    loss it was, else the product is of this one's type."""
    handle.attr[_LOSS] = lost
    handle.attr[_LOSS_IN] = handle.dtype.scalar.name if of is None else of.attr[_LOSS_IN]
    return handle


def narrow_loss(handle: Any, kind: Any) -> Any:
    """What a sum of narrow numbers, made in a wider type, loses where the compiler makes it in the narrow one."""
    lost, name = handle.attr.get(NARROW, (None, ""))
    return lost if name == kind.scalar.name else None


def note_narrow_loss(found: Any, operands: Sequence[Any]) -> None:
    """Keep it for the cast that may come."""
    for operand in operands:
        if loss(operand) is None and (lost := loss_of_any(operand)) is not None:
            before = found.attr.get(NARROW, (None, ""))[0]
            found.attr[NARROW] = total(before, np.broadcast_to(lost, found.data.shape)), operand.attr[_LOSS_IN]


def lean(handle: Any) -> Lean | None:
    """What a value shares of its error with others."""
    found: Lean | None = handle.attr.get(_LEAN)
    return found


def named(handle: Any, least: float = 0.0) -> Lean | None:
    """The same, once an inexact value and its error have names, so that copies and what is made of it can share them.
    `least`: lanes that share less of their errors get a name for all of it."""
    limits = bound(handle)
    if limits is None:
        return None
    shared, twins = lean(handle), TWINS in handle.attr
    if shared is None:
        shared = handle.attr[_LEAN] = of_its_own(limits, twins=twins)
        return shared
    few = np.abs(shared.parts) < least * limits
    unnamed = shared.copies == 0
    if few.any() or unnamed.any():
        own = of_its_own(limits, twins=twins)
        shared = handle.attr[_LEAN] = Lean(
            np.where(few, own.origins, shared.origins),
            np.where(few, own.parts, shared.parts),
            np.where(unnamed, own.copies, shared.copies),
        )
    return shared


def of_its_own(limits: Any, *, twins: bool = False) -> Lean:
    """All of some errors, and values, under names that nothing else has. `twins`: of values that may be made twice."""
    names = next(_fresh) * _LANES + np.arange(limits.size, dtype=np.int64).reshape(limits.shape)
    return Lean(-names if twins else names, limits, names)


def _where_known(shared: Lean, anything: Any) -> Lean:
    """What is shared, but for what may be anything."""
    return Lean(*(np.where(anything, 0, part) for part in shared))


def none_shared(shape: Any) -> Lean:
    """What shares nothing."""
    nothing = np.zeros(shape, np.int64)
    return Lean(nothing, np.zeros(shape), nothing)


def difference(lhs: Any, rhs: Any, sign: Any) -> tuple[Any, Lean | None]:
    """The bound of one value and `sign` times another, and what it shares: the errors that both have add up or cancel,
    the others add up."""
    if lhs is rhs and np.all(sign == -1.0):
        return np.where(bound(lhs) == UNKNOWN, UNKNOWN, 0.0), None
    left, right = or_zero(bound(lhs)), times(bound(rhs), sign)
    one, other = lean(lhs), lean(rhs)
    if np.any(anything := (left == UNKNOWN) | (or_zero(right) == UNKNOWN)):  # which may be no number
        shape = np.broadcast_shapes(lhs.data.shape, rhs.data.shape)
        left, right = (np.where(anything, UNKNOWN, np.broadcast_to(or_zero(each), shape)) for each in (left, right))
        one, other = (None if each is None else _where_known(each, anything) for each in (one, other))
    if one is None and other is None:
        return left + or_zero(right), None
    shape = np.broadcast_shapes(lhs.data.shape, rhs.data.shape)
    one, other = one or none_shared(shape), other or none_shared(shape)
    same = (one.origins == other.origins) & (one.origins != 0)
    theirs = np.where(other.parts == 0, 0.0, sign * other.parts)
    both = one.parts + theirs
    mine = np.abs(one.parts) >= np.abs(theirs)
    others = (left - np.abs(one.parts)) + (or_zero(right) - np.abs(theirs))
    limits = np.where(same, others + np.abs(both), left + or_zero(right))
    if np.any(copies := (one.copies == other.copies) & (one.copies != 0) & (sign == -1.0)):
        limits = np.where(copies & np.isfinite(limits), 0.0, limits)
    origins = np.where(same | mine, one.origins, other.origins)
    return limits, Lean(origins, np.where(same, both, np.where(mine, one.parts, theirs)), 0)


def wide(handle: Any) -> Any:
    """Values as float64."""
    kind = handle.dtype.scalar
    if kind == tl.bfloat16:
        return bfloat16.wide(handle.data).astype(np.float64)
    return (casts.widened(handle) if kind.is_fp8() else handle).data.astype(np.float64)


def total(*parts: Any) -> Any:
    """The sum of some bounds; None where all are."""
    found = None
    for part in parts:
        if part is not None:
            found = part if found is None else found + part
    return found


def or_zero(limits: Any) -> Any:
    """A bound as numbers."""
    return 0.0 if limits is None else limits


def times(limits: Any, factor: Any) -> Any:
    """A bound times the size of what it is multiplied by: nothing where it is 0, whatever the factor, and something
    where neither is, however small."""
    if limits is None:
        return None
    with np.errstate(invalid="ignore"):
        return np.where(limits == 0, 0.0, np.maximum(limits * np.abs(factor), np.where(factor == 0, 0.0, _TINY)))


def epsilon(dtype: Any) -> float:
    """The last bit of numbers from 1 to 2."""
    return _EPSILON[dtype.scalar.name]


def last_bits(values: Any, dtype: Any) -> Any:
    """At least a last bit of each of some numbers."""
    return _EPSILON[dtype.scalar.name] * np.abs(values) + _LEAST[dtype.scalar.name]


def rounded(found: Any, limits: Any, settled: Callable[[], Any]) -> Any:
    """The bound of a result that is rounded, from that of the exact one. `settled`: which results are what they are
    because an exact operand is infinite or no number, whatever the others are; asked for where some are not finite."""
    if limits is None:
        return None
    values = wide(found)
    size = np.abs(values)
    limits = np.where(np.isnan(limits), UNKNOWN, limits)
    limits = np.where(limits > 0, limits + last_bits(size + limits, found.dtype), 0.0)
    beyond = ~(size + limits <= LARGEST[found.dtype.scalar.name])
    if not beyond.any():
        return limits
    return np.where(beyond & (limits != 0), np.where(settled(), 0.0, UNKNOWN), limits)


def scaled(found: Any, limits: Any) -> Any:
    """The bound of a result that is a power of two times an inexact number: rounded only where it is denormal."""
    name = found.dtype.scalar.name
    small = (limits > 0) & (np.abs(wide(found)) - limits < NORMAL[name])
    return np.where(small, limits + _LEAST[name], limits)


def endless(handle: Any) -> Any:
    """Which values are infinite or no number in every GPU."""
    return ~np.isfinite(wide(handle)) & (or_zero(bound(handle)) == 0) & (or_zero(loss(handle)) == 0)


def signed(handle: Any) -> Any:
    """Which values are other than zero, and of one sign, in every GPU."""
    return np.abs(wide(handle)) > or_zero(bound(handle))


def apart(left: Any, right: Any) -> Any:
    """How far some numbers are from others: 0 for equals, infinities and NaN among them."""
    found = np.abs(left - right)
    return np.where(
        (left == right) | (np.isnan(left) & np.isnan(right)), 0.0, np.where(np.isnan(found), UNKNOWN, found)
    )


def unlike(left: Any, right: Any, least: float) -> Any:
    """The same of fractions, of which two zeros of unlike signs are a least number apart: their inverses are not
    alike."""
    found = apart(left, right)
    signs = (left == 0) & (right == 0) & (np.signbit(left) != np.signbit(right))
    return np.where(signs, least, found) if signs.any() else found


def least_of(dtype: Any) -> float:
    """The least number above 0."""
    return _LEAST[dtype.scalar.name]


def ends(handle: Any) -> tuple[Any, Any]:
    """The least and the largest number that a GPU may have in the place of each value."""
    values, limits = wide(handle), bound(handle)
    if limits is None:
        return values, values
    return below(values, limits), above(values, limits)


def below(values: Any, limits: Any) -> Any:
    """The least numbers that may be in the place of values; of infinities, too."""
    return np.where(limits == UNKNOWN, -np.inf, np.where(limits == 0, values, values - limits - slack(values)))


def above(values: Any, limits: Any) -> Any:
    """The largest ones."""
    return np.where(limits == UNKNOWN, np.inf, np.where(limits == 0, values, values + limits + slack(values)))


def slack(values: Any) -> Any:
    """What float64 loses of large whole numbers."""
    large = (np.abs(values) >= _WHOLE) & np.isfinite(values)
    return np.where(large, 2.0 * _EPSILON["fp64"] * np.abs(values), 0.0) if large.any() else 0.0


def beyond(low: Any, high: Any, dtype: Any, *, without_least: bool = False) -> Any:
    """Which whole numbers, at the least and at the most, a type of NumPy may not hold. float64 has not all of 64 bits:
    those next to their ends count as beyond them. `without_least`: whose inverse the type does not hold either."""
    info = np.iinfo(dtype)
    most = float(info.max) if int(float(info.max)) <= info.max else float(np.nextafter(float(info.max), 0.0))
    least = np.nextafter(float(info.min), 0.0) if without_least and info.min < 0 else float(info.min)
    return ~((low >= least) & (high >= least) & (low <= most) & (high <= most))


def held(found: Any, limits: Any) -> Any:
    """A bound of whole numbers, as long as their type holds what they may be."""
    if limits is None:
        return None
    limits = limits + slack(limits)
    outside = beyond(below(wide(found), limits), above(wide(found), limits), found.data.dtype)
    return np.where(limits == 0, 0.0, np.where(outside, UNKNOWN, limits))


def or_unknown(limits: Any) -> Any:
    """What of a bound is left where nothing is known of what is inexact."""
    return np.where(or_zero(limits) > 0, UNKNOWN, 0.0)


def hull(values: Any, low: Any, high: Any) -> Any:
    """The bound of values that may be as low and as high."""
    return np.maximum(apart(values, low), apart(values, high))
