"""What a run's reward engine did in each step: the growth of its totals, and its levels, as metrics.

The counters are those of the environment (`EnvData.counters`) and of this process: a resumed run counts from 0 again.
"""

from __future__ import annotations

from collections.abc import Callable

from assay.envs.base import Counters

PREFIX = "reward_engine/"


class StepCounters:
    """Takes the counters of an environment apart into steps."""

    def __init__(self, read: Callable[[], Counters] | None) -> None:
        self._read = read
        self._before: dict[str, float] = {}

    def take(self) -> dict[str, float]:
        """Metrics of the time since the last call, named `reward_engine/...`; none where nothing was done in it."""
        if self._read is None:
            return {}
        now = self._read()
        grown = {name: value - self._before.get(name, 0.0) for name, value in now.totals.items()}
        self._before = dict(now.totals)
        if not any(grown.values()):
            return {}
        return {f"{PREFIX}{name}": value for name, value in {**grown, **now.levels}.items()}
