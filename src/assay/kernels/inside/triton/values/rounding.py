"""Inexact results, rounded the other way in some calls.

A GPU computes transcendental functions, divisions and sums to other last bits than a processor, and fuses products with
sums. A kernel that asks for those bits could tell the two apart. So in calls with a secret each inexact result is moved
by its last bit, up or down as a hash of its bits and the secret decides: the same operation has the same result again.
Products of matrices are left as they are: exponentials of their last bits would exceed what is allowed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from triton.runtime import interpreter as engine

from assay.kernels.inside.triton.ledger import current

_FACTOR = 2654435761
_BITS = {np.dtype(np.float32): np.dtype(np.uint32), np.dtype(np.float16): np.dtype(np.uint16)}
_SINGLE = np.dtype(np.float32)
_LEAST = np.float32(2.0**-126)
"""The least normal float32: what is smaller is zero to a GPU's approximations."""
_QUOTIENT = 1e6
_QUIET: dict[Any, Any] = {np.dtype(np.float32): np.uint32(0x7FFFFFFF), np.dtype(np.float16): np.uint16(0x7FFF)}
"""The only NaN that a GPU's arithmetic gives."""
_FLUSHED = ("exp", "exp2", "log", "log2")
_FUNCTIONS = (*_FLUSHED, "sin", "cos", "sqrt", "rsqrt", "erf", "precise_sqrt")


def install(builder: Any) -> None:
    """Put it into the interpreter's builder (`InterpreterBuilder`)."""
    for name, wide in (("fmul", np.multiply), ("fdiv", np.divide), ("precise_divf", np.divide), ("frem", _remainder)):
        _after(builder, f"create_{name}", wide)
    for name in ("fadd", "fsub"):
        _after(builder, f"create_{name}", None)
    for name in _FUNCTIONS:
        _after_function(builder, f"create_{name}", name in _FLUSHED)
    total = engine.ReduceOps.sum

    def sum_(self: Any, values: Any) -> Any:
        found, data = total(self, values), values.handle.data
        if data.dtype in _BITS and current().rounding:
            exact = np.sum(data.astype(np.float64), axis=self.axis, keepdims=self.keep_dims)
            found.handle.data = moved(found.handle.data, np.reshape(exact, found.handle.data.shape))
        return found

    engine.ReduceOps.sum = sum_


def moved(values: Any, exact: Any) -> Any:
    """Results of this call's rounding.

    exact: what they would be without rounding, as float64; None where every result that is no whole number is taken
    for inexact.
    """
    secret, bits = current().rounding, _BITS.get(values.dtype)
    if not secret or bits is None or not values.size:
        return values
    values = np.ascontiguousarray(values)
    number = values.view(bits).astype(np.uint32)
    up = ((number ^ np.uint32(secret & 0xFFFFFFFF)) * np.uint32(_FACTOR)) >> np.uint32(31)
    other = (number + up + up - np.uint32(1)).astype(bits).view(values.dtype)
    inexact = (np.rint(values) if exact is None else exact) != values
    inexact &= np.isfinite(values) & np.isfinite(other) & (np.abs(values) > _LEAST)
    return np.where(inexact, other, values)


def canonical(values: Any) -> Any:
    """NaN as a GPU's arithmetic gives it: a processor's has the sign bit set."""
    quiet = _QUIET.get(values.dtype)
    if quiet is None:
        return values
    nan = np.isnan(values)
    return np.where(nan, quiet.view(values.dtype), values) if nan.any() else values


def _remainder(lhs: Any, rhs: Any) -> Any:
    """Exact but for large quotients, which a GPU rounds."""
    return np.where(np.abs(lhs) > _QUOTIENT * np.abs(rhs), np.nan, np.fmod(lhs, rhs).astype(np.float32))


def _after(builder: Any, name: str, wide: Callable[[Any, Any], Any] | None) -> None:
    compute = getattr(builder, name)

    def operation(self: Any, lhs: Any, rhs: Any) -> Any:
        found = compute(self, lhs, rhs)
        found.data = canonical(found.data)
        if wide is not None and found.data.dtype == _SINGLE and current().rounding:
            found.data = moved(found.data, wide(lhs.data.astype(np.float64), rhs.data.astype(np.float64)))
        return found

    setattr(builder, name, operation)


def _after_function(builder: Any, name: str, flushes: bool) -> None:
    compute = getattr(builder, name)

    def operation(self: Any, arg: Any) -> Any:
        single = arg.data.dtype == _SINGLE
        if flushes and single:
            arg = engine.TensorHandle(_flushed(arg.data), arg.dtype)
        found = compute(self, arg)
        found.data = canonical(found.data)
        if single:
            found.data = moved(_flushed(found.data) if flushes else found.data, None)
        return found

    setattr(builder, name, operation)


def _flushed(values: Any) -> Any:
    """Numbers below the least normal one as zeros of their sign."""
    return np.where(np.abs(values) < _LEAST, np.copysign(np.float32(0), values), values)
