"""Error bounds of arithmetic on fractions: what operands bring along, and what the operation adds.

Sums, products and differences of exact operands are exact: IEEE 754 has their bits. Divisions and functions are off by
as much as CUDA's documents say, a sum that takes a product by what the rounding of that has cost.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Literal

import numpy as np
import triton.language as tl
from triton.runtime import interpreter as engine

from assay.kernels.inside.triton.error_bounds import sharing
from assay.kernels.inside.triton.error_bounds.bounds import (
    JOINS,
    LARGEST,
    Joins,
    above,
    apart,
    below,
    bound,
    carries,
    difference,
    endless,
    ends,
    epsilon,
    give,
    give_loss,
    hull,
    last_bits,
    least_of,
    loss,
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
from assay.kernels.inside.triton.error_bounds.certain import powers_of_two, settled_results
from assay.kernels.inside.triton.error_bounds.memory import UNKNOWN
from assay.kernels.inside.triton.ledger import current
from assay.kernels.inside.triton.libdevice import DENORMAL, EXACT, LIBRARY, LOGARITHMS, TERMS, ULPS
from assay.kernels.inside.triton.values.functions import FLUSHED, flushed

Flushes = Literal["never", "maybe", "always"]
Rule = Callable[..., Any]
"""Of the result and the operands, all handles: the bound of the result."""
NORMAL = 2.0**-126
"""The least normal float32: what is smaller is zero to some functions."""
_MOST_STEPS = 4096
_EDGE = 2.0**-20
_SMALL = 2.0**64
"""Numbers that are small beside the last bit of the largest."""
_DIVISION = 2
"""Last bits by which a quotient may be off."""
_ULPS = {"log": 1, "log2": 1, "sqrt": 1}
"""The same of the language's functions; 2 of those that are not here."""
_MOST_ULPS = 2
_UNROUNDED = 1
"""A last bit more: functions and quotients end in a product, which a sum may take without its rounding."""
_PERIODIC: dict[str, tuple[float, float]] = {
    "sin": (1.0, 2.0),
    "cos": (1.0, 2.0),
    "sinpi": (np.pi, 2.0),
    "cospi": (np.pi, 2.0),
}
"""Functions that rise and fall: their steepest slope, and how far apart two results can be."""


def sum_of(found: Any, lhs: Any, rhs: Any, *, sign: float) -> Any:
    """`fadd`, `fsub`."""
    limits, shared = None, None
    if bound(lhs) is not None or bound(rhs) is not None:
        limits, shared = difference(lhs, rhs, sign)
    if current().fuses:
        limits = total(limits, loss(lhs), loss(rhs))
        note_narrow_loss(found, (lhs, rhs))
    limits = total(limits, _joined(found, lhs, rhs), _rounding(found, lhs, rhs))
    return rounded(found, limits, lambda: _settled_sum(lhs, rhs)), shared


def _joined(found: Any, lhs: Any, rhs: Any) -> Any:
    """What a sum loses of which the compiler makes one with a sum of many, or a product of matrices, that it takes."""
    sides = [side.attr.get(JOINS) for side in (lhs, rhs)]
    if sides[0] is None and sides[1] is None:
        return None
    parts = [
        (np.abs(wide(handle)), np.rint(wide(handle)) == wide(handle)) if side is None else side[:2]
        for handle, side in zip((lhs, rhs), sides, strict=True)
    ]
    size, whole = parts[0][0] + parts[1][0], parts[0][1] & parts[1][1]
    size = np.broadcast_to(np.where(np.isfinite(size), size, 0.0), found.data.shape)
    if any(side is not None and side.goes_on for side in sides):
        found.attr[JOINS] = Joins(size, np.broadcast_to(whole, size.shape), 1.0, True)
    roundings = max(side.roundings for side in sides if side is not None)
    exact = whole & (size <= 2.0 / epsilon(found.dtype))
    return np.where(exact, 0.0, roundings * epsilon(found.dtype) * size)


