"""The orders in which a GPU may combine, and what is made in them.

A thread combines its own elements in a row. Then the lanes of a warp exchange what they have, and then warps do, in a
tree.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from assay.kernels.inside.triton.ledger import current
from assay.kernels.inside.triton.values.combining.functions import Combine, Parts

_ORDERS, _ELEMENTS = 8, 1 << 14
"""Orders of a GPU that are taken of large reductions, and elements in all orders up to which more are."""
_SHARES = 1
"""Of lanes and warps along an axis that are taken of all that there could be."""
_WAYS = 3
"""Likely numbers of elements of a thread that one scan is made with."""
_FEW = 1 << 12
"""Elements up to which more orders are taken that no GPU need have."""
_BACKWARDS = "backwards"
_OWN_BITS = 4
"""Of a thread's own elements more than these make no other error in a row than so many of them do."""
_LANE_BITS = 5
_WARP = 1 << _LANE_BITS
"""Lanes that a GPU combines in a tree before it goes on with other ones."""


def reduced(combine: Combine, parts: Parts, chance: np.random.Generator) -> list[Parts]:
    """Results in those orders in which a GPU is likely to combine, with neighbours first, with the bits of a place in
    some other order, and all at random; of few elements, also backwards. Where elements are combined one by
    one, in two of these."""
    bits = parts[0].shape[-1].bit_length() - 1
    own = int(chance.integers(min(bits, _OWN_BITS) + 1))
    some: list[Any] = [range(bits), _of_threads(bits, own, chance), chance.permutation(bits), None]
    if parts[0].size <= _FEW:
        some += [_BACKWARDS, None, None, None]
    likely = _likely(bits, current().warps.bit_length() - 1, max(_ORDERS, _ELEMENTS // parts[0].size), chance)
    if combine.one_by_one:
        some, likely = [some[int(chance.integers(len(some)))]], likely[:1]
    by_own: dict[int, list[Any]] = {own: [_places(axes, bits, chance) for axes in some]}
    for mine, axes in likely:
        by_own.setdefault(mine, []).append(_places(axes, bits, chance))
    found: list[Parts] = []
    for mine, orders in by_own.items():
        ways = as_many_as_in_blocks(orders)
        made = _as_one(combine, [np.stack([part[..., order] for order in ways]) for part in parts], mine, chance)
        found += [[part[number] for part in made] for number in range(len(orders))]
    return found


def as_many_as_in_blocks(ways: list[Any]) -> list[Any]:
    """Some ways, the first one as often again as it takes for blocks: these have sizes that are powers of two."""
    return ways + ways[:1] * ((1 << (len(ways) - 1).bit_length()) - len(ways))


def _places(axes: Any, bits: int, chance: np.random.Generator) -> Any:
    """The elements in the order of the axes of a cube; at random for None."""
    if axes is _BACKWARDS:
        return np.arange(1 << bits)[::-1]
    cube = np.arange(1 << bits).reshape((2,) * bits)
    return chance.permutation(1 << bits) if axes is None else cube.transpose(tuple(axes)).ravel()


def _likely(bits: int, warps: int, most: int, chance: np.random.Generator) -> list[tuple[int, list[int]]]:
    """Orders that a GPU is likely to take, each with how many bits of a place count a thread's own elements: with all
    lanes and warps (`warps`: bits of their number) along the axis, and with some other shares of them."""
    lanes = min(bits, _LANE_BITS)
    whole = lanes, min(bits - lanes, warps)
    shares = [
        (few, across)
        for few in range(lanes + 1)
        for across in range(min(bits - few, warps) + 1)
        if (few, across) != whole and bits - few - across <= _LANE_BITS
    ]
    chosen = [whole, *(shares[place] for place in chance.permutation(len(shares))[:_SHARES])]
    return [
        (own, _axes(bits, own, int(low), few))
        for few, own in ((few, bits - few - across) for few, across in chosen)
        for low in chance.permutation(own + 1)
    ][:most]


def _of_threads(bits: int, own: int, chance: np.random.Generator) -> list[int]:
    """The order of a GPU with some shares of low bits and of lanes."""
    low = own if chance.integers(2) else int(chance.integers(own + 1))
    return _axes(
        bits, own, low, min(bits - own, _LANE_BITS if chance.integers(2) else int(chance.integers(_LANE_BITS)))
    )


def _axes(bits: int, own: int, low: int, lanes: int) -> list[int]:
    """The axes of a cube in the order of a GPU, the last one combined first. `own`: so many bits of a place, low ones
    (`low`) and some of the highest, count a thread's own elements; then lanes combine halves of a warp, and warps."""
    high = bits - (own - low)
    combined = [*range(low), *range(high, bits), *range(low, low + lanes)[::-1], *range(low + lanes, high)[::-1]]
    return [bits - 1 - bit for bit in combined[::-1]]


def _as_one(combine: Combine, parts: Parts, own: int, chance: np.random.Generator) -> Parts:
    """What the last axis comes to: groups in a row first, and then all in a tree. Each group is also made of its
    elements in another order, in the other way."""
    size, way, other = 1 << own, _in_a_row, in_pairs
    while (length := parts[0].shape[-1]) > 1:
        groups = [part.reshape(*part.shape[:-1], -1, size) for part in parts]
        order = chance.permutation(size)
        parts = combine.either(way(combine, groups), other(combine, [part[..., order] for part in groups]))
        size, way, other = min(1 << int(chance.integers(1, 4)), length // size), in_pairs, _in_a_row
    return [part[..., 0] for part in parts]


def _in_a_row(combine: Combine, parts: Parts) -> Parts:
    """The last axis as one, each element after those before it."""
    return [part[..., -1] for part in _scanned_in_a_row(combine, parts)]


def in_pairs(combine: Combine, parts: Parts) -> Parts:
    """The same of pairs of neighbours, pairs of these, and so on."""
    while parts[0].shape[-1] > 1:
        left, right = ([part[..., start::2] for part in parts] for start in (0, 1))
        parts = combine(left, right)
    return [part[..., 0] for part in parts]


def scanned(combine: Combine, parts: Parts, chance: np.random.Generator) -> list[Parts]:
    """Results in several ways, as threads make them, with some likely numbers of elements and some of lanes.
    Where elements are combined one by one, in one of these."""
    most = parts[0].shape[-1].bit_length()
    if combine.one_by_one:
        return [_by_threads(combine, parts, 1 << int(chance.integers(most)), _WARP)]
    ways = [(1 << int(own), _WARP) for own in chance.permutation(min(most, _LANE_BITS + 1))[:_WAYS]]
    ways.append((1 << int(chance.integers(min(most, _OWN_BITS + 1))), 1 << int(chance.integers(most))))
    return [_by_threads(combine, parts, *both) for both in ways]


def _by_threads(combine: Combine, parts: Parts, own: int, lanes: int) -> Parts:
    """Threads scan their own elements in a row, then lanes scan what these come to, and what is before a thread joins
    in. Both scans are also made of pairs."""
    shape = parts[0].shape
    groups = [part.reshape(*shape[:-1], -1, own) for part in parts]
    inner = combine.either(_scanned_in_a_row(combine, groups), by_pairs(combine, groups))
    ends = [part[..., -1] for part in inner]
    ends = combine.either(_by_groups(combine, ends, min(lanes, ends[0].shape[-1])), by_pairs(combine, ends))
    before = [np.repeat(end, own, -1) for end in ends]
    found = _joined(combine, before, [part.reshape(shape) for part in inner], own)
    for part, end in zip(found, ends, strict=True):
        part[..., own - 1 :: own] = end
    return found


def _scanned_in_a_row(combine: Combine, parts: Parts) -> Parts:
    found = [[part[..., 0] for part in parts]]
    for place in range(1, parts[0].shape[-1]):
        found.append(combine(found[-1], [part[..., place] for part in parts]))
    return [np.stack(each, -1) for each in zip(*found, strict=True)]


def by_pairs(combine: Combine, parts: Parts) -> Parts:
    """Pairs of neighbours are combined, what came of them is scanned, and each first of a pair joins in."""
    if parts[0].shape[-1] == 1:
        return parts
    first, second = ([part[..., start::2] for part in parts] for start in (0, 1))
    pairs = by_pairs(combine, combine(first, second))
    joined = _joined(combine, pairs, first, 1)
    return [np.stack(both, -1).reshape(parts[0].shape) for both in zip(joined, pairs, strict=True)]


def _joined(combine: Combine, before: Parts, parts: Parts, step: int) -> Parts:
    """Each with what is some steps before it, the first ones as they are; blocks of the language have all lanes."""
    if combine.one_by_one:
        made = combine([part[..., :-step] for part in before], [part[..., step:] for part in parts])
    else:
        made = [part[..., step:] for part in combine([np.roll(part, step, -1) for part in before], parts)]
    return [np.concatenate([part[..., :step], one], -1) for part, one in zip(parts, made, strict=True)]


def _by_groups(combine: Combine, parts: Parts, size: int) -> Parts:
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
