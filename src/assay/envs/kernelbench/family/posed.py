"""Compositions as they are posed: shown whole, or with their row operation hidden.

A hidden operation is one of `VARIANTS`, and the prompt does not say which. A set of hidden problems holds every prompt
with all its variants, so that no prompt tells the answer: the first kernel for one is right a third of the time at
most, and only the verdict on it says more.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np

from assay.envs.kernelbench.family.compositions import (
    OPERAND_SHAPES,
    VARIANTS,
    Composition,
    Split,
    Statement,
    compositions,
    draw_size,
    is_worth_posing,
)
from assay.envs.kernelbench.family.modules import problem_text
from assay.envs.kernelbench.family.operators import of_kind
from assay.errors import ConfigError

HINT = "row_op(t)"
"""What a prompt shows in its place."""
MOST_WITH_HIDDEN = 3
"""Statements of a problem with a hidden one: there the verdict is to be about the hidden one most of the time."""


@dataclass(frozen=True, slots=True)
class Posed:
    """A composition, and the place of its hidden statement; None where all of it is shown."""

    composition: Composition
    hidden: int | None = None

    @property
    def module(self) -> str:
        """The problem, as it is graded."""
        return problem_text(self.composition)

    @property
    def prompt(self) -> str:
        """The problem, as the policy sees it."""
        return problem_text(self.composition, self.hidden, HINT)

    @property
    def tag(self) -> str:
        """The slice of the metrics that it belongs to: its length, or its hidden operation."""
        if self.hidden is None:
            return f"statements_{len(self.composition.statements)}"
        return self.composition.statements[self.hidden].operator

    def with_variant(self, name: str) -> Posed:
        """The problem with another operation in the hidden place."""
        assert self.hidden is not None, "a problem that is shown whole has no variants"
        return Posed(self.composition.with_operator(self.hidden, name), self.hidden)


def posed(seed: int, split: Split, count: int, hidden: bool = False) -> list[Posed]:
    """`count` problems of one side of the split; hidden ones follow each other variant by variant.

    Raises:
        ConfigError: there are not so many.
    """
    found = list(islice(_hidden(seed, split) if hidden else map(Posed, compositions(seed, split)), count))
    if len(found) < count:
        raise ConfigError(
            f"{count} {split} problems with a hidden operation were asked for, and there are {len(found)}. Lower "
            "num_train or num_heldout."
        )
    return found


def _hidden(seed: int, split: Split) -> Iterator[Posed]:
    """All problems of a side with one row operation, which is hidden, whose variants are all worth posing."""
    rng = np.random.default_rng([seed, split == "heldout", len(VARIANTS)])
    every = _with_one_row()
    for place in rng.permutation(len(every)):
        statements, hidden, end = every[place]
        one = Posed(Composition(statements, end, *draw_size(rng)), hidden)
        variants = [one.with_variant(name) for name in VARIANTS]
        if one.composition.split == split and all(is_worth_posing(v.composition) for v in variants):
            yield from variants


def _with_one_row() -> list[tuple[tuple[Statement, ...], int, str | None]]:
    """Statements with one row operation among them, its place, and what they end with."""
    plain = [Statement(one.name) for one in of_kind("unary")]
    plain += [Statement(one.name, operand) for one in of_kind("binary") for operand in OPERAND_SHAPES]
    ends = (None, *(one.name for one in of_kind("end")))
    row = Statement(VARIANTS[0])
    return [
        ((*others[:place], row, *others[place:]), place, end)
        for length in range(1, MOST_WITH_HIDDEN)
        for others in itertools.product(plain, repeat=length)
        for place in range(length + 1)
        for end in ends
    ]
