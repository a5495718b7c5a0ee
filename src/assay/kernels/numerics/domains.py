"""Inputs of a family brought into a domain that cannot be seen, where the reference is not finite with them.

A problem may draw its inputs from [0, 1) since it takes their logarithm or their square root, or since they are
probabilities. A family that has negative numbers in place of them gives no numbers then, and is not lost: it is tried
again with the same numbers made positive, and at last within the range that the problem draws from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from assay.kernels.arrays import Array, HostTensor, Value, host_tensor
from assay.kernels.numerics.families import as_sorted, role_of, triangle
from assay.kernels.numerics.slices import FAINT, Floats

Domain = Literal["not negative", "positive", "both signs", "unit", "as drawn"]
DOMAINS: tuple[Domain, ...] = ("not negative", "positive", "both signs", "unit", "as drawn")


def narrowed(drawn: Value, varied: Value, domain: Domain) -> Value:
    """A varied input within a domain: absolute values; those with a small number in place of each zero; numbers up to
    the largest that was drawn, of both signs; between 0 and 1, where those that were drawn are; or between the least
    and the largest that was drawn, a little around them where they are one. What is no tensor of real numbers stays as
    it is varied."""
    if isinstance(drawn, tuple) and isinstance(varied, tuple):
        return type(varied)(narrowed(one, other, domain) for one, other in zip(drawn, varied, strict=True))
    if not _is_real(drawn) or not _is_real(varied):
        return varied
    return _with(varied, _narrowed(_floats(drawn), _floats(varied), domain))


def spliced(kept: HostTensor, varied: HostTensor, axis: int, places: range) -> HostTensor:
    """A tensor with some places along an axis as they are varied."""
    new = kept.array().copy()
    there = (slice(None),) * axis + (slice(places.start, places.stop),)
    new[there] = varied.array()[there]
    return _with(kept, new)


def _narrowed(drawn: Floats, varied: Floats, domain: Domain) -> Array:
    least, most = _range(drawn)
    furthest = max(abs(least), abs(most))
    match domain:
        case "not negative":
            new = np.abs(varied)
        case "positive":
            new = np.where(varied == 0, FAINT * furthest, np.abs(varied))
        case "both signs":
            new = furthest * np.tanh(varied)
        case "unit" if drawn.min() >= 0 and drawn.max() <= 1:
            new = _between(0.0, 1.0, varied)
        case _:
            new = _between(least, most, varied)
    zeros = triangle(drawn)
    return as_sorted(np.where(zeros, 0.0, new) if zeros is not None else new, drawn, drawn)


def _range(drawn: Floats) -> tuple[float, float]:
    """The least and the largest number that was drawn; numbers around it, where there is but one."""
    least, most = float(drawn.min()), float(drawn.max())
    if least < most:
        return least, most
    around = _AROUND_ZERO if least == 0 else _AROUND * abs(least)
    return least - around, most + around


def _between(least: float, most: float, varied: Floats) -> Floats:
    """Numbers in a range, at its ends where they are zeros by turns, and else not so close to them that what is left
    (1 - x) is lost in a last bit."""
    with np.errstate(over="ignore"):
        share = np.clip(1 / (1 + np.exp(-varied)), _MARGIN, 1 - _MARGIN)
    zeros = varied == 0
    by_turns = (np.cumsum(zeros) - 1) % 2
    share = np.where(zeros, by_turns.reshape(varied.shape), share)
    return least * (1 - share) + most * share


_MARGIN = 1e-3
_AROUND, _AROUND_ZERO = 0.05, 0.5
"""How far the range of an input reaches that is one number everywhere, as a share of that; and where it is 0."""


def _is_real(value: Value) -> bool:
    return isinstance(value, HostTensor) and bool(value.data) and value.is_float and role_of(value.array()) == "real"


def _floats(value: Value) -> Floats:
    assert isinstance(value, HostTensor), "the caller has looked"
    return value.array().astype(np.float64)


def _with(value: Value, array: Array) -> HostTensor:
    """A tensor of the same dtype and layout, with other elements."""
    assert isinstance(value, HostTensor), "the caller has looked"
    made = host_tensor(array, value.dtype)
    return made if value.layout is None else replace(made, layout=value.layout)


def with_numbers(values: Sequence[Value], numbers: Sequence[Value]) -> tuple[Value, ...]:
    """A draw with what is no tensor as in another one: a submission is recorded once, and is given the numbers then."""
    if len(values) != len(numbers):
        return tuple(values)
    return tuple(_with_number(value, number) for value, number in zip(values, numbers, strict=True))


def _with_number(value: Value, number: Value) -> Value:
    if isinstance(value, tuple) and isinstance(number, tuple):
        return type(value)(with_numbers(value, number))
    return value if isinstance(value, HostTensor) else number
