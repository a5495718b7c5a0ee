"""Error bounds of decisions, whole numbers and casts.

A comparison that what is inexact could turn is undecided; what is chosen by it may be either side. Whole numbers that
come of fractions have bounds as those do.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter as engine

from assay.kernels.inside.triton.error_bounds import sharing
from assay.kernels.inside.triton.error_bounds.bounds import (
    LARGEST,
    OF_WHOLE,
    above,
    apart,
    below,
    beyond,
    bound,
    difference,
    ends,
    held,
    hull,
    last_bits,
    least_of,
    named,
    narrow_loss,
    or_unknown,
    or_zero,
    slack,
    times,
    total,
    unlike,
    wide,
)
from assay.kernels.inside.triton.error_bounds.memory import UNKNOWN
from assay.kernels.inside.triton.ledger import WrongValueError, refuse
from assay.kernels.inside.triton.values import bfloat16
from assay.kernels.inside.triton.values.products import OF_EIGHT_BITS

_BOOL = np.dtype(np.bool_)
_RTZ = engine._ir.ROUNDING_MODE.RTZ


def compared(found: Any, lhs: Any, rhs: Any) -> Any:
    """Any comparison: undecided where the two are no further apart than they may be off, and anything where one of them
    is. A NaN that is certain decides."""
    limits, _ = difference(lhs, rhs, -1.0)
    with np.errstate(invalid="ignore"):
        between = np.abs(wide(lhs) - wide(rhs))
    between = np.where(np.isnan(between) & (wide(lhs) == wide(rhs)), 0.0, between)  # equal infinities
    undecided = (between - slack(wide(lhs)) - slack(wide(rhs)) <= limits) & (limits > 0)
    for side in (lhs, rhs):
        undecided = undecided | (np.isnan(wide(side)) & (or_zero(bound(side)) > 0))
    anything = (or_zero(bound(lhs)) == UNKNOWN) | (or_zero(bound(rhs)) == UNKNOWN)
    for side in (lhs, rhs):
        anything = anything & ~(np.isnan(wide(side)) & (or_zero(bound(side)) <= 0))
    return np.where(anything, UNKNOWN, undecided.astype(np.float64))


def selected(found: Any, condition: Any, lhs: Any, rhs: Any) -> Any:
    """`where`. Of a condition that has no value the compiler makes a choice that has none, too."""
    limits = np.where(condition.data, or_zero(bound(lhs)), or_zero(bound(rhs)))
    if (doubt := bound(condition)) is not None:
        either = _apart(lhs, rhs) + np.maximum(or_zero(bound(lhs)), or_zero(bound(rhs)))
        limits = np.where(doubt > 0, np.where(doubt == UNKNOWN, UNKNOWN, either), limits)
    return limits, sharing.of_choice(found, condition, lhs, rhs)


def _apart(lhs: Any, rhs: Any) -> Any:
    if lhs.dtype.scalar.is_ptr():
        return np.where(lhs.data == rhs.data, 0.0, UNKNOWN)
    if not lhs.dtype.scalar.is_floating():
        other = np.where(lhs.data == rhs.data, 0.0, slack(wide(lhs)) + slack(wide(rhs)))
        return apart(wide(lhs), wide(rhs)) + other
    return unlike(wide(lhs), wide(rhs), least_of(lhs.dtype))


def summed(found: Any, lhs: Any, rhs: Any) -> Any:
    """Sums and differences."""
    if found.data.dtype == _BOOL:
        return np.maximum(or_zero(bound(lhs)), or_zero(bound(rhs)))
    limits = held(found, total(bound(lhs), bound(rhs)))
    if OF_EIGHT_BITS in lhs.attr or OF_EIGHT_BITS in rhs.attr:  # wraps, or stays at the end of its type
        outside = np.abs(wide(lhs) + wide(rhs)) >= 2.0**31
        return np.where(outside, UNKNOWN, or_zero(limits))
    return limits


def multiplied(found: Any, lhs: Any, rhs: Any) -> Any:
    """Products."""
    if found.data.dtype == _BOOL:
        return conjunction(found, lhs, rhs)
    left, right = or_zero(bound(lhs)), or_zero(bound(rhs))
    sizes = [np.abs(wide(side)) for side in (lhs, rhs)]
    return held(found, or_zero(times(left, sizes[1])) + or_zero(times(right, sizes[0] + left)))


def whole_extreme(found: Any, lhs: Any, rhs: Any) -> Any:
    """The larger or smaller of two: no further apart than the operands."""
    return np.maximum(or_zero(bound(lhs)), or_zero(bound(rhs)))


def divided(found: Any, lhs: Any, rhs: Any) -> Any:
    """Quotients, cut towards zero."""
    if bound(rhs) is not None:
        return np.where((or_zero(bound(lhs)) > 0) | (bound(rhs) > 0), UNKNOWN, 0.0)
    return _of_ends(found, lhs, lambda values: np.trunc(values / wide(rhs)))


def rest(found: Any, lhs: Any, rhs: Any) -> Any:
    """Remainders."""
    if bound(rhs) is not None:
        return np.where((or_zero(bound(lhs)) > 0) | (bound(rhs) > 0), UNKNOWN, 0.0)
    low, high = ends(lhs)
    with np.errstate(all="ignore"):
        quotients = [np.trunc(each / wide(rhs)) for each in (low, high)]
    most = np.abs(wide(rhs)) - 1.0
    either = hull(wide(found), np.where(low < 0, -most, 0.0), np.where(high > 0, most, 0.0))
    either = np.where(quotients[0] == quotients[1], bound(lhs), either)
    has_none = (wide(rhs) == 0) | beyond(quotients[0], quotients[1], found.data.dtype)
    return np.where(bound(lhs) == 0, 0.0, np.where(has_none, UNKNOWN, either))


def shifted(found: Any, lhs: Any, rhs: Any, *, left: bool) -> Any:
    """Shifts by a number that is certain."""
    if bound(rhs) is not None:
        return np.where((or_zero(bound(lhs)) > 0) | (bound(rhs) > 0), UNKNOWN, 0.0)
    power = np.ldexp(1.0, np.clip(wide(rhs), 0, 64).astype(np.int64))
    if left:
        return held(found, bound(lhs) * power)
    return _of_ends(found, lhs, lambda values: np.floor(values / power))


def _of_ends(found: Any, lhs: Any, compute: Callable[[Any], Any]) -> Any:
    limits = bound(lhs)
    low, high = ends(lhs)
    with np.errstate(all="ignore"):
        first, last = compute(low), compute(high)
    outside = beyond(low, high, lhs.data.dtype) | beyond(first, last, found.data.dtype)
    return np.where(limits == 0, 0.0, np.where(outside, UNKNOWN, hull(wide(found), first, last)))


def absolute(found: Any, arg: Any) -> Any:
    """Sizes. The least number of a type is its own."""
    return np.where(beyond(*ends(arg), found.data.dtype, without_least=True), or_unknown(bound(arg)), bound(arg))


def conjunction(found: Any, lhs: Any, rhs: Any) -> Any:
    """`and` of truth values, and of bits: those of numbers without a sign are no more than either."""
    left, right = or_zero(bound(lhs)), or_zero(bound(rhs))
    if found.data.dtype == _BOOL:
        return (((left > 0) & (rhs.data | (right > 0))) | ((right > 0) & (lhs.data | (left > 0)))).astype(np.float64)
    doubt = (left > 0) | (right > 0)
    most = np.minimum(*(np.where(low >= 0, high, UNKNOWN) for low, high in map(ends, (lhs, rhs))))
    return np.where(doubt, most, 0.0)


def disjunction(found: Any, lhs: Any, rhs: Any) -> Any:
    """`or` of truth values, and of bits."""
    left, right = or_zero(bound(lhs)), or_zero(bound(rhs))
    if found.data.dtype == _BOOL:
        return (((left > 0) & (~rhs.data | (right > 0))) | ((right > 0) & (~lhs.data | (left > 0)))).astype(np.float64)
    return np.where((left > 0) | (right > 0), UNKNOWN, 0.0)


def exclusive(found: Any, lhs: Any, rhs: Any) -> Any:
    """Exclusive `or`. Of a number and the same with its partner's bits it is the partner, as `tl.sort` swaps them."""
    for one, both in ((lhs, rhs), (rhs, lhs)):
        if sharing.PAIR in both.attr:
            first, second, limits, others = both.attr[sharing.PAIR]
            mine = named(one)
            if mine is not None and mine.copies.shape == first.shape and (mine.copies != 0).all():
                is_first, is_second = mine.copies == first, mine.copies == second
                if (is_first | is_second).all():
                    return np.where(is_first, others, limits)
    left, right = or_zero(bound(lhs)), or_zero(bound(rhs))
    if found.data.dtype == _BOOL:
        return np.maximum(left, right)
    return np.where((left > 0) | (right > 0), UNKNOWN, 0.0)