def _settled_sum(lhs: Any, rhs: Any) -> Any:
    """Sums with infinity, which no finite number changes, or with what is no number. Infinity that rounding has made of
    a product stays one beside small numbers."""
    kept = []
    for one, other in ((lhs, rhs), (rhs, lhs)):
        small = np.abs(wide(other)) + or_zero(bound(other)) < _SMALL
        exact = ~np.isfinite(wide(one)) & (or_zero(bound(one)) == 0) & ((or_zero(loss(one)) == 0) | small)
        kept.append(exact & (np.isnan(wide(one)) | np.isfinite(or_zero(bound(other)))))
    return kept[0] | kept[1]


def _rounding(found: Any, lhs: Any, rhs: Any) -> Any:
    """What a rounding may cost where another order would round something else (`Ledger.any_order`)."""
    if not current().any_order:
        return None
    values, sides = wide(found), (wide(lhs), wide(rhs))
    whole = np.logical_and.reduce([np.rint(each) == each for each in np.broadcast_arrays(values, *sides)])
    exact = (whole & (np.abs(values) <= 2.0 / epsilon(found.dtype))) | (sides[0] == 0) | (sides[1] == 0)
    return np.where(
        exact | ~np.isfinite(values), 0.0, last_bits(np.where(np.isfinite(values), values, 0.0), found.dtype) / 2.0
    )


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
    limits = total(limits, _rounding(found, lhs, rhs), _multiplied_on(found, lhs, rhs))
    if np.any(edge := _at_the_edge(found, lhs, rhs)):
        limits = np.where(edge, UNKNOWN, or_zero(limits))
    if current().fuses:
        limits = total(limits, _doubled(lhs, rhs), _doubled(rhs, lhs))
        give_loss(found, partial(_loss, found, lhs, rhs))
        sharing.note_width(found, lhs, rhs)
    return limits, None if limits is None else sharing.of_product(found, lhs, rhs, limits)


def _multiplied_on(found: Any, lhs: Any, rhs: Any) -> Any:
    """What a product loses that the compiler makes with a reduction that it takes, as threads go through a loop."""
    sides = [side.attr.get(JOINS) for side in (lhs, rhs)]
    if not any(side is not None and side.goes_on for side in sides):
        return None
    values = np.where(np.isfinite(wide(found)), wide(found), 0.0)
    found.attr[JOINS] = Joins(np.abs(values), np.zeros(values.shape, bool), 1.0, True)
    return 2.0 * last_bits(values, found.dtype)


def _at_the_edge(found: Any, lhs: Any, rhs: Any) -> Any:
    """Products so near the largest number that a sum which takes them unrounded may or may not pass it."""
    most = LARGEST[found.dtype.scalar.name]
    values = wide(found)
    if not (np.abs(values) > most / 2.0).any():
        return False
    with np.errstate(all="ignore"):
        size = np.abs(wide(lhs) * wide(rhs))
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
    if carries(lhs) or carries(rhs) or found.dtype.scalar == tl.float64:
        lost: Any = last_bits(np.where(np.isfinite(values), values, 0.0), found.dtype)
        lost = total(lost, times(loss(lhs), wide(rhs)), times(loss(rhs), wide(lhs)))
    else:
        lost = np.where(np.isfinite(values), np.abs(wide(lhs) * wide(rhs) - values), 0.0)
    if not np.isfinite(values).all():  # beyond the largest number only once it is rounded
        beyond = np.isinf(values) & np.isfinite(wide(lhs)) & np.isfinite(wide(rhs))
        lost = np.where(beyond, UNKNOWN, lost)
    return np.broadcast_to(lost, values.shape)


