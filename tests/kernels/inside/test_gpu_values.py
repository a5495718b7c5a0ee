"""What a kernel's arithmetic gives in the interpreter, held against PTX's and LLVM's words: to the bit, with a bound of
how far a GPU may be off, or refused."""

from __future__ import annotations

import importlib.util
import itertools
import json
import math
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
import pytest

from support.bound_kernels import GPUS
from support.own_process import program

pytestmark = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("torch", "triton")), reason="no torch or no triton here"
)
INF, NAN = math.inf, math.nan
UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def case(lines: str, out: str, *inputs: tuple[str, list[Any]], **more: Any) -> dict[str, Any]:
    """One line is an expression."""
    lines = lines if "found" in lines else f"found = {lines}"
    return {"lines": lines, "out": out, "inputs": inputs, **more}


def single(*numbers: float) -> tuple[str, list[float]]:
    return "float32", list(numbers)


def double(*numbers: float) -> tuple[str, list[float]]:
    return "float64", list(numbers)


def whole(*numbers: int, dtype: str = "int32") -> tuple[str, list[int]]:
    return dtype, list(numbers)


def numbers_of(answer: Any, dtype: str) -> list[Any]:
    """Bits as numbers of a dtype."""
    assert isinstance(answer, list), answer
    wide = 16 if dtype == "bfloat16" else 0
    kind = np.dtype("uint16" if wide else "bool" if dtype == "bool" else dtype)
    bits = np.array([bit & ((1 << 8 * kind.itemsize) - 1) for bit in answer], dtype=UNSIGNED[kind.itemsize])
    if wide:
        return (bits.astype(np.uint32) << wide).view(np.float32).tolist()
    return bits.view(kind).tolist()


FLOATS = [3e9, -3e9, NAN, 300.0, -5.0, INF, -INF, 1e30, -129.5, 65536.0, 2.0**63, -0.75]


def as_ptx_casts(value: float, kind: str, source_bits: int) -> int:
    """`cvt.rzi`: saturates, in 16 bits where there are 8; NaN is 0, or the highest bit where a side has 64 bits."""
    signed, bits = not kind.startswith("u"), int(kind.removeprefix("u").removeprefix("int"))
    held = max(bits, 16)
    low, high = (-(1 << held - 1), (1 << held - 1) - 1) if signed else (0, (1 << held) - 1)
    if math.isnan(value):
        found = (low if signed else 1 << held - 1) if 64 in (held, source_bits) else 0
    else:
        found = low if value <= low else high if value >= high else math.trunc(value)
    found &= (1 << bits) - 1
    return found - (1 << bits) if signed and found >> bits - 1 else found


WHOLE = [f"{sign}int{bits}" for bits in (8, 16, 32, 64) for sign in ("", "u")]
CASTS = {
    f"{source} to {kind}": case(f"a.to(tl.{kind})", kind, (source, FLOATS))
    for source, kind in itertools.product(("float16", "bfloat16", "float32", "float64"), WHOLE)
}

SUMMED = "m = tl.broadcast_to(a[None, :], (16, 16))\np = {}\nfound = tl.max(tl.sum(p, 1), 0)"
ALMOST = ("float32", single(*[1.0 + 2.0**-12] * 16))
"""A number that is 1 in TF32."""

