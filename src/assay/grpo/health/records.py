"""What a monitor remembers of the rewards since a run began, beyond the window: added to each observation. Pure."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from statistics import fmean, median

from assay.grpo.health.trend import History, Observation
from assay.types import Json

BEST_REWARD, WORST_REWARD = "run/best_reward", "run/worst_reward"
"""The largest and the smallest reward of any rollout so far."""
EXPLORED = "run/explored"
"""Optimizer steps behind the policy, undone ones aside, each counted by its share of groups with rewards that
differ: so much has the policy looked for better answers."""
RESTORED_LEVEL, RESTORED_BEFORE, RESTORED_NOISE = "run/restored_level", "run/restored_before", "run/restored_noise"
"""Mean reward of the first step after a rollback, and of the step in which that policy sampled before: equal but for
noise, unless rewards or tasks have changed; and the standard deviation of such a mean from step to step. Known in that
first step only: later ones follow updates."""
_AROUND = 20
"""Steps up to that in which a restored policy sampled whose rewards say how much such means differ."""
REMEMBERED = 100
"""Steps back to which the rewards of single steps are known."""
FIRST_LEVEL, FIRST_SPREAD = "run/first_level", "run/first_spread"
"""Means over the first steps since the run began, or was last rolled back: of the reward, and of the standard deviation
of a step's rewards."""
ORIGIN_SPREAD = "run/origin_spread"
"""The median of the standard deviations of the rewards of the run's first three steps; rollbacks do not change it.
Unlike the largest and the smallest reward it says how rewards usually differ, also where a rare one is far away."""
_ORIGIN_STEPS = 3
BEST_LEVEL = "run/best_level"
"""The largest mean of the reward over consecutive steps since then."""


def deviation_of_means(series: Sequence[float]) -> float:
    """Standard deviation of a step's mean reward, from the changes between neighbours; 0 for fewer than two.

    The median of |difference of two normal numbers| is 0.954 standard deviations; a drop or a trend hardly adds to it.
    """
    known = [value for value in series if math.isfinite(value)]
    changes = [abs(b - a) for a, b in itertools.pairwise(known)]
    return median(changes) / 0.954 if changes else 0.0


_CONSTANT = "rollout/constant_group_fraction"


