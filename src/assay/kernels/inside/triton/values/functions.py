"""Arithmetic on fractions as machine code for sm_90 has it, where NumPy has something else: NaN, denormal numbers,
`fma`.

What a GPU has other last bits of is rounded to nearest here; how far off that may be is the business of `error_bounds`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter as engine

from assay.kernels.inside.triton.values import bfloat16

_SINGLE, _DOUBLE, _HALF = np.dtype(np.float32), np.dtype(np.float64), np.dtype(np.float16)
LEAST = np.float32(2.0**-126)
"""The least normal float32: what is smaller is zero to a GPU's approximations."""
_QUIET: dict[Any, Any] = {_SINGLE: np.uint32(0x7FFFFFFF), _HALF: np.uint16(0x7FFF)}
"""The only NaN that a GPU's arithmetic gives."""
FLUSHED = ("exp2", "sin", "cos", "sqrt", "rsqrt", "erf", "floor", "ceil")
"""Functions of float32 that take a denormal number for zero, and give none."""
KEPT = ("exp", "log", "log2")
"""Those that take one for what it is, and give none."""
_TO_TWO = np.float32(1.4426950408889634)
"""What `tl.exp` of a float32 multiplies by before it asks for a power of two."""


def install(builder: Any) -> None:
    """Put it into the interpreter's builder (`InterpreterBuilder`)."""
    for name in ("fmul", "fdiv", "precise_divf", "fadd", "fsub"):
        _after(builder, f"create_{name}")
    for name in (*FLUSHED, *KEPT):
        _after_function(builder, name)
    builder.create_fma = _fma


def canonical(values: Any) -> Any:
    """NaN as a GPU's arithmetic gives it: a processor's has the sign bit set. That of a float64 has any sign."""
    if values.dtype.kind != "f":
        return values
    nan = np.isnan(values)
    if not nan.any():
        return values
    quiet = _QUIET.get(values.dtype)
    return np.where(nan, np.nan if quiet is None else quiet.view(values.dtype), values)


def flushed(values: Any) -> Any:
    """Numbers below the least normal float32 as zeros of their sign."""
    small = np.abs(values) < LEAST
    return np.where(small, np.copysign(values.dtype.type(0), values), values) if small.any() else values


def widened(handle: Any) -> Any:
    """Values as float64, in which products of narrower ones are exact."""
    return (bfloat16.wide(handle.data) if handle.dtype.scalar == tl.bfloat16 else handle.data).astype(np.float64)


def fused(x: Any, y: Any, z: Any) -> Any:
    """x * y + z, rounded once: of float64 operands to float64, else to what can be rounded once more."""
    if z.dtype == _DOUBLE:
        return _fused_doubles(*np.broadcast_arrays(x, y, z))
    return _added(x.astype(np.float64) * y.astype(np.float64), z.astype(np.float64))


def _fused_doubles(x: Any, y: Any, z: Any) -> Any:
    """As Boldo and Melquiond have it (Emulation of FMA, 2008), one by one where an exponent leaves its range."""
    with np.errstate(all="ignore"):
        high, low = _exact_product(x, y)
        more, rest = _exact_sum(z, low)
        head, tail = _exact_sum(high, more)
        found = np.where(head + (tail + rest) == 0, x * y + z, head + _added(tail, rest))
    usual = _within(x, 400) & _within(y, 400) & _within(z, 800)
    for place in zip(*np.nonzero(~usual), strict=True):
        found[place] = _fused_numbers(float(x[place]), float(y[place]), float(z[place]))
    return found


def _within(values: Any, power: int) -> Any:
    return (values == 0) | ((np.abs(values) > 2.0**-power) & (np.abs(values) < 2.0**power))


def _exact_product(x: Any, y: Any) -> tuple[Any, Any]:
    """A product and what its rounding has cost (Dekker)."""
    (left, right), (upper, lower) = _halves(x), _halves(y)
    found = x * y
    return found, right * lower - (((found - left * upper) - right * upper) - left * lower)


def _halves(values: Any) -> tuple[Any, Any]:
    """Two numbers of half as many bits, of which it is the sum (Veltkamp)."""
    wide = values * (2.0**27 + 1.0)
    upper = wide - (wide - values)
    return upper, values - upper


def _exact_sum(left: Any, right: Any) -> tuple[Any, Any]:
    """A sum and what its rounding has cost (Knuth)."""
    found = left + right
    back = found - left
    return found, (left - (found - back)) + (right - back)


def _fused_numbers(x: float, y: float, z: float) -> float:
    if not (math.isfinite(x) and math.isfinite(y)):
        return x * y + z
    if not math.isfinite(z):
        return z
    exact = Fraction(x) * Fraction(y) + Fraction(z)
    if exact == 0:
        return x * y + z
    try:
        return float(exact)
    except OverflowError:
        return math.inf if exact > 0 else -math.inf


def _added(left: Any, right: Any) -> Any:
    """A sum of float64 that can be rounded once more as if it had not been: its last bit is set where it is inexact."""
    found, lost = _exact_sum(left, right)
    found = np.asarray(found)
    bits = found.view(np.int64)
    odd = bits + np.where((lost > 0) == (found > 0), 1, -1)
    return np.where(np.isfinite(lost) & (lost != 0) & (bits & 1 == 0), odd, bits).view(np.float64)


def _after(builder: Any, name: str) -> None:
    compute = getattr(builder, name)

    def operation(self: Any, lhs: Any, rhs: Any) -> Any:
        found = compute(self, lhs, rhs)
        found.data = canonical(found.data)
        return found

    setattr(builder, name, operation)


def _fma(_self: Any, x: Any, y: Any, z: Any) -> Any:
    """A product and a sum, rounded once."""
    dtype = z.dtype.scalar
    wide = [widened(each) for each in (x, y, z)]
    exact = _fused_doubles(*wide) if dtype == tl.float64 else _added(wide[0] * wide[1], wide[2])
    data = bfloat16.narrow(exact) if dtype == tl.bfloat16 else exact.astype(engine._get_np_dtype(dtype))
    return engine.TensorHandle(canonical(data), dtype)


def _exponential(self: Any, arg: Any) -> Any:
    """`tl.exp`: of a float32 a power of two, whose exponent is rounded first."""
    if arg.data.dtype != _SINGLE:
        return self.unary_op(arg, np.exp)
    return engine.TensorHandle(np.exp2((arg.data * _TO_TWO).astype(_DOUBLE)).astype(_SINGLE), arg.dtype.scalar)


def _after_function(builder: Any, name: str) -> None:
    compute: Callable[..., Any] = _exponential if name == "exp" else getattr(builder, f"create_{name}")

    def operation(self: Any, arg: Any) -> Any:
        single = arg.data.dtype == _SINGLE
        if single and compute is not _exponential:
            data, arg = arg.data, engine.TensorHandle(arg.data, arg.dtype)
            # A processor's functions of float32 are off by some last bits, and each processor's by others.
            arg.data = (flushed(data) if name in FLUSHED else data).astype(_DOUBLE)
        found = compute(self, arg)
        found.data = canonical(flushed(found.data) if single else found.data)
        return found

    setattr(builder, f"create_{name}", operation)
