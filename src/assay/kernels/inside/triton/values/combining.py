"""Reductions and scans with functions of the kernel's own: a GPU combines as its threads do, the interpreter in a row.

A thread combines its own elements in a row. Then the lanes of a warp exchange what they have, and then warps do, in a
tree. A reduction takes elements in an order of the GPU's, and lanes do not agree on which of two comes first: its
function must be commutative. What a row and some such ways make has to be nearly alike; by as much as they are apart a
GPU may be off.

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
from assay.kernels.inside.triton.error_bounds.bounds import LARGEST, apart, bound, give, loss, or_zero, total
from assay.kernels.inside.triton.error_bounds.memory import UNKNOWN
from assay.kernels.inside.triton.error_bounds.sums import finite_sizes, of_orders
from assay.kernels.inside.triton.ledger import WrongValueError, current, refuse
from assay.kernels.inside.triton.values import bfloat16

_RELATIVE, _ABSOLUTE = 1e-2, 1e-3
"""How far two associations may be apart, relative to a result and to the largest one."""
_ROUNDINGS = 4.0
"""The same in roundings of one size that come together at random, where that is more: of types with few bits."""
_LANE_BITS = 5
_WARP = 1 << _LANE_BITS
"""Lanes that a GPU combines in a tree before it goes on with other ones."""

Parts = list[Any]
"""The arrays of a tuple of blocks, the axis that is combined last."""


def install() -> None:
    """Put it into the interpreter."""
    reduce_, scan = engine.ReduceOps.generic_reduce, engine.ScanOps.generic_scan

    def generic_reduce(self: Any, values: Any) -> Any:
        return _in_trees(self, values, reduce_(self, values), "tl.reduce", _reduced)

    def generic_scan(self: Any, values: Any) -> Any:
        return _in_trees(self, values, scan(self, values), "tl.associative_scan", _scanned)

    engine.ReduceOps.generic_reduce, engine.ScanOps.generic_scan = generic_reduce, generic_scan
    engine.ReduceOps.unravel = _unravel


def _unravel(self: Any, values: Sequence[Any], axis: int | None) -> tuple[tuple[Any, ...], int]:
    """The operands of a reduction, in a row where it is over all axes, and the axis. The interpreter's own leaves all
    but the first one as they are."""
    if axis is not None:
        return tuple(values), axis
    return tuple(self.to_tensor(each.handle.data.ravel(), each.dtype) for each in values), 0


def _in_trees(operation: Any, values: Sequence[Any], found: Any, name: str, made: Callable[..., list[Parts]]) -> Any:
    """What was made in a row, which what trees make must be like."""
    ledger = current()
    arithmetic, chance = ledger.arithmetic, ledger.chance()
    kinds = [part.dtype.scalar for part in values]
    combine = (_Combine if ledger.bounds is None else _Bounded)(operation.combine_fn.fn, kinds)
    parts = [_axis_last(part.handle.data, operation.axis) for part in values]
    combine.any_order = parts[0].shape[-1] > 2
    given = parts if ledger.bounds is None else [*parts, *_limits(values, operation.axis)]
    try:
        trees = made(combine, given, chance)
    except MeaningError:  # a branch: there are no blocks on a GPU, either
        combine.one_by_one = True
        trees = made(combine, given, chance)
    ledger.arithmetic = arithmetic
    axis = operation.axis if made is _scanned else -1
    rows, length = [_axis_last(part.handle.data, axis) for part in found], parts[0].shape[-1]
    limits = [np.maximum.reduce(each) for each in zip(*(tree[len(rows) :] for tree in trees), strict=True)]
    trees = [[each.reshape(row.shape) for each, row in zip(tree, rows, strict=False)] for tree in trees]
    if not all(_alike(*both, length) for tree in trees for both in zip(tree, rows, kinds, strict=True)):
        _refuse(name)
    for place, limit in enumerate(limits):
        orders = of_orders(*_as_numbers(trees, rows, place, kinds[place]))
        handle = found[place].handle
        if parts[place].dtype.kind == "f" or kinds[place] == tl.bfloat16:
            limit = _in_any_order(limit, parts[place], rows[place], kinds[place])
        give(handle, _axis_back(orders + 2.0 * limit.reshape(rows[place].shape), handle.data.shape, axis))
    return found


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
    return [_as_float64(tree[place], dtype) for tree in trees], _as_float64(rows[place], dtype)


def _as_float64(data: Any, dtype: Any) -> Any:
    return (bfloat16.wide(data) if dtype == tl.bfloat16 else data).astype(np.float64)


def _limits(values: Sequence[Any], axis: int | None) -> Parts:
    """The error bounds of operands, the axis last; a product's with what its rounding has cost."""
    shapes = [part.handle.data.shape for part in values]
    fuses = current().fuses
    return [
        _axis_last(np.broadcast_to(or_zero(total(bound(part), loss(part) if fuses else None)), shape), axis)
        for part, shape in zip((each.handle for each in values), shapes, strict=True)
    ]


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


