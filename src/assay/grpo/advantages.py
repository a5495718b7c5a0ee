"""From a group's rewards to advantages: pure functions, no tokens.

A rollout that could not be scored is excluded from the baseline and gets no advantage. Multi-turn rollouts earn
discounted returns per turn. The baseline of a return is one of these; with one turn each, the last two are equal:

    mean            the mean over all turns of the group (Baronio et al., 2025, "Kevin")
    leave_one_out   the mean over all turns of the other rollouts (arXiv 2402.14740)
    turn            the mean over the other rollouts at the same turn (TRLOO of Dr.Kernel); 0 advantage for a turn that
                    no other rollout reached

The deviation is the population's, without an epsilon: constant groups are found beforehand. It is that of the group's
returns, and for `turn` that of the returns around the mean of their turn.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence

from assay.grpo.recipes import Baseline
from assay.types import Trajectory, TrajectoryGroup

ROUNDING = 32 * sys.float_info.epsilon
"""Of the largest reward: what float64 rewards may differ by and count as equal."""


def turn_returns(trajectory: Trajectory, gamma: float) -> list[float]:
    """Discounted return of each turn: R_t = r_t + gamma * R_{t+1}. The trajectory must not be errored."""
    returns: list[float] = []
    following = 0.0
    for transition in reversed(trajectory.transitions):
        value = transition.score.value
        assert value is not None, "errored trajectories have no returns"
        following = value + gamma * following
        returns.append(following)
    return returns[::-1]


def group_advantages(
    group: TrajectoryGroup, *, gamma: float, normalize_by_std: bool, baseline: Baseline = "mean"
) -> list[list[float]] | None:
    """Advantages of each turn of each trajectory, centred on the group.

    Args:
        gamma: discount between turns.
        normalize_by_std: divide by the standard deviation.
        baseline: what a return is compared with.

    Returns:
        One list per trajectory (empty for errored ones), or None when the group's rewards are constant or its returns
        are all equal (for `turn`: at every turn).
    """
    if has_constant_rewards(group):
        return None
    returns = [[] if t.errored else turn_returns(t, gamma) for t in group.trajectories]
    if baseline == "turn":
        return _centred_by_turn(returns, normalize_by_std)
    flat = [r for turns in returns for r in turns]
    if is_constant(flat):
        return None
    total = math.fsum(flat)
    mean = total / len(flat)
    spread = _deviation([r - mean for r in flat], len(flat)) if normalize_by_std else 1.0
    if baseline == "mean":
        return [[(r - mean) / spread for r in turns] for turns in returns]
    others = [(total - math.fsum(turns)) / (len(flat) - len(turns)) for turns in returns]
    return [[(r - other) / spread for r in turns] for turns, other in zip(returns, others, strict=True)]


def _centred_by_turn(returns: Sequence[Sequence[float]], normalize_by_std: bool) -> list[list[float]] | None:
    """Each return minus the mean of the others at its turn; None where no turn tells two rollouts apart."""
    columns = [[turns[t] for turns in returns if t < len(turns)] for t in range(max(map(len, returns)))]
    told = [len(column) > 1 and not is_constant(column) for column in columns]
    if not any(told):
        return None
    totals = [math.fsum(column) for column in columns]
    spread = 1.0
    if normalize_by_std:
        shared = [
            (column, total / len(column)) for column, total in zip(columns, totals, strict=True) if len(column) > 1
        ]
        gaps = [r - mean for column, mean in shared for r in column]
        spread = _deviation(gaps, len(gaps))
    return [
        [(r - (totals[t] - r) / (len(columns[t]) - 1)) / spread if told[t] else 0.0 for t, r in enumerate(turns)]
        for turns in returns
    ]


def lone_turns(group: TrajectoryGroup) -> tuple[int, int]:
    """Turns of scored rollouts that no other scored rollout of the group reached, and all turns of scored rollouts."""
    lengths = sorted((len(t.transitions) for t in group.trajectories if not t.errored), reverse=True)
    longest, second = [*lengths, 0, 0][:2]
    return longest - second, sum(lengths)


def has_constant_rewards(group: TrajectoryGroup) -> bool:
    """Whether a group's rewards do not show which of its answers was better; errored rollouts are ignored.

    This is so when all rewards of all turns are equal, and when all rollouts earned the same turn by turn: then only
    the discount makes returns differ between turns.
    """
    rewards = [
        [turn.score.value for turn in trajectory.transitions if turn.score.value is not None]
        for trajectory in group.trajectories
        if not trajectory.errored and trajectory.transitions
    ]
    if len(rewards) < 2 or is_constant([r for turns in rewards for r in turns]):
        return True
    same_length = len({len(turns) for turns in rewards}) == 1
    return same_length and all(is_constant(column) for column in zip(*rewards, strict=True))


def is_constant(rewards: Sequence[float]) -> bool:
    """Whether all rewards are equal but for the rounding of float64 sums, which must not become advantages.

    Sums of the same 33 parts of one sign, in two orders, differ by at most 32 machine epsilons of the sum. The bound is
    relative, so neither a small scale nor an offset makes rewards equal that differ.
    """
    return max(rewards) - min(rewards) <= ROUNDING * max(abs(r) for r in rewards)


def _deviation(gaps: Sequence[float], count: int) -> float:
    """The root of the sum of squares over `count`, for gaps of any size of which one at least is not 0.

    From gaps so small that their squares would vanish, a power of two is taken out first.
    """
    most = max(map(abs, gaps))
    scale = 1.0 if most > 1e-100 else 2.0 ** math.frexp(most)[1]
    return scale * math.sqrt(math.fsum((gap / scale) ** 2 for gap in gaps) / count)
