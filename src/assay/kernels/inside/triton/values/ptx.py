"""What arithmetic means to a GPU where NumPy, or a processor, means something else: PTX's casts, divisions and NaN."""

from __future__ import annotations

from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter as engine

from assay.kernels.inside.triton.arithmetic import MeaningError
from assay.kernels.inside.triton.ledger import refuse

_FP8 = (tl.float8e4nv, tl.float8e5)


def install(builder: Any) -> None:
    """Put it into the interpreter's builder (`InterpreterBuilder`)."""
    _install_casts(builder)
    _install_integers(builder)
    builder.create_maxnumf = lambda self, lhs, rhs: self.binary_op(lhs, rhs, np.fmax)
    builder.create_minnumf = lambda self, lhs, rhs: self.binary_op(lhs, rhs, np.fmin)
    builder.create_clampf = _clamp
    gather = builder.create_gather

    def create_gather(self: Any, src: Any, indices: Any, axis: int) -> Any:
        if np.any((indices.data < 0) | (indices.data >= src.data.shape[axis])):
            refuse(MeaningError(f"tl.gather with an index outside of 0 to {src.data.shape[axis] - 1}"))
        return gather(self, src, indices, axis)

    builder.create_gather = create_gather


def _install_casts(builder: Any) -> None:
    signed, narrow = builder.create_fp_to_si, builder.create_fp_to_fp

    def to_integer(self: Any, src: Any, dst_type: Any) -> Any:
        if src.data.dtype.kind != "f" or dst_type.scalar == tl.int1:
            return signed(self, src, dst_type)
        return engine.TensorHandle(_saturated(src.data, engine._get_np_dtype(dst_type)), dst_type.scalar)

    def create_fp_to_fp(self: Any, src: Any, dst_type: Any, rounding_mode: Any) -> Any:
        if dst_type.scalar in _FP8 and src.data.dtype.kind == "f":
            most = 448.0 if dst_type.scalar == tl.float8e4nv else 57344.0
            data = np.clip(src.data, -most, most).astype(src.data.dtype)
            src = engine.TensorHandle(data, src.dtype)
        return narrow(self, src, dst_type, rounding_mode)

    builder.create_fp_to_si = builder.create_fp_to_ui = to_integer
    builder.create_fp_to_fp = create_fp_to_fp


def _saturated(values: Any, kind: Any) -> Any:
    """Whole numbers towards zero; what is too large is the largest, and NaN is 0."""
    info, wide = (
        np.iinfo(kind),
        np.trunc(np.nan_to_num(values.astype(np.float64), nan=0.0, posinf=1e300, neginf=-1e300)),
    )
    low, high = wide <= float(info.min), wide >= float(info.max)
    inner = np.where(low | high, 0.0, wide).astype(kind)
    return np.where(low, kind.type(info.min), np.where(high, kind.type(info.max), inner))


def _install_integers(builder: Any) -> None:
    divide, add = builder.create_idiv, builder.create_add

    def create_idiv(self: Any, lhs: Any, rhs: Any) -> Any:
        left, right = lhs.data, rhs.data
        if left.dtype.kind == "i" and np.any((left == np.iinfo(left.dtype).min) & (right == -1)):
            refuse(MeaningError("the least whole number divided by -1, which exceeds its type"))
        found = divide(self, lhs, rhs)
        zero = right == 0
        if zero.any():
            ones = np.array(-1).astype(found.data.dtype)
            found.data = np.where(np.broadcast_to(zero, found.data.shape), ones, found.data)
        return found

    def create_add(self: Any, lhs: Any, rhs: Any) -> Any:
        return self.binary_op(lhs, rhs, np.logical_xor) if lhs.data.dtype == np.bool_ else add(self, lhs, rhs)

    builder.create_idiv, builder.create_add = create_idiv, create_add


def _clamp(self: Any, arg: Any, low: Any, high: Any, propagate_nan: Any) -> Any:
    keeps = propagate_nan == engine._ir.PROPAGATE_NAN.ALL
    smaller, larger = (np.minimum, np.maximum) if keeps else (np.fmin, np.fmax)
    return self.ternary_op(arg, low, high, lambda x, least, most: smaller(larger(x, least), most))
