"""Run as a program: rules for whole numbers, held against numbers within their bounds.

For each operation and each type, numbers with bounds, many of both at the ends of the type. Another number within each
bound gives another result, by Python's integers. Prints, as JSON, of each operation and type: `beyond`, results that
are further off than the rule allows, and `finite`, the share of inexact results that it has a bound for.
"""

from __future__ import annotations

import json
import operator
import os
from collections.abc import Callable
from typing import Any

os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import triton.language as tl
from triton.runtime.interpreter import TensorHandle

from assay.kernels.inside.triton.error_bounds import builder, choices, sums
from assay.kernels.inside.triton.error_bounds.bounds import bound, give, or_zero

LANES = 400
KINDS = {kind.name: kind for kind in (tl.int8, tl.int16, tl.int32, tl.int64, tl.uint8, tl.uint16, tl.uint32, tl.uint64)}


def numpy_of(name: str) -> Any:
    return np.dtype(name)


def wrapped(value: int, name: str) -> int:
    """What a type has of a whole number."""
    info = np.iinfo(numpy_of(name))
    return (value - int(info.min)) % (1 << info.bits) + int(info.min)


def quotient(x: int, y: int) -> int:
    return abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)


BINARY: dict[str, Callable[[int, int], int]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "idiv": quotient,
    "rem": lambda x, y: x - quotient(x, y) * y,
    "shl": lambda x, y: x << y,
    "shr": lambda x, y: x >> y,
    "and": operator.and_,
    "or": operator.or_,
    "xor": operator.xor,
    "min": min,
    "max": max,
}
COMPARED = {"LT": operator.lt, "LE": operator.le, "GT": operator.gt, "GE": operator.ge, "EQ": operator.eq}


def method(name: str, signed: bool) -> str:
    """What the builder calls an operation."""
    sign = "s" if signed else "u"
    names = {"rem": f"{sign}rem", "shr": "ashr" if signed else "lshr", "min": f"min{sign}i", "max": f"max{sign}i"}
    compared = name if name == "EQ" else f"{sign.upper()}{name}"
    return f"create_icmp{compared}" if name in COMPARED else f"create_{names.get(name, name)}"


def numbers(chance: np.random.Generator, name: str) -> list[int]:
    """Numbers of a type: small ones, such as its ends, and any."""
    info = np.iinfo(numpy_of(name))
    near = [int(each) for each in chance.integers(0, 5, LANES)]
    bits = [int(each) for each in chance.integers(0, info.bits, LANES)]
    any_ = [int(each) for each in chance.integers(info.min, info.max, LANES, dtype=info.dtype, endpoint=True)]
    ways = [
        lambda lane: near[lane],
        lambda lane: -near[lane],
        lambda lane: int(info.min) + near[lane],
        lambda lane: int(info.max) - near[lane],
        lambda lane: (1 << bits[lane]) - near[lane],
        lambda lane: any_[lane],
    ]
    found = [ways[int(way)](lane) for lane, way in enumerate(chance.integers(0, len(ways), LANES))]
    return [wrapped(each, name) for each in found]


def within(chance: np.random.Generator, values: list[int], name: str, *, exact: bool) -> tuple[list[int], Any]:
    """Other numbers that may be in the place of some, and bounds."""
    info = np.iinfo(numpy_of(name))
    limits = chance.choice([0, 0, 1, 1, 2, 3, 10, 100, 2**20], LANES) * (not exact)
    others = []
    for value, limit in zip(values, limits, strict=True):
        low, high = max(value - int(limit), int(info.min)), min(value + int(limit), int(info.max))
        ways = (low, high, value, low + int(chance.integers(0, high - low + 1)))
        others.append(ways[int(chance.integers(0, len(ways)))])
    return others, np.where(limits > float(info.max) - float(info.min), np.inf, limits.astype(np.float64))


def handle(values: list[Any], name: str, limits: Any = None) -> Any:
    kind = tl.int1 if name == "bool" else KINDS[name]
    return give(TensorHandle(np.array(values, numpy_of(name)), kind), limits)


def held(found: list[int], other: list[int], limits: Any) -> dict[str, Any]:
    """What came of it."""
    limits = np.broadcast_to(or_zero(limits[0] if isinstance(limits, tuple) else limits), len(found))
    beyond = [
        (one, two, float(limit))
        for one, two, limit in zip(found, other, limits, strict=True)
        if np.isfinite(limit) and abs(one - two) > limit
    ]
    inexact = limits > 0
    return {"beyond": beyond[:3], "finite": float(np.isfinite(limits[inexact]).mean()) if inexact.any() else 1.0}