def fused(found: Any, x: Any, y: Any, z: Any) -> Any:
    """`fma`."""
    left, right = bound(x), bound(y)
    limits = total(times(left, wide(y)), times(right, wide(x)), bound(z))
    if left is not None and right is not None:
        limits = limits + times(left, right)
    limits = total(limits, _rounding(found, x, z))
    return rounded(found, limits, lambda: _settled_fused(x, y, z))


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
        spread, _ = difference(lhs, rhs, -values)
        certain = (least > 0) | (or_zero(bound(rhs)) == 0)
        limits = np.where((spread == 0) & certain, 0.0, np.where(least > 0, spread / least, UNKNOWN))
        limits = rounded(found, limits, lambda: _settled_quotient(lhs, rhs))
        limits = _of_zeros(found, limits, (lhs,))
    if exact:
        return limits
    values = wide(found)
    plain = ~np.isfinite(values) | (values == 0) | np.broadcast_to(powers_of_two(wide(rhs)), values.shape)
    own = np.where(plain, 0.0, (_DIVISION + _UNROUNDED) * last_bits(np.where(plain, 0.0, values), found.dtype))
    return total(limits, own)


def _settled_quotient(lhs: Any, rhs: Any) -> Any:
    """Quotients by zero of what has a sign, those of infinity by what has one, and of what is no number."""
    no_number = [endless(each) & np.isnan(wide(each)) for each in (lhs, rhs)]
    by_zero = (wide(rhs) == 0) & (or_zero(bound(rhs)) == 0) & signed(lhs)
    return no_number[0] | no_number[1] | by_zero | (endless(lhs) & signed(rhs))


def remainder(found: Any, lhs: Any, rhs: Any, *, cut: Callable[..., Any] = np.trunc) -> Any:
    """`x % y` of fractions, `fmod` and the like: it jumps where the quotient passes a whole number, or the middle
    between two. `cut`: how the quotient is rounded."""
    if bound(lhs) is None and bound(rhs) is None:
        return None
    (low, high), (least, most) = ends(lhs), ends(rhs)
    quotients = [cut(x / y) for x in (low, high) for y in (least, most)]
    same = np.logical_and.reduce([each == quotients[0] for each in quotients])
    limits = total(bound(lhs), times(bound(rhs), quotients[0]))
    jumps = np.abs(most) + np.abs(least)
    limits = rounded(found, np.where(same, limits, jumps), lambda: np.isnan(wide(found)) & (limits == 0))
    return _of_zeros(found, limits, (lhs,))


def as_it_is(found: Any, arg: Any) -> Any:
    """`fabs`: no further apart than before."""
    return bound(arg)


def extreme(found: Any, lhs: Any, rhs: Any, *, largest: bool) -> Any:
    """The larger or smaller of two."""
    if bound(lhs) is None and bound(rhs) is None:
        return None
    choose = np.fmax if largest else np.fmin
    (low, high), (least, most) = ends(lhs), ends(rhs)
    limits = hull(wide(found), choose(low, least), choose(high, most))
    return limits, sharing.of_extreme(found, lhs, rhs)


def function(name: str, exact: Callable[..., Any], *, ulps: int, flushes: Flushes) -> Rule:
    """The rule of a function that GPUs approximate. `exact`: NumPy's, or one of arrays of float64; `flushes`: whether
    it takes denormal numbers of float32 for zero."""

    def rule(found: Any, *args: Any) -> Any:
        values = wide(found)
        limits: Any = np.zeros(values.shape)
        if (ulps or "fdim" in name) and current().fuses:
            args = tuple(_unrounded(arg) for arg in args)
        if any(bound(arg) is not None for arg in args):
            limits = spread(name, exact, values, args, found.data.dtype)
            limits = np.where(limits > 0, limits + last_bits(np.abs(values) + limits, found.dtype), 0.0)
        tells = flushes != "never" and found.data.dtype == np.float32
        if tells:
            limits = np.maximum(limits, _flushed(exact, values, args, always=flushes == "always"))
        if ulps:
            settled = settled_results(name, found.data, [arg.data for arg in args])
            settled = ((settled | (tells & (values == 0))) & (limits == 0)) | ~np.isfinite(values)
            limits = limits + np.where(
                settled, 0.0, (ulps + _UNROUNDED) * last_bits(np.where(settled, 0.0, values), found.dtype)
            )
        limits = _near_the_end(found, values, limits, exact, args, ulps)
        if name in TERMS:
            terms = TERMS[name](found.data, args[0].data)
            limits = limits + 2.0 * ulps * epsilon(found.dtype) * terms
        return limits

    return rule