class _Combine:
    """A combine function as one of arrays. `one_by_one`: it branches, so that it takes one element after the other;
    `any_order`: there is more than one order."""

    def __init__(self, function: Callable[..., Any], dtypes: Sequence[Any]) -> None:
        self.function, self.dtypes, self.one_by_one, self.any_order = function, list(dtypes), False, False

    def __call__(self, left: Parts, right: Parts) -> Parts:
        if not self.one_by_one:
            blocks = [_block(part, dtype) for part, dtype in zip(left + right, self.dtypes * 2, strict=True)]
            return self._results(blocks)
        found = [np.empty_like(part) for part in left]
        for place in np.ndindex(left[0].shape):
            operands = [_scalar(part[place], dtype) for part, dtype in zip(left + right, self.dtypes * 2, strict=True)]
            for whole, one in zip(found, self._results(operands), strict=True):
                whole[place] = one.item()
        return found

    def either(self, one: Parts, other: Parts) -> Parts:
        """What was made in one way, and might have been in another one."""
        return one

    def _results(self, operands: Sequence[Any]) -> Parts:
        found = self.function(*operands)
        parts = found if isinstance(found, tuple) else (found,)
        shape = operands[0].handle.data.shape
        kinds = [operand.handle.data.dtype for operand in operands]
        return [
            part.to(dtype).handle.data if isinstance(part, tl.tensor) else np.full(shape, part, kind)
            for part, dtype, kind in zip(parts, self.dtypes, kinds, strict=False)
        ]


class _Bounded(_Combine):
    """The same with error bounds: each side has its arrays, and as many of bounds."""

    def __call__(self, left: Parts, right: Parts) -> Parts:
        count = len(self.dtypes)
        sides = [(side[:count], side[count:]) for side in (left, right)]
        data, limits = ([part for side in sides for part in side[place]] for place in (0, 1))
        if not self.one_by_one:
            return self._bounded(
                [_block(part, dtype) for part, dtype in zip(data, self.dtypes * 2, strict=True)], limits
            )
        found = [np.empty_like(part) for part in left]
        for place in np.ndindex(left[0].shape):
            operands = [_scalar(part[place], dtype) for part, dtype in zip(data, self.dtypes * 2, strict=True)]
            for whole, one in zip(found, self._bounded(operands, [part[place] for part in limits]), strict=True):
                whole[place] = one.item()
        return found

    def either(self, one: Parts, other: Parts) -> Parts:
        """The same with bounds that hold for both."""
        count = len(self.dtypes)
        sides = zip(self.dtypes, one, other, one[count:], other[count:], strict=False)
        return [*one[:count], *(_of_both(*each) for each in sides)]

    def _bounded(self, operands: Sequence[Any], limits: Sequence[Any]) -> Parts:
        for operand, limit in zip(operands, limits, strict=True):
            give(operand.handle, np.reshape(limit, operand.handle.data.shape))
        ledger = current()
        ledger.any_order = self.any_order
        try:
            found = self.function(*operands)
        finally:
            ledger.any_order = False
        results = found if isinstance(found, tuple) else (found,)
        shape = operands[0].handle.data.shape
        parts = [
            part.to(dtype).handle if isinstance(part, tl.tensor) else engine.TensorHandle(np.full(shape, part), dtype)
            for part, dtype in zip(results, self.dtypes, strict=False)
        ]
        return [*(part.data for part in parts), *(np.broadcast_to(or_zero(bound(part)), shape) for part in parts)]


