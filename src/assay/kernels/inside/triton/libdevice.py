"""CUDA's libdevice in NumPy, as far as kernels use it: symbol -> function of arrays."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from assay.kernels.inside.triton.values.functions import LEAST, flushed, fused

Function = Callable[..., Any]


def _each(function: Callable[..., float]) -> Function:
    """A function of numbers as one of arrays. Outside its domain C has NaN where Python raises."""

    def total(*args: float) -> float:
        try:
            return function(*args)
        except ValueError:
            return math.nan

    return np.vectorize(total, otypes=[np.float64])


def _lgamma(x: Any) -> Any:
    """By PyTorch: Python's is off by many last bits beside 1 and 2."""
    return torch.lgamma(torch.tensor(x, dtype=torch.float64)).numpy()


def _normcdf(x: Any) -> Any:
    """By `erfc`, whose operand is not rounded: far from zero a last bit of that is a thousand of the result."""
    exactly = -np.asarray(x, np.longdouble) * np.sqrt(np.longdouble(0.5))
    near = exactly.astype(np.float64)
    slope = -2.0 / math.sqrt(math.pi) * np.exp(-near * near)
    return 0.5 * (_erfc(near) + np.where(np.isfinite(near), slope * (exactly - near), 0.0).astype(np.float64))


_erfc = _each(math.erfc)


def _tgamma(x: float) -> float:
    try:
        return math.copysign(math.inf, x) if x == 0 else math.gamma(x)
    except OverflowError:
        return math.copysign(math.inf, x)


def _half_away(x: Any) -> Any:
    whole = np.trunc(x)
    return whole + np.copysign(np.abs(x - whole) >= 0.5, x)


def _turned(x: Any) -> tuple[Any, Any]:
    """How often x half turns have a quarter turn, to the nearest, and what is left of them in radians."""
    wide = x.astype(np.float64)
    left = wide - 2.0 * np.rint(wide / 2.0)
    quarters = np.rint(2.0 * left)
    return np.nan_to_num(quarters).astype(np.int64), (left - quarters / 2.0) * np.pi


def _sine_of_half_turns(x: Any, ahead: int = 0) -> Any:
    """sin(pi x), exact for halves of whole numbers however large; `ahead` by so many quarter turns."""
    quarters, left = _turned(x)
    place = (quarters + ahead) % 4
    found = np.choose(place, [np.sin(left), np.cos(left), -np.sin(left), -np.cos(left)])
    return np.where((found == 0) & (ahead == 0), np.copysign(0.0, x), found + 0.0)


def _excess(x: Any, y: Any) -> Any:
    """`fdim`: 0 also for two infinities."""
    return np.where(x <= y, x.dtype.type(0), x - y)


def _next(x: Any, y: Any) -> Any:
    """`nextafter`: of float32 the arguments, but not the result, have denormal numbers for zero, always."""
    if x.dtype != np.float32:
        return np.nextafter(x, y)
    x, y = flushed(x), flushed(y)
    return np.where((x == 0) & (y != 0) & ~np.isnan(y), np.copysign(LEAST, y), np.nextafter(x, y))


def _scaled(x: Any, power: Any) -> Any:
    """`ldexp`: of a denormal float32 it is twice as much, whatever the power; results may be denormal."""
    if x.dtype != np.float32:
        return np.ldexp(x, power)
    return np.where(np.abs(x) < LEAST, x + x, np.ldexp(x, power))


