"""Inexact results, rounded the other way in some calls.

A GPU computes transcendental functions, divisions and sums to other last bits than a processor, and fuses products with
sums. A kernel that asks for those bits could tell the two apart. So in calls with a secret inexact results are moved by
as many last bits as CUDA's documents allow, up or down as a hash of their bits and the secret decides: the same
operation has the same result again. In a call that moves products all of them are moved, in others a share. Products
are fused with sums there, so that halves, of which a last bit is too much, are computed both ways as well. A product
alone, `tl.fma`, `tl.div_rn` and `tl.sqrt_rn` have the same bits everywhere.
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
_ULPS = {"log": 1, "log2": 1, "sqrt": 1}
_MOST_ULPS = 2
"""Of the other functions, and of divisions."""
_TO_TWO = np.float32(1.4426950408889634)
"""What `tl.exp` of a float32 multiplies by before it asks for a power of two."""
_PRODUCT = "product"
"""The attribute of a product: what it is without rounding."""


def install(builder: Any) -> None:
    """Put it into the interpreter's builder (`InterpreterBuilder`)."""
    _after(builder, "create_fmul", np.multiply)
    for name in ("fdiv", "precise_divf"):
        _after(builder, f"create_{name}", np.divide)
    _after_sum(builder, "create_fadd", 1)
    _after_sum(builder, "create_fsub", -1)
    _carry_joined_products(builder)
    for name in ("broadcast", "expand_dims", "splat", "reshape", "trans"):
        _carry_product(builder, f"create_{name}")
    for name in (*_FLUSHED, *_PERHAPS_FLUSHED):
        _after_function(builder, name)
    builder.create_fma = _fma


def moved(values: Any, exact: Any, ulps: int = 1) -> Any:
    """Results of this call's rounding; halves are left as they are.

    exact: what they would be without rounding; None where every result that is no whole number is taken for inexact.
    ulps: by how many last bits a GPU's may differ.
    """
    bits = _BITS.get(values.dtype)
    if not current().rounding or bits is None or not values.size:
        return values
    values = np.ascontiguousarray(values)
    noise = _noise(values)
    steps = (np.uint32(1) + (noise >> np.uint32(20)) % np.uint32(ulps)).astype(bits)
    up = (noise >> np.uint32(31)).astype(bits)
    other = (values.view(bits) + (up + up - bits.type(1)) * steps).view(values.dtype)
    inexact = (np.rint(values) if exact is None else exact) != values
    if not current().products:
        inexact &= ((noise >> np.uint32(8)) & np.uint32(0xFF)) < np.uint32(64 + (current().rounding >> 11 & 127))
    inexact &= np.isfinite(values) & np.isfinite(other) & (np.abs(values) > _LEAST)
    return np.where(inexact, other, values)


def _noise(values: Any) -> Any:
    """32 bits for each number, as its bits and the secret decide."""
    number = values.view(_BITS[values.dtype])
    folded = (number if number.itemsize == 4 else number ^ (number >> np.uint64(32))).astype(np.uint32)
    mixed = (folded ^ np.uint32(current().rounding & 0xFFFFFFFF)) * np.uint32(_FACTOR)
    return (mixed ^ (mixed >> np.uint32(15))) * np.uint32(_FACTOR)


def reordered(values: Any, magnitude: Any, exact: Any) -> Any:
    """Sums of this call's rounding: moved by what another order may make of them.

    magnitude: sums of what was added, without signs. exact: where all orders give the same.
    """
    if not current().rounding or values.dtype not in _BITS or not values.size:
        return values
    values = np.ascontiguousarray(values)
    step = np.maximum(np.spacing(np.abs(values)), magnitude * np.finfo(values.dtype).epsneg)
    other = np.where(_noise(values) >> np.uint32(31) == 1, values + step, values - step).astype(values.dtype)
    return np.where(exact | (magnitude == 0) | ~np.isfinite(other), values, other)


def all_orders_agree(magnitude: Any, whole: Any) -> Any:
    """Whether sums of a magnitude are exact in every order: of whole numbers, while they have few enough bits."""
    return whole & (magnitude <= _WHOLE)