def _near_the_end(found: Any, values: Any, limits: Any, exact: Any, args: Sequence[Any], ulps: int) -> Any:
    """Bounds of results near the largest number, where a last bit more or less makes infinity; and infinity that only
    the rounding of the last product has made, which a sum may take without."""
    most = LARGEST[found.dtype.scalar.name]
    if not ulps or not (np.abs(values) + limits > most).any():
        return limits
    made = np.isinf(values) & np.logical_and.reduce(
        np.broadcast_arrays(*(np.isfinite(wide(arg)) for arg in args), np.ones(values.shape, bool))
    )
    with np.errstate(all="ignore"):
        size = np.abs(np.asarray(exact(*(wide(arg) for arg in args)), np.float64))
    poles = ~np.isfinite(size) | (size > most * 4.0)
    edge = (np.isfinite(values) | (made & ~poles)) & (np.abs(values) + limits > most)
    if current().fuses and made.any():
        give_loss(found, np.where(made & np.isfinite(size), UNKNOWN, 0.0))
    return np.where(edge, UNKNOWN, limits)


def _unrounded(arg: Any) -> Any:
    """An operand as a function may take it that begins with a sum: a product without its rounding."""
    lost = loss(arg)
    if lost is None or not np.any(lost):
        return arg
    return give(engine.TensorHandle(arg.data, arg.dtype), or_zero(bound(arg)) + lost)


def of_signs(symbol: str, found: Any, args: Sequence[Any], limits: Any) -> Any:
    """The bound of a result that asks for a sign, with the signs of NaN, which nobody knows."""
    if _plain(symbol) not in ("copysign", "signbit", "signbitd"):
        return limits
    nan = np.isnan(wide(args[-1]))
    other = 2.0 * np.abs(wide(found)) if len(args) == 2 else 1.0
    return np.where(nan, np.maximum(or_zero(limits), other), or_zero(limits)) if nan.any() else limits


def spread(name: str, exact: Callable[..., Any], values: Any, args: Sequence[Any], dtype: Any = None) -> Any:
    """How far results may be apart for what operands may be. `dtype`: of the results, which are infinite beyond it."""
    plain = _plain(name)
    if plain in _PERIODIC:
        slope, widest = _PERIODIC[plain]
        limits = np.minimum(slope * bound(args[0]), widest)
        return np.where(np.isfinite(values) & (bound(args[0]) != UNKNOWN), limits, UNKNOWN)
    corners, least = (
        [_corners(arg) for arg in args],
        0.0 if dtype is None else float(np.finfo(dtype).smallest_subnormal),
    )
    with np.errstate(all="ignore"):
        found = [np.asarray(exact(*places)) for places in itertools.product(*corners)]
        found = [(each if dtype is None else each.astype(dtype)).astype(np.float64) for each in found]
    limits = np.maximum.reduce([unlike(values, each, least) for each in found])
    for arg in args:
        limits = np.where(or_zero(bound(arg)) == UNKNOWN, UNKNOWN, limits)
    if plain == "tan":
        return np.where(or_zero(bound(args[0])) * (1.0 + values * values) < 0.1, limits, UNKNOWN)
    if plain in ("lgamma", "tgamma"):
        low, _ = ends(args[0])
        turning = or_zero(bound(args[0]))
        return np.where((low > 0) | (turning == 0), limits + turning * turning, UNKNOWN)
    if plain == "nextafter":
        return limits + np.where(limits > 0, 2.0 * last_bits(values, args[0].dtype), 0.0)
    return limits


def _plain(name: str) -> str:
    return name.removeprefix("__nv_").removesuffix("f") if name.startswith("__nv_") else name


