"""Which turns of a run would have trained the other way under other rewards. Pure.

Both sides are computed alike, from the rewards of before and of now, with the run's own advantages: centred on the
group, discounted and scaled as its settings say, without KL penalties.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from assay.grpo.advantages import group_advantages
from assay.grpo.config import GRPOConfig
from assay.training.run.rollouts import Group, Rollout
from assay.types import Completion, Json, Score, Task, Trajectory, TrajectoryGroup, Transition

LARGEST = 10
"""Changes of sign that are listed with their places."""
_TASK = Task("", "", ())
Scores = Mapping[int, Sequence[Score]]
"""Sample -> the new score of each of its turns; fewer than before where the environment ends a rollout earlier now."""


@dataclass(frozen=True, slots=True)
class Change:
    """The advantage of one turn before and now; None for a group that teaches nothing, or a turn without a score."""

    rollout: Rollout
    turn: int
    before: float | None
    after: float | None

    @property
    def flips(self) -> bool:
        """Whether the turn was made likelier before and would be made less likely now, or the other way round."""
        return (self.before or 0.0) * (self.after or 0.0) < 0

    @property
    def size(self) -> float:
        """How far apart the two are."""
        return abs((self.after or 0.0) - (self.before or 0.0))

    def to_json(self) -> dict[str, Json]:
        """The change with its place."""
        r = self.rollout
        place = {"step": r.step, "group": r.group, "sample": r.sample, "turn": self.turn, "task": r.task}
        return {**place, "before": self.before, "after": self.after}


@dataclass
class SignChanges:
    """Counts over the training groups of a run, and the largest changes of sign."""

    turns: int = 0
    """Turns of training groups that were judged again."""
    changed_sign: int = 0
    lost: int = 0
    """Turns that trained before and would train nothing now: their group's rewards no longer differ."""
    gained: int = 0
    """Turns that trained nothing before and would now."""
    largest: list[Change] = field(default_factory=list)

    def add(self, changes: Sequence[Change]) -> None:
        """Count the turns of a group."""
        self.turns += len(changes)
        self.lost += sum(bool(change.before) and not change.after for change in changes)
        self.gained += sum(bool(change.after) and not change.before for change in changes)
        flipped = [change for change in changes if change.flips]
        self.changed_sign += len(flipped)
        self.largest = heapq.nlargest(LARGEST, [*self.largest, *flipped], key=lambda change: change.size)

    def to_json(self) -> dict[str, Json]:
        """As JSON data."""
        counts = {name: getattr(self, name) for name in ("turns", "changed_sign", "lost", "gained")}
        return {**counts, "largest": [change.to_json() for change in self.largest]}


def advantage_changes(group: Group, scores: Scores, config: GRPOConfig) -> list[Change]:
    """The advantages of a group's turns before and now; turns that are not played any more are left out."""
    old = {r.sample: [] if r.errored else [t.verdict.value for t in r.turns] for r in group.rollouts}
    new = {r.sample: [score.value for score in scores.get(r.sample, ())] for r in group.rollouts}
    before, after = (_advantages(group, values, config) for values in (old, new))
    return [
        Change(rollout, turn, before.get((rollout.sample, turn)), after.get((rollout.sample, turn)))
        for rollout in group.rollouts
        for turn in range(len(new[rollout.sample]))
    ]


def _advantages(
    group: Group, values: Mapping[int, Sequence[float | None]], config: GRPOConfig
) -> dict[tuple[int, int], float]:
    """Advantage of each (sample, turn); nothing for a group that teaches nothing."""
    recipe = config.recipe
    made = TrajectoryGroup(_TASK, tuple(_trajectory(values[r.sample]) for r in group.rollouts))
    found = group_advantages(made, gamma=config.gamma, normalize_by_std=recipe.by_std, baseline=recipe.baseline)
    rows: Iterator[tuple[Rollout, list[float]]] = zip(group.rollouts, found or (), strict=False)
    return {(rollout.sample, turn): value for rollout, turns in rows for turn, value in enumerate(turns)}


def _trajectory(values: Sequence[float | None]) -> Trajectory:
    """A rollout with these rewards and nothing else: all that an advantage depends on."""
    scores = [Score("errored", None) if value is None else Score("scored", value) for value in values]
    turns = tuple(Transition((), Completion((), (), "stop", 0), "", score) for score in scores)
    return Trajectory(_TASK, turns, "done" if values else "errored", 0)
