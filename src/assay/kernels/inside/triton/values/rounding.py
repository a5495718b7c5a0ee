"""Inexact results, rounded the other way in some calls.

A GPU computes transcendental functions, divisions and sums to other last bits than a processor, and fuses products with
sums. A kernel that asks for those bits could tell the two apart. So in calls with a secret inexact results are moved by
as many last bits as CUDA's documents allow, up or down as a hash of their bits and the secret decides: the same
operation has the same result again. In a call that moves products all of them are moved, in others a share. What is
added to them they are added to unrounded (`unsettled.products`): divisions and functions end in products, too, so these
are off by a part of a last bit, of any size. A product alone, `tl.fma`, `tl.div_rn` and `tl.sqrt_rn` have the same bits
everywhere.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter as engine

from assay.kernels.inside.triton.ledger import current
from assay.kernels.inside.triton.unsettled import device
from assay.kernels.inside.triton.unsettled.certain import powers_of_two, settled_results
from assay.kernels.inside.triton.unsettled.functions import approximated
from assay.kernels.inside.triton.unsettled.nans import folded
from assay.kernels.inside.triton.unsettled.products import keep, mark, unrounded, widened
from assay.kernels.inside.triton.values import bfloat16
from assay.kernels.inside.triton.values.constants import is_constant

_FACTOR = 2654435761
_SINGLE, _DOUBLE, _HALF = np.dtype(np.float32), np.dtype(np.float64), np.dtype(np.float16)
_BITS: dict[Any, Any] = {_SINGLE: np.dtype(np.uint32), _DOUBLE: np.dtype(np.uint64)}
LEAST = np.float32(2.0**-126)
"""The least normal float32: what is smaller is zero to a GPU's approximations."""
_WHOLE = 2.0**24
"""Up to it a float32 has all whole numbers."""
_QUIET: dict[Any, Any] = {
    _SINGLE: (np.uint32(0x7FFFFFFF), np.uint32(0x7FC00000)),
    _HALF: (np.uint16(0x7FFF), np.uint16(0x7E00)),
}
"""The only NaN that a GPU's arithmetic gives, and that of the compiler's."""
_FLUSHED = ("exp2", "sin", "cos", "sqrt", "rsqrt", "erf", "floor", "ceil")
"""Functions of float32 that take a denormal number for zero, and give none."""
_ALWAYS_FLUSHED = ("root", "__nv_sqrtf")
"""Those that do so in every call: `sqrt.approx.ftz`, but for constants, whose roots the compiler takes."""
_PERHAPS_FLUSHED = ("exp", "log", "log2")
"""Those that do so or not, as Triton writes them."""
_ULPS = {"log": 1, "log2": 1, "sqrt": 1}
_MOST_ULPS = 2
"""Of the other functions, and of divisions."""
_TO_TWO = np.float32(1.4426950408889634)
"""What `tl.exp` of a float32 multiplies by before it asks for a power of two."""
_SIZES = 28
"""Of moves of sums, and of what is lost by rounding: halves of each other."""


def install(builder: Any) -> None:
    """Put it into the interpreter's builder (`InterpreterBuilder`)."""
    _after(builder, "create_fmul", np.multiply)
    for name in ("fdiv", "precise_divf"):
        _after(builder, f"create_{name}", np.divide)
    _after_sum(builder, "create_fadd", 1)
    _after_sum(builder, "create_fsub", -1)
    for name in (*_FLUSHED, *_PERHAPS_FLUSHED):
        _after_function(builder, name)
    builder.create_fma = _fma


