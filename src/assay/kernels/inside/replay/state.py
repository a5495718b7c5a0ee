"""Memory that outlives a call of forward, and whether the call leaves it as it found it.

What a call reads there before it writes it, an earlier call left. If a call ends with other values, no number of calls
shows what the next ones do: a kernel that counts its calls may stop at any of them. Tickets and locks are given back,
sums are cleared, tables are written once; statistics that no output depends on may run.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from assay.kernels.language.flow.lowering import Touched
from assay.kernels.program.form import Operation, Step, Value, windows_in
from assay.kernels.program.operations import elements_read
from assay.types import Json


@dataclass(frozen=True, slots=True)
class Flow:
    """Storages that a launch or an operation may read and write, in any call: a branch that no call has taken yet may
    be taken by a later one."""

    line: int
    reads: frozenset[int]
    writes: frozenset[int]


def flows(steps: Iterable[Step], touched: Callable[[int], Touched]) -> tuple[Flow, ...]:
    """What each step of forward may do, in each of its configurations. `touched`: by which of its parameters a kernel
    comes to memory."""
    return tuple(flow for step in steps for flow in _flows(step, touched))


def _flows(step: Step, touched: Callable[[int], Touched]) -> Iterator[Flow]:
    if isinstance(step, Operation):
        yield Flow(step.line, _storages(elements_read(step)), _storages(step.outs))
        return
    tuning = () if step.tuning is None else (*step.tuning.before, *step.tuning.after, *step.tuning.reset)
    for operation in (*tuning, *(each for variant in step.variants for each in variant.before)):
        yield from _flows(operation, touched)
    by = touched(step.kernel)
    given = [pair for variant in step.variants for pair in variant.args]
    reads, writes = (_storages(value for name, value in given if name in names) for names in (by.read, by.written))
    yield Flow(step.line, reads, writes)


def _storages(values: Iterable[Value]) -> frozenset[int]:
    return frozenset(window.storage for value in values for window in windows_in(value))


class Row:
    """What the calls of a replay read and changed, each as the others left it."""

    def __init__(self) -> None:
        self.read: dict[int, torch.Tensor] = {}
        """Whether any call read an element before it wrote it."""
        self.changed: dict[int, torch.Tensor] = {}
        """Whether any call left it otherwise than the one before it."""

    def take(self, state: State, *, follows: bool, made_anew: Collection[int] = ()) -> None:
        """Take a call into the account. `follows`: it found what another one left; the first one may write what later
        ones keep. `made_anew`: storages of what it makes of weights that have changed."""
        for place, read in state.read.items():
            self.read[place] = self.read[place] | read if place in self.read else read.clone()
            changed = state.changed(place) if follows and place not in made_anew else torch.zeros_like(read)
            self.changed[place] = self.changed[place] | changed if place in self.changed else changed

    def left(self, results: Collection[int], steps: Sequence[Flow]) -> list[Json]:
        """Of each storage that one call reads, another changes, and that may decide a result: how many elements, and
        which line writes them. A call may read what it does not change itself, and hand it on by turns.

        Args:
            results: Storages of outputs, and of inputs, which may be changed in place.
            steps: What those of forward may do.
        """
        found: list[Json] = []
        for place, read in self.read.items():
            elements = int((self.changed[place] & read).sum())
            if elements and not _reach(place, steps).isdisjoint(results):
                line = next((step.line for step in steps if place in step.writes), 0)
                found.append({"elements": elements, "line": line})
        return found


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

    def _flags(self, place: int) -> torch.Tensor:
        return torch.zeros(-(-len(self._raw[place]) // self._granularity[place]), dtype=torch.bool)

    def touched(self, storage: int, slots: Any, reads: bool, writes: bool) -> None:
        """Take an access of a kernel into the account, before it is made."""
        if storage not in self._before:
            return
        read, written = self.read[storage].numpy(), self.written[storage].numpy()
        if reads:
            read[slots] |= ~written[slots]
        if writes:
            written[slots] = True

    def changed(self, place: int) -> torch.Tensor:
        """Which elements hold other bytes than before."""
        before, grain = self._before[place], self._granularity[place]
        differ = torch.zeros(len(self.read[place]) * grain, dtype=torch.bool)
        differ[: len(before)] = self._raw[place] != before
        return differ.view(-1, grain).any(dim=1)


def _reach(place: int, steps: Sequence[Flow]) -> set[int]:
    """Storages that may hold other values where this one does, in this call or a later one."""
    found, before = {place}, 0
    while len(found) > before:
        before = len(found)
        for step in steps:
            if step.reads & found:
                found |= step.writes
    return found
