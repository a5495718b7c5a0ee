"""Compositions of operators: what a module of the family computes, and which of them make a problem.

A composition is two to four statements over a row, then perhaps a reduction. Its *signature*, the names of its
operators, decides the side of the split it lies on: a held-out problem is a composition that training never saw, nor
one that has another row operation in its place.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from assay.envs.kernelbench.family.operators import OPERATORS, Operator, of_kind

Operand = Literal["y", "w", "s"]
Split = Literal["train", "heldout"]
OPERAND_SHAPES: dict[Operand, str] = {"y": "R, C", "w": "C", "s": "R, 1"}
HELDOUT_PERCENT = 30
"""Signatures, of a hundred, that are held out."""
MOST_STATEMENTS = 4
VARIANTS = ("softmax", "centre", "rms")
"""Row operations that a prompt may hide; compositions that differ in these alone lie on one side of the split."""


@dataclass(frozen=True, slots=True)
class Statement:
    """An operator, with its second operand if it is a binary one."""

    operator: str
    operand: Operand | None = None


@dataclass(frozen=True, slots=True)
class Composition:
    """What a module computes of its input `x` (rows, columns)."""

    statements: tuple[Statement, ...]
    end: str | None
    rows: int
    columns: int

    @property
    def operands(self) -> tuple[Operand, ...]:
        """Second operands, in the order of the arguments of forward."""
        used = {statement.operand for statement in self.statements}
        return tuple(name for name in OPERAND_SHAPES if name in used)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of its operators in order, the reduction last."""
        return (*(statement.operator for statement in self.statements), *([self.end] if self.end else []))

    @property
    def signature(self) -> str:
        """Its operators, whatever their operands and sizes."""
        return " ".join(self.names)

    @property
    def split(self) -> Split:
        """The side on which its signature lies, whatever the seed of a run and whichever variants it has."""
        alike = " ".join("variant" if name in VARIANTS else name for name in self.names)
        number = int.from_bytes(hashlib.sha256(alike.encode()).digest()[:4])
        return "heldout" if number % 100 < HELDOUT_PERCENT else "train"

    def with_operator(self, place: int, name: str) -> Composition:
        """The composition with another operator in place of a statement's."""
        changed = replace(self.statements[place], operator=name)
        return replace(self, statements=(*self.statements[:place], changed, *self.statements[place + 1 :]))


_NOT_NEGATIVE = frozenset({"relu", "abs", "square", "sigmoid", "softmax"})
_POINTLESS_AFTER = {
    "relu": _NOT_NEGATIVE | {"subtract_max"},
    "abs": _NOT_NEGATIVE,
    "leaky_relu": _NOT_NEGATIVE,
    "centre": frozenset({"centre"}),
    "softmax": frozenset({"centre", "subtract_max"}),
    "rms": frozenset({"rms", "half"}),
    "subtract_max": frozenset({"subtract_max", "centre"}),
    "sum": frozenset({"softmax", "centre"}),
    "mean": frozenset({"softmax", "centre"}),
    "max": frozenset({"subtract_max"}),
    "negate": frozenset({"negate"}),
}
"""Operator -> those after which it changes nothing, or makes a constant."""


_AVERAGED_AWAY = frozenset({"softmax", "centre"})
"""What leaves next to nothing of a row in its sum, whatever comes between."""


def is_worth_posing(composition: Composition) -> bool:
    """Whether each operator matters: a problem in which one does not could be solved without it."""
    names = composition.names
    repeated = any(before == after for before, after in itertools.pairwise(names))
    pointless = any(before in _POINTLESS_AFTER.get(after, ()) for before, after in itertools.pairwise(names))
    averaged = composition.end in ("sum", "mean") and not _AVERAGED_AWAY.isdisjoint(names)
    rows = sum(OPERATORS[name].kind == "row" for name in names)
    squares = names.count("square")
    return not (repeated or pointless or averaged) and rows <= 2 and squares <= 1


def draw(rng: np.random.Generator) -> Composition:
    """One composition at random, worth posing or not."""
    statements = [_statement(rng) for _ in range(int(rng.integers(2, MOST_STATEMENTS + 1)))]
    ends = [None, None, *(operator.name for operator in of_kind("end"))]
    end = ends[int(rng.integers(len(ends)))]
    return Composition(tuple(statements), end, *draw_size(rng))


def draw_size(rng: np.random.Generator) -> tuple[int, int]:
    """Rows and columns."""
    return int(rng.integers(3, 10)), int(rng.integers(20, 101))


def _statement(rng: np.random.Generator) -> Statement:
    kind = ("unary", "binary", "row")[int(rng.choice(3, p=(0.45, 0.3, 0.25)))]
    chosen = _one_of(of_kind(kind), rng)  # type: ignore[arg-type]
    operands: tuple[Operand, ...] = tuple(OPERAND_SHAPES)
    return Statement(chosen.name, operands[int(rng.integers(len(operands)))] if chosen.kind == "binary" else None)


def _one_of(operators: tuple[Operator, ...], rng: np.random.Generator) -> Operator:
    return operators[int(rng.integers(len(operators)))]


def compositions(seed: int, split: Split) -> Iterator[Composition]:
    """Endless compositions of one side of the split, no two of them with the same signature and operands."""
    rng = np.random.default_rng([seed, split == "heldout"])
    seen: set[tuple[Statement | str | None, ...]] = set()
    while True:
        found = draw(rng)
        key = (*found.statements, found.end)
        if found.split == split and key not in seen and is_worth_posing(found):
            seen.add(key)
            yield found
