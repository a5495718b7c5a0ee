"""Supervised examples of the family: whole modules, some right and some with the mistakes that beginners make.

They teach the form and the vocabulary. Which statement belongs where is left to reinforcement learning, so each
choice is right with a probability only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from assay.envs.kernelbench.family.compositions import Composition
from assay.envs.kernelbench.family.modules import Kernel
from assay.envs.kernelbench.family.operators import OPERATORS, Lines, of_kind


@dataclass(frozen=True)
class Skill:
    """How often a beginner is right."""

    statement: tuple[float, float, float] = (0.6, 0.5, 0.4)
    """Probability that the lines of an operator are right, where there are two, three, or more ways to write it."""
    access: float = 0.85
    """Probability that a load or the store is right."""

    @classmethod
    def of(cls, level: float) -> Skill:
        """A skill by one number: how often a choice of two is right. More ways to err make more errors."""
        error = 1.0 - level
        return cls((1 - error, 1 - 1.25 * error, 1 - 1.5 * error), 1 - 0.375 * error)


PERFECT = Skill((1.0, 1.0, 1.0), 1.0)


def attempt(composition: Composition, skill: Skill, rng: np.random.Generator) -> Kernel:
    """A solution as somebody with that skill writes it."""
    places = ("x", *composition.operands, "out")
    faults = {place: rng.random() >= skill.access for place in places}
    bare = {place: bool(rng.random() < 0.5) for place in places}
    return Kernel(
        composition,
        tuple(_written(name, skill, rng) for name in composition.names),
        frozenset(place for place in places if faults[place] and not bare[place]),
        frozenset(place for place in places if faults[place] and bare[place]),
    )


def _written(name: str, skill: Skill, rng: np.random.Generator) -> Lines:
    right, others = OPERATORS[name].triton, _others(name)
    chance = skill.statement[min(len(others), len(skill.statement)) - 1]
    if rng.random() < chance:
        return right
    return others[int(rng.integers(len(others)))]


def _others(name: str) -> Sequence[Lines]:
    """Mistakes, and another operator of the same kind: what stands in the place of right lines."""
    operator = OPERATORS[name]
    kin = of_kind(operator.kind)
    neighbour = kin[(kin.index(operator) + 1) % len(kin)]
    return (*operator.mistakes, neighbour.triton)
