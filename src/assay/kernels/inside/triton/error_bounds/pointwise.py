"""Error bounds of arithmetic on fractions: what operands bring along, and what the operation adds.

Sums, products and differences of exact operands are exact: IEEE 754 has their bits. Quotients are off by as much as
CUDA's documents say, a sum that takes a product by what the rounding of that has cost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter as engine

from assay.kernels.inside.triton.error_bounds import mixtures, sharing
from assay.kernels.inside.triton.error_bounds.bounds import (
    JOINS,
    LARGEST,
    NORMAL,
    Joins,
    bound,
    difference,
    endless,
    ends,
    epsilon,
    give,
    give_loss,
    hull,
    is_made_inexact,
    last_bits,
    least_of,
    loss,
    loss_of_any,
    note_narrow_loss,
    or_zero,
    rounded,
    scaled,
    signed,
    times,
    total,
    unlike,
    wide,
)
from assay.kernels.inside.triton.error_bounds.certain import powers_of_two
from assay.kernels.inside.triton.error_bounds.memory import UNKNOWN
from assay.kernels.inside.triton.ledger import current

_EDGE = 2.0**-20
"""How near the largest number a product is that may or may not pass it, as a part of that."""
_SMALL = 2.0**64
"""Numbers that are small beside the last bit of the largest."""
_SMALL_HALF = 2.0**-5
"""The same of float16."""
_DIVISION = 2
"""Last bits by which a quotient may be off."""
UNROUNDED = 1
"""A last bit more: functions and quotients end in a product, which a sum may take without its rounding."""


def sum_of(found: Any, lhs: Any, rhs: Any, *, sign: float) -> Any:
    """`fadd`, `fsub`."""
    limits, shared = None, None
    if bound(lhs) is not None or bound(rhs) is not None:
        limits, shared = difference(lhs, rhs, sign)
        if sign < 0:
            mixtures.note_difference(found, lhs, rhs, limits)
        limits = mixtures.of_mixture(limits, lhs, rhs, sign)
    if current().fuses:
        limits = total(limits, loss(lhs), loss(rhs))
        note_narrow_loss(found, (lhs, rhs))
    limits = total(limits, _joined(found, lhs, rhs), _rounding(found, lhs, rhs))
    return rounded(found, limits, lambda: _settled_sum(found, lhs, rhs)), shared


def _joined(found: Any, lhs: Any, rhs: Any) -> Any:
    """What a sum loses of which the compiler makes one with a sum of many, or a product of matrices, that it takes."""
    sides = [side.attr.get(JOINS) for side in (lhs, rhs)]
    if sides[0] is None and sides[1] is None:
        return None
    parts = [
        (np.abs(wide(handle)), np.abs(wide(handle)), np.rint(wide(handle)) == wide(handle))
        if side is None
        else side[:3]
        for handle, side in zip((lhs, rhs), sides, strict=True)
    ]
    size, reach, whole = parts[0][0] + parts[1][0], parts[0][1] + parts[1][1], parts[0][2] & parts[1][2]
    size, reach = (np.broadcast_to(np.where(np.isfinite(each), each, 0.0), found.data.shape) for each in (size, reach))
    if any(side is not None and side.goes_on for side in sides):
        found.attr[JOINS] = Joins(size, reach, np.broadcast_to(whole, size.shape), 1.0, True)
    roundings = max(side.roundings for side in sides if side is not None)
    exact = whole & (size <= 2.0 / epsilon(found.dtype))
    limits = np.where(exact, 0.0, roundings * epsilon(found.dtype) * size)
    # It may begin with another zero than +0, or end with it, and pass the largest number on its way.
    values = wide(found)
    negative = np.logical_or(*((wide(side) == 0) & np.signbit(wide(side)) for side in (lhs, rhs)))
    limits = np.where((values == 0) & negative, np.maximum(limits, least_of(found.dtype)), limits)
    return np.where(reach > LARGEST[found.dtype.scalar.name] * (1.0 - _EDGE), UNKNOWN, limits)


def _settled_sum(found: Any, lhs: Any, rhs: Any) -> Any:
    """Sums with infinity, which no finite number changes, or with what is no number. Infinity that rounding has made of
    a product stays one beside small numbers, and is a finite number beside another infinity."""
    kept, number, least = [], ~np.isnan(wide(found)), _SMALL_HALF if found.dtype.scalar == tl.float16 else _SMALL
    for one, other in ((lhs, rhs), (rhs, lhs)):
        small = np.abs(wide(other)) + or_zero(bound(other)) < least
        exact = ~np.isfinite(wide(one)) & (or_zero(bound(one)) == 0) & ((or_zero(loss(one)) == 0) | small)
        lasts = np.isfinite(wide(other)) | (or_zero(loss(other)) == 0) | number
        kept.append(exact & (np.isnan(wide(one)) | (np.isfinite(or_zero(bound(other))) & lasts)))
    return kept[0] | kept[1]


def _rounding(found: Any, lhs: Any, rhs: Any) -> Any:
    """What a rounding may cost where another order would round something else (`Ledger.any_order`)."""
    if not current().any_order:
        return None
    values, sides = wide(found), (wide(lhs), wide(rhs))
    exact = (sides[0] == 0) | (sides[1] == 0)
    whole = np.rint(values) == values
    if whole.any():
        whole = whole & (np.rint(sides[0]) == sides[0]) & (np.rint(sides[1]) == sides[1])
        exact = exact | (whole & (np.abs(values) <= 2.0 / epsilon(found.dtype)))
    finite = np.isfinite(values)
    if not finite.all():
        exact, values = exact | ~finite, np.where(finite, values, 0.0)
    return np.where(exact, 0.0, last_bits(values, found.dtype) / 2.0)


def product_of(found: Any, lhs: Any, rhs: Any) -> Any:
    """`fmul`; notes what its rounding has cost."""
    left, right = bound(lhs), bound(rhs)
    limits = None
    if left is not None or right is not None:
        limits = total(times(left, wide(rhs)), times(right, wide(lhs)))
        if left is not None and right is not None:
            limits = limits + times(left, right)
        scales = any(bound(side) is None and powers_of_two(wide(side)).all() for side in (lhs, rhs))
        if scales and np.isfinite(wide(found)).all():
            limits = scaled(found, limits)
        else:
            limits = rounded(found, limits, lambda: _settled_product(lhs, rhs))
        limits = _of_zeros(found, limits, (lhs, rhs))
        mixtures.note_part(found, lhs, rhs)
    limits = total(limits, _rounding(found, lhs, rhs), _multiplied_on(found, lhs, rhs))
    if np.any(edge := _at_the_edge(found, np.multiply, lhs, rhs)):
        limits = np.where(edge, UNKNOWN, or_zero(limits))
    if current().fuses:
        limits = total(limits, _doubled(lhs, rhs), _doubled(rhs, lhs))
        give_loss(found, partial(_loss, found, lhs, rhs))
        _keep_narrow_loss(found, lhs, rhs)
        _keep_narrow_loss(found, rhs, lhs)
        sharing.note_width(found, lhs, rhs)
    return limits, None if limits is None else sharing.of_product(found, lhs, rhs, limits)


def _keep_narrow_loss(found: Any, product: Any, one: Any) -> None:
    """A compiler drops a factor of 1: what is left is the narrow product that was made wider."""
    if loss(product) is None and (lost := loss_of_any(product)) is not None and (np.abs(wide(one)) == 1).all():
        give_loss(found, np.broadcast_to(lost, found.data.shape), product)


def _multiplied_on(found: Any, lhs: Any, rhs: Any) -> Any:
    """What a product loses that the compiler makes with a reduction that it takes, as threads go through a loop."""
    sides = [side.attr.get(JOINS) for side in (lhs, rhs)]
    if not any(side is not None and side.goes_on for side in sides):
        return None
    values = np.where(np.isfinite(wide(found)), wide(found), 0.0)
    found.attr[JOINS] = Joins(np.abs(values), np.abs(values), np.zeros(values.shape, bool), 1.0, True)
    return 2.0 * last_bits(values, found.dtype)


def _at_the_edge(found: Any, operation: Callable[..., Any], lhs: Any, rhs: Any) -> Any:
    """Results so near the largest number that one with other last bits, or a sum that takes them unrounded, may or may
    not pass it."""
    most = LARGEST[found.dtype.scalar.name]
    if not (np.abs(wide(found)) > most / 2.0).any():
        return False
    with np.errstate(all="ignore"):
        size = np.abs(operation(wide(lhs), wide(rhs)))
    return np.isfinite(size) & (np.abs(size - most) < most * _EDGE)


def _settled_product(lhs: Any, rhs: Any) -> Any:
    """Products with infinity of what has a sign, or with what is no number."""
    kept = [endless(one) & (np.isnan(wide(one)) | signed(other)) for one, other in ((lhs, rhs), (rhs, lhs))]
    return kept[0] | kept[1]


def _of_zeros(found: Any, limits: Any, operands: Sequence[Any]) -> Any:
    """The bound of results of which some are zeros whose signs nobody knows."""
    zero = found.data == 0
    if not zero.any():
        return limits
    doubt = np.logical_or.reduce(
        np.broadcast_arrays(zero & False, *((or_zero(bound(each)) > 0) & ~signed(each) for each in operands))
    )
    return np.where(zero & doubt & (limits == 0), least_of(found.dtype), limits)


def _doubled(product: Any, factor: Any) -> Any:
    """Twice a product is a sum of it and itself to the compiler, which fuses it with one of the two."""
    lost = loss(product)
    return None if lost is None or not (np.abs(wide(factor)) == 2).any() else np.broadcast_to(lost, product.data.shape)


def _loss(found: Any, lhs: Any, rhs: Any) -> Any:
    values = wide(found)
    if is_made_inexact(lhs) or is_made_inexact(rhs) or found.dtype.scalar == tl.float64:
        finite = np.where(np.isfinite(values), values, 0.0)
        lost: Any = np.where(_scales(found, lhs, rhs), 0.0, last_bits(finite, found.dtype))
        lost = total(lost, times(loss(lhs), wide(rhs)), times(loss(rhs), wide(lhs)))
    else:
        lost = np.where(np.isfinite(values), np.abs(wide(lhs) * wide(rhs) - values), 0.0)
    if not np.isfinite(values).all():  # beyond the largest number only once it is rounded
        beyond = np.isinf(values) & np.isfinite(wide(lhs)) & np.isfinite(wide(rhs))
        lost = np.where(beyond, UNKNOWN, lost)
    return np.broadcast_to(lost, values.shape)


def _scales(found: Any, lhs: Any, rhs: Any) -> Any:
    """Products by exact powers of two, which lose nothing but where they are denormal."""
    exact = [(or_zero(bound(side)) == 0) & powers_of_two(wide(side)) for side in (lhs, rhs)]
    limits = np.maximum(or_zero(bound(found)), np.full(found.data.shape, least_of(found.dtype)))
    return np.logical_or(*np.broadcast_arrays(*exact)) & (scaled(found, limits) == limits)


def fused(found: Any, x: Any, y: Any, z: Any) -> Any:
    """`fma`. The compiler makes a sum of one by 1 or -1, and a product of one with zero."""
    left, right = bound(x), bound(y)
    limits = total(times(left, wide(y)), times(right, wide(x)), bound(z))
    if left is not None and right is not None:
        limits = limits + times(left, right)
    limits = total(limits, _rounding(found, x, z))
    if current().fuses:
        limits = total(limits, _as_sum(found, x, y, z), _as_sum(found, y, x, z))
        if (wide(z) == 0).any():
            limits = total(limits, _doubled(x, y), _doubled(y, x))
            lost = np.where(wide(z) == 0, _loss(found, x, y), 0.0)
            give_loss(found, np.broadcast_to(lost, found.data.shape))
    return rounded(found, limits, lambda: _settled_fused(x, y, z))


def _as_sum(found: Any, one: Any, x: Any, z: Any) -> Any:
    """What is lost of x + z, where `fma` has a factor of 1 or -1: such a sum takes products unrounded."""
    unit = np.abs(wide(one)) == 1
    if not unit.any():
        return None
    note_narrow_loss(found, (x, z))
    lost = total(loss(x), loss(z), _joined(found, x, z))
    return None if lost is None else np.broadcast_to(np.where(unit, lost, 0.0), found.data.shape)


def _settled_fused(x: Any, y: Any, z: Any) -> Any:
    """Of a sum that has infinity, or of a product that has it, or of what is no number."""
    bounded = [np.isfinite(or_zero(bound(each))) for each in (x, y, z)]
    of_sum = endless(z) & (np.isnan(wide(z)) | (bounded[0] & bounded[1]))
    return of_sum | (_settled_product(x, y) & (bounded[2] | np.isnan(wide(x)) | np.isnan(wide(y))))


def quotient(found: Any, lhs: Any, rhs: Any, *, exact: bool = False) -> Any:
    """`fdiv`; `exact`: `div_rn`."""
    limits = None
    if bound(lhs) is not None or bound(rhs) is not None:
        divisor = np.abs(wide(rhs))
        least = divisor - or_zero(bound(rhs))
        values = np.where(np.isfinite(wide(found)), wide(found), 0.0)
        # In 80 bits, whose range has room for products of what is close to the ends of that of float64.
        spread, _ = difference(lhs, rhs, -values.astype(np.longdouble))
        certain = (least > 0) | (or_zero(bound(rhs)) == 0)
        limits = np.where((spread == 0) & certain, 0.0, np.where(least > 0, spread / least, UNKNOWN))
        limits = np.where(limits > 0, np.maximum(limits.astype(np.float64), least_of(tl.float64)), 0.0)
        limits = rounded(found, limits, lambda: _settled_quotient(lhs, rhs))
        limits = _of_zeros(found, limits, (lhs,))
    if exact:
        return limits
    values = wide(found)
    by_power = powers_of_two(wide(rhs)) & (or_zero(bound(rhs)) == 0)
    plain = (
        ~np.isfinite(values)
        | np.broadcast_to(by_power, values.shape)
        | ((values == 0) & ~_may_be_least(found, lhs, rhs))
    )
    own = np.where(plain, 0.0, (_DIVISION + UNROUNDED) * last_bits(np.where(plain, 0.0, values), found.dtype))
    if np.any(edge := _at_the_edge(found, np.divide, lhs, rhs)):
        own = np.where(edge, UNKNOWN, own)
    return total(limits, own)


def _may_be_least(found: Any, lhs: Any, rhs: Any) -> Any:
    """Quotients so near half the least number that one with other last bits may be that number, and not 0."""
    with np.errstate(all="ignore"):
        size = np.abs(wide(lhs).astype(np.longdouble) / wide(rhs).astype(np.longdouble))
    return size > least_of(found.dtype) / np.longdouble(2.0) * (1.0 - _EDGE)


def _settled_quotient(lhs: Any, rhs: Any) -> Any:
    """Quotients by zero of what has a sign, those of infinity by what has one, and of what is no number."""
    no_number = [endless(each) & np.isnan(wide(each)) for each in (lhs, rhs)]
    by_zero = (wide(rhs) == 0) & (or_zero(bound(rhs)) == 0) & signed(lhs)
    return no_number[0] | no_number[1] | by_zero | (endless(lhs) & signed(rhs))


def unrounded(arg: Any) -> Any:
    """An operand as one may take it that begins with a sum: a product without its rounding."""
    lost = loss(arg)
    if not current().fuses or lost is None or not np.any(lost):
        return arg
    return give(engine.TensorHandle(arg.data, arg.dtype), or_zero(bound(arg)) + lost)


def remainder(found: Any, lhs: Any, rhs: Any, *, cut: Callable[..., Any] = np.trunc) -> Any:
    """`x % y` of fractions, `fmod` and the like: it jumps where the quotient passes a whole number, or the middle
    between two. `cut`: how the quotient is rounded."""
    lhs, rhs = unrounded(lhs), unrounded(rhs)  # less so many times the divisor: a sum
    small = _denormal_remainders(found, lhs, rhs, cut)
    if bound(lhs) is None and bound(rhs) is None:
        return small
    (low, high), (least, most) = ends(lhs), ends(rhs)
    quotients = [cut(x / y) for x in (low, high) for y in (least, most)]
    same = np.logical_and.reduce([each == quotients[0] for each in quotients])
    limits = total(bound(lhs), times(bound(rhs), quotients[0]))
    anything = (or_zero(bound(lhs)) == UNKNOWN) | (or_zero(bound(rhs)) == UNKNOWN)  # no number, too
    jumps = np.where(anything, UNKNOWN, np.abs(most) + np.abs(least))
    limits = rounded(found, np.where(same & ~anything, limits, jumps), lambda: np.isnan(wide(found)) & (limits == 0))
    return total(_of_zeros(found, limits, (lhs,)), small)


def modulo(found: Any, lhs: Any, rhs: Any) -> Any:
    """`x % y` of fractions in Triton: of constants the compiler takes the exact remainder, and one of float64 that is
    made of float32 and cast back it takes in float32."""
    one, other = np.broadcast_arrays(wide(lhs), wide(rhs))
    values, least = wide(found), least_of(found.dtype)
    with np.errstate(all="ignore"):
        ways = [np.fmod(one, other)]
        if found.dtype.scalar == tl.float64:
            narrow = [each.astype(np.float32) for each in (one, other)]
            cut = one - np.trunc(narrow[0] / narrow[1]).astype(np.float64) * other
            ways.append(np.where((narrow[0] == one) & (narrow[1] == other) & ~np.isinf(other), cut, values))
        off = np.maximum.reduce([unlike(values, each, least) for each in ways])
    return total(remainder(found, lhs, rhs), off if off.any() else None)


def _denormal_remainders(found: Any, lhs: Any, rhs: Any, cut: Callable[..., Any]) -> Any:
    """What is made of denormal operands of float32, and of denormal results, goes by the way that a GPU takes."""
    if found.dtype.scalar != tl.float32:
        return None
    one, other = np.broadcast_arrays(wide(lhs), wide(rhs))
    with np.errstate(all="ignore"):
        exact = np.abs(np.fmod(one, other) if cut is np.trunc else _nearest_remainder(one, other))
    given = np.logical_or(*((np.abs(each) < NORMAL["fp32"]) & (each != 0) for each in (one, other)))
    made = ((exact < NORMAL["fp32"]) & (exact != 0)) | ((np.abs(wide(found)) < NORMAL["fp32"]) & (wide(found) != 0))
    if not (given | made).any():
        return None
    return np.where(given, UNKNOWN, np.where(made, NORMAL["fp32"], 0.0))


def _nearest_remainder(one: Any, other: Any) -> Any:
    left = np.fmod(one, other)
    return np.minimum(np.abs(left), np.abs(other) - np.abs(left))


def as_it_is(found: Any, arg: Any) -> Any:
    """`fabs`: no further apart than before."""
    return bound(arg)


def extreme_or_nan(found: Any, lhs: Any, rhs: Any, *, largest: bool) -> Any:
    """The larger or smaller of two, and NaN beside NaN, which what may be anything may be."""
    limits, shared = _pair(extreme(found, lhs, rhs, largest=largest))
    anything = (or_zero(bound(lhs)) == UNKNOWN) | (or_zero(bound(rhs)) == UNKNOWN)
    return (np.where(anything, UNKNOWN, limits) if np.any(anything) else limits), shared


def _pair(found: Any) -> tuple[Any, Any]:
    return found if isinstance(found, tuple) else (found, None)


def extreme(found: Any, lhs: Any, rhs: Any, *, largest: bool) -> Any:
    """The larger or smaller of two; a NaN is dropped."""
    if bound(lhs) is None and bound(rhs) is None:
        return None
    choose = np.fmax if largest else np.fmin
    (low, high), (least, most) = ends(lhs), ends(rhs)
    limits = hull(wide(found), choose(low, least), choose(high, most))
    return limits, sharing.of_extreme(found, lhs, rhs)
