"""Casts as PTX makes them: floats to whole numbers, to fewer bits with another rounding, and to and from eight bits.

A number beyond the range of a whole type, and what is none, is something definite to PTX, and anything to the compiler:
it may make one cast of two (int16 to float32 to uint32), and leave out the cut to 8 bits or all of the cast.
"""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter as engine

from assay.kernels.inside.triton.ledger import UnsupportedError, WrongValueError, current, refuse
from assay.kernels.inside.triton.values import bfloat16
from assay.kernels.inside.triton.values.constants import is_constant
from assay.kernels.inside.triton.values.functions import canonical
from assay.kernels.inside.triton.values.handles import numpy_dtype
from assay.kernels.inside.triton.values.ptx import unspecified

_EIGHT_BITS = {"fp8e4nv": (torch.float8_e4m3fn, 448.0), "fp8e5": (torch.float8_e5m2, 57344.0)}
"""Name -> PyTorch's type, and the largest number."""
_NAN = 0x7F
"""The only NaN of eight bits that PTX gives, in both types."""
_TOWARDS_ZERO = engine._ir.ROUNDING_MODE.RTZ
_EXTENDED = "of bfloat16"
"""The attribute of a wider number that was a bfloat16."""
_TWO_HALVES = (
    "a result is cast to float16 in a kernel that computes with numbers of bfloat16 which float16 has not: LLVM casts "
    "them to float16 before it computes. Store it as float32 or bfloat16"
)


def install(builder: Any) -> None:
    """Put them into the interpreter's builder (`InterpreterBuilder`)."""
    builder.create_fp_to_si = builder.create_fp_to_ui = _to_integer
    builder.create_fp_to_fp = _to_float
    extend, cut, whole = builder.create_fp_ext, builder.create_fp_trunc, builder.create_ui_to_fp

    def create_fp_ext(self: Any, src: Any, dst_type: Any) -> Any:
        found = extend(self, src, dst_type)
        if src.dtype.scalar == tl.bfloat16:
            current().beyond_half |= not _in_half(bfloat16.wide(src.data)).all()
            found.attr[_EXTENDED] = True
        return found

    def create_fp_trunc(self: Any, src: Any, dst_type: Any) -> Any:
        if dst_type.scalar.name in _EIGHT_BITS:
            return _constant_of_eight_bits(src, dst_type.scalar)
        if dst_type.scalar == tl.float16 and current().beyond_half and _EXTENDED not in src.attr:
            refuse(UnsupportedError(_TWO_HALVES))
        return cut(self, src, dst_type)

    def create_ui_to_fp(self: Any, src: Any, dst_type: Any) -> Any:
        if dst_type.scalar in (tl.float16, tl.bfloat16) and src.data.itemsize >= 4:
            # LLVM takes a number of 8 or 16 bits with a sign that was widened for one without, of 16 or 32 bits.
            unspecified(src.data, src.data >> (8 * src.data.itemsize - 1) != 0)
        return whole(self, src, dst_type)

    builder.create_fp_ext, builder.create_fp_trunc = create_fp_ext, create_fp_trunc
    builder.create_ui_to_fp = create_ui_to_fp
    cast = builder.cast_impl

    def cast_impl(self: Any, src: Any, dst_type: Any) -> Any:
        found = cast(self, src, dst_type)
        if src.data.dtype.kind == "f" and src.data.dtype != found.data.dtype:
            found.data = canonical(found.data)
        return found

    builder.cast_impl = cast_impl


def _to_integer(_self: Any, src: Any, dst_type: Any) -> Any:
    dtype = dst_type.scalar
    kind = numpy_dtype(dtype)
    values = bfloat16.wide(src.data) if src.dtype.scalar == tl.bfloat16 else src.data
    if is_constant(src) and not _fits(values, np.iinfo(kind)).all():
        refuse(
            WrongValueError(f"a constant that {dtype} cannot hold is cast to it, and the compiler takes the result for "
                            "anything it likes: clamp it first")
        )  # fmt: skip
    found = saturated(values, kind)
    found = unspecified(found, ~_fits(values, np.iinfo(kind)))
    return engine.TensorHandle(found, dtype)


def _held(kind: Any) -> Any:
    """What a float is cast to on its way: for types of 8 bits to 16, of which the lower ones are kept."""
    return np.dtype(f"{kind.kind}2") if kind.itemsize == 1 else kind


def _fits(values: Any, info: Any) -> Any:
    whole = np.trunc(values.astype(np.float64))
    return (whole >= float(info.min)) & (whole <= float(info.max)) & (whole < float(info.max) + 1)


