"""Products of matrices (`tl.dot`) as tensor cores make them."""

from __future__ import annotations

from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter as engine

from assay.kernels.inside.triton.ledger import UnsupportedError, current, refuse
from assay.kernels.inside.triton.unsettled import device
from assay.kernels.inside.triton.values import casts
from assay.kernels.inside.triton.values.rounding import all_orders_agree, canonical, reordered

_TF32 = engine._ir.INPUT_PRECISION.TF32
_AT_ONCE = (16, 8)
"""Elements that a tensor core adds to a sum of halves before it rounds it, and those in calls that move products."""
_EIGHT_BITS_AT_ONCE = (16, 32)
"""The same of products of eight bits."""
_LIMITS = np.iinfo(np.int32)
_OPERANDS = "operands of eight bits"
"""Attribute: the matrices of a product to which nothing was added yet."""
_OF_ONE_GPU = "operands and precision"
"""The same of a product of floats, with all else that `create_dot` takes."""


def install(builder: Any) -> None:
    """Put it into the interpreter's builder (`InterpreterBuilder`)."""
    dot = builder.create_dot

    def create_dot(self: Any, a: Any, b: Any, d: Any, input_precision: Any, *rest: Any) -> Any:
        matrices = a, b
        if tl.bfloat16 in (a.dtype.scalar, b.dtype.scalar):
            refuse(
                UnsupportedError("tl.dot of bfloat16: the interpreter would compute a wrong product. It needs a GPU.")
            )
        if input_precision == _TF32 and a.data.dtype == np.float32:
            a, b = (engine.TensorHandle(_tf32(side.data), side.dtype.scalar) for side in (a, b))
        a, b = (casts.widened(side) for side in (a, b))
        if d.data.dtype == np.float16:
            return engine.TensorHandle(_summed_in_halves(a.data, b.data, d.data), tl.float16)
        found = dot(self, a, b, d, input_precision, *rest)
        if input_precision == engine._ir.INPUT_PRECISION.IEEE and a.data.dtype in (np.float32, np.float64):
            found.data = _signed(found.data, (a.data, b.data, d.data))
        if found.data.dtype == np.int32:
            if not d.data.any():
                found.attr[_OPERANDS] = a.data, b.data
            found.data = _saturated(found.data, (a.data, b.data, d.data))
        if current().device and d.data.dtype == np.float32:
            found.data = _of_device(found.data, (a.data, b.data, d.data), input_precision)
        elif current().products:
            found.data = _in_another_order(found.data, (a.data, b.data, d.data))
            if d.data.dtype == np.float32:
                found.data = _cut_off(found.data, (a.data, b.data, d.data), input_precision)
        found.data = canonical(found.data)
        if current().device and d.data.dtype == np.float32 and not d.data.any():
            found.attr[_OF_ONE_GPU] = matrices, (input_precision, *rest)
        return found

    builder.create_dot = create_dot
    add, add_floats = builder.create_add, builder.create_fadd

    def create_add(self: Any, lhs: Any, rhs: Any) -> Any:
        """The compiler lets a tensor core begin with what is added to its product."""
        found = add(self, lhs, rhs)
        if _OPERANDS in lhs.attr or _OPERANDS in rhs.attr:
            product, other = (lhs, rhs) if _OPERANDS in lhs.attr else (rhs, lhs)
            if found.data.dtype == np.int32:
                found.data = _saturated(found.data, (*product.attr[_OPERANDS], other.data))
        return found

    def create_fadd(self: Any, lhs: Any, rhs: Any) -> Any:
        for product, other in ((lhs, rhs), (rhs, lhs)):
            if _OF_ONE_GPU in product.attr:
                (a, b), precision = product.attr[_OF_ONE_GPU]
                return create_dot(self, a, b, other, *precision)
        return add_floats(self, lhs, rhs)

    builder.create_add, builder.create_fadd = create_add, create_fadd


def _signed(found: Any, operands: tuple[Any, Any, Any]) -> Any:
    """Products added to a sum one after the other: -0.0 where all of them are, and the sum was."""
    left, right, total = operands
    minus = (found == 0) & (total == 0) & np.signbit(total)
    if not minus.any():
        return found
    left, right = (np.copysign(np.float32(1), side, dtype=np.float32, casting="same_kind") for side in (left, right))
    return np.where(minus & (np.matmul(left, right) == -left.shape[-1]), found.dtype.type(-0.0), found)


