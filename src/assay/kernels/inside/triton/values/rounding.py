"""Inexact results, rounded the other way in some calls.

A GPU computes transcendental functions, divisions and sums to other last bits than a processor, and fuses products with
sums. A kernel that asks for those bits could tell the two apart. So in calls with a secret each inexact result is moved
by its last bit, up or down as a hash of its bits and the secret decides: the same operation has the same result again.
Products are fused with sums there, so that halves, of which a last bit is too much, are computed both ways as well.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter as engine

from assay.kernels.inside.triton.ledger import current
from assay.kernels.inside.triton.values import bfloat16

_FACTOR = 2654435761
_SINGLE, _DOUBLE, _HALF = np.dtype(np.float32), np.dtype(np.float64), np.dtype(np.float16)
_BITS: dict[Any, Any] = {_SINGLE: np.dtype(np.uint32), _DOUBLE: np.dtype(np.uint64)}
_LEAST = np.float32(2.0**-126)
"""The least normal float32: what is smaller is zero to a GPU's approximations."""
_WHOLE = 2.0**24
"""Up to it a float32 has all whole numbers."""
_QUIET: dict[Any, Any] = {_SINGLE: np.uint32(0x7FFFFFFF), _HALF: np.uint16(0x7FFF)}
"""The only NaN that a GPU's arithmetic gives."""
_FLUSHED = ("exp2", "sin", "cos", "sqrt", "rsqrt", "erf", "floor", "ceil")
"""Functions of float32 that take a denormal number for zero, and give none."""
_PERHAPS_FLUSHED = ("exp", "log", "log2")
"""Those that do so or not, as Triton writes them."""
_OTHERS = ("precise_sqrt",)
_PRODUCT = "product"
"""The attribute of a product: what it is without rounding."""


def install(builder: Any) -> None:
    """Put it into the interpreter's builder (`InterpreterBuilder`)."""
    _after(builder, "create_fmul", np.multiply)
    for name in ("fdiv", "precise_divf"):
        _after(builder, f"create_{name}", np.divide)
    _after_sum(builder, "create_fadd", np.add)
    _after_sum(builder, "create_fsub", np.subtract)
    for name in ("broadcast", "expand_dims", "splat", "reshape", "trans"):
        _carry_product(builder, f"create_{name}")
    for name in (*_FLUSHED, *_PERHAPS_FLUSHED, *_OTHERS):
        _after_function(builder, name)
    builder.create_fma = _fma


def moved(values: Any, exact: Any) -> Any:
    """Results of this call's rounding; halves are left as they are.

    exact: what they would be without rounding; None where every result that is no whole number is taken for inexact.
    """
    bits = _BITS.get(values.dtype)
    if not current().rounding or bits is None or not values.size:
        return values
    values = np.ascontiguousarray(values)
    up = _up(values).astype(bits)
    other = (values.view(bits) + up + up - bits.type(1)).view(values.dtype)
    inexact = (np.rint(values) if exact is None else exact) != values
    inexact &= np.isfinite(values) & np.isfinite(other) & (np.abs(values) > _LEAST)
    return np.where(inexact, other, values)


def _up(values: Any) -> Any:
    """1 where results are to be moved up, 0 where down: as their bits and the secret decide."""
    number = values.view(_BITS[values.dtype])
    folded = (number if number.itemsize == 4 else number ^ (number >> np.uint64(32))).astype(np.uint32)
    return ((folded ^ np.uint32(current().rounding & 0xFFFFFFFF)) * np.uint32(_FACTOR)) >> np.uint32(31)


def reordered(values: Any, magnitude: Any, exact: Any) -> Any:
    """Sums of this call's rounding: moved by what another order may make of them.

    magnitude: sums of what was added, without signs. exact: where all orders give the same.
    """
    if not current().rounding or values.dtype not in _BITS or not values.size:
        return values
    values = np.ascontiguousarray(values)
    step = np.maximum(np.spacing(np.abs(values)), magnitude * np.finfo(values.dtype).epsneg)
    other = np.where(_up(values) == 1, values + step, values - step).astype(values.dtype)
    return np.where(exact | (magnitude == 0) | ~np.isfinite(other), values, other)