def _of_both(dtype: Any, one: Any, other: Any, limits: Any, others: Any) -> Any:
    """The bounds of what was made in two ways: those of roundings, or more where these do not explain it."""
    if not dtype.is_floating():  # float64 has not all of them
        return np.where(one == other, np.maximum(limits, others), UNKNOWN)
    one, other = (_as_float64(each, dtype) for each in (one, other))
    limits, spread = np.maximum(limits, others), apart(one, other)
    if (explained := spread <= limits).all():
        return limits
    near = spread <= _RELATIVE * np.maximum(np.abs(one), np.abs(other))
    return np.where(explained, limits, np.where(near, limits + of_orders([other], one), UNKNOWN))


def _scalar(value: Any, dtype: Any) -> Any:
    return tl.tensor(engine.TensorHandle(np.array([value]), dtype), dtype)


def _block(data: Any, dtype: Any) -> Any:
    return tl.tensor(engine.TensorHandle(np.ascontiguousarray(data), dtype), tl.block_type(dtype, list(data.shape)))


def _reduced(combine: _Combine, parts: Parts, chance: np.random.Generator) -> list[Parts]:
    """Results in four orders: neighbours first, as threads do, the bits of a place in some other order, and all at
    random. Where elements are combined one by one, in one of these."""
    length = parts[0].shape[-1]
    bits = length.bit_length() - 1
    own = int(chance.integers(bits + 1))
    cube = np.arange(length).reshape((2,) * bits)
    some = [range(bits), _of_threads(bits, own, chance), chance.permutation(bits)]
    orders = [cube.transpose(tuple(axes)).ravel() for axes in some] + [chance.permutation(length)]
    if combine.one_by_one:
        orders = [orders[int(chance.integers(len(orders)))]]
    found = _as_one(combine, [np.stack([part[..., order] for order in orders]) for part in parts], own, chance)
    return [[part[number] for part in found] for number in range(len(orders))]


def _of_threads(bits: int, own: int, chance: np.random.Generator) -> list[int]:
    """The axes of a cube in the order of a GPU, the last one combined first. `own`: so many bits of a place, low ones
    or some of the highest as well, count a thread's own elements; then lanes combine halves of a warp, and warps."""
    low = own if chance.integers(2) else int(chance.integers(own + 1))
    lanes = min(bits - own, _LANE_BITS if chance.integers(2) else int(chance.integers(_LANE_BITS)))
    high = bits - (own - low)
    combined = [*range(low), *range(high, bits), *range(low, low + lanes)[::-1], *range(low + lanes, high)[::-1]]
    return [bits - 1 - bit for bit in combined[::-1]]


