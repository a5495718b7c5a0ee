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
from typing import Any, NamedTuple

import numpy as np
import triton.language as tl

from assay.kernels.inside.triton.error_bounds.memory import UNKNOWN
from assay.kernels.inside.triton.values import bfloat16, casts

_BOUND, _LOSS, _LEAN = "error bound", "loss of a product", "shared error"
_EPSILON = {"fp16": 2.0**-10, "bf16": 2.0**-7, "fp32": 2.0**-23, "fp64": 2.0**-52, "fp8e4nv": 2.0**-3, "fp8e5": 2.0**-2}
"""Last bits of numbers from 1 to 2."""
_LEAST = {"fp16": 2.0**-24, "bf16": 2.0**-133, "fp32": 2.0**-149, "fp64": 5e-324, "fp8e4nv": 2.0**-9, "fp8e5": 2.0**-16}
"""The least numbers above 0."""
_fresh = itertools.count(1)
_LANES = 1 << 24
MOST = 0.5
"""So much of an error a value has to share with what it was made of, to be known by that once it is moved."""


class Lean(NamedTuple):
    """The part of an error that a value shares with others: which error that is, and how much of it, with a sign."""

    origins: Any
    """Numbers, each of one error; 0 for none."""
    parts: Any
    """How far the value is off where that error is the largest it can be; no more than its bound."""


def bound(handle: Any) -> Any:
    """The bound of a value; None for an exact one."""
    return handle.attr.get(_BOUND)


def loss(handle: Any) -> Any:
    """What rounding has cost a product that a sum may take without; None for all else."""
    found = handle.attr.get(_LOSS)
    if callable(found):
        found = handle.attr[_LOSS] = found()
    return found


def carries(handle: Any) -> bool:
    """Whether there is more to know of a value than what it holds."""
    return _BOUND in handle.attr or _LOSS in handle.attr


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
            handle.attr[_LEAN] = Lean(np.broadcast_to(shared.origins, limits.shape), parts)
    return handle


def give_loss(handle: Any, lost: Any) -> Any:
    """Note what rounding has cost a product: an array, or what computes it once it is asked for."""
    handle.attr[_LOSS] = lost
    return handle


def lean(handle: Any) -> Lean | None:
    """What a value shares of its error with others."""
    found: Lean | None = handle.attr.get(_LEAN)
    return found


def named(handle: Any, least: float = 0.0) -> Lean | None:
    """The same, once an inexact value's error has a name, so that what is made of it can share it. `least`: lanes that
    share less of their errors get a name for all of it."""
    limits = bound(handle)
    if limits is None:
        return None
    shared = lean(handle)
    if shared is None or np.any(few := np.abs(shared.parts) < least * limits):
        own = of_its_own(limits)
        if shared is not None:
            own = Lean(*(np.where(few, *each) for each in zip(own, shared, strict=True)))
        shared = handle.attr[_LEAN] = own
    return shared


def of_its_own(limits: Any) -> Lean:
    """All of some errors under names that nothing else has."""
    places = np.arange(limits.size, dtype=np.int64).reshape(limits.shape)
    return Lean(next(_fresh) * _LANES + places, limits)


def none_shared(shape: Any) -> Lean:
    """What shares nothing."""
    return Lean(np.zeros(shape, np.int64), np.zeros(shape))


def difference(lhs: Any, rhs: Any, sign: Any) -> tuple[Any, Lean | None]:
    """The bound of one value and `sign` times another, and what it shares: the errors that both have add up or cancel,
    the others add up."""
    left, right = or_zero(bound(lhs)), times(bound(rhs), sign)
    one, other = lean(lhs), lean(rhs)
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
    origins = np.where(same | mine, one.origins, other.origins)
    return limits, Lean(origins, np.where(same, both, np.where(mine, one.parts, theirs)))


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
    """A bound times the size of what it is multiplied by: nothing where it is 0, whatever the factor."""
    return None if limits is None else np.where(limits == 0, 0.0, limits * np.abs(factor))


def epsilon(dtype: Any) -> float:
    """The last bit of numbers from 1 to 2."""
    return _EPSILON[dtype.scalar.name]


def last_bits(values: Any, dtype: Any) -> Any:
    """At least a last bit of each of some numbers."""
    return _EPSILON[dtype.scalar.name] * np.abs(values) + _LEAST[dtype.scalar.name]


def rounded(found: Any, limits: Any, operands: Any) -> Any:
    """The bound of a result that is rounded, from that of the exact one; `found` and `operands` are handles.

    An infinity that an exact operand has stays one, and so does a NaN.
    """
    if limits is None:
        return None
    values = wide(found)
    finite = np.isfinite(values)
    limits = np.where(limits > 0, limits + last_bits(np.where(finite, np.abs(values) + limits, 0.0), found.dtype), 0.0)
    if finite.all():
        return limits
    settled = np.zeros(values.shape, bool)
    for operand in operands:
        held = wide(operand)
        same = np.isnan(held) | (np.isinf(held) & np.isinf(values))
        settled = settled | (same & (or_zero(bound(operand)) == 0))
    return np.where(finite, limits, np.where(settled | (limits == 0), 0.0, UNKNOWN))


def apart(left: Any, right: Any) -> Any:
    """How far some numbers are from others: 0 for equals, infinities and NaN among them."""
    found = np.abs(left - right)
    return np.where(
        (left == right) | (np.isnan(left) & np.isnan(right)), 0.0, np.where(np.isnan(found), UNKNOWN, found)
    )


def ends(handle: Any) -> tuple[Any, Any]:
    """The least and the largest number that a GPU may have in the place of each value."""
    values, limits = wide(handle), bound(handle)
    if limits is None:
        return values, values
    return values - limits, values + limits


def hull(values: Any, low: Any, high: Any) -> Any:
    """The bound of values that may be as low and as high."""
    return np.maximum(apart(values, low), apart(values, high))