def cast(found: Any, source: Any, *how: Any) -> Any:
    """Casts between numbers. `how`: the direction in which a fraction is rounded, where that is not to the nearest."""
    limits = bound(source)
    kind, before = found.dtype.scalar, source.dtype.scalar
    if kind.is_floating():
        spread = _to_fraction(found, source, limits, cut_off=_RTZ in how)
        spread = total(spread, _narrow(found, source), _once(found, source))
        return None if spread is None else sharing.of_cast(found, source, spread)
    if limits is None:
        return None
    if kind.is_bool():
        return np.where(limits == UNKNOWN, UNKNOWN, (limits > 0).astype(np.float64))
    low, high = ends(source)
    if before.is_floating():
        low, high = np.trunc(low), np.trunc(high)
    outside = beyond(low, high, found.data.dtype)
    values = np.trunc(wide(source)) if before.is_floating() else wide(source)
    return np.where(limits == 0, 0.0, np.where(outside, UNKNOWN, hull(values, low, high)))


def _narrow(found: Any, source: Any) -> Any:
    """How far a sum that was cast is from one that was made in the narrow type, and rounded there."""
    lost = narrow_loss(source, found.dtype)
    if lost is None:
        return None
    size = np.where(np.isfinite(wide(found)), np.abs(wide(found)), 0.0)
    return np.where(lost > 0, lost + last_bits(size + np.where(lost == UNKNOWN, 0.0, lost), found.dtype), 0.0)


