"""Compositions as they are posed: shown whole, or with their row operation hidden.

A hidden operation is one of `VARIANTS`, and the prompt does not say which. A set of hidden problems holds every prompt
with all its variants, so that no prompt tells the answer: the first kernel for one is right a third of the time at
most, and only the verdict on it says more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from assay.envs.kernelbench.family.compositions import Composition, Split, compositions, is_worth_posing
from assay.envs.kernelbench.family.modules import problem_text
from assay.envs.kernelbench.family.operators import OPERATORS

VARIANTS = ("softmax", "centre", "rms")
"""What a hidden operation may be."""
HINT = "row_op(t)"
"""What a prompt shows in its place."""


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
    """`count` problems of one side of the split; hidden ones follow each other variant by variant."""
    found = _hidden(seed, split) if hidden else map(Posed, compositions(seed, split))
    return list(islice(found, count))


def _hidden(seed: int, split: Split) -> Iterator[Posed]:
    """Problems whose one row operation is hidden, where each variant lies on that side and is worth posing."""
    seen: set[str] = set()
    for composition in compositions(seed, split):
        rows = [place for place, name in enumerate(composition.names) if OPERATORS[name].kind == "row"]
        if len(rows) != 1 or composition.names[rows[0]] not in VARIANTS:
            continue
        one = Posed(composition, rows[0])
        variants = [one.with_variant(name) for name in VARIANTS]
        whole = all(v.composition.split == split and is_worth_posing(v.composition) for v in variants)
        if whole and not seen & {_key(v) for v in variants}:
            seen |= {_key(v) for v in variants}
            yield from variants


def _key(one: Posed) -> str:
    return f"{one.composition.statements} {one.composition.end}"