def _saturated(found: Any, operands: tuple[Any, Any, Any]) -> Any:
    """Sums that leave 32 bits: some tensor cores begin anew at the other end, others stay at the end, with each sum of
    as many products as they make at once. So they stay in calls that move products, and in half of the others."""
    ledger = current()
    if not (ledger.products or ledger.rounding & 2):
        return found
    left, right, total = (side.astype(np.int64) for side in operands)
    terms = left.shape[-1] * _largest(left) * _largest(right)
    if terms + _largest(total) <= _LIMITS.max:
        return found
    step = _EIGHT_BITS_AT_ONCE[ledger.products]
    for start in range(0, left.shape[-1], step):
        part = np.matmul(left[..., start : start + step], right[..., start : start + step, :])
        total = np.clip(total + part, _LIMITS.min, _LIMITS.max)
    return total.astype(np.int32)


def _largest(values: Any) -> int:
    return int(np.abs(values).max(initial=0))


def _cut_off(found: Any, operands: tuple[Any, Any, Any], input_precision: Any) -> Any:
    """Products of float32, or sums in float32, as tensor cores make them."""
    left, right, total = operands
    if left.dtype == np.float16:
        made = _aligned(left, right, total, _AT_ONCE[0])
    elif input_precision == _TF32:
        made = _aligned(left, right, total, _AT_ONCE[1])
    elif input_precision == engine._ir.INPUT_PRECISION.TF32x3:
        (one, rest), (other, more) = (_split(side) for side in (left, right))
        made = _aligned(one, more, _aligned(rest, other, np.zeros_like(total), _AT_ONCE[1]), _AT_ONCE[1])
        made = _aligned(one, other, made, _AT_ONCE[1]) + total
    else:
        return found
    return np.where(np.isfinite(made), made, found)


def _of_device(found: Any, operands: tuple[Any, Any, Any], input_precision: Any) -> Any:
    """Products as one GPU makes them: by tensor cores, or by one fused sum after the other."""
    if operands[0].dtype == np.float32 and input_precision == engine._ir.INPUT_PRECISION.IEEE:
        return device.one_after_the_other(*operands)
    return _cut_off(found, operands, input_precision)


def _split(values: Any) -> tuple[Any, Any]:
    large = _tf32(values)
    return large, _tf32(values - large)


def _aligned(left: Any, right: Any, total: Any, step: int) -> Any:
    """Some products at once are cut off where the last bit of the largest of them and of the sum ends, and added."""
    left, right, total = (side.astype(np.float64) for side in (left, right, total))
    for start in range(0, left.shape[-1], step):
        places = range(start, min(start + step, left.shape[-1]))
        parts = [total, *(left[..., :, k, None] * right[..., None, k, :] for k in places)]
        last = _last_bit(np.maximum.reduce([np.abs(part) for part in parts]))
        total = sum((np.trunc(part / last) * last for part in parts), np.zeros_like(total))
        last = _last_bit(np.abs(total))
        total = np.trunc(total / last) * last
    return total.astype(np.float32)


def _last_bit(size: Any) -> Any:
    """Of float32 as large as these; 1 for zeros."""
    return np.ldexp(1.0, np.where(size > 0, np.frexp(size)[1] - 24, 0))


def _in_another_order(found: Any, operands: tuple[Any, Any, Any]) -> Any:
    left, right, total = (np.abs(side).astype(np.float64) for side in operands)
    magnitude = np.matmul(left, right) + total
    whole = all((np.rint(side) == side).all() for side in operands)
    return reordered(found, magnitude, all_orders_agree(magnitude, whole))


def _summed_in_halves(left: Any, right: Any, total: Any) -> Any:
    step = _AT_ONCE[current().products]
    for start in range(0, left.shape[-1], step):
        end = start + step
        part = np.matmul(left[..., start:end], right[..., start:end, :], dtype=np.float32)
        total = (total.astype(np.float32) + part).astype(np.float16)
    return total


def _tf32(values: Any) -> Any:
    """What a tensor core sees of float32 operands unless `input_precision` says otherwise: 10 bits of mantissa. The
    others are cut off, or rounded, as the compiler writes it: cut off in calls that move products."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    half = np.uint32(0) if current().products else np.uint32(0x0FFF) + ((bits >> np.uint32(13)) & np.uint32(1))
    short = ((bits + half) & np.uint32(0xFFFFE000)).view(np.float32)
    return np.where(np.isfinite(values), short, values)
