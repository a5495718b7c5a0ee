"""Error bounds of functions: as many last bits as CUDA documents, denormal numbers, and the end of the range."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from assay.kernels.inside.triton.error_bounds import pointwise
from assay.kernels.inside.triton.error_bounds.bounds import (
    LARGEST,
    above,
    apart,
    below,
    bound,
    ends,
    epsilon,
    give_loss,
    last_bits,
    or_zero,
    unlike,
    wide,
)
from assay.kernels.inside.triton.error_bounds.certain import settled_results
from assay.kernels.inside.triton.error_bounds.memory import UNKNOWN
from assay.kernels.inside.triton.ledger import current
from assay.kernels.inside.triton.libdevice import (
    DENORMAL,
    EXACT,
    FUSED,
    FUSED_ULPS,
    LIBRARY,
    TERMS,
    ULPS,
    lost_by_powers,
)

Rule = Callable[..., Any]
"""Of the result and the operands, all handles: the bound of the result."""
NORMAL = 2.0**-126
"""The least normal float32: what is smaller is zero to some functions."""
_MOST_STEPS = 4096
_NOT_QUITE = 1.0 + 2.0**-12
"""Times as large as a denormal result may be: what a GPU takes the function of may be rounded before."""
_SURELY_BEYOND = 1.0 + 2.0**-15
"""Times the largest number: infinity, by however many last bits a function is off."""
_BESIDE = (1.0 - 2.0**-30, 1.0 + 2.0**-30)
"""Times operands: where the function is infinite of these too, it is of what it may be off by."""
_ULPS = {"log": 1, "log2": 1, "sqrt": 1}
"""Last bits by which the language's functions may be off; 2 of those that are not here."""
_MOST_ULPS = 2
_ADD = ("fdim",)
"""Exact functions of libdevice that begin with a sum."""
_LOST_AMONG_DENORMALS = ("cbrt", "rcbrt", "pow", "powi")
"""Functions that scale a denormal number, and have lost it by then."""
_BETWEEN = ("ldexp", "pow", "powi")
"""Functions of a whole number that lie, between two of these, between their results."""
_PERIODIC: dict[str, tuple[float, float]] = {
    "sin": (1.0, 2.0),
    "cos": (1.0, 2.0),
    "sinpi": (np.pi, 2.0),
    "cospi": (np.pi, 2.0),
}
"""Functions that rise and fall: their steepest slope, and how far apart two results can be."""


def function(name: str, exact: Callable[..., Any], *, ulps: int, flushes: bool, adds: bool = False) -> Rule:
    """The rule of a function that GPUs approximate. `exact`: NumPy's, or one of arrays of float64; `flushes`: whether
    it may take denormal numbers of float32 for zero, as it does unless the compiler computes it; `adds`: it begins with
    a sum, though it is exact."""

    def rule(found: Any, *args: Any) -> Any:
        values = wide(found)
        limits: Any = np.zeros(values.shape)
        if (ulps or adds) and current().fuses:
            args = tuple(pointwise.unrounded(arg) for arg in args)
        if any(bound(arg) is not None for arg in args):
            limits = spread(name, exact, values, args, found.data.dtype)
            limits = np.where(limits > 0, limits + last_bits(np.abs(values) + limits, found.dtype), 0.0)
        tells = flushes and found.data.dtype == np.float32
        if tells:
            limits = np.maximum(limits, _flushed(exact, values, args))
            if _plain(name) in _LOST_AMONG_DENORMALS:
                limits = np.where(np.logical_or.reduce(np.broadcast_arrays(*map(_is_small, args))), UNKNOWN, limits)
        bits = FUSED_ULPS if name in FUSED and found.data.dtype == np.float64 else ulps
        if ulps:
            settled = settled_results(name, found.data, [arg.data for arg in args])
            settled = ((settled | (tells & (values == 0))) & (limits == 0)) | ~np.isfinite(values)
            size = np.where(settled, 0.0, np.abs(values))
            lost = (bits + pointwise.UNROUNDED) * last_bits(size, found.dtype)
            if _plain(name) == "pow":
                lost = lost + size * lost_by_powers(found.data, np.where(settled, 0.0, wide(args[1])))
            limits = limits + np.where(settled, 0.0, lost)
        limits = _near_the_end(found, values, limits, exact, args, ulps)
        if name in TERMS:
            terms = TERMS[name](found.data, args[0].data)
            limits = limits + 2.0 * bits * epsilon(found.dtype) * terms
        return limits

    return rule