def canonical(values: Any) -> Any:
    """NaN as a GPU's arithmetic gives it: a processor's has the sign bit set. That of a float64 has any sign."""
    if values.dtype.kind != "f":
        return values
    nan = np.isnan(values)
    if not nan.any():
        return values
    quiet = _QUIET.get(values.dtype)
    found = np.copysign(np.nan, -1.0 if current().rounding & 8 else 1.0) if quiet is None else quiet.view(values.dtype)
    return np.where(nan, found, values)


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
        if not current().rounding or name == "create_precise_divf":
            return found
        if function is np.multiply:
            found.attr[_PRODUCT] = function(_widened(lhs), _widened(rhs))
        elif found.data.dtype == _SINGLE:
            found.data = moved(found.data, function(_widened(lhs), _widened(rhs)), _MOST_ULPS)
        return found

    setattr(builder, name, operation)


def _after_sum(builder: Any, name: str, sign: int) -> None:
    compute = getattr(builder, name)

    def operation(self: Any, lhs: Any, rhs: Any) -> Any:
        if current().rounding:
            if (product := lhs.attr.get(_PRODUCT)) is not None:
                return _narrowed(_added(product, sign * _widened(rhs)), lhs.dtype.scalar)
            if (product := rhs.attr.get(_PRODUCT)) is not None:
                return _narrowed(_added(_widened(lhs), sign * product), lhs.dtype.scalar)
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


def unrounded(handle: Any) -> Any:
    """Products that have yet to be summed, as they are without rounding in calls with a secret; None for all else."""
    return handle.attr.get(_PRODUCT)


def _carry_joined_products(builder: Any) -> None:
    join, split = builder.create_join, builder.create_split

    def create_join(self: Any, lhs: Any, rhs: Any) -> Any:
        found = join(self, lhs, rhs)
        if _PRODUCT in lhs.attr or _PRODUCT in rhs.attr:
            sides = (side.attr.get(_PRODUCT) if _PRODUCT in side.attr else _widened(side) for side in (lhs, rhs))
            found.attr[_PRODUCT] = np.stack(tuple(sides), axis=-1)
        return found

    def create_split(self: Any, val: Any) -> Any:
        parts = split(self, val)
        if _PRODUCT in val.attr:
            for place, part in enumerate(parts):
                part.attr[_PRODUCT] = val.attr[_PRODUCT][..., place]
        return parts

    builder.create_join, builder.create_split = create_join, create_split


def _added(left: Any, right: Any) -> Any:
    """A sum of float64 that can be rounded once more as if it had not been: its last bit is set where it is inexact."""
    found = np.asarray(left + right)
    if found.dtype != _DOUBLE:
        return found
    back = found - left
    lost = (left - (found - back)) + (right - back)
    bits = found.view(np.int64)
    odd = bits + np.where((lost > 0) == (found > 0), 1, -1)
    return np.where(np.isfinite(lost) & (lost != 0) & (bits & 1 == 0), odd, bits).view(np.float64)


def fused(x: Any, y: Any, z: Any) -> Any:
    """x * y + z in float64, fit to be rounded to 32 bits or fewer; in 80 bits of float64 operands, not always exact."""
    wide = np.longdouble if z.dtype == _DOUBLE else np.float64
    return _added(x.astype(wide) * y.astype(wide), z.astype(wide))


def _fma(_self: Any, x: Any, y: Any, z: Any) -> Any:
    """A product and a sum, rounded once."""
    exact = _added(_widened(x) * _widened(y), _widened(z))
    found = _narrowed(exact, z.dtype.scalar)
    found.data = moved(found.data, exact) if found.data.dtype == _DOUBLE else found.data
    return found


def _exponential(self: Any, arg: Any) -> Any:
    """`tl.exp`: of a float32 a power of two, whose exponent is rounded first."""
    if arg.data.dtype != _SINGLE:
        return self.unary_op(arg, np.exp)
    return engine.TensorHandle(np.exp2(arg.data * _TO_TWO), arg.dtype.scalar)


def _after_function(builder: Any, name: str) -> None:
    compute = _exponential if name == "exp" else getattr(builder, f"create_{name}")
    exact, ulps = name in ("floor", "ceil"), _ULPS.get(name, _MOST_ULPS)

    def operation(self: Any, arg: Any) -> Any:
        flush = arg.data.dtype == _SINGLE and (name in _FLUSHED or (name in _PERHAPS_FLUSHED and perhaps_flushes()))
        if flush:
            arg = engine.TensorHandle(flushed(arg.data), arg.dtype)
        found = compute(self, arg)
        found.data = canonical(flushed(found.data) if flush else found.data)
        found.data = found.data if exact else moved(found.data, None, ulps)
        return found

    setattr(builder, f"create_{name}", operation)
