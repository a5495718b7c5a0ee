"""Products of matrices (`tl.dot`) as tensor cores take them: with operands of TF32, and with sums of float32."""

from __future__ import annotations

from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter as engine

from assay.kernels.inside.triton.values import bfloat16, casts
from assay.kernels.inside.triton.values.functions import canonical

_TF32, _IEEE = engine._ir.INPUT_PRECISION.TF32, engine._ir.INPUT_PRECISION.IEEE
_AT_ONCE = 16
"""Elements that a tensor core adds to a sum of halves before it rounds it."""
OF_EIGHT_BITS = "of eight bits"
"""Attribute of products of eight bits to which nothing was added yet."""


def install(builder: Any) -> None:
    """Put it into the interpreter's builder (`InterpreterBuilder`)."""
    dot = builder.create_dot

    def create_dot(self: Any, a: Any, b: Any, d: Any, input_precision: Any, *rest: Any) -> Any:
        if input_precision == _TF32 and a.data.dtype == np.float32:
            a, b = (engine.TensorHandle(_tf32(side.data), side.dtype.scalar) for side in (a, b))
        a, b = (_widened(side) for side in (a, b))
        if d.data.dtype == np.float16:
            return engine.TensorHandle(_summed_in_halves(a.data, b.data, d.data), tl.float16)
        found = dot(self, a, b, d, input_precision, *rest)
        if a.data.dtype == np.float64 or (input_precision == _IEEE and a.data.dtype == np.float32):
            found.data = _signed(found.data, (a.data, b.data, d.data))
        if found.data.dtype == np.int32 and not d.data.any():
            found.attr[OF_EIGHT_BITS] = True
        found.data = canonical(found.data)
        return found

    builder.create_dot = create_dot


def _widened(handle: Any) -> Any:
    """Operands in a type of NumPy's that has all of their numbers."""
    if handle.dtype.scalar == tl.bfloat16:
        return engine.TensorHandle(bfloat16.wide(handle.data), tl.float32)
    return casts.widened(handle)


def _signed(found: Any, operands: tuple[Any, Any, Any]) -> Any:
    """Products added to a sum one after the other: -0.0 where all of them are, and the sum was."""
    left, right, total = operands
    minus = (found == 0) & (total == 0) & np.signbit(total)
    if not minus.any():
        return found
    left, right = (np.copysign(np.float32(1), side, dtype=np.float32, casting="same_kind") for side in (left, right))
    return np.where(minus & (np.matmul(left, right) == -left.shape[-1]), found.dtype.type(-0.0), found)


def _summed_in_halves(left: Any, right: Any, total: Any) -> Any:
    for start in range(0, left.shape[-1], _AT_ONCE):
        end = start + _AT_ONCE
        part = np.matmul(left[..., start:end], right[..., start:end, :], dtype=np.float32)
        total = (total.astype(np.float32) + part).astype(np.float16)
    return total


def _tf32(values: Any) -> Any:
    """What a tensor core sees of float32 operands unless `input_precision` says otherwise: 10 bits of mantissa, rounded
    to nearest. (The others may be cut off instead.)"""
    bits = np.ascontiguousarray(values).view(np.uint32)
    half = np.uint32(0x0FFF) + ((bits >> np.uint32(13)) & np.uint32(1))
    return np.where(np.isfinite(values), ((bits + half) & np.uint32(0xFFFFE000)).view(np.float32), values)
