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
    fma, cast, convert = builder.create_fma, builder.cast_impl, engine._convert_float

    def binary_op(self: Any, lhs: Any, rhs: Any, op: Any) -> Any:
        if not _is_bfloat16(lhs):
            return binary(self, lhs, rhs, op)
        found = op(_wide(lhs.data), _wide(rhs.data))
        compared = found.dtype == np.bool_
        return engine.TensorHandle(found if compared else _narrow(found), tl.int1 if compared else tl.bfloat16)

    def unary_op(self: Any, arg: Any, op: Any) -> Any:
        if not _is_bfloat16(arg):
            return unary(self, arg, op)
        return engine.TensorHandle(_narrow(op(_wide(arg.data))), tl.bfloat16)

    def ternary_op(self: Any, lhs: Any, rhs: Any, other: Any, op: Any) -> Any:
        if op is np.where or not _is_bfloat16(other):
            return ternary(self, lhs, rhs, other, op)
        return engine.TensorHandle(_narrow(op(*(_wide(side.data) for side in (lhs, rhs, other)))), tl.bfloat16)

    def create_fma(self: Any, x: Any, y: Any, z: Any) -> Any:
        if not _is_bfloat16(z):
            return fma(self, x, y, z)
        return engine.TensorHandle(_narrow(_wide(x.data) * _wide(y.data) + _wide(z.data)), tl.bfloat16)

    def cast_impl(self: Any, src: Any, dst_type: Any) -> Any:
        if dst_type.scalar == tl.bfloat16 and not _is_bfloat16(src):
            return engine.TensorHandle(_narrow(src.data), tl.bfloat16)
        if _is_bfloat16(src) and dst_type.scalar != tl.bfloat16:
            return engine.TensorHandle(_wide(src.data).astype(engine._get_np_dtype(dst_type)), dst_type.scalar)
        return cast(self, src, dst_type)

    def convert_float(data: Any, source: Any, target: Any, rounding: Any) -> Any:
        if target == tl.bfloat16 and source == tl.float32 and rounding in (None, engine._ir.ROUNDING_MODE.RTNE):
            return _narrow(data)
        return convert(data, source, target, rounding)

    builder.binary_op, builder.unary_op, builder.ternary_op = binary_op, unary_op, ternary_op
    builder.create_fma, builder.cast_impl = create_fma, cast_impl
    builder.get_bf16 = lambda self, value: engine.TensorHandle(_narrow(np.array([value])), tl.bfloat16)
    engine._convert_float = convert_float


def _is_bfloat16(handle: Any) -> bool:
    return bool(handle.data.dtype == _BITS and handle.dtype.scalar == tl.bfloat16)


def _wide(bits: Any) -> Any:
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def _narrow(values: Any) -> Any:
    """Bits of the nearest bfloat16, ties to even; NaN stays NaN."""
    values = np.asarray(values).astype(np.float32)
    bits = values.view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return np.where(np.isnan(values), np.uint32(0x7FFF), rounded).astype(np.uint16)
