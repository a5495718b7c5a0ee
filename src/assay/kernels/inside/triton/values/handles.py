"""Values of Triton's interpreter always have the NumPy type of their Triton type.

The interpreter lets them differ: a comparison of float32 is a float32 of truth values to it, and `<<` of two int1 gives
int8 that it calls int1, and that index memory where they serve as a mask.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter as engine

from assay.kernels.inside.triton.ledger import UnsupportedError, refuse

_SCALARS = (
    *(tl.int1, tl.int8, tl.int16, tl.int32, tl.int64, tl.uint8, tl.uint16, tl.uint32, tl.uint64),
    *(tl.float16, tl.bfloat16, tl.float32, tl.float64, tl.float8e5, tl.float8e5b16, tl.float8e4nv, tl.float8e4b8),
    tl.float8e4b15,
)
_NUMPY = {scalar.name: engine._get_np_dtype(scalar) for scalar in _SCALARS}
_BOOL, _BYTE, _POINTER = np.dtype(np.bool_), np.dtype(np.uint8), np.dtype(np.uint64)
_AS_BITS = frozenset(scalar.name for scalar in _SCALARS if scalar.is_fp8() or scalar == tl.bfloat16)
"""Types that the interpreter keeps as whole numbers, so that a cast of NumPy's would not convert them."""


def install(builder: Any) -> None:
    """Put it into the interpreter and its builder (`InterpreterBuilder`)."""
    engine._get_np_dtype = numpy_dtype
    engine.TensorHandle.__post_init__ = _typed
    builder.binary_op = _binary_op


def numpy_dtype(dtype: Any) -> Any:
    """What holds a type of Triton's; the original makes a dictionary of all types for each answer."""
    dtype = dtype.element_ty if isinstance(dtype, tl.block_type) else dtype
    return _POINTER if isinstance(dtype, tl.pointer_type) else _NUMPY[dtype.name]


def is_held_as_bits(dtype: Any) -> bool:
    """Whether NumPy has no such fractions, so that whole numbers hold their bits."""
    return dtype.scalar.name in _AS_BITS


def _typed(handle: Any) -> None:
    """Cast what a new value holds to its type."""
    wanted, data = numpy_dtype(handle.dtype), handle.data
    if data.dtype == wanted:
        return
    if wanted == _BOOL and data.dtype.kind in "iu":
        handle.data = (data & 1).astype(_BOOL)  # an int1 has one bit
    elif is_held_as_bits(handle.dtype):
        refuse(UnsupportedError(f"the interpreter cannot compute this in {handle.dtype.scalar}; cast to float32"))
    else:
        handle.data = data.astype(wanted)


def check_width(dtype: Any) -> None:
    """Refuse to compute in eight bits, which NumPy has no fractions of."""
    if dtype.is_fp8():
        refuse(UnsupportedError(f"the interpreter cannot compute in {dtype}: cast to float32 first"))


def _binary_op(_self: Any, lhs: Any, rhs: Any, op: Any) -> Any:
    dtype = lhs.dtype.scalar
    if lhs.data.dtype == _BYTE:
        check_width(dtype)
    found = op(lhs.data, rhs.data)
    return engine.TensorHandle(found, tl.int1 if found.dtype == _BOOL else dtype)
