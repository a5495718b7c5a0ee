"""Supervised examples of the family, for a model from scratch: first kernels, and second ones after a verdict.

A second kernel copies the first and may change it: its row operation for another, and mistakes for what is right. How
often it does so has nothing to do with the problem's hidden operation; what to do after which verdict is left to
reinforcement learning, which needs both copies and changes to choose from.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np

from assay.envs.base import Example
from assay.envs.kernelbench.family.compositions import VARIANTS
from assay.envs.kernelbench.family.examples import Skill, attempt
from assay.envs.kernelbench.family.modules import Kernel, right_lines
from assay.envs.kernelbench.family.posed import Posed, posed
from assay.envs.tasks import SFT_STREAM
from assay.types import Message

LATER = 0.5
"""Share of second turns among the examples of hidden problems."""
CHANGE, MEND = 0.5, 0.5
"""How often a second kernel has another row operation than the first, and how often a mistake of it is mended."""
UNKNOWN = ("tl.relu(", "tl.tanh(", "tl.silu(")
"""What the kernel language does not have."""

Failure = Literal["compilation_error", "runtime_error", "correctness_error"]
ShowFailure = Callable[[str, Failure], str]
"""(first kernel, its failure) -> what the prompt of the second turn adds to the first one."""


POOL, HIDDEN_POOL = 8000, 4800
"""Problems that examples are drawn from: as many as there are easily, so that few are learned by heart."""


@dataclass(frozen=True)
class FamilySupervisedDataset:
    """Attempts at training problems, by somebody with a skill. See `assay.envs.base.SupervisedDataset`."""

    seed: int
    hidden: bool
    skill: Skill
    show: ShowFailure

    @cached_property
    def pool(self) -> Sequence[Posed]:
        """The problems, drawn when the first example is wanted: that takes seconds."""
        return posed(self.seed, "train", HIDDEN_POOL if self.hidden else POOL, self.hidden)

    def batch(self, index: int, size: int) -> list[Example]:
        """See `assay.envs.base.SupervisedDataset`."""
        rng = np.random.default_rng([self.seed, SFT_STREAM, index, size])
        return [self._example(self.pool[int(place)], rng) for place in rng.integers(len(self.pool), size=size)]

    def _example(self, one: Posed, rng: np.random.Generator) -> Example:
        prompt, guess = one.prompt, one
        if one.hidden is not None:
            guess = one.with_variant(VARIANTS[int(rng.integers(len(VARIANTS)))])
        kernel = attempt(guess.composition, self.skill, rng)
        if one.hidden is not None and rng.random() < LATER:
            prompt += self.show(kernel.text(), failure(kernel))
            kernel = second(kernel, one.hidden, rng)
        return Example((Message("user", prompt),), kernel.text())


def failure(kernel: Kernel) -> Failure:
    """What the grader says of a kernel that fails, as far as its text tells."""
    text = kernel.text()
    if any(name in text for name in UNKNOWN):
        return "compilation_error"
    bare = kernel.unmasked - {"s"} - ({"out"} if kernel.composition.end else set())
    return "runtime_error" if kernel.mistaken or bare or "tl.max(t, " in _without_rows(text) else "correctness_error"


def _without_rows(text: str) -> str:
    """A kernel without its maxima over a row: what is left of `tl.max` takes two arguments that are no such thing."""
    return text.replace("tl.max(t, axis=0)", "")


def following(variant: str) -> str:
    """The variant that is tried after one. A fixed order makes an example depend on the first kernel, so that a small
    model learns to read it; any of the two others is as likely to be meant."""
    return VARIANTS[(VARIANTS.index(variant) + 1) % len(VARIANTS)]


def second(first: Kernel, hidden: int, rng: np.random.Generator) -> Kernel:
    """A kernel that copies another, with some of it changed."""
    composition = first.composition
    lines = list(first.statements)
    if rng.random() < CHANGE:
        composition = composition.with_operator(hidden, following(composition.statements[hidden].operator))
        lines[hidden] = right_lines(composition.names)[hidden]
    right = right_lines(composition.names)
    mended = tuple(r if rng.random() < MEND else line for r, line in zip(right, lines, strict=True))
    faults = [
        frozenset(p for p in sorted(places) if rng.random() >= MEND) for places in (first.mistaken, first.unmasked)
    ]
    return replace(first, composition=composition, statements=mended, mistaken=faults[0], unmasked=faults[1])
