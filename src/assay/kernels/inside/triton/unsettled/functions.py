"""What one GPU that there could be has for a function: `unsettled.device`, with what is true of all of them.

A function that is nearly its argument is it, up to an error that is a share of what the two are apart; so it is with
others that are nearly 1, or 2. Sines and cosines, of radians and of half turns, are one curve. Functions of float32
that CUDA makes of others are made of them here, with the same steps rounded: arc cosines of arc sines, inverse
hyperbolic functions of logarithms, lengths of roots.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from assay.kernels.inside.triton.unsettled.device import near

_SINGLE = np.dtype(np.float32)
_STEEP = 16.0
"""From such a part of a result on a correction is as inexact as the whole."""
_LN_2, _HALF_TURN, _QUARTER_TURN, _LOG_E = (
    float(np.float32(number)) for number in (math.log(2), math.pi, math.pi / 2, 1 / math.log(10))
)
_LEAST = 2.0**-126
_POLYNOMIAL_OF_ASIN = float(np.float32(0.57))
_LONGEST, _WIDEST, _HIGHEST = 2.0**23, 8.5e37, 90.0
"""From these on an `acosh` and an `asinh` are logarithms, and a `cosh` is infinite."""
_OF_ERF = float(np.nextafter(np.float32(2 / math.sqrt(math.pi) - 1), np.float32(0))) - (2 / math.sqrt(math.pi) - 1)
"""By what the slope of `erf` at 0 is off."""

Share = Callable[[Any, Any], Any]
"""Of exact results and arguments: how much of the largest error they have, 0 to 1 and above."""


def _step(exact: Any, x: Any) -> Any:
    """How far a result is from its argument, as a part of it."""
    return np.abs(exact - x) / np.where(x == 0, 1.0, np.abs(x))


def _below(bound: float) -> Share:
    return lambda exact, _: bound - np.abs(exact)


def _squared(exact: Any, _: Any) -> Any:
    return exact * exact


def _least(*shares: Share) -> Share:
    return lambda exact, x: np.minimum.reduce([share(exact, x) for share in shares])


_CIRCLE = _least(_squared, lambda exact, _: 1.0 - exact * exact)
_SHARES: dict[str, Share] = {
    **dict.fromkeys(("sin", "cos", "sinpi", "cospi"), _CIRCLE),
    **dict.fromkeys(("asin", "atan", "sinh", "asinh", "atanh", "log1p"), _step),
    "tan": _squared,
    "tanh": _least(_step, _below(1.0)),
    "erf": _least(lambda _, x: x * x, _below(1.0)),
    "expm1": lambda exact, x: np.minimum(_step(exact, x), np.where(x < 0, 1.0 - np.abs(exact), 1.0)),
    "log": lambda exact, x: _step(exact, x - 1.0),
    "log2": lambda _, x: np.abs(x - 1.0),
}
_CURVES = dict.fromkeys(("cos", "sinpi", "cospi"), "sin")
"""Functions that have the errors of another one."""


def approximated(name: str, exact: Any, args: Sequence[Any], dtype: Any, ulps: float) -> Any:
    """What the device has for a function.

    name: As `device.name_of` has it.
    exact: Its results: float64 for results of float32, longdouble for those of float64. args: as wide.
    ulps: By how many last bits it may differ, rounding included.
    """
    if dtype == _SINGLE and name in _COMPOSED:
        return _COMPOSED[name](*(np.asarray(arg, np.float64) for arg in args)).astype(np.float32)
    return _directly(name, exact, args[0], dtype, ulps)


def _directly(name: str, exact: Any, x: Any, dtype: Any, ulps: float) -> Any:
    share = _SHARES.get(name)
    found = 1.0 if share is None else np.clip(np.nan_to_num(_STEEP * share(exact, x)), 0.0, 1.0)
    if name == "erf" and dtype == _SINGLE:
        exact = np.where(np.abs(x) < 1.0, exact + x * _OF_ERF, exact)
    return near(_CURVES.get(name, name), exact, dtype, ulps, found)


def _curve(name: str, function: Callable[[Any], Any], x: Any, ulps: float = 1.0) -> Any:
    """A function of float32 as the device has it, in float64."""
    return _directly(name, function(x), x, _SINGLE, ulps).astype(np.float64)


def _rounded(values: Any) -> Any:
    return values.astype(np.float32).astype(np.float64)


def _arc(x: Any) -> tuple[Any, Any, Any]:
    """Which arguments a polynomial has, the arc sines of these, and the arc cosines of the others, without signs."""
    size = np.abs(x)
    inner = size <= _POLYNOMIAL_OF_ASIN
    sine = _curve("asin", np.arcsin, np.where(inner, size, 0.0))
    return inner, sine, _curve("acos", np.arccos, np.where(inner, 1.0, size))


def _arc_sine(x: Any) -> Any:
    inner, sine, cosine = _arc(x)
    return np.copysign(np.where(inner, sine, _rounded(_QUARTER_TURN - cosine)), x)


def _arc_cosine(x: Any) -> Any:
    inner, sine, cosine = _arc(x)
    found = np.where(inner, _rounded(_QUARTER_TURN - sine), cosine)
    return np.where(x < 0, _rounded(_HALF_TURN - found), found)


def _arc_tangent(x: Any) -> Any:
    size = np.abs(x)
    found = _curve("atan", np.arctan, np.where(size > 1, _rounded(1.0 / size), size))
    return np.copysign(np.where(size > 1, _rounded(_QUARTER_TURN - found), found), x)


def _angle(y: Any, x: Any) -> Any:
    high, wide = np.abs(y), np.abs(x)
    found = _curve("atan", np.arctan, _rounded(np.minimum(high, wide) / np.maximum(high, wide)))
    found = np.where(high > wide, _rounded(_QUARTER_TURN - found), found)
    found = np.copysign(np.where(np.signbit(x), _rounded(_HALF_TURN - found), found), y)
    return np.where((high == wide) & ((high == 0) | np.isinf(high)), np.arctan2(y, x), found)


def _quarters(size: Any) -> tuple[Any, Any]:
    """A half of a power of e, and of its inverse, rounded."""
    power = _curve("quarter of exp", lambda exponent: np.exp(exponent) / 4, np.minimum(size, _HIGHEST))
    return 2.0 * power, _rounded(0.125 / power)


def _hyperbolic_sine(x: Any) -> Any:
    size = np.abs(x)
    rising, falling = _quarters(size)
    outer = np.where(size >= _HIGHEST, np.inf, rising - falling)
    return np.copysign(np.where(size < 1, _curve("sinh", np.sinh, np.minimum(size, 1.0), 2.0), outer), x)


def _hyperbolic_cosine(x: Any) -> Any:
    rising, falling = _quarters(np.abs(x))
    return np.where(np.abs(x) >= _HIGHEST, np.inf, rising + falling)


def _of_log1p(x: Any) -> Any:
    return _curve("log1p", np.log1p, x)


def _of_log(x: Any) -> Any:
    return _curve("log", np.log, x)


def _inverse_sine(x: Any) -> Any:
    size = np.abs(x)
    excess = _rounded(size + size * _rounded(size / (1.0 + np.hypot(1.0, size))))
    found = np.where(size > _WIDEST, _rounded(_of_log(size)) + _LN_2, _of_log1p(np.where(size > _WIDEST, 0.0, excess)))
    return np.copysign(found, x)


def _inverse_cosine(x: Any) -> Any:
    excess = _rounded(x - 1.0)
    root = _curve("sqrt", np.sqrt, _rounded(_rounded(x * excess) + excess))
    return np.where(excess < _LONGEST, _of_log1p(_rounded(excess + root)), _of_log(np.maximum(excess, 1.0)) + _LN_2)


def _inverse_tangent(x: Any) -> Any:
    size = np.abs(x)
    inverse = _curve("rcp", lambda rest: 1.0 / rest, _rounded(1.0 - size))
    return np.copysign(0.5 * _of_log1p(_rounded(2.0 * inverse * size)), x)


def _decimal_logarithm(x: Any) -> Any:
    return _of_log(x) * _LOG_E


def _length(x: Any, y: Any) -> Any:
    short, long = np.minimum(np.abs(x), np.abs(y)), np.maximum(np.abs(x), np.abs(y))
    power = np.frexp(np.where(np.isfinite(long), long, 1.0))[1] & ~1
    short, scaled = np.ldexp(short, -power), np.ldexp(long, -power)
    found = np.ldexp(_curve("sqrt", np.sqrt, _rounded(scaled * scaled + _rounded(short * short))), power)
    return np.where(np.isinf(x) | np.isinf(y), np.inf, np.where(short == 0, long, found))


def _tail(x: Any) -> Any:
    """`erfc` without a sign. It ends with a product with a power of e that is 0 below the least normal number."""
    size = np.abs(x)
    found = _curve("erfc", _ERFC, size, 4.0)
    return np.where(-size * size < math.log(_LEAST), 0.0, found)


def _outside(x: Any) -> Any:
    tail = _tail(x)
    return np.where(x < 0, 2.0 - tail, tail)


def _share_below(x: Any) -> Any:
    """`normcdf`: of a positive number what is left of 1 beyond its opposite."""
    tail = _curve("normcdf", _NORMCDF, -np.abs(x), 5.0)
    return np.where(x > 0, 1.0 - tail, tail)


_ERFC = np.vectorize(math.erfc, otypes=[np.float64])
_NORMCDF = np.vectorize(lambda x: 0.5 * math.erfc(-x / math.sqrt(2)), otypes=[np.float64])
_COMPOSED: dict[str, Callable[..., Any]] = {
    "asin": _arc_sine,
    "acos": _arc_cosine,
    "atan": _arc_tangent,
    "atan2": _angle,
    "sinh": _hyperbolic_sine,
    "cosh": _hyperbolic_cosine,
    "asinh": _inverse_sine,
    "acosh": _inverse_cosine,
    "atanh": _inverse_tangent,
    "log10": _decimal_logarithm,
    "hypot": _length,
    "erfc": _outside,
    "normcdf": _share_below,
}
"""Functions of float32 that CUDA makes of others."""
