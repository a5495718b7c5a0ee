"""Memory that outlives a call of forward, and whether the call leaves it as it found it.

What a call reads there before it writes it, an earlier call left. If it ends with other values, no number of calls
shows what the next ones do: a kernel that counts its calls may stop at any of them. Tickets and locks are given back,
sums are cleared, tables are written once; statistics that no output depends on may run.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from assay.types import Json

if TYPE_CHECKING:
    from assay.kernels.inside.replay.memory import Memory


@dataclass(slots=True)
class Step:
    """Storages that a launch or an operation read and wrote."""

    line: int
    reads: set[int] = field(default_factory=set)
    writes: set[int] = field(default_factory=set)


class State:
    """What one call does to it."""

    def __init__(self, memory: Memory, storages: Iterable[int]) -> None:
        """`storages`: those whose content is an earlier call's."""
        self._memory = memory
        self._before = {place: memory.raw[place].clone() for place in storages}
        self.written = {place: torch.zeros_like(memory.made[place]) for place in self._before}
        """Whether this call wrote each element of a storage."""
        self.read = {place: torch.zeros_like(memory.made[place]) for place in self._before}
        """Whether it read it before."""
        self._steps: list[Step] = []

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
        grain, flags = self._memory.granularity[place], self.read[place]
        differ = torch.zeros(len(flags) * grain, dtype=torch.bool)
        differ[: len(before)] = self._memory.raw[place] != before
        return differ.view(-1, grain).any(dim=1)

    def _reach(self, place: int) -> set[int]:
        """Storages that may hold other values where this one does, in this call or the next."""
        found = {place}
        for step in (*self._steps, *self._steps):
            if step.reads & found:
                found |= step.writes
        return found
