"""A small task in which the policy decides when to stop, so that group baselines can be judged exactly.

A draft is bad or good. At each turn the policy stops (reward 1 for a good draft, 0 for a bad one) or revises it, which
costs 0.1 and makes a bad draft good more often than a good one bad; the last turn ends the episode either way. The
policy has one parameter for each turn and draft, the logit of stopping. All trajectories are enumerated, and with them
all groups of a size, so a gradient estimate has an exact mean and variance.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from assay.types import Completion, FloatArray, Score, Task, Trajectory, TrajectoryGroup, Transition

COST = 0.1
MENDED, SPOILT = 0.4, 0.1
"""Probability that a revision makes a bad draft good, and a good one bad."""
TASK = Task("stopping", "0", ())


@dataclass(frozen=True)
class Path:
    """A trajectory: its probability, each turn's reward, and each turn's score function, [turns, parameters]."""

    probability: float
    rewards: tuple[float, ...]
    scores: FloatArray


def paths(turns: int, stop: float) -> list[Path]:
    """All trajectories of a policy that stops with probability `stop` everywhere."""

    def from_here(turn: int, good: int) -> list[tuple[float, tuple[float, ...], list[FloatArray]]]:
        ends = (stop, (float(good),), [_score(turns, turn, good, 1 - stop)])
        score = _score(turns, turn, good, -stop)
        if turn == turns - 1:
            return [ends, (1 - stop, (-COST,), [score])]
        found = [ends]
        better = 1 - SPOILT if good else MENDED
        for then, chance in ((1, better), (0, 1 - better)):
            for probability, rewards, scores in from_here(turn + 1, then):
                found.append(((1 - stop) * chance * probability, (-COST, *rewards), [score, *scores]))
        return found

    return [Path(p, rewards, np.stack(scores)) for p, rewards, scores in from_here(0, 0)]


def _score(turns: int, turn: int, good: int, value: float) -> FloatArray:
    out = np.zeros((turns, 2))
    out[turn, good] = value
    return out.ravel()  # type: ignore[return-value]


def exact_gradient(every: Sequence[Path]) -> FloatArray:
    """The gradient of the expected sum of rewards: the mean of its score times return."""
    found: FloatArray = sum(p.probability * p.scores.T @ returns(p.rewards) for p in every)  # type: ignore[assignment]
    return found


def returns(rewards: Sequence[float]) -> FloatArray:
    """Undiscounted return of each turn."""
    found: FloatArray = np.cumsum(rewards[::-1])[::-1]
    return found


Advantages = Callable[[Sequence[Path]], Sequence[Sequence[float]] | None]
"""The advantage of every turn of every trajectory of a group, or None for a group without a gradient."""


def moments(every: Sequence[Path], size: int, advantages: Advantages) -> tuple[FloatArray, float]:
    """Mean and total variance, over all groups of a size, of the estimate (sum of advantage times score) / size."""
    mean, square = np.zeros(every[0].scores.shape[1]), 0.0
    for numbers in itertools.combinations_with_replacement(range(len(every)), size):
        group = [every[n] for n in numbers]
        orders = math.factorial(size) / math.prod(math.factorial(c) for c in Counter(numbers).values())
        probability = orders * math.prod(p.probability for p in group)
        found = advantages(group)
        if found is None:
            continue
        estimate = sum(p.scores.T @ np.array(a) for p, a in zip(group, found, strict=True)) / size
        mean += probability * estimate
        square += probability * float(estimate @ estimate)
    return mean, square - float(mean @ mean)  # type: ignore[return-value]


def reached(every: Sequence[Path], turn: int) -> float:
    """Probability that a trajectory reaches a turn."""
    return math.fsum(p.probability for p in every if len(p.rewards) > turn)


def as_group(group: Sequence[Path]) -> TrajectoryGroup:
    """The same as scored rollouts."""
    made = Completion((1,), (0.0,), "stop", 0)
    return TrajectoryGroup(
        TASK,
        tuple(
            Trajectory(TASK, tuple(Transition((1,), made, "", Score("scored", r)) for r in p.rewards), "done", 0)
            for p in group
        ),
    )
