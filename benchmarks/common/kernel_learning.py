"""What `kernel_learning.py` says of its runs: rates, paired lifts with bootstrap intervals, turns. Pure functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import fmean

from assay.estimates import estimate, pass_at_k

Solved = Sequence[Sequence[int | None]]
"""Problem -> rollout -> the turn (from 1) of its first right kernel, or None."""


def rates(solved: Solved, turns: int) -> list[float]:
    """Of each problem the share of rollouts that were right within so many turns."""
    return [fmean(float(turn is not None and turn <= turns) for turn in rollouts) for rollouts in solved]


def pass_at(solved: Solved, k: int) -> list[float]:
    """Of each problem the chance that one of `k` first turns, drawn without replacement, is right."""
    return [pass_at_k(len(rollouts), sum(turn == 1 for turn in rollouts), k) for rollouts in solved]


def lift(before: Sequence[float], after: Sequence[float], group: int = 1) -> dict[str, float]:
    """Mean of the paired differences over problems, with a 95 % bootstrap interval.

    Args:
        group: problems that follow each other and are drawn together, such as the variants of one prompt.

    Raises:
        ValueError: not as many before as after, none at all, or not a multiple of `group`.
    """
    gaps = [later - earlier for earlier, later in zip(before, after, strict=True)]
    blocks = [fmean(block) for block in zip(*[iter(gaps)] * group, strict=True)]
    found = estimate(blocks)
    if found is None:
        raise ValueError("no problem was measured, so there is no lift")
    spread = found.low is not None and found.high is not None
    low, high = (found.low, found.high) if spread else (found.mean, found.mean)
    return {"mean": found.mean, "low": low, "high": high}


def turn_shares(solved: Solved, turns: int) -> dict[str, float]:
    """Share of the rollouts whose first right kernel came in each turn, or `never`."""
    counts = Counter(turn for rollouts in solved for turn in rollouts)
    total = counts.total()
    return {**{str(turn): counts[turn] / total for turn in range(1, turns + 1)}, "never": counts[None] / total}