_FLOAT: dict[str, Function] = {
    **{name: getattr(np, name) for name in ("exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "cbrt")},
    **{
        name: getattr(np, name)
        for name in ("sin", "cos", "tan", "sinh", "cosh", "tanh", "floor", "ceil", "trunc", "rint")
    },
    **{name: getattr(np, name) for name in ("fabs", "fmod", "hypot", "copysign")},
    "acos": np.arccos,
    "asin": np.arcsin,
    "atan": np.arctan,
    "acosh": np.arccosh,
    "asinh": np.arcsinh,
    "atanh": np.arctanh,
    "atan2": np.arctan2,
    "pow": np.power,
    "powi": np.power,
    "fma": fused,
    "nextafter": _next,
    "fdim": _excess,
    "ldexp": _scaled,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "rcbrt": lambda x: 1 / np.cbrt(x),
    "exp10": lambda x: np.power(10.0, x),
    "round": _half_away,
    "nearbyint": np.rint,
    "remainder": _each(math.remainder),
    "sinpi": _sine_of_half_turns,
    "cospi": partial(_sine_of_half_turns, ahead=1),
    "erf": _each(math.erf),
    "erfc": _erfc,
    "lgamma": _lgamma,
    "tgamma": _each(_tgamma),
    "normcdf": _normcdf,
}

LIBRARY: dict[str, Function] = {
    **{f"__nv_{name}": function for name, function in _FLOAT.items()},
    **{f"__nv_{name}f": function for name, function in _FLOAT.items()},
    "__nv_abs": np.abs,
    "__nv_llabs": np.abs,
    "__nv_isnanf": np.isnan,
    "__nv_isnand": np.isnan,
    "__nv_isinff": np.isinf,
    "__nv_isinfd": np.isinf,
    "__nv_finitef": np.isfinite,
    "__nv_isfinited": np.isfinite,
    "__nv_signbitf": np.signbit,
    "__nv_signbitd": np.signbit,
    # +0.0 for each zero.
    "__nv_saturatef": lambda x: np.clip(np.where(np.isnan(x), x.dtype.type(0), x), 0, 1) + x.dtype.type(0),
    "__nv_llrintf": np.rint,
    "__nv_llrint": np.rint,
    "__nv_llroundf": _half_away,
    "__nv_llround": _half_away,
}
"""The functions that are there. Whatever is missing is refused, not guessed."""

_EXACT = (
    *("floor", "ceil", "trunc", "rint", "nearbyint", "round", "fabs"),
    *("fmod", "remainder", "copysign", "nextafter", "ldexp"),
)
EXACT = frozenset(f"__nv_{name}{suffix}" for name in _EXACT for suffix in ("", "f")) | {
    *("__nv_saturatef", "__nv_fmaf", "__nv_fdimf", "__nv_fdim")
}
"""Those whose results a GPU has to the last bit."""
_ULPS = {
    **dict.fromkeys(("exp2", "exp10", "cospi", "sin", "cos", "erf", "tanh", "asin", "acos", "atan", "rsqrt"), (2, 2)),
    **{"tan": (4, 2), "sinpi": (2, 2), "sinh": (3, 2), "cosh": (2, 1), "hypot": (3, 2), "atan2": (3, 2)},
    **{"asinh": (3, 3), "acosh": (4, 3), "atanh": (3, 2), "pow": (4, 2), "powi": (4, 2), "log10": (2, 1)},
    **{"erfc": (4, 5), "lgamma": (6, 4), "tgamma": (5, 10), "normcdf": (5, 5)},
}
ULPS = {f"__nv_{name}{'f' * (not place)}": bits[place] for name, bits in _ULPS.items() for place in (0, 1)}
"""By how many last bits a result may differ, as CUDA's documents say; 1 of those that are not here."""
_FUSED = ("acosh", "asin", "asinh", "atanh", "lgamma", "log", "log10", "log1p", "log2", "pow", "tgamma")
FUSED = frozenset(f"{prefix}{name}" for name in _FUSED for prefix in ("", "__nv_"))
"""Those of float64 in which Triton's compiler fuses products that CUDA's does not: its documents do not hold."""
FUSED_ULPS = 1 << 10
"""Last bits by which these may be off."""
_LOST_BY_POWERS = {np.float32: 2.0**-27, np.float64: 2.0**-50}


def lost_by_powers(found: Any, power: Any) -> Any:
    """What is lost of `pow`, as a part of it, where Triton's compiler fuses products of the logarithm, whose last bits
    the power makes larger: half a last bit of a quotient below 0.35, times up to 0.18 of the power."""
    return _LOST_BY_POWERS[found.dtype.type] * np.abs(power)


def _terms_of_lgamma(found: Any, x: Any) -> Any:
    """The sizes of log(pi / abs(x sin(pi x))) and of lgamma(-x), whose difference it is of a negative number."""
    terms = np.zeros(found.shape)
    inside = (x > _ROOTS[0]) & (x < _ROOTS[1]) & np.isfinite(found)
    if inside.any():
        other = LIBRARY["__nv_lgamma"](-x[inside])
        terms[inside] = np.abs(other) + np.abs(found[inside] + other)
    return terms


_ROOTS = (-10.001, -2.264)
"""Between them documents promise no number of last bits of lgamma, since it comes to 0 there and its terms do not."""
TERMS: dict[str, Function] = dict.fromkeys(("__nv_lgamma", "__nv_lgammaf"), _terms_of_lgamma)
"""What is lost of a result, in last bits of terms that may be larger than it; 0 where it is lost of the result."""
KEEPS_NAN = frozenset(f"__nv_{name}{suffix}" for name in ("fabs", "copysign") for suffix in ("", "f"))
"""Those that change the sign alone, and so keep the bits of NaN."""
_WHATEVER = ("trunc", "rint", "nearbyint", "copysign", "nextafter", "signbit", "ldexp", "fdim")
DENORMAL = frozenset(f"__nv_{name}f" for name in _WHATEVER)
"""Those of float32 that do not take denormal numbers for zero, or say themselves of which they do."""
LOGARITHMS = frozenset(f"__nv_{name}f" for name in ("log", "log2", "log10", "log1p"))
"""Those that do so or not."""
