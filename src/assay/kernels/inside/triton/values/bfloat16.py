"""bfloat16 for Triton's interpreter, which keeps it as 16-bit integers and then adds, compares and casts those.

Here each operation is done in float32 and rounded to nearest, as on a GPU; a float32 has more than twice the mantissa,
so that rounding twice changes nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter as engine

_BITS = np.dtype(np.uint16)


def install(builder: Any) -> None:
    """Put it into the interpreter's builder (`InterpreterBuilder`)."""
    binary, unary, ternary = builder.binary_op, builder.unary_op, builder.ternary_op
    fma, cast = builder.create_fma, builder.cast_impl

    def binary_op(self: Any, lhs: Any, rhs: Any, op: Any) -> Any:
        if not _is_bfloat16(lhs):
            return binary(self, lhs, rhs, op)
        found = op(wide(lhs.data), wide(rhs.data))
        compared = found.dtype == np.bool_
        return engine.TensorHandle(found if compared else narrow(found), tl.int1 if compared else tl.bfloat16)

    def unary_op(self: Any, arg: Any, op: Any) -> Any:
        if not _is_bfloat16(arg):
            return unary(self, arg, op)
        return engine.TensorHandle(narrow(op(wide(arg.data))), tl.bfloat16)

    def ternary_op(self: Any, lhs: Any, rhs: Any, other: Any, op: Any) -> Any:
        if op is np.where or not _is_bfloat16(other):
            return ternary(self, lhs, rhs, other, op)
        return engine.TensorHandle(narrow(op(*(wide(side.data) for side in (lhs, rhs, other)))), tl.bfloat16)

    def create_fma(self: Any, x: Any, y: Any, z: Any) -> Any:
        if not _is_bfloat16(z):
            return fma(self, x, y, z)
        return engine.TensorHandle(narrow(wide(x.data) * wide(y.data) + wide(z.data)), tl.bfloat16)

    def cast_impl(self: Any, src: Any, dst_type: Any) -> Any:
        if dst_type.scalar == tl.bfloat16 and not _is_bfloat16(src):
            return engine.TensorHandle(narrow(src.data), tl.bfloat16)
        if _is_bfloat16(src) and dst_type.scalar != tl.bfloat16:
            return engine.TensorHandle(wide(src.data).astype(engine._get_np_dtype(dst_type)), dst_type.scalar)
        return cast(self, src, dst_type)

    builder.binary_op, builder.unary_op, builder.ternary_op = binary_op, unary_op, ternary_op
    builder.create_fma, builder.cast_impl = create_fma, cast_impl
    builder.get_bf16 = _constant


def _constant(_self: Any, value: Any) -> Any:
    """A number that the kernel gives. Triton writes it down as a float32 with six decimals, and reads that."""
    with np.errstate(over="ignore"):
        written = f"{np.float32(value):f}"
    return engine.TensorHandle(narrow(np.array([float(written)])), tl.bfloat16)


def _is_bfloat16(handle: Any) -> bool:
    return bool(handle.data.dtype == _BITS and handle.dtype.scalar == tl.bfloat16)


def wide(bits: Any) -> Any:
    """The numbers that some bits are, as float32."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def narrow(values: Any) -> Any:
    """Bits of the nearest bfloat16, ties to even; NaN stays NaN."""
    values = np.asarray(values)
    values = _inexact_as_odd(values) if values.dtype.itemsize > 2 and values.dtype != np.float32 else values
    values = values.astype(np.float32)
    bits = values.view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return np.where(np.isnan(values), np.uint32(0x7FFF), rounded).astype(np.uint16)


def _inexact_as_odd(values: Any) -> Any:
    """float32 that the nearest bfloat16 can be told by: with a last bit that is set wherever something was lost, so
    that rounding twice changes nothing."""
    if values.dtype.kind in "iu" and values.dtype.itemsize == 8:
        size = np.abs(values).astype(np.uint64)  # of the least int64 too, which wraps around twice
        low = np.uint64(0x7FF)
        large = size >= np.uint64(1 << 53)
        size = np.where(large & ((size & low) != 0), size & ~low | np.uint64(0x800), size)
        exact = np.copysign(size.astype(np.float64), np.where(values < 0, -1.0, 1.0))
    else:
        exact = values.astype(np.float64)
    near = exact.astype(np.float32)
    bits = near.view(np.uint32) - (np.abs(near) > np.abs(exact)).astype(np.uint32)
    return (bits | (near != exact).astype(np.uint32)).view(np.float32)
