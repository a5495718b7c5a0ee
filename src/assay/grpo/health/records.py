"""What a monitor remembers of the rewards since a run began, beyond the window: added to each observation. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import fmean

from assay.grpo.health.trend import Observation
from assay.types import Json

BEST_REWARD, WORST_REWARD = "run/best_reward", "run/worst_reward"
"""The largest and the smallest reward of any rollout so far."""
BEST_STOOD = "run/best_reward_stood"
"""Optimizer steps since a rollout earned more than all before, each counted by its share of groups with rewards that
differ: so much has the policy looked for a better answer. A best reward that has stood for long is a ceiling; one after
which answers became alike at once is not."""
RESTORED_LEVEL, RESTORED_BEFORE = "run/restored_level", "run/restored_before"
"""Mean reward of the first step after a rollback, and of the step in which that policy sampled before: equal but for
noise, unless rewards or tasks have changed. Known in that first step only: later ones follow updates."""
REMEMBERED = 100
"""Steps back to which the rewards of single steps are known."""
FIRST_LEVEL, FIRST_SPREAD = "run/first_level", "run/first_spread"
"""Means over the first steps since the run began, or was last rolled back: of the reward, and of the standard deviation
of a step's rewards."""
BEST_LEVEL = "run/best_level"
"""The largest mean of the reward over consecutive steps since then."""


_CONSTANT = "rollout/constant_group_fraction"


class RewardRecords:
    """The records of one run; levels are means over `steps` steps that measured a reward."""

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._extremes: dict[str, float] = {}
        self._stood = 0.0
        self._rewards: list[float] = []
        """Of the last steps, whether or not they were undone; NaN where unknown."""
        self._before: float | None = None
        self._first: list[float] = []
        self._spreads: list[float] = []
        self._last: list[float] = []
        self._best: float | None = None

    def add(self, observation: Observation) -> dict[str, float]:
        """Take in a step; returns the records as they now are, by name. What is not known yet is absent."""
        best = self._extremes.get(BEST_REWARD, -math.inf)
        for metric, name, extreme in (("reward/max", BEST_REWARD, max), ("reward/min", WORST_REWARD, min)):
            if math.isfinite(value := observation.get(metric, math.nan)):
                self._extremes[name] = extreme(value, self._extremes.get(name, value))
        if self._extremes.get(BEST_REWARD, -math.inf) > best:
            self._stood = 0.0
        elif observation.get("optimizer_steps", 1.0) > 0:
            constant = observation.get(_CONSTANT, 0.0)
            self._stood += 1.0 - constant if math.isfinite(constant) else 0.0
        reward = observation.get("reward/mean", math.nan)
        self._rewards = [*self._rewards, reward][-REMEMBERED:]
        if math.isfinite(reward):
            self._add_reward(reward, observation.get("reward/std", 0.0))
        restored: dict[str, float] = {}
        if self._before is not None and len(self._first) == 1 and math.isfinite(reward):
            restored = {RESTORED_LEVEL: reward, RESTORED_BEFORE: self._before}
        known = self._extremes | restored | {BEST_STOOD: self._stood}
        if len(self._first) == self._steps:
            known |= {FIRST_LEVEL: fmean(self._first), FIRST_SPREAD: fmean(self._spreads)}
        return known if self._best is None else known | {BEST_LEVEL: self._best}

    def _add_reward(self, reward: float, spread: float) -> None:
        if len(self._first) < self._steps:
            self._first.append(reward)
            self._spreads.append(spread if math.isfinite(spread) else 0.0)
        self._last = [*self._last, reward][-self._steps :]
        if len(self._last) == self._steps:
            level = fmean(self._last)
            self._best = level if self._best is None else max(self._best, level)

    def rolled_back(self, undone: int) -> None:
        """Measure the levels afresh: those so far are the discarded policy's. The largest and smallest rewards stay.

        Args:
            undone: steps between the policy that the run went back to and now.
        """
        then = self._rewards[-undone] if 0 < undone <= len(self._rewards) else math.nan
        self._before = then if math.isfinite(then) else None
        self._first, self._spreads, self._last, self._best = [], [], [], None
        self._stood = 0.0

    def state(self) -> dict[str, Json]:
        """Everything remembered, as JSON data."""
        return {
            "extremes": dict(self._extremes),
            "stood": self._stood,
            "rewards": [reward if math.isfinite(reward) else None for reward in self._rewards],
            "before": self._before,
            "first": list(self._first),
            "spreads": list(self._spreads),
            "last": list(self._last),
            "best": self._best,
        }

    def load(self, state: Mapping[str, Json]) -> None:
        """Take over what `state` returned; where `steps` was larger then, the surplus is forgotten.

        Raises:
            KeyError, ValueError, TypeError: not such a state.
        """
        self._extremes = {str(name): float(value) for name, value in state["extremes"].items()}
        self._stood = float(state.get("stood", 0.0))
        self._rewards = [math.nan if r is None else float(r) for r in state.get("rewards", [])][-REMEMBERED:]
        self._before = None if state.get("before") is None else float(state["before"])
        self._first = [float(value) for value in state["first"]][: self._steps]
        self._spreads = [float(value) for value in state["spreads"]][: self._steps]
        self._last = [float(value) for value in state["last"]][-self._steps :]
        self._best = None if state["best"] is None else float(state["best"])