def _corners(arg: Any) -> list[Any]:
    """What an operand may be at the least and at the most, and nothing, where that lies between."""
    values, limits = wide(arg), bound(arg)
    if not arg.dtype.scalar.is_floating():  # of `ldexp`, which takes no fractions
        if limits is None:
            return [arg.data]
        step = np.ceil(np.minimum(limits, _MOST_STEPS)).astype(np.int64)
        return [arg.data, arg.data - step, arg.data + step]
    if limits is None:
        return [values]
    low, high = below(values, limits), above(values, limits)
    found = [low, high]
    return [*found, np.clip(0.0, low, high)] if np.any((low < 0) & (high > 0)) else found


def _flushed(exact: Callable[..., Any], values: Any, args: Sequence[Any], *, always: bool) -> Any:
    """What becomes of results where denormal operands are zeros, and where denormal results are."""
    operands, tiny = [wide(arg) for arg in args], np.abs(values) < 2.0 * NORMAL
    if always:
        operands = [flushed(each) for each in operands]
    limits = np.zeros(values.shape)
    if tiny.any():
        with np.errstate(all="ignore"):
            kept = np.abs(exact(*(np.broadcast_to(each, values.shape)[tiny] for each in operands)))
        limits[tiny] = np.maximum(np.abs(values[tiny]), np.minimum(kept, 2.0 * NORMAL))
    small = [
        (np.abs(each) - or_zero(bound(arg)) < NORMAL) & (each != 0) for each, arg in zip(operands, args, strict=True)
    ]
    if not any(each.any() for each in small):
        return limits
    with np.errstate(all="ignore"):
        zeros = [np.where(here, np.copysign(0.0, each), each) for here, each in zip(small, operands, strict=True)]
        other = np.asarray(exact(*zeros)).astype(np.float64)
    return np.maximum(limits, np.where(np.logical_or.reduce(np.broadcast_arrays(*small)), apart(values, other), 0.0))


def of_library(symbol: str) -> Rule:
    """The rule of one of libdevice's functions."""
    plain = _plain(symbol)
    if plain in ("fmod", "remainder"):
        return partial(remainder, cut=np.rint if plain == "remainder" else np.trunc)
    if plain == "fma":
        return fused
    if plain == "fabs":
        return as_it_is
    ulps = 0 if symbol in EXACT else ULPS.get(symbol, 1)
    flushes: Flushes = "never" if symbol in DENORMAL else "maybe" if symbol in LOGARITHMS else "always"
    return function(symbol, LIBRARY[symbol], ulps=ulps, flushes=flushes)


_EXACT_FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{name: getattr(np, name) for name in ("exp", "exp2", "log", "log2", "sin", "cos", "sqrt", "floor", "ceil")},
    "rsqrt": lambda x: 1.0 / np.sqrt(x),
    "erf": LIBRARY["__nv_erf"],
}
OF_FRACTIONS: dict[str, Rule] = {
    "create_fadd": partial(sum_of, sign=1.0),
    "create_fsub": partial(sum_of, sign=-1.0),
    "create_fmul": product_of,
    "create_fma": fused,
    "create_fdiv": quotient,
    "create_precise_divf": partial(quotient, exact=True),
    "create_frem": remainder,
    "create_fabs": as_it_is,
    "create_maxnumf": partial(extreme, largest=True),
    "create_maximumf": partial(extreme, largest=True),
    "create_minnumf": partial(extreme, largest=False),
    "create_minimumf": partial(extreme, largest=False),
    "create_precise_sqrt": function("precise_sqrt", np.sqrt, ulps=0, flushes="never"),
    **{
        f"create_{name}": function(
            name,
            exact,
            ulps=0 if name in ("floor", "ceil") else _ULPS.get(name, _MOST_ULPS),
            flushes="always" if name in FLUSHED else "maybe",
        )
        for name, exact in _EXACT_FUNCTIONS.items()
    },
}
"""Rules of the builder's methods."""
ALWAYS = frozenset(
    f"create_{name}"
    for name in ("fmul", "fdiv", "exp", "exp2", "log", "log2", "sin", "cos", "sqrt", "rsqrt", "erf", "floor", "ceil")
)
"""Those whose results may be inexact though all operands are exact, or have a loss to note."""
