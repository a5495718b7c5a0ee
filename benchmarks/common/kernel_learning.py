"""What `kernel_learning.py` says of its runs: rates, paired lifts with bootstrap intervals, turns. Pure functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from math import comb
from statistics import fmean

import numpy as np

RESAMPLES = 4000
"""Bootstrap samples of problems."""
Solved = Sequence[Sequence[int | None]]
"""Problem -> rollout -> the turn (from 1) of its first right kernel, or None."""


def rates(solved: Solved, turns: int) -> list[float]:
    """Of each problem the share of rollouts that were right within so many turns."""
    return [fmean(float(turn is not None and turn <= turns) for turn in rollouts) for rollouts in solved]


def pass_at(solved: Solved, k: int) -> list[float]:
    """Of each problem the chance that one of `k` first turns, drawn without replacement, is right."""
    found = []
    for rollouts in solved:
        n, right = len(rollouts), sum(turn == 1 for turn in rollouts)
        found.append(1.0 - comb(n - right, k) / comb(n, k))
    return found


def lift(before: Sequence[float], after: Sequence[float], group: int = 1) -> dict[str, float]:
    """Mean of the paired differences over problems, with a 95 % bootstrap interval.

    Args:
        group: problems that follow each other and are drawn together, such as the variants of one prompt.
    """
    gaps = np.asarray(after) - np.asarray(before)
    blocks = gaps.reshape(-1, group).mean(axis=1)
    drawn = np.random.default_rng(0).integers(len(blocks), size=(RESAMPLES, len(blocks)))
    low, high = np.quantile(blocks[drawn].mean(axis=1), (0.025, 0.975))
    return {"mean": float(gaps.mean()), "low": float(low), "high": float(high)}


def turn_shares(solved: Solved, turns: int) -> dict[str, float]:
    """Share of the rollouts whose first right kernel came in each turn, or `never`."""
    counts = Counter(turn for rollouts in solved for turn in rollouts)
    total = counts.total()
    return {**{str(turn): counts[turn] / total for turn in range(1, turns + 1)}, "never": counts[None] / total}