def moved(values: Any, settled: Any, ulps: int = 1) -> Any:
    """Results of this call's rounding; halves are left as they are.

    settled: which of them every machine has to the last bit.
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
    inexact = ~settled & np.isfinite(values) & np.isfinite(other) & (values != 0)
    if not current().products:
        inexact &= ((noise >> np.uint32(8)) & np.uint32(0xFF)) < np.uint32(64 + (current().rounding >> 11 & 127))
    return np.where(inexact, other, values)


def by_a_part(handle: Any, settled: Any) -> Any:
    """Note of results of float32 that they have lost a part of their last bit, of any size down to none."""
    if not current().rounding or handle.data.dtype != _SINGLE or not handle.data.size:
        return handle
    return mark(handle, partial(_unrounded_by_a_part, np.ascontiguousarray(handle.data), settled), product=False)


def _unrounded_by_a_part(values: Any, settled: Any) -> Any:
    noise = _noise(values, 0x51ED270B)
    part = np.ldexp(np.spacing(np.abs(values)).astype(np.float64), -1 - (noise % np.uint32(_SIZES)).astype(np.int32))
    part = np.where(settled | ~np.isfinite(values) | (values == 0), 0.0, part)
    return values + np.where(noise >> np.uint32(31) == 1, part, -part)


def _noise(values: Any, salt: int = 0) -> Any:
    """32 bits for each number, as its bits and the secret decide."""
    number = values.view(_BITS[values.dtype])
    folded_number = (number if number.itemsize == 4 else number ^ (number >> np.uint64(32))).astype(np.uint32)
    mixed = (folded_number ^ np.uint32((current().rounding ^ salt) & 0xFFFFFFFF)) * np.uint32(_FACTOR)
    return (mixed ^ (mixed >> np.uint32(15))) * np.uint32(_FACTOR)


def reordered(values: Any, magnitude: Any, exact: Any) -> Any:
    """Sums of this call's rounding: moved by what another order may make of them, or by less, but for a last bit.

    magnitude: sums of what was added, without signs. exact: where all orders give the same.
    """
    if not current().rounding or values.dtype not in _BITS or not values.size:
        return values
    values = np.ascontiguousarray(values)
    noise = _noise(values)
    most = magnitude * np.finfo(values.dtype).epsneg
    less = np.ldexp(most, -((noise >> np.uint32(8)) % np.uint32(_SIZES)).astype(np.int32))
    step = np.maximum(np.spacing(np.abs(values)), np.where(noise & np.uint32(3) == 0, most, less))
    other = np.where(noise >> np.uint32(31) == 1, values + step, values - step).astype(values.dtype)
    return np.where(exact | (magnitude == 0) | ~np.isfinite(other), values, other)


def all_orders_agree(magnitude: Any, whole: Any) -> Any:
    """Whether sums of a magnitude are exact in every order: of whole numbers, while they have few enough bits."""
    return whole & (magnitude <= _WHOLE)


def canonical(values: Any, constant: bool = False) -> Any:
    """NaN as a GPU's arithmetic gives it, or as its compiler does: a processor's has the sign bit set. That of a
    float64 has any sign. `constant`: one GPU's compiler computes it."""
    if values.dtype.kind != "f":
        return values
    nan = np.isnan(values)
    if not nan.any():
        return values
    quiet = _QUIET.get(values.dtype)
    if quiet is None:
        found: Any = np.copysign(np.nan, -1.0 if current().rounding & 8 else 1.0)
    else:
        found = quiet[folded() or (constant and current().device != 0)].view(values.dtype)
    return np.where(nan, found, values)


def flushed(values: Any) -> Any:
    """Numbers below the least normal float32 as zeros of their sign."""
    return np.where(np.abs(values) < LEAST, np.copysign(values.dtype.type(0), values), values)


def perhaps_flushed(values: Any, name: str) -> Any:
    """The same where a function takes denormal numbers for zero or gives none: in calls with a secret, of a share. Its
    multiplications may keep them, and the compiler does of constants."""
    small = np.abs(values) < LEAST
    if not small.any():
        return values
    small &= values != 0
    ledger = current()
    if ledger.rounding and name not in _ALWAYS_FLUSHED:
        values = np.ascontiguousarray(values)
        small &= (_noise(values, _salt(name)) >> np.uint32(16) & np.uint32(1) == 1) & (not ledger.products)
    return np.where(small, np.copysign(values.dtype.type(0), values), values)


@cache
def _salt(name: str) -> int:
    return zlib.crc32(name.encode())


def perhaps_flushes(name: str = "") -> bool:
    """Whether functions that may take denormal numbers for zero do so in this call. On one GPU the logarithm of what
    is added to 1 does."""
    return bool(current().rounding & 2) or (bool(current().device) and name == "__nv_log1pf")


def _narrowed(values: Any, dtype: Any) -> Any:
    """A result, rounded once to a type."""
    data = bfloat16.narrow(values) if dtype == tl.bfloat16 else values.astype(engine._get_np_dtype(dtype))
    return engine.TensorHandle(canonical(data), dtype)


def _after(builder: Any, name: str, function: Callable[[Any, Any], Any]) -> None:
    compute = getattr(builder, name)

    def operation(self: Any, lhs: Any, rhs: Any) -> Any:
        found = compute(self, lhs, rhs)
        found.data = canonical(found.data, is_constant(found))
        if name == "create_precise_divf":
            return found
        if function is np.multiply:
            if not current().fuses:
                return found
            product = mark(found, function(widened(lhs), widened(rhs)))
            # Of a product with 1 a GPU fuses the one before it, or this one, whose operands are rounded.
            one_gpu = current().device and (is_constant(lhs) or is_constant(rhs))
            return keep(product, (lhs, rhs), np.multiply) if one_gpu or current().rounding & 32 else product
        if current().device:
            if found.data.dtype == _SINGLE and not is_constant(found):
                found.data = canonical(device.quotients(*np.broadcast_arrays(lhs.data, rhs.data)))
        elif found.data.dtype == _SINGLE:
            # A GPU multiplies by the inverse, so that exact quotients are off as well.
            settled = np.broadcast_to(powers_of_two(rhs.data), found.data.shape)
            found.data = moved(found.data, settled, _MOST_ULPS)
            by_a_part(found, settled)
        return found

    setattr(builder, name, operation)