def note_whole(found: Any, source: Any) -> None:
    """A fraction that was made of a whole number remembers it: of two casts the compiler makes one."""
    kinds = [each.dtype.scalar for each in (found, source)]
    if kinds[0].is_floating() and not kinds[1].is_floating() and source.data.itemsize > 2:
        found.attr[OF_WHOLE] = source.data
    elif OF_WHOLE in source.attr and all(kind.is_floating() for kind in kinds):
        found.attr[OF_WHOLE] = source.attr[OF_WHOLE]


def keep_within_bytes(found: Any, source: Any) -> None:
    """Refuse a fraction that uint8 cannot hold: the compiler leaves out the cut to 8 bits, and what is beyond them ends
    in the next byte of a register, which is another element."""
    if found.dtype.scalar != tl.uint8 or not source.dtype.scalar.is_floating():
        return
    values, limits = wide(source), or_zero(bound(source))
    beyond = (values + limits >= 2.0**8) | (limits == UNKNOWN)
    if np.any(beyond | (np.isnan(values) & (source.dtype.scalar == tl.float64))):
        refuse(
            WrongValueError(
                "a fraction that uint8 cannot hold is cast to it: a GPU may write what is beyond its 8 bits into the "
                "element beside it. Clamp it first"
            )
        )


def _once(found: Any, source: Any) -> Any:
    """How far a narrower fraction of a whole number is from that number rounded once."""
    number, name = source.attr.get(OF_WHOLE), found.dtype.scalar.name
    if number is None or not source.dtype.scalar.is_floating() or name not in _NEAREST:
        return None
    between = apart(wide(found), _NEAREST[name](number.astype(np.float64)))
    # Of 64 bits float64 has not all: the number may be on the other side of a middle between two.
    return between + np.where(slack(number.astype(np.float64)) > 0, last_bits(wide(found), found.dtype), 0.0)


def _to_fraction(found: Any, source: Any, limits: Any, *, cut_off: bool) -> Any:
    if limits is None:
        return None
    values = wide(source)
    most = LARGEST[found.dtype.scalar.name]
    finite = np.isfinite(values)
    size = np.where(finite, np.abs(values) + np.where(np.isfinite(limits), limits, 0.0), 0.0)
    if (nearest := _NEAREST.get(found.dtype.scalar.name)) is not None:
        # Most numbers are rounded to the same one wherever within their bounds they are.
        least, mine = least_of(found.dtype), wide(found)
        ends = (nearest(each) for each in (below(values, limits), above(values, limits)))
        spread = np.maximum(*(unlike(mine, each, least) for each in ends))
        if cut_off:
            spread = spread + last_bits(size, found.dtype)
    else:
        spread = limits + last_bits(size, found.dtype)
    spread = np.where(size > most, UNKNOWN, spread)
    return np.where(limits == 0, 0.0, np.where(finite, spread, limits))


_NEAREST: dict[str, Callable[[Any], Any]] = {
    "fp16": lambda values: values.astype(np.float16).astype(np.float64),
    "bf16": lambda values: bfloat16.wide(bfloat16.narrow(values)).astype(np.float64),
    "fp32": lambda values: values.astype(np.float32).astype(np.float64),
}
"""Rounds float64 to another type."""


