"""What is known of the elements of a block by how it was made: which are equal, which count up, what they divide by.

Triton's compiler draws such conclusions as well, and some of its rules are false. Of the first elements of long groups
it knows what they divide by; where `tl.where`, a branch or a loop leaves shorter groups, it says that of those. Of a
load it forgets that masked elements have other values. These are its rules, made true. All sizes and divisors are
powers of two.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

_MOST = 1 << 30
"""As the divisor of zero."""
_LESS = {"slt", "ult", "sge", "uge"}
_MORE = {"sgt", "ugt", "sle", "ule"}


@dataclass(frozen=True, slots=True)
class Fact:
    """What is known of a value. Tuples have an entry for each dimension of a block, and none for a single number."""

    constancy: tuple[int, ...] = ()
    """Elements of an aligned group that equal each other."""
    contiguity: tuple[int, ...] = ()
    """Elements of an aligned group that count up by one."""
    firsts: tuple[int, ...] = ()
    """Divisor of the first element of each such group."""
    every: int = 1
    """Divisor of every element."""
    value: int | None = None
    """That all elements have."""
    doubtful: bool = False
    """Whether Triton may take more than this for known."""

    def first(self, axis: int, length: int) -> int:
        """Divisor of the first element of each aligned group of a length, which is not above the contiguity."""
        known = self.firsts[axis]
        return max(known if length == self.contiguity[axis] else math.gcd(known, length), self.every)


def number(every: int = 1) -> Fact:
    """A single number."""
    return Fact(every=every)


def unknown(dimensions: int) -> Fact:
    """A value of which nothing is known, and Triton may know something."""
    ones = (1,) * dimensions
    return Fact(ones, ones, ones, doubtful=True)


def same(shape: tuple[int, ...], every: int, value: int | None = None) -> Fact:
    """A block of one number."""
    ones = (1,) * len(shape)
    return Fact(shape, ones, (every,) * len(shape), every, value)


def counting(length: int, start: int) -> Fact:
    """A block that counts up."""
    return _fact((1,), (length,), (power(start),))


def power(value: int) -> int:
    """The largest power of two by which a number divides."""
    return min(value & -value, _MOST) if value else _MOST


def joined(one: Fact, other: Fact) -> Fact:
    """What is so of either of two values.

    Raises:
        ValueError: they have different numbers of dimensions. So do all rules on two values.
    """
    lengths = _gcds(one.contiguity, other.contiguity)
    firsts = _firsts(lengths, (one, other))
    value = one.value if one.value == other.value else None
    return _fact(_gcds(one.constancy, other.constancy), lengths, firsts, math.gcd(one.every, other.every), value)


def expanded(one: Fact, axis: int) -> Fact:
    """With a new dimension of one element."""

    def inserted(values: tuple[int, ...], value: int) -> tuple[int, ...]:
        return (*values[:axis], value, *values[axis:])

    firsts = inserted(one.firsts, one.every)
    return replace(one, constancy=inserted(one.constancy, 1), contiguity=inserted(one.contiguity, 1), firsts=firsts)


def broadcast(one: Fact, before: Sequence[int], after: Sequence[int]) -> Fact:
    """With the only element of a dimension in all places of it. `before`, `after`: shapes."""
    constancy = tuple(
        size if size != was else known for known, was, size in zip(one.constancy, before, after, strict=True)
    )
    return replace(one, constancy=constancy)


def permuted(one: Fact, order: Sequence[int]) -> Fact:
    """With its dimensions in another order."""

    def moved(values: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(values[axis] for axis in order)

    return replace(one, constancy=moved(one.constancy), contiguity=moved(one.contiguity), firsts=moved(one.firsts))


def compared(predicate: str, one: Fact, other: Fact) -> Fact:
    """`one < other` and the like: of numbers that count up from a multiple of four, each four are below a multiple of
    four or not."""
    constancy = []
    for axis, alike in enumerate(_gcds(one.constancy, other.constancy)):
        found = alike
        if predicate in _LESS:
            found = max(found, _group(one, other, axis))
        if predicate in _MORE:
            found = max(found, _group(other, one, axis))
        constancy.append(found)
    return _fact(constancy)


def chosen(condition: Fact, one: Fact, other: Fact) -> Fact:
    """`condition ? one : other`."""
    either = joined(one, other)
    if not condition.constancy:
        return either
    lengths = _gcds(either.contiguity, condition.constancy)
    constancy = _gcds(either.constancy, condition.constancy)
    return _fact(constancy, lengths, _firsts(lengths, (one, other)), either.every)


def loaded(*operands: Fact) -> Fact:
    """A load through pointers, under a mask, with other values where it is not set."""
    return _fact(_gcds(*(each.constancy for each in operands)))


def _added(one: Fact, other: Fact) -> Fact:
    sides = zip(one.contiguity, one.constancy, other.contiguity, other.constancy, strict=True)
    lengths = [max(math.gcd(up, alike), math.gcd(same_, follows)) for up, same_, follows, alike in sides]
    firsts = _firsts(lengths, (one, other))
    value = None if one.value is None or other.value is None else one.value + other.value
    return _fact(_gcds(one.constancy, other.constancy), lengths, firsts, math.gcd(one.every, other.every), value)


def _subtracted(one: Fact, other: Fact) -> Fact:
    lengths = _gcds(one.contiguity, other.constancy)
    firsts = _firsts(lengths, (one, other))
    return _fact(_gcds(one.constancy, other.constancy), lengths, firsts, math.gcd(one.every, other.every))


def _multiplied(one: Fact, other: Fact) -> Fact:
    value = None if one.value is None or other.value is None else one.value * other.value
    return _alike(one, other, min(one.every * other.every, _MOST), value)


def _divided(one: Fact, other: Fact) -> Fact:
    exact = other.value is not None and power(other.value) == other.value
    every = max(1, one.every // power(other.value)) if exact and other.value is not None else 1
    return _alike(one, other, every, groups=True)


def _left_over(one: Fact, other: Fact) -> Fact:
    lengths = [_group(one, other, axis) for axis in range(len(one.constancy))]
    every = math.gcd(one.every, other.every)
    return _fact(_gcds(one.constancy, other.constancy), lengths, [max(each, every) for each in lengths], every)


def _shifted_right(one: Fact, other: Fact) -> Fact:
    if other.value is None or not 0 <= other.value < 30:
        return _alike(one, other)
    return _divided(one, replace(other, value=1 << other.value, every=1 << other.value))


def _shifted_left(one: Fact, other: Fact) -> Fact:
    known = other.value is not None and 0 <= other.value < 30
    return _alike(one, other, min(one.every << (other.value or 0), _MOST) if known else one.every)


def _common(one: Fact, other: Fact) -> Fact:
    return _alike(one, other, max(one.every, other.every))


def _combined(one: Fact, other: Fact) -> Fact:
    return _alike(one, other, math.gcd(one.every, other.every))


def _alike(one: Fact, other: Fact, every: int = 1, value: int | None = None, groups: bool = False) -> Fact:
    """What is made of two values element by element: equal where both are; `groups`: and where the one counts up
    between two multiples of the other."""
    constancy = _gcds(one.constancy, other.constancy)
    if groups:
        constancy = tuple(max(alike, _group(one, other, axis)) for axis, alike in enumerate(constancy))
    return _fact(constancy, every=every, value=value)


RULES: Mapping[str, Callable[[Fact, Fact], Fact]] = {
    "arith.addi": _added,
    "tt.addptr": lambda pointers, offsets: _alike(pointers, offsets),
    "arith.subi": _subtracted,
    "arith.muli": _multiplied,
    "arith.divsi": _divided,
    "arith.divui": _divided,
    "arith.remsi": _left_over,
    "arith.remui": _left_over,
    "arith.shrsi": _shifted_right,
    "arith.shrui": _shifted_right,
    "arith.shli": _shifted_left,
    "arith.andi": _common,
    **dict.fromkeys(("arith.ori", "arith.xori"), _combined),
    **dict.fromkeys(("arith.minsi", "arith.minui", "arith.maxsi", "arith.maxui"), _combined),
}
"""What is known of the result of an operation on two values. Of negative quotients and remainders Triton takes for
granted what is not so either; the interpreter knows those by their values."""


def _fact(
    constancy: Iterable[int],
    contiguity: Sequence[int] | None = None,
    firsts: Sequence[int] | None = None,
    every: int = 1,
    value: int | None = None,
) -> Fact:
    """A fact whose parts agree with each other: a group of one element has a first one."""
    constancy = tuple(constancy)
    contiguity = (1,) * len(constancy) if contiguity is None else tuple(contiguity)
    firsts = (1,) * len(constancy) if firsts is None else tuple(firsts)
    every = max([every, *(first for first, length in zip(firsts, contiguity, strict=True) if length == 1)])
    return Fact(constancy, contiguity, tuple(max(first, every) for first in firsts), every, value)


def _firsts(lengths: Sequence[int], facts: Sequence[Fact]) -> tuple[int, ...]:
    """Divisors of the first elements of groups that are made of groups of all of these, or of equal elements."""
    return tuple(
        math.gcd(*(each.first(axis, min(length, each.contiguity[axis])) for each in facts))
        for axis, length in enumerate(lengths)
    )


def _group(one: Fact, other: Fact, axis: int) -> int:
    """Elements of an aligned group in which `one` counts up from a multiple of their number, and `other` is one
    multiple of it."""
    length = math.gcd(one.contiguity[axis], other.constancy[axis], other.every)
    return math.gcd(length, one.first(axis, length))


def _gcds(*sides: Sequence[int]) -> tuple[int, ...]:
    return tuple(math.gcd(*each) for each in zip(*sides, strict=True))