Exact = dict[str, tuple[dict[str, Any], list[Any]]]
EXACT: Exact = {
    "int8 wraps": (case("a + a", "int8", whole(100, -100, dtype="int8")), [-56, 56]),
    "int16 wraps": (case("a * a", "int16", whole(300, -300, dtype="int16")), [90000 - 65536, 90000 - 65536]),
    "tgamma beyond the largest number": (
        case("libdevice.tgamma(a)", "float64", double(1e-309, -1e-309, 171.7)),
        [INF, -INF, INF],
    ),
    "constants of bfloat16 have six decimals": (
        case("a + tl.where(i == 0, 4e-7, 1.6e-6).to(tl.bfloat16) * 0 + 1.6e-6", "bfloat16", ("bfloat16", [0.0])),
        [2.0**-19 * (1 + 6 / 128)],
    ),
    "constants of bfloat16 below a millionth are zero": (case("a + 4e-7", "bfloat16", ("bfloat16", [0.0])), [0.0]),
    "constants of eight bits": (
        case("tl.where(a > 0, b, -1).to(tl.float32)", "float32", single(0.0), ("float8_e4m3fn", [0])),
        [-1.0],
    ),
    "the complement of what has no sign": (case("~a", "uint32", whole(5, dtype="uint32")), [2**32 - 6]),
    "uint8 wraps": (case("a - b", "uint8", whole(3, 0, dtype="uint8"), whole(5, 1, dtype="uint8")), [254, 255]),
    "a wrapped int8 is compared": (case("a * a < a", "bool", whole(100, 3, dtype="int8")), [True, False]),
    "division cuts": (case("a // b", "int32", whole(7, -7, 7, -7), whole(3, 3, -3, -3)), [2, -2, -2, 2]),
    "a remainder has the dividend's sign": (
        case("a % b", "int32", whole(7, -7, 7, -7), whole(3, 3, -3, -3)),
        [1, -1, 1, -1],
    ),
    "unsigned division": (
        case("a // b", "uint32", whole(2**32 - 1, 2**31, dtype="uint32"), whole(2, 3, dtype="uint32")),
        [2**31 - 1, 2**31 // 3],
    ),
    "ceiling division of negatives": (case("tl.cdiv(a, 3)", "int32", whole(-7, 7)), [-1, 3]),
    "right shifts follow the sign": (case("a >> 1", "int32", whole(-7, 7)), [-4, 3]),
    "right shifts without one": (case("a >> 28", "uint32", whole(2**32 - 1, 2**30, dtype="uint32")), [15, 4]),
    "a shift by the width": (case("a << b", "int32", whole(1, 1), whole(31, 32)), [-(2**31), 0]),
    "a shift by 64 bits looks at 32": (
        case("a << b", "int64", whole(3, 3, dtype="int64"), whole(2**32, 70, dtype="int64")),
        [3, 0],
    ),
    "upper halves have no sign": (case("tl.umulhi(a, b)", "int32", whole(-1, -1, 5), whole(-1, 5, 7)), [-2, 4, 0]),
    "upper halves of 64 bits": (
        case("tl.umulhi(a, b)", "int64", whole(-1, 2, dtype="int64"), whole(-1, 2**63 - 1, dtype="int64")),
        [-2, 0],
    ),
    "the least number has no counterpart": (case("tl.abs(a)", "int32", whole(-(2**31), -5)), [-(2**31), 5]),
    "truth values add": (case("((a > 0) + (b > 0)).to(tl.int32)", "int32", whole(1, 1, 0), whole(1, 0, 0)), [0, 1, 0]),
    "truth values subtract": (
        case("((a > 0) - (b > 0)).to(tl.int32)", "int32", whole(1, 0, 0), whole(1, 1, 0)),
        [0, 1, 0],
    ),
    "remainders of floats": (
        case("a % b", "float32", single(5.5, -5.5, 7.0, 3.0), single(-2.0, 2.0, INF, 0.0)),
        [1.5, -1.5, 7.0, NAN],
    ),
    "a quotient that is rounded up": (
        case("a % b", "float32", single(1.0), single(0.1)),
        [float(np.float32(1.0 - 10 * float(np.float32(0.1))))],
    ),
    "a constant of float16 is a float32 first": (
        case("tl.full((N,), 1.0004882961511612, tl.float16) * 1.0004882961511612", "float16", single(1.0)),
        [1.0],
    ),
    "a constant of bfloat16 is a float32 first": (
        case("tl.full((N,), 1.00390625 + 2.0 ** -30, tl.bfloat16).to(tl.float32)", "float32", single(1.0)),
        [1.0],
    ),
    "sines of half turns": (
        case("libdevice.sinpi(a)", "float32", single(1000.0, 1e9, 0.5, -1.5, 8388609.0, INF)),
        [0.0, 0.0, 1.0, 1.0, 0.0, NAN],
    ),
    "cosines of half turns": (
        case("libdevice.cospi(a)", "float32", single(1000.0, 8388609.0, 0.5, -1.0, INF)),
        [1.0, -1.0, 0.0, -1.0, NAN],
    ),
    "how much one is larger": (
        case("libdevice.fdim(a, b)", "float32", single(INF, -INF, 3.0, NAN), single(INF, 1.0, 1.0, 1.0)),
        [0.0, 0.0, 2.0, NAN],
    ),
    "NaN of a sum": (case("tl.sum(a, 0).to(tl.int32, bitcast=True)", "int32", single(INF, -INF)), [0x7FFFFFFF] * 2),
    "NaN of a scan": (
        case("tl.cumsum(a, 0).to(tl.int32, bitcast=True)", "int32", single(INF, -INF)),
        [0x7F800000, 0x7FFFFFFF],
    ),
    "NaN of libdevice": (case("libdevice.log(a).to(tl.int32, bitcast=True)", "int32", single(-1.0)), [0x7FFFFFFF]),
    "NaN of a product of matrices": (
        case(
            "m = tl.broadcast_to(a[None, :], (16, 16))\n"
            "found = tl.max(tl.dot(m, m, input_precision='ieee').to(tl.int32, bitcast=True), 0)",
            "int32",
            single(*[INF, -INF] * 8),
        ),
        [0x7FFFFFFF] * 16,
    ),
    "NaN of a cast": (
        case(
            "a.to(tl.float16, bitcast=True).to(tl.float32).to(tl.int32, bitcast=True)",
            "int32",
            whole(-512, dtype="int16"),
        ),
        [0x7FFFFFFF],
    ),
    "a sum is not rounded twice by fma": (
        case("tl.fma(a, b, 1.0 + 0 * a)", "float32", single(137283 * 2.0**-30), single(62571 * 2.0**-27)),
        [1.0 + 2.0**-23],
    ),
    "libdevice's fma, too": (
        case("libdevice.fma(a, b, 1.0 + 0 * a)", "float32", single(137283 * 2.0**-30), single(62571 * 2.0**-27)),
        [1.0 + 2.0**-23],
    ),
    "sums in memory take denormal numbers for zero": (
        case(
            "tl.atomic_add(a_ptr + i, 1.5e-38)\ntl.atomic_add(a_ptr + i, -1.4e-38)\n"
            "found = tl.atomic_add(a_ptr + i, 0.0)",
            "float32",
            single(0.0, 1e-39),
        ),
        [0.0, 0.0],
    ),
    "an exponential of a large number": (
        case("tl.exp(a)", "float32", single(83.4)),
        [float(np.exp2(np.float32(83.4) * np.float32(1.4426950408889634)))],
    ),
    "a sum of products is one of matrices in TF32": (
        case(SUMMED.format("m[:, :, None] * m[None, :, :]"), *ALMOST),
        [16.0] * 16,
    ),
    "and so along another axis": (
        case(SUMMED.replace("1)", "2)").format("m[:, :, None] * m[None, :, :]"), *ALMOST),
        [16.0] * 16,
    ),
    "but not the other way round": (case(SUMMED.format("m[None, :, :] * m[:, :, None]"), *ALMOST), [16.0078125] * 16),
    "a long sort": (case("tl.sort(a, 0)", "float32", single(*range(2048, 0, -1))), list(range(1, 2049))),
    "the larger of two zeros": (
        case("1.0 / tl.maximum(a, b)", "float32", single(-0.0, 0.0, -0.0), single(0.0, -0.0, -0.0)),
        [INF, INF, -INF],
    ),
    "the smaller of two zeros": (
        case("1.0 / tl.minimum(a, b)", "float32", single(-0.0, 0.0, 0.0), single(0.0, -0.0, 0.0)),
        [-INF, -INF, INF],
    ),
    "extremes drop NaN": (
        case("tl.maximum(a, b)", "float32", single(NAN, 1.0, NAN), single(2.0, NAN, NAN)),
        [2.0, 1.0, NAN],
    ),
    "extremes keep NaN if told": (
        case("tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)", "float32", single(NAN, 1.0), single(2.0, 3.0)),
        [NAN, 1.0],
    ),
    "NaN in the arithmetic's form": (
        case("tl.maximum(a, a).to(tl.int32, bitcast=True)", "int32", single(NAN)),
        [0x7FFFFFFF],
    ),
    "the largest of a block of zeros": (case("1.0 / (tl.max(a, 0) + a * 0)", "float32", single(-0.0, 0.0)), [INF, INF]),
    "a sum of minus zeros": (case("1.0 / (tl.sum(a, 0) + a)", "float32", single(-0.0, -0.0)), [-INF, -INF]),
    "a sum of two zeros": (case("1.0 / tl.where(a == a, tl.sum(a, 0), a)", "float32", single(-0.0, 0.0)), [INF, INF]),
    "products of minus zeros": (
        case(
            "m = tl.broadcast_to(a[None, :], (16, 16))\n"
            "found = 1.0 / tl.max(tl.dot(m, tl.abs(m) + 1.0, m, input_precision='ieee'), 0)",
            "float32",
            single(*[-0.0] * 16),
        ),
        [-INF] * 16,
    ),
    "the first of two zeros": (
        case("v, p = tl.max(a, 0, return_indices=True)\nfound = 1.0 / (v + a)", "float32", single(-0.0, 0.0)),
        [-INF, INF],
    ),
    "the number after a zero": (
        case("libdevice.nextafter(a, b)", "float32", single(0.0, -1e-40, 2.0**-126), single(1.0, -1.0, 0.0)),
        [2.0**-126, -(2.0**-126), 2.0**-126 - 2.0**-149],
    ),
    "a block that is NaN": (case("tl.max(a, 0) + a * 0", "float32", single(NAN, NAN)), [NAN, NAN]),
    "a clamp keeps NaN if told": (
        case("tl.clamp(a, 0.0, 1.0, propagate_nan=tl.PropagateNan.ALL)", "float32", single(NAN, -3.0, 3.0)),
        [NAN, 0.0, 1.0],
    ),
    "roots of denormals": (case("tl.sqrt(a)", "float32", single(1e-40, 4.0)), [0.0, 2.0]),
    "inverse roots of denormals": (case("tl.rsqrt(a)", "float32", single(1e-40, 4.0)), [INF, 0.5]),
    "denormals are rounded to zero": (
        case("tl.floor(a) + tl.ceil(a)", "float32", single(-1e-40, 1e-40, 1.5)),
        [0.0, 0.0, 3.0],
    ),
    "exponentials of the library": (case("libdevice.exp(a)", "float32", single(-90.0, 0.0)), [0.0, 1.0]),
    "the library keeps some": (
        case("libdevice.copysign(a, b) * 1e38", "float32", single(1e-40), single(-1.0)),
        [float(np.float32(np.float32(-1e-40) * np.float32(1e38)))],
    ),
    "atomic sums of denormals": (
        case(
            "tl.atomic_add(b_ptr + i, a)\nfound = tl.load(b_ptr + i)", "float32", single(1e-40, 1.5), single(0.0, 0.0)
        ),
        [0.0, 1.5],
    ),
    "small powers": (case("tl.exp2(a)", "float32", single(-130.0, -1.0)), [0.0, 0.5]),
    "fma of float64 rounds once, beside the middle of two numbers": (
        case("tl.fma(a, b, c)", "float64", double(1.5, 1.5), double(-127.9, -127.9), double(4e-138, -4e-138)),
        [-191.85, -191.85000000000002],
    ),
    "what fma of float64 leaves of equals": (
        case("libdevice.fma(a, a, b)", "float64", double(1.0 + 2.0**-52), double(-1.0 - 2.0**-51)),
        [2.0**-104],
    ),
    "fma of float64 comes back from beyond the largest number": (
        case("tl.fma(a, a, b)", "float64", double(2.0**512, 2.0**-537), double(-(2.0**1023), 0.0)),
        [2.0**1023, 2.0**-1074],
    ),
    "remainders of float64 with large quotients": (
        case("a % b", "float64", double(1e15, 1e300), double(0.1, 3.0)),
        [float(Fraction(1e15) - int(1e15 / 0.1) * Fraction(0.1)), float(Fraction(1e300) - int(1e300 / 3.0) * 3)],
    ),
    "lgamma of float64 beside its roots": (
        case("libdevice.lgamma(a)", "float64", double(1.0 - 2.0**-53, 1.0 + 2.0**-52)),
        [6.408381213480008e-17, -1.2816762426960008e-16],
    ),
    "fma rounds once": (
        case("tl.fma(a, a, b)", "float32", single(1.0 + 2.0**-12), single(-1.0)),
        [2.0**-11 + 2.0**-24],
    ),
    "a whole number to bfloat16 rounds once": (
        case("a.to(tl.bfloat16)", "bfloat16", whole(2**24 + 2**16 + 1)),
        [2.0**24 + 2.0**17],
    ),
    "64 bits to bfloat16 round once": (
        case("a.to(tl.bfloat16)", "bfloat16", whole(2**60 + 2**52 + 1, -(2**60) - 2**52 - 1, dtype="int64")),
        [2.0**60 + 2.0**53, -(2.0**60) - 2.0**53],
    ),
    "float64 to bfloat16 rounds once": (
        case("a.to(tl.bfloat16)", "bfloat16", ("float64", [1.0 + 2.0**-8 + 2.0**-40, 1.0 + 2.0**-8])),
        [1.0 + 2.0**-7, 1.0],
    ),
    "halves cut off": (
        case('a.to(tl.float16, fp_downcast_rounding="rtz")', "float16", single(1e6, -0.3, INF, NAN)),
        [65504.0, -0.2998046875, INF, NAN],
    ),
    "bfloat16 cut off": (
        case('a.to(tl.bfloat16, fp_downcast_rounding="rtz")', "bfloat16", single(1.0 + 2.0**-7 - 2.0**-20, NAN)),
        [1.0, NAN],
    ),
    "int8 is summed in int32": (case("tl.sum(a, 0)", "int32", whole(100, 100, dtype="int8")), [200, 200]),
    "truth values are summed in int32": (case("tl.sum(a > 0, 0)", "int32", whole(1, 2, 3, 0)), [3, 3, 3, 3]),
    "a sum of bfloat16": (case("tl.sum(a, 0) + a * 0", "bfloat16", ("bfloat16", [1.0, 2.0, 3.0, 4.0])), [10.0] * 4),
    "bfloat16 is summed in bfloat16": (
        case("tl.sum(a, 0).to(tl.float32)", "float32", ("bfloat16", [256.0, 1.0])),
        [256.0, 256.0],
    ),
    "halves are summed in halves": (
        case("tl.sum(a, 0).to(tl.float32)", "float32", ("float16", [2048.0, 1.0])),
        [2048.0, 2048.0],
    ),
    "a sum of all elements": (
        case("tl.sum(tl.reshape(a, (2, 2))) + a * 0", "float16", ("float16", [1.0, 2.0, 3.0, 4.0])),
        [10.0] * 4,
    ),
    "exclusive or of a block": (case("tl.xor_sum(a, 0)", "int32", whole(1, 3, 7, 8)), [13] * 4),
    "a sum from behind": (
        case("tl.cumsum(a, 0, reverse=True)", "int32", whole(100, 27, 1, 1, dtype="int8")),
        [129, 29, 2, 1],
    ),
    "halves add up in halves": (
        case("tl.cumsum(a, 0)", "float16", ("float16", [2048.0, 1.0, 1.0, 1.0])),
        [2048.0, 2048.0, 2050.0, 2050.0],
    ),
    "the first of equals": (case("tl.argmax(a, 0)", "int32", single(1.0, 5.0, 5.0, 2.0)), [1] * 4),
    "sorted": (case("tl.sort(a, descending=True)", "float32", single(1.0, 4.0, -2.0, 3.0)), [4.0, 3.0, 1.0, -2.0]),
    "the largest of all": (
        case("tl.broadcast_to(tl.max(tl.topk(a, 2), 0), (4,))", "float32", single(1.0, 4.0, -2.0, 3.0)),
        [4.0] * 4,
    ),
    "flipped": (case("tl.flip(a, 0)", "int32", whole(1, 2, 3, 4)), [4, 3, 2, 1]),
    "a full histogram": (case("tl.histogram(a, 4)", "int32", whole(0, 3, 3, 1)), [1, 1, 0, 2]),
    "half away from zero": (
        case("libdevice.round(a)", "float32", single(0.49999997, 2.5, -2.5, 8388609.0)),
        [0.0, 3.0, -3.0, 8388609.0],
    ),
    "a shift of a signed number by an unsigned one": (
        case("(a >> b.to(tl.uint32)).to(tl.int32, bitcast=True)", "int32", whole(-8, 8), whole(1, 1)),
        [-4, 4],
    ),
    "a shift of an unsigned number by a signed one": (
        case("(a.to(tl.uint32, bitcast=True) >> b).to(tl.int32, bitcast=True)", "int32", whole(-8, 8), whole(1, 1)),
        [2147483644, 4],
    ),
    "saturated NaN": (case("libdevice.saturatef(a)", "float32", single(NAN, 2.0, -1.0)), [0.0, 1.0, 0.0]),
    "a saturated zero": (
        case("libdevice.saturatef(a).to(tl.int32, bitcast=True)", "int32", single(-0.0, -1e-40, 0.0)),
        [0, 0, 0],
    ),
    "whole numbers of 64 bits": (
        case("libdevice.llrint(a)", "int64", single(NAN, 1e30, 2.5)),
        [-(2**63), 2**63 - 1, 2],
    ),
}


def decoded(code: int, exponent_bits: int) -> float:
    """A number of eight bits by its definition."""
    mantissa_bits = 7 - exponent_bits
    bias = (1 << exponent_bits - 1) - 1
    sign, exponent = (-1.0 if code & 0x80 else 1.0), (code & 0x7F) >> mantissa_bits
    mantissa = (code & ((1 << mantissa_bits) - 1)) / (1 << mantissa_bits)
    if exponent_bits == 5 and exponent == 31:
        return NAN if mantissa else sign * INF
    if exponent_bits == 4 and code & 0x7F == 0x7F:
        return NAN
    return sign * (mantissa * 2.0 ** (1 - bias) if exponent == 0 else (1 + mantissa) * 2.0 ** (exponent - bias))


def encoded(value: float, exponent_bits: int) -> int:
    """The nearest number of eight bits, ties to even, saturated."""
    if math.isnan(value):
        return 0x7F
    finite = [code for code in range(128) if math.isfinite(decoded(code, exponent_bits))]
    size = min(abs(value), decoded(finite[-1], exponent_bits))
    best = min(finite, key=lambda code: (abs(decoded(code, exponent_bits) - size), code & 1))
    return best | (0x80 if math.copysign(1.0, value) < 0 else 0)


TINY = [0.1, 17.0, 18.0, -0.02, 1e-3, 2.0**-9 * 1.5, 2.0**-10, 449.0, 1e9, -INF, NAN, -0.0, 1.0625, 57345.0, 3e-5, 7e-6]
EIGHT_BITS = {"float8e4nv": ("float8_e4m3fn", 4), "float8e5": ("float8_e5m2", 5)}


@cache
def answers() -> dict[str, Any]:
    """Everything at once: a process takes seconds to import Triton."""
    cases = {**CASTS, **{name: found for name, (found, _) in EXACT.items()}, **REFUSED_CASES, **BRANCHING}
    for name, (stored, _) in EIGHT_BITS.items():
        cases[f"to {name}"] = case(f"a.to(tl.{name}).to(tl.uint8, bitcast=True)", "uint8", ("float32", TINY))
        cases[f"halves to {name}"] = case(f"a.to(tl.{name}).to(tl.uint8, bitcast=True)", "uint8", ("float16", TINY))
        cases[f"of {name}"] = case("a.to(tl.float32)", "float32", (stored, list(range(256))))
    for name, found in INEXACT.items():
        cases[name] = {**found, "bounded": True}
    return dict(zip(cases, program("value_cases", given=json.dumps(list(cases.values()))), strict=True))


@pytest.mark.parametrize("name", CASTS)
def test_casts_to_whole_numbers(name: str) -> None:
    source, _, kind = name.split(" ")
    narrow = {"float16": np.float16, "float32": np.float32, "float64": np.float64}.get(source, np.float32)
    with np.errstate(over="ignore"):
        values = [float(value) for value in np.array(FLOATS).astype(narrow)]
    if source == "bfloat16":
        words = np.array(values, dtype=np.float32).view(np.uint32)
        near = ((words + np.uint32(0x8000)) & np.uint32(0xFFFF0000)).view(np.float32)
        values = [NAN if math.isnan(value) else float(one) for value, one in zip(values, near, strict=True)]
    bits = int(source.removeprefix("b").removeprefix("float"))
    assert numbers_of(answers()[name], kind) == [as_ptx_casts(value, kind, bits) for value in values]


@pytest.mark.parametrize("name", EXACT)
def test_values_are_those_of_a_gpu(name: str) -> None:
    found, wanted = EXACT[name]
    given = np.array(numbers_of(answers()[name], found["out"]))
    assert np.array_equal(given, np.array(wanted), equal_nan=given.dtype.kind == "f"), given


@pytest.mark.parametrize("name", EIGHT_BITS)
def test_numbers_of_eight_bits(name: str) -> None:
    exponent_bits = EIGHT_BITS[name][1]
    narrow = [float(value) for value in np.array(TINY, dtype=np.float32)]
    assert answers()[f"to {name}"] == [encoded(value, exponent_bits) for value in narrow]
    with np.errstate(over="ignore"):
        halves = [float(value) for value in np.array(TINY).astype(np.float16)]
    assert answers()[f"halves to {name}"] == [encoded(value, exponent_bits) for value in halves]
    wanted = [decoded(code, exponent_bits) for code in range(256)]
    assert np.array_equal(numbers_of(answers()[f"of {name}"], "float32"), wanted, equal_nan=True)


ZERO = whole(0, 1)
REFUSED = {
    "a division by zero": (case("a // b", "int32", whole(5, 5), ZERO), "divided by zero"),
    "a remainder by zero": (case("a % b", "int32", whole(5, 5), ZERO), "divided by zero"),
    "a guarded division by zero": (case("tl.where(b != 0, a // b, 7)", "int32", whole(5, 5), ZERO), "drops a test"),
    "the least number by -1": (case("a // b", "int32", whole(-(2**31)), whole(-1)), "exceeds its type"),
    "a constant beyond its type": (
        case("tl.full((2,), 1e10, tl.float32).to(tl.int32) + a", "int32", ZERO),
        "a constant",
    ),
    "a constant of constants": (
        case("(tl.full((2,), 1e5, tl.float32) * 1e5).to(tl.int32) + a", "int32", ZERO),
        "a constant",
    ),
    "a chosen constant": (case("tl.where(a > 0, 1e10, 2e10).to(tl.int32)", "int32", ZERO), "a constant"),
    "a clamp upside down": (case("tl.clamp(a, 1.0, -1.0)", "float32", single(0.0)), "lower bound above"),
    "a bin that is not there": (case("tl.histogram(a, 2)", "int32", whole(0, 2)), "outside of 0 to 1"),
    "a histogram of bytes": (case("tl.histogram(a, 2)", "int32", whole(0, 1, dtype="int8")), "cast to int32"),
    "an order that may change": (case("tl.view(a, (2,))", "int32", ZERO), "change the order"),
    "a join that may change it": (case("tl.cat(a, a, can_reorder=True)", "int32", ZERO), "change the order"),
    "a shift of truth values": (case("(a > 0) << (a > 0)", "bool", ZERO), "shift of truth"),
    "a division of truth values": (case("(a > 0) // (a >= 0)", "bool", ZERO), "division of truth"),
    "an infinity of eight bits": (case("a.to(tl.bfloat16)", "bfloat16", ("float8_e5m2", [0x7C])), "takes for a number"),
    "a cast past float32": (case("a.to(tl.float8e5)", "float8_e5m2", double(1.0)), "by way of float32"),
    "values in the words of Triton": (case("a.to(tl.int32)", "int32", ("float8_e5m2", [0x3C])), "cannot cast <['1'], "),
    "a constant beyond eight bits": (
        case("tl.where(a > 0, b, 500).to(tl.float32)", "float32", single(0.0), ("float8_e4m3fn", [0])),
        "a constant that fp8e4nv cannot hold",
    ),
    "a shift by -1": (case("a << -1", "int32", ZERO), "a shift by a constant"),
    "two kinds of halves": (
        case("a.to(tl.float32) * a.to(tl.float32)", "float16", ("bfloat16", [1e-6])),
        "is cast to float16",
    ),
    "a fraction beyond a byte": (case("a.to(tl.uint8)", "uint8", single(0.0, 300.0), bounded=True), "uint8 cannot"),
    "no number of float64 as a byte": (case("a.to(tl.uint8)", "uint8", double(NAN), bounded=True), "uint8 cannot"),
    "what is anything as a byte": (
        case("(a % b).to(tl.uint8)", "uint8", single(INF), single(INF), bounded=True),
        "uint8 cannot",
    ),
    "what may be beyond a byte": (
        case("tl.exp(a).to(tl.uint8)", "uint8", single(5.5451774), bounded=True),
        "uint8 cannot",
    ),
    "a product of eight bits": (case("tl.cumprod(a, 0)", "float8_e5m2", ("float8_e5m2", [0x3C])), "compute in fp8e5"),
    "a counter that begins anew": (
        case("found = a\nfor j in range(2147483646, 2147483647, 2):\n    found += 1", "int32", ZERO),
        "would reach about 2^31",
    ),
    "what is not true": (case("found = a\ntl.assume(tl.max(a, 0) > 5)", "int32", ZERO), "computes as if it were true"),
    "a reduction that does not commute": (
        case(
            "tl.reduce(a, 0, first)",
            "int32",
            whole(1, 2, 3, 4),
            names={"first": "def first(x, y):\n    return x"},
        ),
        "not associative and commutative",
    ),
    "a scan that is not associative": (
        case(
            "tl.associative_scan(a, 0, less)",
            "int32",
            whole(1, 2, 3, 4),
            names={"less": "def less(x, y):\n    return x - y"},
        ),
        "not associative",
    ),
}
HISTORY = {
    "mixed": (
        "def mixed(n, f, m, g):\n    k = n + m\n    return k, tl.where(k == 64, f & g, (n != m).to(tl.int32) | f | g)"
    ),
    "behind": (
        "def behind(n, f, h, m, g, j):\n    k = n + m\n"
        "    return k, ((m == 1) & (n >= 2) & (k != j + 1)).to(tl.int32) | f, j | (g << 8)"
    ),
}
"""Functions that tell a thread's row which joins a tree from a row, and from a tree."""
REFUSED |= {
    "a reduction that tells rows in trees": (
        case(
            "n, found = tl.reduce((a, a * 0), 0, mixed)",
            "int32",
            whole(*[1] * 64),
            names={"mixed": HISTORY["mixed"]},
        ),
        "not associative and commutative",
    ),
    "a scan that tells rows in trees": (
        case(
            "n, f, found = tl.associative_scan((a, a * 0, i), 0, behind)",
            "int32",
            whole(*[1] * 64),
            names={"behind": HISTORY["behind"]},
        ),
        "not associative",
    ),
}
REFUSED_CASES = {name: found for name, (found, _) in REFUSED.items()}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_value_is_refused(name: str) -> None:
    answer = answers()[name]
    assert isinstance(answer, str) and REFUSED[name][1] in answer, answer


LARGER = "def larger(x, y):\n    if x > y:\n        return x\n    else:\n        return y"
PICKED = "def picked(x, y):\n    return x if x > y else y"
BEST = (
    "def best(v, i, w, j):\n    if (v > w) | ((v == w) & (i < j)):\n        p = v\n        q = i\n    else:\n"
    "        p = w\n        q = j\n    return p, q"
)
FEW = single(1.0, 5.0, 5.0, 2.0)
BRANCHING = {
    "a branch": case("tl.reduce(a, 0, larger)", "float32", FEW, names={"larger": LARGER}),
    "a choice": case("tl.reduce(a, 0, picked)", "float32", FEW, names={"picked": PICKED}),
    "a scan with a branch": case("tl.associative_scan(a, 0, larger)", "float32", FEW, names={"larger": LARGER}),
    "pairs": case("v, found = tl.reduce((a, i), 0, best)", "int32", FEW, names={"best": BEST}),
    "rows": case(
        "rows = tl.reduce(tl.reshape(a, (2, 2)), 1, larger, keep_dims=True)\n"
        "found = tl.reshape(tl.broadcast_to(rows, (2, 2)), (4,))",
        "float32",
        FEW,
        names={"larger": LARGER},
    ),
}


def test_combine_functions_may_branch() -> None:
    """A GPU's take scalars, and so they are held against a tree one element after the other."""
    assert numbers_of(answers()["a branch"], "float32") == [5.0] * 4
    assert numbers_of(answers()["a choice"], "float32") == [5.0] * 4
    assert numbers_of(answers()["a scan with a branch"], "float32") == [1.0, 5.0, 5.0, 5.0]
    assert numbers_of(answers()["pairs"], "int32") == [1] * 4
    assert numbers_of(answers()["rows"], "float32") == [5.0] * 4


PLUS = {"plus": "def plus(x, y):\n    return x + y"}
TIMES = {"times": "def times(x, y):\n    return x * y"}
NEARLY = {"nearly": "def nearly(x, y):\n    return x + y + 0.0003 * x"}
BRANCHED = {"plus": "def plus(x, y):\n    if x > 5.0:\n        z = x + y\n    else:\n        z = y + x\n    return z"}
THIRDS = single(*[3.0, 3.0, 0.3333333432674408, 0.3333333432674408] * 8)
"""Their product is 1 one after the other, a whole number."""
SWALLOWED = single(16777216.0, *[1.0] * 31)
MATRIX = "m = tl.broadcast_to(a[None, :], (32, 32))\nfound = tl.max(tl.dot(m, m{}, out_dtype=tl.int32){}, 0)"
"""Of whole numbers of eight bits."""

LARGE = single(1.3, 16777216.0, -16777216.0, 0.7)
UNKNOWN = {
    "a fused product of halves": case("a * a - b", "float16", ("float16", [1.3]), ("float16", [1.689453125])),
    "a fused product of bfloat16": case(
        "(a * a - b).to(tl.float32)", "float32", ("bfloat16", [1.3]), ("bfloat16", [1.6875])
    ),
    "a product less itself": case("found = a * a\nfound = found - found", "float32", single(1.3)),
    "an exponential in float64": case("tl.exp(a)", "float64", ("float64", [1.3])),
    "a logarithm of eight in float64": case("tl.log2(a)", "float64", double(8.0)),
    "a fused product that was joined": case(
        "p, q = tl.split(tl.join(a * a, a))\nfound = p - b", "float32", single(1.3), single(1.69)
    ),
    "a fused product in a sum": case(
        "found = tl.sum(tl.join(a, b) * tl.join(a, 0 * a - 1), 1)", "float32", single(1.3), single(1.69)
    ),
    "a fused product in a scan": case(
        "p = tl.cumsum(tl.join(b, a) * tl.join(0 * a - 1, a), 1)\n"
        "found = tl.sum(tl.where(tl.arange(0, 2)[None, :] == 1, p, 0.0), 1)",
        "float32",
        single(1.3),
        single(1.69),
    ),
    "a fused product in a scan from behind": case(
        "p = tl.cumsum(tl.join(a, b) * tl.join(a, 0 * a - 1), 1, reverse=True)\n"
        "found = tl.sum(tl.where(tl.arange(0, 2)[None, :] == 0, p, 0.0), 1)",
        "float32",
        single(1.3),
        single(1.69),
    ),
    "small products beside a large sum": case(
        "m = tl.full((16, 16), 0.5, tl.float16)\nfound = tl.max(tl.dot(m, m, m.to(tl.float32) * 33554432), 0)",
        "float32",
        single(*range(16)),
    ),
    "a long sum": case("found = tl.sum(tl.full((4096, 2), 0.1, tl.float32), 0)", "float32", single(1.0, 2.0)),
    "a long scan": case("found = tl.max(tl.cumsum(tl.full((4096,), 0.1, tl.float32), 0), 0)", "float32", single(1.0)),
    "libdevice": case("libdevice.tanh(a)", "float32", single(1.3, 0.7)),
    "a sum": case("tl.sum(a, 0)", "float32", LARGE),
    "a sum that cancels": case("tl.sum(a, 0)", "float32", single(1.0, 67108864.0, -67108864.0, 1.0)),
    "a scan": case("tl.cumsum(a, 0)", "float32", LARGE),
    "a product of matrices": case(
        "m = tl.broadcast_to(a[None, :], (16, 16))\nfound = tl.max(tl.dot(m, m, input_precision='ieee'), 0)",
        "float32",
        single(*(0.1 + 0.37 * k for k in range(16))),
    ),
    "a scan of halves": case("tl.cumsum(a, 0)", "float16", ("float16", [2048.0, 1.0, 1.0, 1.0])),
    "a product of thirds": case("tl.reduce(a, 0, times)", "float32", THIRDS, names=TIMES),
    "a scan of thirds": case("tl.associative_scan(a, 0, times)", "float32", THIRDS, names=TIMES),
    "products of thirds": case("tl.cumprod(a, 0)", "float32", THIRDS),
    "a scan of halves of its own": case(
        "tl.associative_scan(a, 0, plus)", "float16", ("float16", [2048.0, *[1.0] * 7]), names=PLUS
    ),
    "bfloat16 of its own": case("tl.reduce(a, 0, plus)", "float32", ("bfloat16", [256.0, *[1.0] * 7]), names=PLUS),
    "small numbers beside a large one": case("tl.reduce(a, 0, plus)", "float32", SWALLOWED, names=PLUS),
    "the same by a branch": case("tl.reduce(a, 0, plus)", "float32", SWALLOWED, names=BRANCHED),
    "roots of squares": case("tl.sqrt(a)", "float32", single(9.0, 65536.0)),
    "a cube": case("libdevice.pow(a, 3.0 + 0 * a)", "float32", single(10.0, 19.0)),
    "powers of ten": case("libdevice.exp10(a)", "float32", single(1.0, 3.0)),
    "logarithms of powers of ten": case("libdevice.log10(a)", "float32", single(10.0, 100.0)),
    "whole sides": case("libdevice.hypot(a, b)", "float32", single(3.0), single(4.0)),
    "a gamma function of whole numbers": case("libdevice.tgamma(a)", "float32", single(5.0, 7.0)),
    "a denormal logarithm": case("tl.log(a)", "float32", single(1e-40)),
    "a denormal power": case("tl.exp2(a)", "float32", single(-130.0)),
    "a denormal result of libdevice": case("libdevice.exp(a)", "float32", single(-90.0)),
    "a quotient of equals": case("a / b", "float32", single(3.0), single(3.0)),
    "a quotient in a sum": case("a / b - 1.0 == 0.0", "bool", single(3.0), single(3.0)),
    "a large exponential": case("tl.exp(a)", "float32", single(30.3)),
    "an exponential that is nearly whole": case("tl.exp(a)", "float32", single(1.0986123)),
    **{
        f"a fused product through {name}": case(f"{step} - b", kind, (kind, [value]), (kind, [square]))
        for name, step, kind, value, square in (
            ("times one", "(a * a) * 1.0", "float32", 1.3, 1.69),
            ("its bits", "(a * a).to(tl.int32, bitcast=True).to(tl.float32, bitcast=True)", "float32", 1.3, 1.69),
            ("float64", "(a * a).to(tl.float64).to(tl.float32)", "float32", 1.3, 1.69),
            ("a choice", "tl.where(i >= 0, a * a, 0.0)", "float32", 1.3, 1.69),
            ("a maximum", "tl.maximum(a * a, a * a)", "float32", 1.3, 1.69),
            ("a sum with nothing", "(a * a + 0.0)", "float32", 1.3, 1.69),
            ("an absolute value", "tl.abs(a * a)", "float32", 1.3, 1.69),
            ("an axis of one", "tl.sum((a * a)[:, None], 1)", "float32", 1.3, 1.69),
            ("a narrow cast", "(a.to(tl.float32) * a.to(tl.float32)).to(tl.float16)", "float16", 1.3, 1.689453125),
        )
    },
}
"""Results that a GPU may have otherwise."""
ANYTHING = {
    "a shift beyond the width": case("a << b", "int32", whole(1, 1), whole(40, 3)),
    "a product that leaves 32 bits": case(
        MATRIX.format(", tl.full((32, 32), 2147483647, tl.int32)", ""), "int32", whole(*[2] * 32, dtype="int8")
    ),
    "a sum with a product that leaves them": case(
        MATRIX.format("", " + 2147483647"), "int32", whole(*[2] * 32, dtype="int8")
    ),
    "what an atomic operation leaves out": case(
        "tl.atomic_add(b_ptr + i, 1, mask=i < 2)", "int32", FEW, whole(5, 6, 7, 8)
    ),
    "a narrow number taken for one without a sign": case(
        "a.to(tl.uint64).to(tl.bfloat16)", "bfloat16", whole(-1, 5, dtype="int8")
    ),
    "a narrow constant for what is masked": case(
        "tl.load(a_ptr + i, mask=i < 1, other=-5)", "int8", whole(1, 2, dtype="int8")
    ),
    "no number of another type": case("(a * 1.0).to(tl.bfloat16, bitcast=True)", "bfloat16", ("float16", [NAN])),
    "a remainder of what is anything": case("libdevice.fmod(libdevice.cbrt(a), 1.0)", "float32", single(1e-40)),
    "a root of a denormal number": case("libdevice.cbrt(a)", "float32", single(1e-40)),
    "products that vanish before infinity": case("tl.cumprod(a, 0)", "float32", single(1.0, 2.0**-100, 2.0**-100, INF)),
    "a sum that leaves the range beside infinity": case("tl.cumsum(a, 0)", "float32", single(0.0, INF, -3e38, -3e38)),
    "a product of float16 beyond its range, less a little": case("a * a - a * 2.0", "float16", ("float16", [256.0])),
    "an infinity less a product that rounding makes one": case("a - b * b", "float32", single(INF), single(1e30)),
    "an extreme's place": case("tl.argmax(a * 0, 0, tie_break_left=False)", "int32", single(*range(64))),
    "NaN in a clamp": case("tl.clamp(a, -1.0, 1.0)", "float32", single(NAN)),
    "NaN as a bound": case("tl.clamp(a, -b, b)", "float32", single(2.0), single(NAN)),
    "a clamp to zeros": case("tl.clamp(a, 0.0 - b, b)", "float32", single(-2.0), single(0.0)),
    "a clamp to zeros that keeps NaN": case(
        "tl.clamp(a, 0.0 - b, b, propagate_nan=tl.PropagateNan.ALL)", "float32", single(-2.0), single(0.0)
    ),
    "halves clamped to zeros": case("tl.clamp(a, 0.0 - b, b)", "float16", ("float16", [-2.0]), ("float16", [0.0])),
    "bits of NaN": case("(a / a).to(tl.int32, bitcast=True)", "int32", single(0.0)),
    "bits of NaN of halves": case("(a - a).to(tl.int16, bitcast=True)", "int16", ("float16", [INF])),
    "a number beyond a type": case("a.to(tl.int16)", "int16", single(70000.0)),
    "a negative number without a sign": case("a.to(tl.uint32)", "uint32", single(-5.0)),
}
"""What has no value in some lanes."""
PARTS = {"a shift beyond the width": [0], "what an atomic operation leaves out": [2, 3]}
"""Which lanes."""

KNOWN = {
    "a product alone": case("a * a", "float32", single(1.3, 0.7)),
    "a product alone in float64": case("a * a", "float64", ("float64", [1.3])),
    "a quotient that is asked for": case("tl.div_rn(a, 3.1)", "float32", single(1.3, 0.7)),
    "tl.fma": case("tl.fma(a, a, a)", "float32", single(1.3, 0.7)),
    "a product of whole numbers": case("a * a", "float32", single(3.0, -7.0)),
    "a product of two": case(
        "tl.reduce(a, 0, times)", "float32", single(1.3, 0.7), names={"times": "def times(x, y):\n    return x * y"}
    ),
    "a sum of whole numbers": case("tl.sum(a, 0)", "float32", single(3.0, -7.0)),
    "a sum with one number": case("tl.sum(tl.where(a == 0.7, a, 0.0), 0)", "float32", single(0.7, 1.3)),
    "a chosen number": case("tl.reduce(a, 0, larger)", "float32", single(0.7, 1.3), names={"larger": LARGER}),
    "a largest number": case("tl.max(a, 0)", "float32", single(0.7, 1.3)),
    "functions that are exact": case("libdevice.fmod(a, 1.0) + tl.floor(a)", "float32", single(0.5, 1.25)),
    "a shift within the width": case("a << b", "int32", whole(1, 1), whole(31, 3)),
    "a sum": case("a + a", "float32", single(0.7, 1.3)),
    "a product of whole matrices": case(
        "m = tl.broadcast_to(a[None, :], (16, 16))\nfound = tl.max(tl.dot(m, m), 0)",
        "float32",
        single(*range(16)),
    ),
    "a guarded shift": case("tl.where(b < 32, a << b, 0)", "int32", whole(1, 1), whole(40, 3)),
    "the bits of a number of eight bits": case(
        "a.to(tl.float8e4nv).to(tl.uint8, bitcast=True)", "uint8", single(320.0, 1.0)
    ),
    "a half of what bits make": case(
        "(a + 0).to(tl.float32, bitcast=True).to(tl.bfloat16)", "bfloat16", whole(0x3FC00000, 0x40000000)
    ),
    "a quotient by a power of two": case("a / b", "float32", single(3.7, 5.0), single(4.0, 0.5)),
    "whole powers of two": case("tl.exp2(a)", "float32", single(0.0, 3.0, 30.0)),
    "an exponential of zero": case("tl.exp(a)", "float32", single(0.0)),
    "roots in float64": case("tl.sqrt(a)", "float64", ("float64", [2.0, 9.0])),
    "powers that are 1": case("libdevice.pow(a, b)", "float32", single(1.0, 7.3), single(7.3, 0.0)),
    "a side that is 0": case("libdevice.hypot(a, b)", "float32", single(5.7), single(0.0)),
    "cosines of whole half turns": case("libdevice.cospi(a)", "float32", single(7.0, 8.0)),
    "a scan of whole numbers of its own": case(
        "tl.associative_scan(a, 0, plus)", "float32", single(*range(32)), names=PLUS
    ),
    "a product within 32 bits": case(
        MATRIX.format(", tl.full((32, 32), 2147483647 - 32 * 16384, tl.int32)", ""),
        "int32",
        whole(*[-128] * 32, dtype="int8"),
    ),
    "a logarithm of one in float64": case("tl.log2(a)", "float64", double(1.0)),
    "logarithms of powers of two": case("tl.log2(a)", "float32", single(0.25, 1024.0)),
    "a number within a type": case("a.to(tl.int16)", "int16", single(-32768.0, 32767.5)),
    "halves of one kind in another": case("a", "float16", ("bfloat16", [1e-6, 3e38])),
    "a narrow constant with its sign everywhere": case(
        "tl.load(a_ptr + i, mask=i < 1, other=-1)", "int8", whole(1, 2, dtype="int8")
    ),
    "fractions within a byte": case("a.to(tl.uint8)", "uint8", single(0.0, 255.9)),
    "a product that was narrow": case("(a * a).to(tl.bfloat16).to(tl.float32) - 1.0", "float32", single(1.3, 0.7)),
    "a product without a sum": case("tl.maximum(a * a, 0.0) * 1.0", "float32", single(1.3, 0.7)),
}
KNOWN = {f"known: {name}": found for name, found in KNOWN.items()}
TWICE = {"the second of two products": case("a * a - a * a", "float32", single(1.3))}
MANY = single(*(1.0 + 0.0731 * k for k in range(64)))
MIXED = "p = a / 3.1\nq = {}\nfound = {}"
MIXTURES = {
    "a mixture of quotients": MIXED.format("a / 2.9", "p + (q - p) * 0.3"),
    "a mixture from the other side": MIXED.format("a / 2.9", "(q - p) * 0.3 + p"),
    "a mixture by a difference": MIXED.format("a / 2.9", "q - (q - p) * 0.7"),
    "a mixture of what shares an error": MIXED.format("p + 0.25", "p + (q - p) * 0.3"),
    "beyond both sides": MIXED.format("a / 2.9", "p + (q - p) * 1.7"),
    "away from both sides": MIXED.format("a / 2.9", "p - (q - p) * 0.3"),
}
WELFORD = "def welford(m, n, k, l):\n    total = n + l\n    return m + (k - m) * (l / total), total"
SOME = {
    "a mean of means": case(
        "found, n = tl.reduce((a, a * 0 + 1), 0, welford)", "float32", MANY, names={"welford": WELFORD}
    ),
    **{name: case(lines, "float32", MANY) for name, lines in MIXTURES.items()},
    "some quotients": case("a / 3.1", "float32", MANY),
    "ulps of erfc": case("libdevice.erfc(a)", "float32", MANY),
    "beside a root": case("libdevice.lgamma(a)", "float32", single(*(-2.4569 - 0.00001 * k for k in range(64)))),
    "nearly a sum": case("tl.reduce(a, 0, nearly)", "float32", single(*[1.0] * 32), names=NEARLY),
    "nearly a scan": case("tl.associative_scan(a, 0, nearly)", "float32", single(*[1.0] * 32), names=NEARLY),
}
INEXACT = UNKNOWN | ANYTHING | KNOWN | TWICE | SOME


def numbers_and_bounds(name: str) -> tuple[Any, Any]:
    """What the interpreter has, and by how much each may be off."""
    answer = answers()[name]
    assert isinstance(answer, list) and len(answer) == 2, answer
    kind = INEXACT[name]["out"]
    return np.array(numbers_of(answer[0], kind), dtype=None if kind == "bool" else np.float64), np.array(answer[1])


@cache
def of_gpus() -> dict[str, Any]:
    """What random GPUs have."""
    cases = UNKNOWN | KNOWN | TWICE | SOME
    given = {"cases": list(cases.values()), "gpus": GPUS}
    return dict(zip(cases, program("bound_cases", given=json.dumps(given)), strict=True))


@cache
def asked() -> dict[str, Any]:
    """What comes of branches on whether results are those that the interpreter has."""
    cases = {}
    for name, found in (UNKNOWN | ANYTHING).items():
        values, kind, known = answers()[name][0], found["out"], "abc"[len(found["inputs"])]
        lines = f"{found['lines']}\ntold = 0\nif tl.max((found == {known}).to(tl.int32), 0) > 0:\n    told = 1"
        inputs = [*found["inputs"], (kind, numbers_of(values, kind))]
        cases[name] = {**found, "lines": lines, "inputs": inputs, "bounded": True}
    return dict(zip(cases, program("value_cases", given=json.dumps(list(cases.values()))), strict=True))


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_a_gpu_may_compute_otherwise_has_a_bound_of_at_least_that_size(name: str) -> None:
    found = of_gpus()[name]
    assert isinstance(found, dict), found
    assert found["moved"] > 0 and not found["beyond"], found
    assert numbers_and_bounds(name)[1].any()


@pytest.mark.parametrize("name", UNKNOWN | ANYTHING)
def test_what_asks_for_it_is_undecided(name: str) -> None:
    assert isinstance(asked()[name], str) and "an address, a mask or a branch depends" in asked()[name], asked()[name]


@pytest.mark.parametrize("name", ANYTHING)
def test_what_has_no_value_may_be_anything(name: str) -> None:
    _, limits = numbers_and_bounds(name)
    lanes = np.isinf(limits)
    assert lanes.any() and not limits[~lanes].any()
    if name in PARTS:
        assert np.flatnonzero(lanes).tolist() == PARTS[name]


@pytest.mark.parametrize("name", KNOWN)
def test_what_every_gpu_computes_is_exact(name: str) -> None:
    assert not numbers_and_bounds(name)[1].any()
    assert isinstance(of_gpus()[name], dict) and of_gpus()[name]["moved"] == 0, of_gpus()[name]


NEAR, LOSS = 1.0 + 2.0**-12, 2.0**-24
"""A float32, and what its square loses to rounding."""
MADE_OTHERWISE = {
    "a product in tl.fma by 1": (case("tl.fma(a * a, 1.0, -b)", "float32", single(NEAR), single(1 + 2.0**-11)), LOSS),
    "a sum of tl.fma by -1": (case("tl.fma(-1.0, b, a * a)", "float32", single(NEAR), single(1 + 2.0**-11)), LOSS),
    "a product of tl.fma with zero": (
        case("tl.fma(a, a, -0.0) - b", "float32", single(NEAR), single(1 + 2.0**-11)),
        LOSS,
    ),
    "a product with its own sign": (
        case("libdevice.copysign(a * a, a * a) - b", "float32", single(NEAR), single(1 + 2.0**-11)),
        LOSS,
    ),
    "the larger of a product and itself": (
        case("tl.max(tl.join(a * a, a * a), 1) - b", "float32", single(NEAR), single(1 + 2.0**-11)),
        LOSS,
    ),
    "a sum made in the type that it is cast to": (
        case("a.to(tl.float32) - a * b", "float16", ("float16", [-7.726439812202246]), ("float16", [110.0])),
        0.5,
    ),
    "a narrow product made wider, times 1": (
        case("tl.abs(1.0) * (a * a) - b", "bfloat16", ("bfloat16", [1 + 2.0**-6]), ("bfloat16", [1 + 2.0**-5])),
        2.0**-12,
    ),
    "a running sum of float64, from behind": (
        case("tl.cumsum(a, 0, reverse=True)", "float64", double(*[0.1] * 256)),
        1e-13,
    ),
    "a product for what no lane loads": (
        case("tl.load(a_ptr + i, mask=i < 0, other=a * a) - 1.69", "float32", single(1.3)),
        2.0**-25,
    ),
    "its bits, and the largest of one": (
        case(
            "tl.max((a * a)[:, None].to(tl.int32, bitcast=True), 1).to(tl.float32, bitcast=True) - 1.69",
            "float32",
            single(1.3),
        ),
        2.0**-25,
    ),
    "a number and its negative through bits": (
        case(
            "(a * a - 1.69) - (-(a * a - 1.69)).to(tl.int32, bitcast=True).to(tl.float32, bitcast=True)",
            "float32",
            single(1.3),
        ),
        2.0**-25,
    ),
    "a running product of one": (
        case("tl.sum(tl.cumprod((a * a)[:, None], 1) - 1.69, 1)", "float32", single(1.3)),
        2.0**-25,
    ),
    "the largest with its place": (
        case("tl.max((a * a)[:, None], 1, return_indices=True)[0] - 1.69", "float32", single(1.3)),
        2.0**-25,
    ),
    **{
        f"a product of float64 {how}": (
            case(f"({step}).to(tl.float32) - 1.69", "float32", single(1.3)),
            2.0**-25,
        )
        for how, step in (
            ("moved", "tl.sum((a.to(tl.float64) * a.to(tl.float64))[:, None], 1)"),
            ("chosen", "tl.where(i >= 0, a.to(tl.float64) * a.to(tl.float64), 0.0)"),
            ("joined", "tl.split(tl.join(a.to(tl.float64) * a.to(tl.float64), a.to(tl.float64)))[0]"),
            ("negated", "0.0 - (0.0 - a.to(tl.float64) * a.to(tl.float64))"),
        )
    },
    "a quotient at half the least number": (
        case("a / b", "float32", single(7 * 2.0**-120), single(7 * 2.0**30)),
        2.0**-149,
    ),
    "a tiny product of what is inexact": (
        case("tl.exp(a.to(tl.float64)) * b * b", "float64", single(-300.0), double(2.0**-350)),
        5e-324,
    ),
    "a power of a fused logarithm": (case("libdevice.pow(a, b)", "float32", single(1.387), single(269.0)), 3e32),
    "a fused logarithm of float64": (case("tl.log(a)", "float64", double(3.0)), 2.0**-43),
    "a quotient at the end of the range": (
        case("a / tl.exp(b).to(tl.float64)", "float64", double(1e-319), single(-60.0)),
        1e-300,
    ),
}


@cache
def made_otherwise() -> dict[str, Any]:
    cases = [{**found, "bounded": True} for found, _ in MADE_OTHERWISE.values()]
    return dict(zip(MADE_OTHERWISE, program("value_cases", given=json.dumps(cases)), strict=True))


@pytest.mark.parametrize("name", MADE_OTHERWISE)
def test_what_the_compiler_makes_otherwise_has_a_bound_of_that_size(name: str) -> None:
    answer = made_otherwise()[name]
    assert isinstance(answer, list) and answer[1][0] >= MADE_OTHERWISE[name][1], answer


@pytest.mark.parametrize("name", MIXTURES)
def test_an_error_counts_once_in_a_mixture(name: str) -> None:
    found = of_gpus()[name]
    assert isinstance(found, dict) and found["moved"] > 0 and not found["beyond"], found
    assert last_bits_of(name).min() >= 2 and (last_bits_of(name).max() < 9) == ("both sides" not in name)


def test_means_of_means_are_off_by_little() -> None:
    assert last_bits_of("a mean of means").max() < 100 and not of_gpus()["a mean of means"]["beyond"]


def test_either_of_two_products_is_fused() -> None:
    """The second one too, so that what is left of the first has the other sign."""
    lost = float(np.float32(1.3)) ** 2 - float(np.float32(1.3) * np.float32(1.3))
    found, limits = numbers_and_bounds("the second of two products")
    assert found == 0 and abs(lost) <= limits <= 3 * abs(lost)


def last_bits_of(name: str) -> Any:
    """Bounds in last bits."""
    found, limits = numbers_and_bounds(name)
    return limits / np.spacing(np.abs(found).astype(np.float32))


def test_quotients_are_off_by_two_last_bits_or_a_little_more() -> None:
    assert last_bits_of("some quotients").min() >= 2 and last_bits_of("some quotients").max() <= 7


def test_functions_of_libdevice_are_off_by_as_much_as_is_documented() -> None:
    assert last_bits_of("ulps of erfc").min() >= 4 and last_bits_of("ulps of erfc").max() <= 11


def test_beside_roots_of_lgamma_its_terms_lose_last_bits() -> None:
    assert last_bits_of("beside a root").max() > 500


@pytest.mark.parametrize("name", ["nearly a sum", "nearly a scan"])
def test_a_function_of_its_own_is_off_by_what_a_tree_makes(name: str) -> None:
    found, limits = numbers_and_bounds(name)
    assert found[-1] < 32.1 and found[-1] + limits[-1] > 32.14, "a row makes more of it than pairs do"
    assert of_gpus()[name]["moved"] > 0 and not of_gpus()[name]["beyond"]