class RewardRecords:
    """The records of one run; levels are means over `steps` steps that measured a reward."""

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._extremes: dict[str, float] = {}
        self._explored = 0.0
        self._rewards: list[float] = []
        """Of the last steps, whether or not they were undone; NaN where unknown."""
        self._had_explored: list[float] = []
        """How much the policies of those steps had explored."""
        self._before: tuple[float, float] | None = None
        """Of the restored policy, before: its mean reward, and the noise of such means."""
        self._first: list[float] = []
        self._spreads: list[float] = []
        self._last: list[float] = []
        self._best: float | None = None
        self._origin: float | None = None

    def add(self, observation: Observation) -> dict[str, float]:
        """Take in a step; returns the records as they now are, by name. What is not known yet is absent."""
        for metric, name, extreme in (("reward/max", BEST_REWARD, max), ("reward/min", WORST_REWARD, min)):
            if math.isfinite(value := observation.get(metric, math.nan)):
                self._extremes[name] = extreme(value, self._extremes.get(name, value))
        constant = observation.get(_CONSTANT, 0.0)
        if observation.get("optimizer_steps", 1.0) > 0 and math.isfinite(constant):
            self._explored += 1.0 - constant
        reward = observation.get("reward/mean", math.nan)
        self._rewards = [*self._rewards, reward][-REMEMBERED:]
        self._had_explored = [*self._had_explored, self._explored][-REMEMBERED:]
        if math.isfinite(reward):
            self._add_reward(reward, observation.get("reward/std", 0.0))
        restored: dict[str, float] = {}
        if self._before is not None and len(self._first) == 1 and math.isfinite(reward):
            restored = dict(zip((RESTORED_BEFORE, RESTORED_NOISE), self._before, strict=True))
            restored[RESTORED_LEVEL] = reward
        known = self._extremes | restored | {EXPLORED: self._explored}
        if len(self._first) == self._steps:
            known |= {FIRST_LEVEL: fmean(self._first), FIRST_SPREAD: fmean(self._spreads)}
        if self._origin is not None:
            known[ORIGIN_SPREAD] = self._origin
        return known if self._best is None else known | {BEST_LEVEL: self._best}

    def _add_reward(self, reward: float, spread: float) -> None:
        if len(self._first) < self._steps:
            self._first.append(reward)
            self._spreads.append(spread if math.isfinite(spread) else 0.0)
            if self._origin is None and len(self._spreads) == _ORIGIN_STEPS:
                self._origin = median(self._spreads)
        self._last = [*self._last, reward][-self._steps :]
        if len(self._last) == self._steps:
            level = fmean(self._last)
            self._best = level if self._best is None else max(self._best, level)

    @property
    def best_level(self) -> float | None:
        """The largest mean of the reward since the run began or was rolled back, over fewer steps where there were no
        more; None before the first reward."""
        return fmean(self._last) if self._best is None and self._last else self._best

    def rolled_back(self, undone: int) -> None:
        """Measure the levels afresh: those so far are the discarded policy's. The largest and smallest rewards stay.

        Args:
            undone: steps between the policy that the run went back to and now.
        """
        then = self._rewards[-undone] if 0 < undone <= len(self._rewards) else math.nan
        around = self._rewards[: -undone + 1 or None][-_AROUND:] if undone > 0 else []
        self._before = (then, deviation_of_means(around)) if math.isfinite(then) else None
        self._first, self._spreads, self._last, self._best = [], [], [], None
        self._explored = self._explored_before(undone)

    def _explored_before(self, undone: int) -> float:
        """How much a policy had explored so many steps ago; beyond what is remembered, how much at least."""
        if undone == 0:
            return self._explored
        if not self._had_explored or undone < 0:
            return 0.0
        if undone <= len(self._had_explored):
            return self._had_explored[-undone]
        return max(0.0, self._had_explored[0] - (undone - len(self._had_explored)))

    def begin(self, history: History, steps: int) -> None:
        """Start from the last of a run's steps: all that a checkpoint of an older version holds.

        Args:
            steps: of the whole run, each of which is taken to have explored, as older versions did.
        """
        for step in history:
            self.add(step)
        self._explored = float(steps)

    def state(self) -> dict[str, Json]:
        """Everything remembered, as JSON data."""
        return {
            "extremes": dict(self._extremes),
            "explored": self._explored,
            "rewards": [reward if math.isfinite(reward) else None for reward in self._rewards],
            "had_explored": list(self._had_explored),
            "before": None if self._before is None else list(self._before),
            "first": list(self._first),
            "spreads": list(self._spreads),
            "last": list(self._last),
            "best": self._best,
            "origin": self._origin,
        }

    def load(self, state: Mapping[str, Json], steps: int) -> None:
        """Take over what `state` returned; where a level's `steps` were more then, the surplus is forgotten.

        Args:
            steps: of the whole run, for a state of an older version that does not hold how much it explored.

        Raises:
            KeyError, ValueError, TypeError: not such a state.
        """
        self._extremes = {str(name): float(value) for name, value in state["extremes"].items()}
        self._explored = float(state.get("explored", steps))
        self._rewards = [math.nan if r is None else float(r) for r in state.get("rewards", [])][-REMEMBERED:]
        self._had_explored = [float(value) for value in state.get("had_explored", [])][-REMEMBERED:]
        before = state.get("before")
        # Older versions held the reward alone, which says nothing without its noise.
        self._before = (float(before[0]), float(before[1])) if isinstance(before, list) else None
        self._first = [float(value) for value in state["first"]][: self._steps]
        self._spreads = [float(value) for value in state["spreads"]][: self._steps]
        self._last = [float(value) for value in state["last"]][-self._steps :]
        self._best = None if state["best"] is None else float(state["best"])
        origin = state.get("origin")
        self._origin = None if origin is None else float(origin)
