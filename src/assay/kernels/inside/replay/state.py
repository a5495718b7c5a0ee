"""Memory that outlives a call of forward, and whether the call leaves it as it found it.

What a call reads there before it writes it, an earlier call left. If it ends with other values, no number of calls
shows what the next ones do: a kernel that counts its calls may stop at any of them. Tickets and locks are given back,
sums are cleared, tables are written once; statistics that no output depends on may run.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from assay.types import Json


@dataclass(slots=True)
class Step:
    """Storages that a launch or an operation read and wrote."""

    line: int
    reads: set[int] = field(default_factory=set)
    writes: set[int] = field(default_factory=set)


class State:
    """What one call does to it."""

    def __init__(self, raw: Sequence[torch.Tensor], granularity: Sequence[int], storages: Iterable[int]) -> None:
        """`raw`: the bytes of all storages; `granularity`: bytes of an element of each; `storages`: those whose content
        is an earlier call's."""
        self._raw, self._granularity = raw, granularity
        self._before = {place: raw[place].clone() for place in storages}
        self.written = {place: self._flags(place) for place in self._before}
        """Whether this call wrote each element of a storage."""
        self.read = {place: self._flags(place) for place in self._before}
        """Whether it read it before."""
        self._steps: list[Step] = []

    def _flags(self, place: int) -> torch.Tensor:
        return torch.zeros(-(-len(self._raw[place]) // self._granularity[place]), dtype=torch.bool)

    def step(self, line: int) -> Step:
        """The next launch or operation."""
        self._steps.append(Step(line))
        return self._steps[-1]

    def touched(self, storage: int, slots: Any, reads: bool, writes: bool) -> None:
        """Take an access of a kernel into the account, before it is made."""
        if storage not in self._before:
            return
        read, written = self.read[storage].numpy(), self.written[storage].numpy()
        if reads:
            read[slots] |= ~written[slots]
        if writes:
            written[slots] = True

    def left(self, outputs: Collection[int]) -> list[Json]:
        """Of each storage that is left otherwise and may decide an output: how many elements, and which line writes
        them. `outputs`: storages that hold some."""
        found: list[Json] = []
        for place, before in self._before.items():
            changed = int((self._changed(place, before) & self.read[place]).sum())
            if changed and self._reach(place) & set(outputs):
                line = next((step.line for step in self._steps if place in step.writes), 0)
                found.append({"elements": changed, "line": line})
        return found

    def _changed(self, place: int, before: torch.Tensor) -> torch.Tensor:
        """Which elements hold other bytes than before."""
        grain = self._granularity[place]
        differ = torch.zeros(len(self.read[place]) * grain, dtype=torch.bool)
        differ[: len(before)] = self._raw[place] != before
        return differ.view(-1, grain).any(dim=1)

    def _reach(self, place: int) -> set[int]:
        """Storages that may hold other values where this one does, in this call or the next."""
        found = {place}
        for step in (*self._steps, *self._steps):
            if step.reads & found:
                found |= step.writes
        return found