def read_as(found: Any, source: Any) -> Any:
    """Bits read as another type. Those of a NaN that was computed are any NaN's."""
    limits = or_zero(bound(source))
    kind, before = found.dtype.scalar, source.dtype.scalar
    nan = np.isnan(wide(source)) if before.is_floating() else np.zeros(source.data.shape, bool)
    if kind.is_floating() == before.is_floating():
        spread = np.where(limits > 0, UNKNOWN, 0.0) if kind.name != before.name else limits
    elif before.is_floating() and before.name in ("fp16", "fp32", "fp64"):
        spread = _bits_of(source, limits)
    elif kind.is_floating() and kind.name in ("fp16", "fp32", "fp64"):
        spread = _read_bits(found, source, limits)
    else:
        spread = np.where(limits > 0, UNKNOWN, 0.0)
    if before.is_floating() and kind.name != before.name:
        spread = np.where(nan, UNKNOWN, spread)
    return spread, sharing.of_bits(found, source, spread)


def _bits_of(source: Any, limits: Any) -> Any:
    """Those of numbers of one sign count up with their sizes."""
    dtype = source.data.dtype
    bits = np.dtype(f"i{dtype.itemsize}")
    values = wide(source)
    outward = np.where(
        limits > 0, last_bits(np.abs(values) + np.where(np.isfinite(limits), limits, 0.0), source.dtype), 0.0
    )
    low, high = values - limits - outward, values + limits + outward
    one_sign = (np.sign(low) == np.sign(high)) & np.isfinite(low) & np.isfinite(high)
    least, counts, most = (np.asarray(each).astype(dtype).view(bits) for each in (low, source.data, high))
    ways = [np.abs(np.where(one_sign, each - counts, 0).astype(np.float64)) for each in (least, most)]
    return np.where(limits == 0, 0.0, np.where(one_sign, np.maximum(*ways), UNKNOWN))


def _read_bits(found: Any, source: Any, limits: Any) -> Any:
    dtype = found.data.dtype
    bits = np.dtype(f"i{dtype.itemsize}")
    counts = np.ascontiguousarray(source.data).view(bits)
    low, high = (side(counts.astype(np.float64), limits) for side in (below, above))
    one_sign = (low >= 0) == (high >= 0)
    inside = one_sign & ~beyond(low, high, bits, without_least=True)
    step = np.ceil(np.where(inside, limits, 0.0)).astype(bits)
    sides = [each.astype(bits).view(dtype).astype(np.float64) for each in (counts - step, counts + step)]
    return np.where(limits == 0, 0.0, np.where(inside, hull(found.data.astype(np.float64), *sides), UNKNOWN))


def moved_pointer(found: Any, pointer: Any, offset: Any) -> Any:
    """An address that is not certain may be any."""
    doubt = (or_zero(bound(pointer)) > 0) | (or_zero(bound(offset)) > 0)
    return np.where(doubt, UNKNOWN, 0.0)


def gathered(found: Any, source: Any, places: Any, axis: int) -> Any:
    """Elements at places."""
    limits = bound(source)
    spread = np.zeros(found.data.shape) if limits is None else np.take_along_axis(limits, places.data, axis=axis)
    return spread if bound(places) is None else np.where(bound(places) > 0, UNKNOWN, spread)


def anything(found: Any, *operands: Any) -> Any:
    """What no rule is for: nothing is known of a result that something inexact went into."""
    return np.full(found.data.shape, UNKNOWN)


_COMPARISONS = (
    *(f"create_icmp{name}" for name in ("SLE", "SLT", "SGE", "SGT", "ULE", "ULT", "UGE", "UGT", "EQ", "NE")),
    *(f"create_fcmp{order}{name}" for order in "OU" for name in ("LT", "GT", "LE", "GE", "EQ", "NE")),
)
OF_CHOICES: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(_COMPARISONS, compared),
    "create_select": selected,
    "create_add": summed,
    "create_sub": summed,
    "create_mul": multiplied,
    **dict.fromkeys(("create_minsi", "create_minui", "create_maxsi", "create_maxui"), whole_extreme),
    **dict.fromkeys(("create_idiv", "create_sdiv", "create_udiv"), divided),
    **dict.fromkeys(("create_srem", "create_urem"), rest),
    "create_shl": partial(shifted, left=True),
    **dict.fromkeys(("create_lshr", "create_ashr"), partial(shifted, left=False)),
    "create_and": conjunction,
    "create_or": disjunction,
    "create_xor": exclusive,
    "create_iabs": absolute,
    "create_addptr": moved_pointer,
}
"""Rules of the builder's methods."""
OF_CASTS: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("cast_impl", "create_fp_to_fp", "create_fp_to_si", "create_fp_to_ui"), cast),
    "create_bitcast": read_as,
}
"""The same of what takes a type beside a value."""