def _as_one(combine: _Combine, parts: Parts, own: int, chance: np.random.Generator) -> Parts:
    """What the last axis comes to: groups in a row first, and then all in a tree. Each group is also made of its
    elements in another order, in the other way."""
    size, way, other = 1 << own, _in_a_row, _in_pairs
    while (length := parts[0].shape[-1]) > 1:
        groups = [part.reshape(*part.shape[:-1], -1, size) for part in parts]
        order = chance.permutation(size)
        parts = combine.either(way(combine, groups), other(combine, [part[..., order] for part in groups]))
        size, way, other = min(1 << int(chance.integers(1, 4)), length // size), _in_pairs, _in_a_row
    return [part[..., 0] for part in parts]


def _in_a_row(combine: _Combine, parts: Parts) -> Parts:
    """The last axis as one, each element after those before it."""
    return [part[..., -1] for part in _scanned_in_a_row(combine, parts)]


def _in_pairs(combine: _Combine, parts: Parts) -> Parts:
    """The same of pairs of neighbours, pairs of these, and so on."""
    while parts[0].shape[-1] > 1:
        left, right = ([part[..., start::2] for part in parts] for start in (0, 1))
        parts = combine(left, right)
    return [part[..., 0] for part in parts]


def _scanned(combine: _Combine, parts: Parts, chance: np.random.Generator) -> list[Parts]:
    """Results in several ways: pairs first, and as threads do, with some numbers of elements and of lanes. Where
    elements are combined one by one, in one of these."""
    most = parts[0].shape[-1].bit_length()
    own = [1, *(1 << int(bits) for bits in chance.integers(most, size=2))]
    lanes = [_WARP, _WARP, 1 << int(chance.integers(most))]
    if combine.one_by_one:
        return [_by_threads(combine, parts, own[-1], _WARP)]
    return [_by_pairs(combine, parts), *(_by_threads(combine, parts, *both) for both in zip(own, lanes, strict=True))]


def _by_threads(combine: _Combine, parts: Parts, own: int, lanes: int) -> Parts:
    """Threads scan their own elements in a row, then lanes scan what these come to, and what is before a thread joins
    in. Both scans are also made of pairs."""
    shape = parts[0].shape
    groups = [part.reshape(*shape[:-1], -1, own) for part in parts]
    inner = combine.either(_scanned_in_a_row(combine, groups), _by_pairs(combine, groups))
    ends = [part[..., -1] for part in inner]
    ends = combine.either(_by_groups(combine, ends, min(lanes, ends[0].shape[-1])), _by_pairs(combine, ends))
    before = [np.repeat(end, own, -1) for end in ends]
    found = _joined(combine, before, [part.reshape(shape) for part in inner], own)
    for part, end in zip(found, ends, strict=True):
        part[..., own - 1 :: own] = end
    return found


def _scanned_in_a_row(combine: _Combine, parts: Parts) -> Parts:
    found = [[part[..., 0] for part in parts]]
    for place in range(1, parts[0].shape[-1]):
        found.append(combine(found[-1], [part[..., place] for part in parts]))
    return [np.stack(each, -1) for each in zip(*found, strict=True)]


def _by_pairs(combine: _Combine, parts: Parts) -> Parts:
    """Pairs of neighbours are combined, what came of them is scanned, and each first of a pair joins in."""
    if parts[0].shape[-1] == 1:
        return parts
    first, second = ([part[..., start::2] for part in parts] for start in (0, 1))
    pairs = _by_pairs(combine, combine(first, second))
    joined = _joined(combine, pairs, first, 1)
    return [np.stack(both, -1).reshape(parts[0].shape) for both in zip(joined, pairs, strict=True)]


def _joined(combine: _Combine, before: Parts, parts: Parts, step: int) -> Parts:
    """Each with what is some steps before it, the first ones as they are; blocks of the language have all lanes."""
    if combine.one_by_one:
        made = combine([part[..., :-step] for part in before], [part[..., step:] for part in parts])
    else:
        made = [part[..., step:] for part in combine([np.roll(part, step, -1) for part in before], parts)]
    return [np.concatenate([part[..., :step], one], -1) for part, one in zip(parts, made, strict=True)]


def _by_groups(combine: _Combine, parts: Parts, size: int) -> Parts:
    """As the lanes of a warp do: with the neighbour, then with the pair before, and so on; group by group."""
    shape = parts[0].shape
    found = [part.reshape(*shape[:-1], -1, size).copy() for part in parts]
    step = 1
    while step < size:
        found = _joined(combine, found, found, step)
        step *= 2
    for group in range(1, found[0].shape[-2]):
        before = [np.repeat(part[..., group - 1, -1:], size, -1) for part in found]
        for whole, one in zip(found, combine(before, [part[..., group, :] for part in found]), strict=True):
            whole[..., group, :] = one
    return [part.reshape(shape) for part in found]


def _alike(one: Any, other: Any, dtype: Any, length: int) -> bool:
    if dtype == tl.bfloat16:
        one, other = bfloat16.wide(one), bfloat16.wide(other)
    if other.dtype.kind != "f":
        return bool(np.array_equal(one, other))
    largest = float(np.max(np.abs(other[np.isfinite(other)]), initial=0.0))
    spread = _ROUNDINGS * length**0.5 * 2.0**-dtype.fp_mantissa_width
    relative, absolute = max(_RELATIVE, spread), max(_ABSOLUTE, spread) * largest + 1e-30
    return bool(np.allclose(one, other, rtol=relative, atol=absolute, equal_nan=True))
