"""Rollouts that are trained on more than once.

A group enters with everything that is computed once: advantages, behaviour and reference log-probabilities, and the
version of the policy that sampled it. It is removed after exactly `epochs` uses, when it has become too stale, or when
the buffer is full, oldest first. Its data are freed at once, so memory is bounded by the data of `capacity` groups.
Groups that only count in the divisor, without data, take no place, so that they cannot displace what is trained on.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np

from assay.errors import CheckpointError
from assay.types import Datum

VERSION = 2
"""1 had no `counted`."""
_STREAMS = tuple(field.name for field in fields(Datum))


@dataclass(frozen=True, slots=True)
class BufferedGroup:
    """The training data of one group of rollouts, before any normaliser."""

    data: tuple[Datum, ...]
    policy_version: int
    """Optimizer steps that the policy had taken when it sampled the group."""
    rollouts: int
    """Rollouts behind the data."""
    id: int = -1
    """Order of arrival, given by the buffer; before that, the group's place in its batch."""
    uses: int = 0
    """Times it was trained on."""
    counted: tuple[int, ...] = ()
    """Trained tokens of each sequence that the divisor counts without computing it, since rewards are equal."""


class RolloutBuffer:
    """Groups of rollouts with epochs left; the module says when one is removed."""

    def __init__(
        self,
        capacity: int = 1000,
        epochs: int = 2,
        max_staleness: int | None = None,
        min_fresh_fraction: float = 0.25,
    ) -> None:
        """An empty buffer.

        Args:
            capacity: most groups with data held.
            epochs: uses after which a group is removed.
            max_staleness: most optimizer steps between sampling and use; None sets no bound.
            min_fresh_fraction: `wants_rollouts` below this share of fresh groups.
        """
        if capacity < 1 or epochs < 1:
            raise ValueError(f"capacity={capacity} and epochs={epochs} must be at least 1")
        self.capacity = capacity
        self.epochs = epochs
        self.max_staleness = max_staleness
        self.min_fresh_fraction = min_fresh_fraction
        self.added = self.reused = self.stale = self.evicted = 0
        """Groups since the beginning: added; uses beyond the first; removed as stale; evicted with epochs left."""
        self._groups: list[BufferedGroup] = []
        self._spent = 0

    def __len__(self) -> int:
        return len(self._groups)

    @property
    def fresh(self) -> Sequence[BufferedGroup]:
        """The groups with epochs left, in order of arrival."""
        return tuple(self._groups)

    @property
    def fresh_fraction(self) -> float:
        """Share of the groups held since rollouts were last added that have epochs left; 0 when there are none."""
        stored = len(self._groups) + self._spent
        return len(self._groups) / stored if stored else 0.0

    def wants_rollouts(self) -> bool:
        """Whether too few groups have epochs left."""
        return not self._groups or self.fresh_fraction < self.min_fresh_fraction

    def add(self, groups: Sequence[BufferedGroup]) -> None:
        """Add groups; where they do not fit, the groups of the oldest policies are removed first.

        Groups without data go with those that they came before.
        """
        numbered = [replace(group, id=self.added + place, uses=0) for place, group in enumerate(groups)]
        self.added += len(numbered)
        ordered = sorted([*self._groups, *numbered], key=lambda g: (g.policy_version, g.id))
        filled = [place for place, group in enumerate(ordered) if group.data]
        surplus = filled[-self.capacity] if len(filled) > self.capacity else 0
        self.evicted += surplus
        self._groups = sorted(ordered[surplus:], key=lambda g: g.id)
        self._spent = 0

    def retire_stale(self, policy_version: int) -> None:
        """Drop the groups that are further behind the policy than `max_staleness`."""
        if self.max_staleness is None:
            return
        kept = [g for g in self._groups if policy_version - g.policy_version <= self.max_staleness]
        self.stale += len(self._groups) - len(kept)
        self._spent += len(self._groups) - len(kept)
        self._groups = kept

    def use(self, groups: Sequence[BufferedGroup]) -> None:
        """Count one use of each of these groups; those that were used `epochs` times are removed."""
        used = {group.id for group in groups}
        self.reused += sum(1 for g in self._groups if g.id in used and g.uses)
        counted = [replace(g, uses=g.uses + 1) if g.id in used else g for g in self._groups]
        self._groups = [g for g in counted if g.uses < self.epochs]
        self._spent += len(counted) - len(self._groups)

    def replace_data(self, change: Callable[[BufferedGroup], tuple[Datum, ...]]) -> None:
        """Give every group new data (with new reference log-probabilities, say)."""
        self._groups = [replace(group, data=change(group)) for group in self._groups]

    def drop(self, groups: Sequence[BufferedGroup]) -> None:
        """Drop these groups; they count as neither stale nor evicted."""
        refused = {group.id for group in groups}
        self._groups = [group for group in self._groups if group.id not in refused]

    def clear(self) -> None:
        """Drop every group; they count as neither stale nor evicted."""
        self._groups, self._spent = [], 0

    def save(self, path: Path) -> None:
        """Write the whole state to the file `path` (a zip of arrays)."""
        arrays: dict[str, np.ndarray] = {}
        for g, group in enumerate(self._groups):
            for d, datum in enumerate(group.data):
                streams = {name: getattr(datum, name) for name in _STREAMS}
                arrays |= {f"{g}.{d}.{name}": s for name, s in streams.items() if s is not None}
        header = {
            "version": VERSION,
            "counters": [self.added, self.reused, self.stale, self.evicted, self._spent],
            "groups": [
                [g.policy_version, g.rollouts, g.id, g.uses, len(g.data), list(g.counted)] for g in self._groups
            ],
        }
        with open(path, "wb") as file:
            np.savez(file, header=np.array(json.dumps(header)), **arrays)  # type: ignore[arg-type]

    def load(self, path: Path) -> None:
        """Take over the state that `save` wrote.

        Raises:
            CheckpointError: the file is damaged or of a newer format.
        """
        try:
            with np.load(path) as arrays:
                header = json.loads(str(arrays["header"]))
                if header["version"] > VERSION:
                    raise CheckpointError(f"{path} has format version {header['version']}; this Assay reads {VERSION}.")
                groups = [
                    BufferedGroup(
                        tuple(_datum(arrays, f"{g}.{d}") for d in range(count)),
                        *(version, rollouts, number, uses),
                        counted=tuple(counted[0] if counted else ()),
                    )
                    for g, (version, rollouts, number, uses, count, *counted) in enumerate(header["groups"])
                ]
                counters = [int(c) for c in header["counters"]]
        except (OSError, EOFError, zipfile.BadZipFile, ValueError, KeyError, TypeError) as error:
            if isinstance(error, CheckpointError):
                raise
            raise CheckpointError(
                f"{path} cannot be read as a rollout buffer ({error}), so the rollouts that have passes left are lost. "
                "Use another checkpoint."
            ) from error
        self._groups = groups
        self.added, self.reused, self.stale, self.evicted, self._spent = counters


def _datum(arrays: np.lib.npyio.NpzFile, prefix: str) -> Datum:
    streams = {name: arrays[key] for name in _STREAMS if (key := f"{prefix}.{name}") in arrays.files}
    return Datum(**streams)
