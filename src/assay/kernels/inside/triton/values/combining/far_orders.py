"""Orders in which a reduction goes furthest: of elements that are sorted, or have no signs.

Where a function stops at a number, or a sum leaves the range, most orders may make the same, and that of a GPU another
number.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import triton.language as tl

from assay.kernels.inside.triton.values import bfloat16
from assay.kernels.inside.triton.values.combining.functions import RELATIVE, Combine, Parts, as_float64
from assay.kernels.inside.triton.values.combining.orders import as_many_as_in_blocks, by_pairs, in_pairs

ROUNDINGS = 4.0
"""How many roundings of one size come together at random, in roots of a number of terms."""


def in_far_orders(
    combine: Combine, function: Any, parts: Parts, made: Parts, chance: np.random.Generator, *, scans: bool
) -> Parts:
    """Which results another order may make quite another number of: where the sizes of all elements leave the range and
    they themselves do not, or where sorted elements come to something else. `made`: in an order of ours."""
    plain = Combine(function, combine.dtypes)
    plain.one_by_one = combine.one_by_one
    made = made[: len(parts)]
    with np.errstate(all="ignore"):
        sizes = [_size(part, dtype) for part, dtype in zip(parts, plain.dtypes, strict=True)]
        most = by_pairs(plain, sizes) if scans else in_pairs(plain, sizes)
        far = [_far_out(*each) for each in zip(made, most, plain.dtypes, strict=True)]
        if scans:
            return far
        keys = [key for both in zip(parts, sizes, plain.dtypes, strict=True) for key in _keys(*both)]
        chosen = [keys[int(chance.integers(len(keys)))]] if plain.one_by_one else as_many_as_in_blocks(keys)
        orders = [np.argsort(key, -1, kind="stable") for key in chosen]
        found = in_pairs(plain, [np.stack([np.take_along_axis(part, order, -1) for order in orders]) for part in parts])
        others = zip(found, made, most, plain.dtypes, strict=True)
        return [one | _unlike(*each, parts[0].shape[-1]).any(axis=0) for one, each in zip(far, others, strict=True)]


def _size(part: Any, dtype: Any) -> Any:
    """Elements without signs, but for infinite ones: these leave no range, and stand for nothing in a maximum."""
    if dtype == tl.bfloat16:
        size = part & np.asarray(0x7FFF, part.dtype)
        return np.where(size == 0x7F80, part, size)
    return np.where(np.isinf(part), part, np.abs(part)) if part.dtype.kind == "f" else part


def _keys(part: Any, size: Any, dtype: Any) -> list[Any]:
    """By what elements are sorted."""
    if dtype == tl.bfloat16:
        return [bfloat16.wide(part), bfloat16.wide(size)]
    return [part, size] if part.dtype.kind == "f" else [part]


def _far_out(made: Any, most: Any, dtype: Any) -> Any:
    made, most = (as_float64(each, dtype) for each in (made, most))
    return np.isfinite(made) & ~np.isfinite(most)


def _unlike(found: Any, made: Any, most: Any, dtype: Any, length: int) -> Any:
    """Which results of two orders are further apart than roundings of all sizes explain."""
    if not dtype.is_floating():
        return found != made
    found, made, most = (as_float64(each, dtype) for each in (found, made, most))
    lost = ROUNDINGS * length**0.5 * 2.0**-dtype.fp_mantissa_width * np.where(np.isfinite(most), np.abs(most), 0.0)
    near = np.abs(found - made) <= RELATIVE * np.abs(made) + lost + 1e-30
    return ~(near | (found == made) | (np.isnan(found) & np.isnan(made)))