def all_orders_agree(magnitude: Any, whole: Any) -> Any:
    """Whether sums of a magnitude are exact in every order: of whole numbers, while they have few enough bits."""
    return whole & (magnitude <= _WHOLE)


def canonical(values: Any) -> Any:
    """NaN as a GPU's arithmetic gives it: a processor's has the sign bit set."""
    quiet = _QUIET.get(values.dtype)
    if quiet is None:
        return values
    nan = np.isnan(values)
    return np.where(nan, quiet.view(values.dtype), values) if nan.any() else values


def flushed(values: Any) -> Any:
    """Numbers below the least normal float32 as zeros of their sign."""
    return np.where(np.abs(values) < _LEAST, np.copysign(values.dtype.type(0), values), values)


def perhaps_flushes() -> bool:
    """Whether functions that may take denormal numbers for zero do so in this call."""
    return bool(current().rounding & 2)


def _widened(handle: Any) -> Any:
    """Values in a type in which their products are exact, or nearly so."""
    if handle.dtype.scalar == tl.bfloat16:
        return bfloat16.wide(handle.data).astype(np.float64)
    return handle.data.astype(np.longdouble if handle.data.dtype == _DOUBLE else np.float64)


def _narrowed(values: Any, dtype: Any) -> Any:
    """A result, rounded once to a type."""
    data = bfloat16.narrow(values) if dtype == tl.bfloat16 else values.astype(engine._get_np_dtype(dtype))
    return engine.TensorHandle(canonical(data), dtype)


def _after(builder: Any, name: str, function: Callable[[Any, Any], Any]) -> None:
    compute = getattr(builder, name)

    def operation(self: Any, lhs: Any, rhs: Any) -> Any:
        found = compute(self, lhs, rhs)
        found.data = canonical(found.data)
        if current().rounding:
            exact = function(_widened(lhs), _widened(rhs))
            found.data = moved(found.data, exact)
            if function is np.multiply:
                found.attr[_PRODUCT] = exact
        return found

    setattr(builder, name, operation)


def _after_sum(builder: Any, name: str, function: Callable[[Any, Any], Any]) -> None:
    compute = getattr(builder, name)

    def operation(self: Any, lhs: Any, rhs: Any) -> Any:
        if current().rounding:
            if (product := lhs.attr.get(_PRODUCT)) is not None:
                return _narrowed(function(product, _widened(rhs)), lhs.dtype.scalar)
            if (product := rhs.attr.get(_PRODUCT)) is not None:
                return _narrowed(function(_widened(lhs), product), lhs.dtype.scalar)
        found = compute(self, lhs, rhs)
        found.data = canonical(found.data)
        return found

    setattr(builder, name, operation)


def _carry_product(builder: Any, name: str) -> None:
    compute = getattr(builder, name)

    def operation(self: Any, *args: Any) -> Any:
        found = compute(self, *args)
        for place, arg in enumerate(args if current().rounding else ()):
            product = arg.attr.get(_PRODUCT) if isinstance(arg, engine.TensorHandle) else None
            if product is not None and product.dtype == _DOUBLE:
                wide = engine.TensorHandle(product, tl.float64)
                found.attr[_PRODUCT] = compute(self, *args[:place], wide, *args[place + 1 :]).data
        return found

    setattr(builder, name, operation)


def _fma(_self: Any, x: Any, y: Any, z: Any) -> Any:
    """A product and a sum, rounded once."""
    exact = _widened(x) * _widened(y) + _widened(z)
    found = _narrowed(exact, z.dtype.scalar)
    found.data = moved(found.data, exact)
    return found


def _after_function(builder: Any, name: str) -> None:
    compute, exact = getattr(builder, f"create_{name}"), name in ("floor", "ceil")

    def operation(self: Any, arg: Any) -> Any:
        flush = arg.data.dtype == _SINGLE and (name in _FLUSHED or (name in _PERHAPS_FLUSHED and perhaps_flushes()))
        if flush:
            arg = engine.TensorHandle(flushed(arg.data), arg.dtype)
        found = compute(self, arg)
        found.data = canonical(flushed(found.data) if flush else found.data)
        found.data = found.data if exact else moved(found.data, None)
        return found

    setattr(builder, f"create_{name}", operation)
