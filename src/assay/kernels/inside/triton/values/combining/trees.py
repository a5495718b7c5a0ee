"""Reductions and scans with functions of the kernel's own: a GPU combines as its threads do, the interpreter in pairs.

A reduction takes elements in an order of the GPU's, and lanes do not agree on which of two comes first: its function
must be commutative. What pairs and some such ways make has to be nearly alike; by as much as they are apart a GPU may
be off.

A function could tell how something was made, and forget it before the end. So each part of the whole is made in two
ways: what differs by more than roundings has no value, and neither has what is made of that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter as engine

from assay.kernels.inside.triton.arithmetic import MeaningError
from assay.kernels.inside.triton.error_bounds.bounds import (
    BITS,
    LARGEST,
    bound,
    give,
    loss,
    loss_of_any,
    or_unknown,
    or_zero,
    total,
)
from assay.kernels.inside.triton.error_bounds.memory import UNKNOWN
from assay.kernels.inside.triton.error_bounds.sums import finite_sizes, of_orders
from assay.kernels.inside.triton.ledger import WrongValueError, current, refuse
from assay.kernels.inside.triton.values import bfloat16
from assay.kernels.inside.triton.values.combining.far_orders import ROUNDINGS, in_far_orders
from assay.kernels.inside.triton.values.combining.functions import RELATIVE, Bounded, Combine, Parts, as_float64
from assay.kernels.inside.triton.values.combining.orders import by_pairs, in_pairs, reduced, scanned

_HELD, _OFTEN = 3, 1 / 16
"""How many times in each call a function combines in other orders too, and of how many of all further times: Inductor's
norms have thousands of programs that combine thousands of elements."""
_SAMPLE = 4
"""Pairs of elements by which a function is held against itself."""
_ABSOLUTE = 1e-3
"""How far two orders may be apart, as a part of the largest result."""


def install() -> None:
    """Put it into the interpreter."""
    reduce_, scan = engine.ReduceOps.generic_reduce, engine.ScanOps.generic_scan

    def generic_reduce(self: Any, values: Any) -> Any:
        return _in_trees(self, values, reduce_, "tl.reduce", reduced)

    def generic_scan(self: Any, values: Any) -> Any:
        return _in_trees(self, values, scan, "tl.associative_scan", scanned)

    engine.ReduceOps.generic_reduce, engine.ScanOps.generic_scan = generic_reduce, generic_scan
    engine.ReduceOps.unravel = _unravel


def _unravel(self: Any, values: Sequence[Any], axis: int | None) -> tuple[tuple[Any, ...], int]:
    """The operands of a reduction, in a row where it is over all axes, and the axis. The interpreter's own leaves all
    but the first one as they are."""
    if axis is not None:
        return tuple(values), axis
    return tuple(self.to_tensor(each.handle.data.ravel(), each.dtype) for each in values), 0


def _in_trees(
    operation: Any, values: Sequence[Any], in_a_row: Callable[..., Any], name: str, made: Callable[..., list[Parts]]
) -> Any:
    """What is made of pairs, or in a row where a function takes no blocks; what the trees of a GPU make must be like
    it."""
    ledger, function, scans = current(), operation.combine_fn.fn, made is scanned
    before, chance = ledger.arithmetic, ledger.chance()
    kinds = [part.dtype.scalar for part in values]
    combine = (Combine if ledger.bounds is None else Bounded)(function, kinds)
    parts = [_axis_last(part.handle.data, operation.axis) for part in values]
    combine.any_order = parts[0].shape[-1] > 2
    given = parts if ledger.bounds is None else [*parts, *_limits(values, operation.axis)]
    size, (held, each) = parts[0].size, ledger.combined.get(function, (0, 0.0))
    steps = size - size // parts[0].shape[-1]
    trees: list[Parts] = []
    try:
        pairs = (by_pairs if scans else in_pairs)(combine, given)
        found = _as_given(operation, values, pairs[: len(kinds)], scans=scans)
        if held < _HELD or chance.random() < _OFTEN:
            each = _arithmetic(function, kinds, parts, chance, name)
            trees = [pairs, *made(combine, given, chance)]
    except MeaningError:  # a branch: there are no blocks on a GPU, either
        combine.one_by_one, ledger.arithmetic = True, before
        found = in_a_row(operation, values)
        each = (ledger.arithmetic - before) / max(steps, 1)
        trees = made(combine, given, chance)
    ledger.combined[function] = held + bool(trees), each
    far = in_far_orders(combine, function, parts, trees[0], chance, scans=scans) if trees else [False] * len(kinds)
    ledger.arithmetic = before + round(each * steps)
    trees = trees or [pairs]
    axis = operation.axis if made is scanned else -1
    rows, length = [_axis_last(part.handle.data, axis) for part in found], parts[0].shape[-1]
    limits = [np.maximum.reduce(each) for each in zip(*(tree[len(rows) :] for tree in trees), strict=True)]
    trees = [[each.reshape(row.shape) for each, row in zip(tree, rows, strict=False)] for tree in trees]
    if not all(_alike(*both, length) for tree in trees for both in zip(tree, rows, kinds, parts, strict=True)):
        _refuse(name)
    for place, limit in enumerate(limits):
        orders = of_orders(*_as_numbers(trees, rows, place, kinds[place]))
        handle = found[place].handle
        if parts[place].dtype.kind == "f" or kinds[place] == tl.bfloat16:
            limit = _in_any_order(limit, parts[place], rows[place], kinds[place])
        limit = np.where(far[place], UNKNOWN, limit)
        give(handle, _axis_back(orders + 2.0 * limit.reshape(rows[place].shape), handle.data.shape, axis))
    return found


def _as_given(operation: Any, values: Sequence[Any], made: Parts, *, scans: bool) -> list[Any]:
    """Results as the interpreter gives them."""
    axis, shape = operation.axis, values[0].handle.data.shape
    if scans:
        made = [np.ascontiguousarray(np.moveaxis(each, -1, axis)) for each in made]
    elif operation.keep_dims:
        made = [each.reshape((1,) * len(shape)) if axis is None else np.expand_dims(each, axis) for each in made]
    return [operation.to_tensor(each, value.dtype) for each, value in zip(made, values, strict=True)]


def _arithmetic(function: Callable[..., Any], kinds: Sequence[Any], parts: Parts, chance: Any, name: str) -> float:
    """What it takes to combine two elements, counted of a few, which must come to the same one by one: a GPU gives a
    function no blocks."""
    ledger, size = current(), parts[0].size
    before, places = ledger.arithmetic, chance.integers(size, size=(2, _SAMPLE))
    left, right = ([np.ravel(part)[some] for part in parts] for some in places)
    at_once, one_by_one = (Combine(function, kinds) for _ in range(2))
    one_by_one.one_by_one = True
    found = at_once(left, right)
    each: float = (ledger.arithmetic - before) / _SAMPLE
    if not all(_same(*both) for both in zip(found, one_by_one(left, right), strict=True)):
        refuse(WrongValueError(f"the combine function of a {name} makes something else of blocks than of elements"))
    return each


def _same(one: Any, other: Any) -> bool:
    return bool(np.array_equal(one, other, equal_nan=one.dtype.kind == "f"))


def _in_any_order(limits: Any, operands: Any, results: Any, dtype: Any) -> Any:
    """The bounds of results, of which one that is infinite, or no number, may be another in another order: where all
    operands are finite, or so large or small that a few of them leave the range."""
    given, made = (bfloat16.wide(each) if dtype == tl.bfloat16 else each for each in (operands, results))
    lost = ~np.isfinite(made.reshape(limits.shape))
    if not lost.any() or np.isfinite(given).all():
        return np.where(lost, UNKNOWN, limits)
    far, nan = _leave_the_range(given.astype(np.float64), dtype), np.isnan(given)
    if limits.shape == given.shape:
        return np.where(lost & far[..., None] & ~np.logical_or.accumulate(nan, -1), UNKNOWN, limits)
    return np.where(lost & (far & ~nan.any(-1)).reshape(limits.shape), UNKNOWN, limits)


def _leave_the_range(given: Any, dtype: Any) -> Any:
    """Of which rows finite operands have sums or products beyond the largest number, or products below the least."""
    most = LARGEST[dtype.name]
    inner = finite_sizes(given)
    size = np.abs(np.log2(np.where(inner > 0, inner, 1.0)))
    return ((inner / most).sum(-1) > 0.5) | (size.sum(-1) > np.log2(most) - 2.0)


def _as_numbers(trees: list[Parts], rows: Parts, place: int, dtype: Any) -> tuple[list[Any], Any]:
    """What several orders make of an operand, and what a row makes, as float64."""
    return [as_float64(tree[place], dtype) for tree in trees], as_float64(rows[place], dtype)


def _limits(values: Sequence[Any], axis: int | None) -> Parts:
    """The error bounds of operands, the axis last; a product's with what its rounding has cost."""
    shapes = [part.handle.data.shape for part in values]
    return [
        _axis_last(np.broadcast_to(or_zero(_brought(part)), shape), axis)
        for part, shape in zip((each.handle for each in values), shapes, strict=True)
    ]


