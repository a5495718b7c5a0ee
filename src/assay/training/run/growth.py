"""A run whose `max_batches` changed: whether it may go on, and from which of its checkpoints. Only decides.

A run of N batches and one of M > N are equal in their first N steps, if no schedule depends on the number. What
differs is the end: the shorter run evaluates and saves after its last batch, and with `max_steps_off_policy=k` its last
k checkpoints lack batches that the longer run would by then have sampled from policies that are gone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from assay.training.run.ledger import Commit
from assay.types import Json

MAX_BATCHES = "max_batches"


@dataclass(frozen=True, slots=True)
class Length:
    """The number of RL batches that a run had and has now; None means the whole data set."""

    before: int | None
    now: int | None
    ahead: int = 0
    """Steps that batches are sampled ahead (`max_steps_off_policy`)."""

    def serves(self, commit: Commit) -> bool:
        """Whether a run of the present length comes through the state after a commit, and has a step to do from it."""
        if commit.batch == 0:
            return True  # nothing is sampled ahead before the first RL step
        grows = self.before is not None and (self.now is None or self.now > self.before)
        complete = not grows or self.before is None or commit.batch + self.ahead <= self.before
        return complete and (self.now is None or commit.batch < self.now)

    def adds_nothing(self, done: int) -> bool:
        """Whether a run that ended after `done` batches cannot have more, because its data set is used up."""
        ended_early = self.before is None or done < self.before
        return ended_early and (self.now is None or done <= self.now)

    def __str__(self) -> str:
        """`max_batches: 6 -> 12`."""
        old, new = ("null" if n is None else n for n in (self.before, self.now))
        return f"{MAX_BATCHES}: {old} -> {new}"


def is_free(config: Mapping[str, Json]) -> bool:
    """Whether no schedule of a run with this resolved config depends on how many batches it has."""
    return schedule(config) == "constant"


def schedule(config: Mapping[str, Json]) -> str:
    """The run's `optimizer.lr_schedule`."""
    return str((config.get("optimizer") or {}).get("lr_schedule", "constant"))


def length_change(before: Mapping[str, Json], now: Mapping[str, Json]) -> Length | None:
    """How the number of batches differs between two resolved configs; None where it does not."""
    if before.get(MAX_BATCHES) == now.get(MAX_BATCHES):
        return None
    return Length(before.get(MAX_BATCHES), now.get(MAX_BATCHES), int(now.get("max_steps_off_policy") or 0))
