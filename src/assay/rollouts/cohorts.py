"""Which rollouts are sampled in one call: decided by the run alone, never by how long a verdict takes. Pure.

On a backend that is not batch invariant, what is sampled together shows in the last bits of every number, and those can
turn a draw. There, the first turns of all rollouts are one call, and from then on the rollouts, in (group, sample)
order, form fixed cohorts. A cohort's next turn is one call of those of its members that still play, and is due when all
of them have asked, whatever other cohorts do. So the calls of a run are a function of what its envs answered, while
their order in time may vary. On a batch-invariant backend whoever asks is sampled at once.
"""

from __future__ import annotations

import itertools
import math


class Cohorts:
    """The rollouts 0 to `count - 1`: who still plays, who asks for a turn, and whose turns are due."""

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
        """Whether nobody will ask any more."""
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