def _whole_power(rule: Rule) -> Rule:
    """The rule of `powi`, from that of `pow`: a GPU makes a whole power by squaring, and an inverse in the end, with a
    rounding for each factor. Where that leaves the range it is anything."""

    def by_squaring(found: Any, base: Any, power: Any) -> Any:
        values, size, count = wide(found), np.abs(wide(base)), np.abs(wide(power))
        with np.errstate(all="ignore"):
            inside = count * np.abs(np.log2(size)) < np.log2(LARGEST[found.dtype.scalar.name]) - 2.0
        inside |= (size == 0) | (count == 0)
        lost = (count + 1.0) * last_bits(np.where(inside, values, 0.0), found.dtype)
        return np.where(inside, rule(found, base, power) + lost, UNKNOWN)

    return by_squaring


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
        poles = ~np.isfinite(size) | (size > most * _SURELY_BEYOND)
        for factor in _BESIDE if found.data.dtype == np.float64 else ():  # the exact one is no wider
            poles &= ~np.isfinite(np.asarray(exact(*(wide(arg) * factor for arg in args)), np.float64))
    edge = (np.isfinite(values) | (made & ~poles)) & (np.abs(values) + limits > most)
    if current().fuses and made.any():
        give_loss(found, np.where(made & np.isfinite(size), UNKNOWN, 0.0))
    return np.where(edge, UNKNOWN, limits)


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
    corners = [_corners(arg) for arg in args]
    least = 0.0 if dtype is None else float(np.finfo(dtype).smallest_subnormal)
    with np.errstate(all="ignore"):
        found = [np.asarray(exact(*places)) for places in itertools.product(*corners)]
        found = [(each if dtype is None else each.astype(dtype)).astype(np.float64) for each in found]
    limits = np.maximum.reduce([unlike(values, each, least) for each in found])
    for arg in args:
        limits = np.where(or_zero(bound(arg)) == UNKNOWN, UNKNOWN, limits)
        if not arg.dtype.scalar.is_floating():
            limits = np.where(or_zero(bound(arg)) > (_MOST_STEPS if plain in _BETWEEN else 0), UNKNOWN, limits)
    if plain in ("pow", "powi"):  # whose sign, and whether it is a number, is another one for each power
        return np.where((ends(args[0])[0] < 0) & (or_zero(bound(args[1])) > 0), UNKNOWN, limits)
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
    if not arg.dtype.scalar.is_floating():
        if limits is None:
            return [arg.data]
        step = np.ceil(np.minimum(limits, _MOST_STEPS)).astype(np.int64)
        return [arg.data, arg.data - step, arg.data + step]
    if limits is None:
        return [values]
    low, high = below(values, limits), above(values, limits)
    found = [low, high]
    return [*found, np.clip(0.0, low, high)] if np.any((low < 0) & (high > 0)) else found


def _is_small(arg: Any) -> Any:
    """Which operands may be denormal numbers of float32."""
    values = wide(arg)
    return (np.abs(values) - or_zero(bound(arg)) < NORMAL) & (values != 0)


def _flushed(exact: Callable[..., Any], values: Any, args: Sequence[Any]) -> Any:
    """What becomes of results where denormal operands are zeros, and where denormal results are."""
    operands, tiny = [wide(arg) for arg in args], np.abs(values) < 2.0 * NORMAL
    limits = np.zeros(values.shape)
    if tiny.any():
        with np.errstate(all="ignore"):
            kept = np.abs(exact(*(np.broadcast_to(each, values.shape)[tiny] for each in operands)))
        limits[tiny] = np.maximum(np.abs(values[tiny]), np.minimum(kept * _NOT_QUITE, 2.0 * NORMAL))
    small = [_is_small(arg) for arg in args]
    if not any(each.any() for each in small):
        return limits
    with np.errstate(all="ignore"):
        zeros = [np.where(here, np.copysign(0.0, each), each) for here, each in zip(small, operands, strict=True)]
        others = [np.asarray(exact(*each)).astype(np.float64) for each in (zeros, operands)]
    here = np.logical_or.reduce(np.broadcast_arrays(*small))
    return np.maximum(limits, np.where(here, np.maximum(*(apart(values, other) for other in others)), 0.0))


def of_library(symbol: str) -> Rule:
    """The rule of one of libdevice's functions."""
    plain = _plain(symbol)
    if plain in ("fmod", "remainder"):
        return partial(pointwise.remainder, cut=np.rint if plain == "remainder" else np.trunc)
    if plain == "fma":
        return pointwise.fused
    if plain == "fabs":
        return pointwise.as_it_is
    ulps = 0 if symbol in EXACT else ULPS.get(symbol, 1)
    rule = function(symbol, LIBRARY[symbol], ulps=ulps, flushes=symbol not in DENORMAL, adds=plain in _ADD)
    return _whole_power(rule) if plain == "powi" else rule


_EXACT_FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{name: getattr(np, name) for name in ("exp", "exp2", "log", "log2", "sin", "cos", "sqrt", "floor", "ceil")},
    "rsqrt": lambda x: 1.0 / np.sqrt(x),
    "erf": LIBRARY["__nv_erf"],
}
OF_FRACTIONS: dict[str, Rule] = {
    "create_fadd": partial(pointwise.sum_of, sign=1.0),
    "create_fsub": partial(pointwise.sum_of, sign=-1.0),
    "create_fmul": pointwise.product_of,
    "create_fma": pointwise.fused,
    "create_fdiv": pointwise.quotient,
    "create_precise_divf": partial(pointwise.quotient, exact=True),
    "create_frem": pointwise.modulo,
    "create_fabs": pointwise.as_it_is,
    "create_maxnumf": partial(pointwise.extreme, largest=True),
    "create_maximumf": partial(pointwise.extreme_or_nan, largest=True),
    "create_minnumf": partial(pointwise.extreme, largest=False),
    "create_minimumf": partial(pointwise.extreme_or_nan, largest=False),
    "create_precise_sqrt": function("precise_sqrt", np.sqrt, ulps=0, flushes=False),
    **{
        f"create_{name}": function(
            name,
            exact,
            ulps=0 if name in ("floor", "ceil") else _ULPS.get(name, _MOST_ULPS),
            flushes=True,
        )
        for name, exact in _EXACT_FUNCTIONS.items()
    },
}
"""Rules of the builder's methods."""
ALWAYS = frozenset(
    f"create_{name}"
    for name in (
        "fmul",
        "fma",
        "fdiv",
        "frem",
        "exp",
        "exp2",
        "log",
        "log2",
        "sin",
        "cos",
        "sqrt",
        "rsqrt",
        "erf",
        "floor",
        "ceil",
    )
)
"""Those whose results may be inexact though all operands are exact, or have a loss to note."""
