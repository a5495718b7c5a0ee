"""One GPU that there could be: calls that act as it does throughout (`Ledger.device`).

Other calls move what is inexact at random, and so break what is true on every GPU: that sines are odd, that twice a
quotient is the quotient of twice the number, that powers do not fall. A kernel could tell these calls by that, and
calls that round to nearest by their quotients, and be right in both alone. Here nothing inexact is rounded to nearest,
and all of that is true.

A function of the secret maps each exact result to what the device's approximation has in its place. The map rises, is
odd, has the same shape between any two powers of two, and leaves these alone. So what is equal, ordered or scaled
stays so.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from assay.kernels.inside.triton.ledger import current

_SINGLE, _DOUBLE = np.dtype(np.float32), np.dtype(np.float64)
_KNOTS = 16
"""Places of a mantissa between which an approximation's error goes in straight lines."""
_LEAST_PART, _MOST_PART = 0.45, 0.95
"""Of the largest error at the knots, as shares of what CUDA's documents allow beyond rounding."""
FINDS_OUT, BY_FORM, NEGATES, RELAYS = 16, 32, 64, 128
"""Bits of the secret: the compiler finds out what is constant (`found_out`); a product stays one by form alone, through
`0.0 - p` too, through other layouts too (`products`)."""
KNOWS = FINDS_OUT | BY_FORM
"""What every compiler does."""

FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    **{name: getattr(np, name) for name in ("exp", "exp2", "log", "log2", "sin", "cos", "sqrt")},
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "erf": np.vectorize(math.erf, otypes=[np.float64]),
}
"""The language's own."""


def near(name: str, exact: Any, dtype: Any, ulps: float, share: Any = 1.0) -> Any:
    """What the device has in place of exact results.

    name: The function, as `name_of` has it.
    exact: float64 for results of float32, longdouble for those of float64.
    ulps: By how many last bits it may differ, rounding included.
    share: How much of that results have beyond rounding, 0 to 1.
    """
    error = _errors(current().device, name) * ((ulps - 0.5) * float(np.finfo(dtype).epsneg))
    finite = np.where(np.isfinite(exact), exact, 0)
    place = np.clip(2.0 * np.frexp(np.abs(finite))[0].astype(np.float64) - 1.0, 0.0, 1.0) * _KNOTS
    before = np.minimum(place.astype(np.int64), _KNOTS - 1)
    moved = error[before] + (place - before) * (error[before + 1] - error[before])
    return (exact + finite * moved * share).astype(dtype)


@lru_cache(256)
def _errors(secret: int, name: str) -> Any:
    """Relative errors at the knots of a mantissa, none of them near 0 but those of powers of two."""
    chance = np.random.default_rng((secret, zlib.crc32(name.encode())))
    size = chance.uniform(_LEAST_PART, _MOST_PART, _KNOTS + 1) * chance.choice((-1.0, 1.0), _KNOTS + 1)
    size[[0, -1]] = 0.0
    return size


def name_of(symbol: str) -> str:
    """A function's name without libdevice's marks: `tl.sin` and `libdevice.sin` are one function."""
    return symbol.removeprefix("__nv_").removesuffix("f") if symbol.startswith("__nv_") else symbol


def wide(values: Any) -> Any:
    """Arguments in a type in which results are exact, or nearly so; whole numbers as they are."""
    if values.dtype == _SINGLE:
        return values.astype(np.float64)
    return values.astype(np.longdouble) if values.dtype == _DOUBLE else values


def quotients(left: Any, right: Any) -> Any:
    """`div.full.f32`: a product with an approximate inverse, whatever the sizes of both."""
    inverse = near("rcp", 2.0 / (2.0 * np.frexp(right.astype(np.float64))[0]), _SINGLE, 1.0)
    one, power = np.frexp(left)
    product = (one * inverse).astype(np.float32)
    found = np.ldexp(product.astype(np.float64), power - np.frexp(right)[1]).astype(np.float32)
    plain = (left == 0) | (right == 0) | ~np.isfinite(left) | ~np.isfinite(right)
    return np.where(plain, left / right, found)


def in_order(data: Any, axis: int | None) -> Any:
    """Elements to be reduced, in the order in which neighbours meet first, the axis last."""
    data = data.reshape(-1) if axis is None else np.moveaxis(data, axis, -1)
    return data if neighbours_first() else data[..., halves_first(data.shape[-1])]


def neighbours_first() -> bool:
    """Whether the device reduces neighbours first, or what is half a block apart."""
    return bool(current().device & 1)


def halves_first(length: int) -> Any:
    """The order that makes neighbours of what is half a block apart, and so on."""
    bits = length.bit_length() - 1
    return np.arange(length).reshape((2,) * bits).transpose(tuple(range(bits))[::-1]).ravel()


def in_a_tree(data: Any, axis: int | None, round_off: Callable[[Any], Any], first: Any = None) -> Any:
    """Sums along an axis, which stays with one place; each rounded by `round_off`.

    first: Of products, what takes them without rounding and rounded to the sums of neighbours; and the former.
    """
    rank, data = data.ndim, in_order(data, axis)
    if first is not None and data.shape[-1] > 1:
        pairs, products = first
        data = round_off(pairs(in_order(products, axis), data))
    while data.shape[-1] > 1:
        data = round_off(data[..., 0::2] + data[..., 1::2])
    return data.reshape((1,) * rank) if axis is None else np.moveaxis(data, -1, axis)


def meet_in_a_thread(data: Any) -> bool:
    """Whether threads have several elements of a block each, whose sums may take products without rounding. Other
    threads are given a product rounded."""
    return bool(data.size > current().threads)


def one_after_the_other(left: Any, right: Any, total: Any) -> Any:
    """Products of matrices of float32 by fused sums, along the rows of the one and the columns of the other."""
    left, right = left.astype(np.float64), right.astype(np.float64)
    for place in range(left.shape[-1]):
        total = (total + left[..., :, place, None] * right[..., None, place, :]).astype(np.float32)
    return total