def saturated(values: Any, kind: Any) -> Any:
    """What `cvt.rzi` makes of floats: whole numbers towards zero, the least or the largest beyond the range. NaN is 0,
    or only the highest bit where a side has 64 bits."""
    kind = np.dtype(kind)
    held = _held(kind)
    info, nan = np.iinfo(held), np.isnan(values)
    whole = np.trunc(np.where(nan, 0.0, values.astype(np.float64)))
    low, high = whole <= float(info.min), whole >= float(info.max)
    inner = np.where(low | high, 0.0, whole).astype(held)
    found = np.where(low, held.type(info.min), np.where(high, held.type(info.max), inner))
    if nan.any():
        highest = np.array(1 << (8 * held.itemsize - 1), dtype=f"u{held.itemsize}").view(held)
        found = np.where(nan, highest if 8 in (held.itemsize, values.dtype.itemsize) else held.type(0), found)
    return found.astype(kind)


def _to_float(_self: Any, src: Any, dst_type: Any, rounding: Any) -> Any:
    """Casts with eight bits on one side, or with a rounding of the kernel's choice."""
    there, here = src.dtype.scalar, dst_type.scalar
    values = bfloat16.wide(src.data) if there == tl.bfloat16 else src.data
    if rounding == _TOWARDS_ZERO:
        return engine.TensorHandle(_cut(values, there, here), here)
    if here.name in _EIGHT_BITS and values.dtype.kind == "f" and values.dtype.itemsize < 8:
        return engine.TensorHandle(_to_eight_bits(values, here.name), here)
    if there.name in _EIGHT_BITS and here in (tl.float32, tl.float16, tl.bfloat16):
        return engine.TensorHandle(_of_eight_bits(values, there.name, here), here)
    _refuse(there, here)


def _in_half(values: Any) -> Any:
    """Which numbers float16 has, too."""
    with np.errstate(all="ignore"):
        return values.astype(np.float16).astype(np.float32) == values


def _constant_of_eight_bits(src: Any, dtype: Any) -> Any:
    """A number that the kernel gives for one of eight bits."""
    if not (np.abs(src.data) <= _EIGHT_BITS[dtype.name][1]).all():
        refuse(UnsupportedError(f"a constant that {dtype} cannot hold"))
    return engine.TensorHandle(_to_eight_bits(src.data, dtype.name), dtype)


def widened(handle: Any) -> Any:
    """Numbers of eight bits as float16, which has all of them; others as they are."""
    name = handle.dtype.scalar.name
    if name not in _EIGHT_BITS:
        return handle
    return engine.TensorHandle(_of_eight_bits(handle.data, name, tl.float16), tl.float16)


def _to_eight_bits(values: Any, name: str) -> Any:
    """`cvt.rn.satfinite`: what is too large, infinity included, is the largest number."""
    dtype, most = _EIGHT_BITS[name]
    nan = np.isnan(values)
    bound = np.ascontiguousarray(np.clip(np.where(nan, 0, values), -most, most), dtype=np.float32)
    bits = torch.from_numpy(bound).to(dtype).view(torch.uint8).numpy()
    return np.where(nan, np.uint8(_NAN), bits)


def _of_eight_bits(bits: Any, name: str, here: Any) -> Any:
    values = torch.from_numpy(np.array(bits)).view(_EIGHT_BITS[name][0]).to(torch.float32).numpy()
    if here == tl.bfloat16:
        if name == "fp8e5" and not np.isfinite(values).all():
            refuse(WrongValueError("an infinity or NaN of float8e5 cast to bfloat16, which a GPU takes for a number"))
        return bfloat16.narrow(values)
    return values.astype(numpy_dtype(here))


def _cut(values: Any, there: Any, here: Any) -> Any:
    """Rounds towards zero."""
    if there == tl.float32 and here == tl.bfloat16:
        bits = (np.ascontiguousarray(values).view(np.uint32) >> np.uint32(16)).astype(np.uint16)
        return np.where(np.isnan(values), np.uint16(0x7FFF), bits)
    if there not in (tl.float32, tl.float16) or here not in (tl.float16, tl.float8e5):
        _refuse(there, here, " towards zero")
    half = values.astype(np.float16)
    too_large = np.abs(half.astype(np.float32)) > np.abs(values.astype(np.float32))
    bits = np.where(np.isnan(values), np.uint16(0x7FFF), half.view(np.uint16) - too_large.astype(np.uint16))
    return bits.view(np.float16) if here == tl.float16 else (bits >> np.uint16(8)).astype(np.uint8)


def _refuse(there: Any, here: Any, how: str = "") -> NoReturn:
    refuse(UnsupportedError(f"the interpreter cannot cast {there} to {here}{how}: cast by way of float32"))
