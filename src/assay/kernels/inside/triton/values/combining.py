"""Reductions and scans with functions of the kernel's own: a GPU combines in a tree, the interpreter in a row.

A reduction also combines in an order of the GPU's, and lanes that exchange what they have do not agree on which of the
two comes first: its function must be commutative. In some calls with a secret, those that move products among them, a
kernel is given what one of the trees makes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter as engine

from assay.kernels.inside.triton.arithmetic import MeaningError
from assay.kernels.inside.triton.error_bounds.bounds import bound, give, or_zero
from assay.kernels.inside.triton.error_bounds.sums import unlike
from assay.kernels.inside.triton.ledger import WrongValueError, current, refuse
from assay.kernels.inside.triton.unsettled import device
from assay.kernels.inside.triton.unsettled.certain import whole_results
from assay.kernels.inside.triton.unsettled.products import mark, unrounded
from assay.kernels.inside.triton.values import bfloat16
from assay.kernels.inside.triton.values.rounding import moved

_RELATIVE, _ABSOLUTE = 1e-2, 1e-3
"""How far two associations may be apart, relative to a result and to the largest one."""
_ROUNDINGS = 4.0
"""The same in roundings of one size that come together at random, where that is more: of types with few bits."""
_WARP = 32
"""Lanes that a GPU scans in a tree before it goes on with the next ones."""

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


def _in_trees(operation: Any, values: Sequence[Any], found: Any, name: str, made: Callable[..., list[Parts]]) -> Any:
    """What was made in a row, or in a call with a secret in a tree: both must be alike, in every call."""
    ledger = current()
    arithmetic, chance = ledger.arithmetic, np.random.default_rng(ledger.rounding or ledger.device)
    combine = _Combine(operation.combine_fn.fn, [part.dtype.scalar for part in values])
    parts = [_axis_last(part.handle.data, operation.axis) for part in values]
    try:
        trees = made(combine, parts, chance)
    except MeaningError:  # a branch: there are no blocks on a GPU, either
        combine.one_by_one = True
        trees = made(combine, parts, chance)
    limits = None if ledger.bounds is None else _bounds_of(combine, values, operation, made, chance)
    ledger.arithmetic = arithmetic
    rows = [_axis_last(part.handle.data, operation.axis if made is _scanned else -1) for part in found]
    trees = [[each.reshape(row.shape) for each, row in zip(tree, rows, strict=True)] for tree in trees]
    length = parts[0].shape[-1]
    if not all(_alike(*both, length) for tree in trees for both in zip(tree, rows, combine.dtypes, strict=True)):
        _refuse(name)
    if limits is not None:
        for place, part in enumerate(found):
            both = unlike(*_as_numbers(trees, rows, place, combine.dtypes[place])) + limits[place].reshape(rows[place].shape)
            give(part.handle, _axis_back(both, part.handle.data.shape, operation.axis if made is _scanned else -1))
    if ledger.device:
        combine.products = _products(operation, values)
        if any(known is not None for known in combine.products):
            again = np.random.default_rng(ledger.device)
            trees = [_by_groups(combine, parts, length)] if made is _scanned else made(combine, parts, again)
            trees = [[each.reshape(row.shape) for each, row in zip(tree, rows, strict=True)] for tree in trees]
            ledger.arithmetic = arithmetic
        for place, part in enumerate(found):
            data = _of_device(trees, made is _reduced)[place]
            part.handle.data = _axis_back(data, part.handle.data.shape, operation.axis if made is _scanned else -1)
    elif ledger.rounding:
        chosen = trees[int(chance.integers(len(trees)))] if ledger.products or chance.integers(3) else rows
        for place, part in enumerate(found):
            agree = np.logical_and.reduce([tree[place] == rows[place] for tree in trees])
            settled = agree & (np.isin(rows[place], parts[place]) | whole_results(rows[place]))
            data = moved(chosen[place], settled)
            part.handle.data = _axis_back(data, part.handle.data.shape, operation.axis if made is _scanned else -1)
    return found


def _as_numbers(trees: list[Parts], rows: Parts, place: int, dtype: Any) -> tuple[list[Any], Any]:
    """What several orders make of an operand, and what a row makes, as float64."""
    made = [*(tree[place] for tree in trees), rows[place]]
    made = [(bfloat16.wide(each) if dtype == tl.bfloat16 else each).astype(np.float64) for each in made]
    return made[:-1], made[-1]


def _bounds_of(
    combine: _Combine, values: Sequence[Any], operation: Any, made: Callable[..., list[Parts]], chance: Any
) -> list[Any]:
    """The error bounds of what a tree makes, of each operand."""
    parts = [_axis_last(part.handle.data, operation.axis) for part in values]
    limits = [
        _axis_last(np.broadcast_to(or_zero(bound(part.handle)), part.handle.data.shape), operation.axis) for part in values
    ]
    bounded = _Bounded(combine.function, combine.dtypes)
    bounded.one_by_one = combine.one_by_one
    tree = made(bounded, [*parts, *limits], chance)[0]
    return tree[len(parts) :]


def _products(operation: Any, values: Sequence[Any]) -> list[Any]:
    """Of each operand what it is without rounding, if it is a product that one GPU may fuse; the axis last."""
    fuses = current().device and device.meet_in_a_thread(values[0].handle.data)
    known = [unrounded(part.handle) if fuses else None for part in values]
    return [None if each is None else _axis_last(each, operation.axis) for each in known]


def _of_device(trees: list[Parts], reduced: bool) -> Parts:
    """What one GPU makes, in the order of its own sums."""
    if len(trees) == 1:
        return trees[0]
    return trees[0 if reduced and device.neighbours_first() else 1]


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
    """A combine function as one of arrays. `one_by_one`: it branches, so that it takes one element after the other."""

    def __init__(self, function: Callable[..., Any], dtypes: Sequence[Any]) -> None:
        self.function, self.dtypes, self.one_by_one = function, list(dtypes), False
        self.products: list[Any] = [None] * len(self.dtypes)
        """What operands are without rounding, as long as nothing was combined."""

    def __call__(self, left: Parts, right: Parts, products: Sequence[Any] = ()) -> Parts:
        """`products`: of all operands what they are without rounding, or None."""
        if not self.one_by_one:
            blocks = [_block(part, dtype) for part, dtype in zip(left + right, self.dtypes * 2, strict=True)]
            for block, known in zip(blocks, products, strict=False):
                if known is not None:
                    mark(block.handle, known)
            return self._results(blocks)
        found = [np.empty_like(part) for part in left]
        for place in np.ndindex(left[0].shape):
            operands = [_scalar(part[place], dtype) for part, dtype in zip(left + right, self.dtypes * 2, strict=True)]
            for operand, known in zip(operands, products, strict=False):
                if known is not None:
                    mark(operand.handle, known[place].reshape(1))
            for whole, one in zip(found, self._results(operands), strict=True):
                whole[place] = one.item()
        return found

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

    def __call__(self, left: Parts, right: Parts, products: Sequence[Any] = ()) -> Parts:
        """Operands as blocks, or one by one."""
        count = len(self.dtypes)
        sides = [(side[:count], side[count:]) for side in (left, right)]
        data, limits = ([part for side in sides for part in side[place]] for place in (0, 1))
        if not self.one_by_one:
            return self._bounded([_block(part, dtype) for part, dtype in zip(data, self.dtypes * 2, strict=True)], limits)
        found = [np.empty_like(part) for part in left]
        for place in np.ndindex(left[0].shape):
            operands = [_scalar(part[place], dtype) for part, dtype in zip(data, self.dtypes * 2, strict=True)]
            for whole, one in zip(found, self._bounded(operands, [part[place] for part in limits]), strict=True):
                whole[place] = one.item()
        return found

    def _bounded(self, operands: Sequence[Any], limits: Sequence[Any]) -> Parts:
        for operand, limit in zip(operands, limits, strict=True):
            give(operand.handle, np.reshape(limit, operand.handle.data.shape))
        found = self.function(*operands)
        results = found if isinstance(found, tuple) else (found,)
        shape = operands[0].handle.data.shape
        parts = [
            part.to(dtype).handle if isinstance(part, tl.tensor) else engine.TensorHandle(np.full(shape, part), dtype)
            for part, dtype in zip(results, self.dtypes, strict=False)
        ]
        return [*(part.data for part in parts), *(np.broadcast_to(or_zero(bound(part)), shape) for part in parts)]


def _scalar(value: Any, dtype: Any) -> Any:
    return tl.tensor(engine.TensorHandle(np.array([value]), dtype), dtype)


def _block(data: Any, dtype: Any) -> Any:
    return tl.tensor(engine.TensorHandle(np.ascontiguousarray(data), dtype), tl.block_type(dtype, list(data.shape)))


def _reduced(combine: _Combine, parts: Parts, chance: np.random.Generator) -> list[Parts]:
    """Results in several orders: neighbours first, halves first, as the lanes of a warp do, the bits of a place in some
    other order, and all at random. Where elements are combined one by one, in one of these."""
    length = parts[0].shape[-1]
    bits = length.bit_length() - 1
    cube = np.arange(length).reshape((2,) * bits)
    some = [range(bits), range(bits)[::-1], chance.permutation(bits)]
    orders = [cube.transpose(tuple(axes)).ravel() for axes in some] + [chance.permutation(length)]
    if combine.one_by_one and current().device:
        orders = [orders[0 if device.neighbours_first() else 1]]
    elif combine.one_by_one:
        orders = [orders[int(chance.integers(len(orders)))]]
    found, known = (
        _each(sides, lambda part: np.stack([part[..., order] for order in orders]))
        for sides in (parts, combine.products)
    )
    while found[0].shape[-1] > 1:
        left, right = ([part[..., start::2] for part in found] for start in (0, 1))
        found = combine(left, right, _halves(known, lambda part, start: part[..., start::2]))
        known = []
    return [[part[number] for part in found] for number in range(len(orders))]


def _each(parts: Parts, change: Callable[[Any], Any]) -> Parts:
    return [None if part is None else change(part) for part in parts]


def _halves(products: Sequence[Any], half: Callable[[Any, int], Any]) -> list[Any]:
    """What the operands of the one side and of the other are without rounding."""
    return [None if part is None else half(part, side) for side in (0, 1) for part in products]


def _scanned(combine: _Combine, parts: Parts, chance: np.random.Generator) -> list[Parts]:
    """Results in several trees. Where elements are combined one by one, in the cheapest, or in that of one GPU."""
    if combine.one_by_one and current().device:
        return [_by_groups(combine, parts, parts[0].shape[-1])]
    found = [_by_pairs(combine, parts)]
    if not combine.one_by_one:
        length = parts[0].shape[-1]
        group = 1 << int(chance.integers(1, max(2, length.bit_length() - 1)))
        found += [_by_groups(combine, parts, min(size, length)) for size in (length, group, _WARP)]
    return found


def _by_pairs(combine: _Combine, parts: Parts) -> Parts:
    """Pairs of neighbours are combined, what came of them is scanned, and each first of a pair joins in."""
    if parts[0].shape[-1] == 1:
        return parts
    first, second = ([part[..., start::2] for part in parts] for start in (0, 1))
    pairs = _by_pairs(combine, combine(first, second))
    joined = _joined(combine, pairs, first, 1)
    return [np.stack(both, -1).reshape(parts[0].shape) for both in zip(joined, pairs, strict=True)]


def _joined(combine: _Combine, before: Parts, parts: Parts, step: int, products: Sequence[Any] = ()) -> Parts:
    """Each with what is some steps before it, the first ones as they are; blocks of the language have all lanes."""
    known = _halves(products, lambda part, side: part if side else np.roll(part, step, -1))
    found = combine([np.roll(part, step, -1) for part in before], parts, known)
    return [np.concatenate([part[..., :step], one[..., step:]], -1) for part, one in zip(parts, found, strict=True)]


def _by_groups(combine: _Combine, parts: Parts, size: int) -> Parts:
    """As the lanes of a warp do: with the neighbour, then with the pair before, and so on; group by group."""
    shape = parts[0].shape
    found, known = (
        _each(sides, lambda part: part.reshape(*shape[:-1], -1, size)) for sides in (parts, combine.products)
    )
    step = 1
    while step < size:
        found, known = _joined(combine, found, found, step, known), []
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
