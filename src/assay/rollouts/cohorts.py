"""Which rollouts are sampled in one call: decided by the run alone, never by how long a verdict takes. Pure.

On a backend that is not batch invariant, what is sampled together changes the last bits of every number, which can
change a draw. There, the first turns of all rollouts are one call, and from then on the rollouts, in (group, sample)
order, form fixed cohorts. A cohort's next turn is one call with the members that still play, and is due when all of
them have asked, whatever other cohorts do. So the calls of a run depend only on its envs' answers, while their order in
time may vary. On a batch-invariant backend every rollout is sampled as soon as it asks.
"""

from __future__ import annotations

import itertools
import math


class Cohorts:
    """The rollouts 0 to `count - 1`: which still play, which ask for a turn, and which turns are due."""

    def __init__(self, count: int, size: int | None) -> None:
        """Cohorts of at most `size` rollouts, cut evenly; None stands for a batch-invariant backend."""
        self._playing = set(range(count))
        self._asking: set[int] = set()
        self._free = size is None
        self._begun = False
        parts = math.ceil(count / max(1, size or count))
        bounds = [round(part * count / parts) for part in range(parts + 1)] if parts else []
        self._cohorts = [set(range(a, b)) for a, b in itertools.pairwise(bounds)]

    @property
    def over(self) -> bool:
        """Whether no rollout will ask again."""
        return not self._playing

    def ask(self, rollout: int) -> None:
        """A rollout wants its next turn."""
        self._asking.add(rollout)

    def leave(self, rollout: int) -> None:
        """A rollout wants no further turn; safe to call twice."""
        self._playing.discard(rollout)
        self._asking.discard(rollout)

    def due(self) -> list[list[int]]:
        """The calls that are due, each as rollouts in order; they count as handed over."""
        if self._free:
            calls = [self._asking]
        elif not self._begun:
            calls = [self._asking] if self._asking == self._playing else []
            self._begun = bool(calls)
        else:
            calls = [still for cohort in self._cohorts if (still := cohort & self._playing) <= self._asking]
        self._asking = self._asking.difference(*calls)
        return [sorted(call) for call in calls if call]