def of_two(chance: np.random.Generator, name: str, kind: str, *, exact: bool) -> dict[str, Any]:
    """An operation on two numbers. `exact`: the second one is certain."""
    info, compute = np.iinfo(numpy_of(kind)), {**BINARY, **COMPARED}[name]
    left, right = numbers(chance, kind), numbers(chance, kind)
    if name in ("shl", "shr"):
        right = [int(each) for each in chance.integers(0, info.bits, LANES)]
    (lefts, of_left), (rights, of_right) = (
        within(chance, left, kind, exact=False),
        within(chance, right, kind, exact=exact or name in ("shl", "shr")),
    )
    if name in ("idiv", "rem"):
        right, rights = ([each or 1 for each in side] for side in (right, rights))
        none = [int(info.min) in (x, u) and -1 in (y, v) for x, y, u, v in zip(left, right, lefts, rights, strict=True)]
        left, lefts = ([0 if no else x for x, no in zip(side, none, strict=True)] for side in (left, lefts))
    result = "bool" if name in COMPARED else kind
    one, two = (
        [each if result == "bool" else wrapped(each, kind) for each in map(compute, *sides)]
        for sides in ((left, right), (lefts, rights))
    )
    found = handle(one, result)
    sides = handle(left, kind, of_left), handle(right, kind, of_right)
    if all(bound(side) is None for side in sides):
        return {"beyond": [], "finite": 1.0}
    limits = builder.RULES[method(name, info.min < 0)](found, *sides)
    return held([int(each) for each in one], [int(each) for each in two], limits)


def of_one(chance: np.random.Generator, kind: str) -> dict[str, Any]:
    """The size of a number."""
    values = numbers(chance, kind)
    others, limits = within(chance, values, kind, exact=False)
    one, two = ([wrapped(abs(each), kind) for each in side] for side in (values, others))
    return held(one, two, builder.RULES["create_iabs"](handle(one, kind), handle(values, kind, limits)))


def of_cast(chance: np.random.Generator, kind: str, to: str) -> dict[str, Any]:
    """A number of one type as one of another."""
    values = numbers(chance, kind)
    others, limits = within(chance, values, kind, exact=False)
    one, two = ([wrapped(each, to) for each in side] for side in (values, others))
    return held(one, two, choices.cast(handle(one, to), handle(values, kind, limits)))


def of_choice(chance: np.random.Generator, kind: str) -> dict[str, Any]:
    """`where`, by what may be otherwise."""
    (left, right), doubts = (numbers(chance, kind), numbers(chance, kind)), chance.integers(0, 2, LANES)
    sides = [within(chance, each, kind, exact=False) for each in (left, right)]
    asks = [bool(each) for each in chance.integers(0, 2, LANES)]
    turned = [ask != bool(doubt and chance.integers(0, 2)) for ask, doubt in zip(asks, doubts, strict=True)]
    one = [x if ask else y for ask, x, y in zip(asks, left, right, strict=True)]
    two = [x if ask else y for ask, x, y in zip(turned, sides[0][0], sides[1][0], strict=True)]
    condition = handle(asks, "bool", doubts.astype(np.float64))
    made = [handle(each, kind, limits) for each, (_, limits) in zip((left, right), sides, strict=True)]
    return held(one, two, choices.selected(handle(one, kind), condition, *made))


def of_sum(chance: np.random.Generator, kind: str) -> dict[str, Any]:
    """The sums of rows of eight."""
    values = numbers(chance, kind)
    others, limits = within(chance, values, kind, exact=False)
    rows = [[values[at : at + 8], others[at : at + 8]] for at in range(0, LANES, 8)]
    one, two = ([wrapped(sum(row[side]), kind) for row in rows] for side in (0, 1))
    source = give(TensorHandle(np.array(values, numpy_of(kind)).reshape(-1, 8), KINDS[kind]), limits.reshape(-1, 8))
    (found,) = sums.of_reduction("sum", source, 1, handle(one, kind))
    return held(one, two, np.reshape(found, -1))


def cases(chance: np.random.Generator) -> dict[str, Any]:
    found = {}
    for kind in KINDS:
        for name in (*BINARY, *COMPARED):
            for exact in (True, False):
                found[f"{name} of {kind}, {exact}"] = of_two(chance, name, kind, exact=exact)
        found[f"abs of {kind}"] = of_one(chance, kind)
        found[f"where of {kind}"] = of_choice(chance, kind)
        found[f"sum of {kind}"] = of_sum(chance, kind)
        found |= {f"{kind} as {to}": of_cast(chance, kind, to) for to in KINDS if to != kind}
    return found


if __name__ == "__main__":
    print(json.dumps(cases(np.random.default_rng(int(input() or 0)))))