def _brought(part: Any) -> Any:
    if not current().fuses:
        return bound(part)
    if BITS in part.attr:  # which a function may take for the product again
        return total(bound(part), or_unknown(loss_of_any(part)))
    return total(bound(part), loss(part))


def _refuse(name: str) -> None:
    any_order = name == "tl.reduce"
    needs = "associative and commutative" if any_order else "associative"
    refuse(
        WrongValueError(
            f"the combine function of a {name} is not {needs}, and a GPU combines in a tree"
            f"{', in any order' if any_order else ''}: there the result is another one"
        )
    )


def _axis_last(data: Any, axis: int | None) -> Any:
    return data.reshape(-1) if axis is None else np.moveaxis(data, axis, -1)


def _axis_back(data: Any, shape: tuple[int, ...], axis: int) -> Any:
    return np.ascontiguousarray(np.moveaxis(data, -1, axis)).reshape(shape)


def _alike(one: Any, other: Any, dtype: Any, operands: Any, length: int) -> bool:
    """Whether two orders make the same but for roundings of results and of operands, which may cancel."""
    if dtype == tl.bfloat16:
        one, other, operands = (bfloat16.wide(each) for each in (one, other, operands))
    if other.dtype.kind != "f":
        return bool(np.array_equal(one, other))
    spread = ROUNDINGS * length**0.5 * 2.0**-dtype.fp_mantissa_width
    relative = max(RELATIVE, spread)
    absolute = max(_ABSOLUTE, spread) * _largest(other) + spread * _largest(operands) + 1e-30
    return bool(np.allclose(one, other, rtol=relative, atol=absolute, equal_nan=True))


def _largest(data: Any) -> float:
    return float(np.max(np.abs(data[np.isfinite(data)]), initial=0.0))