def _after_sum(builder: Any, name: str, sign: int) -> None:
    compute = getattr(builder, name)

    def operation(self: Any, lhs: Any, rhs: Any) -> Any:
        if current().fuses and (lhs.attr or rhs.attr):
            left, right = unrounded(lhs), unrounded(rhs)
            if left is not None or right is not None:
                exact = _fused_sum(lhs, rhs, sign, left, right)
                return keep(_narrowed(exact, lhs.dtype.scalar), (lhs, rhs), np.add if sign > 0 else np.subtract)
        found = compute(self, lhs, rhs)
        found.data = canonical(found.data, is_constant(found))
        return found

    setattr(builder, name, operation)


def _fused_sum(lhs: Any, rhs: Any, sign: int, left: Any, right: Any) -> Any:
    """A sum with the one product or the other unrounded; of two, in calls that move products, the second, and in
    half of the others the first. One GPU has always the same one."""
    ledger = current()
    if left is None or (right is not None and (ledger.products or ledger.device & 2)):
        return _added(widened(lhs), sign * right)
    one = _added(left, sign * widened(rhs))
    if right is None or ledger.device or ledger.rounding & 64:
        return one
    other = _added(widened(lhs), sign * right)
    noise = _noise(np.ascontiguousarray(left, dtype=np.float64), 0x2545F491)
    return np.where(noise >> np.uint32(31) == 1, other, one)


def pairs(products: Any, rounded: Any) -> Any:
    """Sums of neighbours along the last axis, which are products: one of both is fused, as one GPU does it.

    products: without rounding. rounded: the same with it.
    """
    first, second = (rounded, products) if current().device & 2 else (products, rounded)
    return _added(first[..., 0::2].astype(products.dtype), second[..., 1::2].astype(products.dtype))


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
    exact = _added(widened(x) * widened(y), widened(z))
    found = _narrowed(exact, z.dtype.scalar)
    if found.data.dtype == _DOUBLE:
        found.data = moved(found.data, exact == found.data)
    return found


def _exponential(self: Any, arg: Any) -> Any:
    """`tl.exp`: of a float32 a power of two, whose exponent is rounded first."""
    if arg.data.dtype != _SINGLE:
        return self.unary_op(arg, np.exp)
    return engine.TensorHandle(np.exp2(arg.data * _TO_TWO), arg.dtype.scalar)


def _approximated(arg: Any, name: str, ulps: int) -> Any:
    """What one GPU has for a function."""
    if name == "exp" and arg.data.dtype == _SINGLE:
        arg, name = engine.TensorHandle(arg.data * _TO_TWO, arg.dtype), "exp2"
    kind, wide = arg.data.dtype, device.wide(arg.data)
    exact = device.FUNCTIONS[name](wide)
    found = exact.astype(kind)
    settled = settled_results(name, found, (arg.data,))
    data = np.where(settled, found, approximated(name, exact, (wide,), kind, ulps))
    return engine.TensorHandle(data, arg.dtype.scalar)


def _of_a_constant(found: Any, arg: Any, name: str) -> Any:
    """What one GPU's compiler computes itself, rounded to nearest."""
    nearest = device.FUNCTIONS[name](device.wide(arg.data)).astype(found.data.dtype)
    found.data = canonical(nearest, constant=True)
    return found


def _after_function(builder: Any, name: str) -> None:
    compute = _exponential if name == "exp" else getattr(builder, f"create_{name}")
    exact, ulps = name in ("floor", "ceil"), _ULPS.get(name, _MOST_ULPS)

    def operation(self: Any, arg: Any) -> Any:
        single = arg.data.dtype == _SINGLE
        if current().device and not exact and arg.data.dtype in _BITS and is_constant(arg):
            return _of_a_constant(compute(self, arg), arg, name)
        if single and name in _FLUSHED:
            kind = "root" if name == "sqrt" and not is_constant(arg) else name
            arg = engine.TensorHandle(perhaps_flushed(arg.data, kind), arg.dtype)
        elif single and name in _PERHAPS_FLUSHED and perhaps_flushes():
            arg = engine.TensorHandle(flushed(arg.data), arg.dtype)
        if current().device and not exact and arg.data.dtype in _BITS:
            found = _approximated(arg, name, 1 if name == "exp" and not single else ulps)
        else:
            found = compute(self, arg)
        keeps = current().device and name in _PERHAPS_FLUSHED
        data = perhaps_flushed(found.data, name) if single and not keeps else found.data
        found.data = canonical(data, is_constant(found))
        if exact or not current().rounding:
            return found
        settled = settled_results(name, found.data, (arg.data,))
        found.data = moved(found.data, settled, ulps)
        return by_a_part(found, settled)

    setattr(builder, f"create_{name}", operation)
