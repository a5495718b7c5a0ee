"""Follows every access of the kernels: who wrote an element, and where programs of one launch meet.

Two programs of a launch race at an element if one of them writes it plainly and the other touches it in any way: a GPU
runs them in no order. Atomic operations race with plain accesses of others only.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from assay.kernels.inside.replay.memory import Memory

MAX_RACES = 16
_MANY = -1


class Accesses:
    """An observer of the interpreter. One for each call of forward."""

    def __init__(self, memory: Memory) -> None:
        order = sorted(range(len(memory.raw)), key=lambda place: memory.raw[place].data_ptr())
        order = [place for place in order if memory.raw[place].numel()]
        self._order = order
        self._starts = np.array([memory.raw[place].data_ptr() for place in order], dtype=np.uint64)
        self._memory = memory
        self._made = {place: memory.made[place].numpy() for place in order}
        self._seen: dict[int, tuple[Any, Any, Any]] = {}
        self._program = 0
        self._launch = ""
        self.races: list[dict[str, int | str]] = []
        """Of each launch and storage in which programs raced, once: how many elements."""

    def launch(self, name: str) -> None:
        """A launch begins: what the last one touched races with nothing any more."""
        self._launch = name
        self._seen = {}

    def begin(self, program: int) -> None:
        """A program begins."""
        self._program = program + 1

    def touched(self, pointers: Any, mask: Any, size: int, what: str) -> None:
        """Take one access into the account."""
        at = pointers[np.broadcast_to(mask, pointers.shape)] if mask is not None else pointers.ravel()
        if not at.size:
            return
        places = np.searchsorted(self._starts, at, side="right") - 1
        first = int(places[0])
        if bool((places == first).all()):
            self._within(first, at, size, what)
        else:
            for place in np.unique(places):
                self._within(int(place), at[places == place], size, what)

    def _within(self, index: int, at: Any, size: int, what: str) -> None:
        storage = self._order[index]
        grain = self._memory.granularity[storage]
        slots = ((at - self._starts[index]) // np.uint64(grain)).astype(np.int64)
        parts = max(1, size // grain)
        if parts > 1:
            slots = (slots[:, None] + np.arange(parts)).ravel()
        slots = slots[slots < len(self._made[storage])]
        if what != "load":
            self._made[storage][slots] = True
        self._follow(storage, slots, what)

    def _follow(self, storage: int, slots: Any, what: str) -> None:
        if storage not in self._seen:
            written, read, updated = (np.zeros(len(self._made[storage]), dtype=np.int32) for _ in range(3))
            self._seen[storage] = written, read, updated
        written, read, updated = self._seen[storage]
        me = self._program
        if what == "load":
            racing = _others(written[slots], me)
            mine = read
        elif what == "store":
            racing = _others(written[slots], me) | _others(read[slots], me) | _others(updated[slots], me)
            mine = written
        else:
            racing = _others(written[slots], me) | _others(read[slots], me)
            mine = updated
        before = mine[slots]
        mine[slots] = np.where((before == 0) | (before == me), me, _MANY)
        if racing.any():
            self._note(storage, int(np.count_nonzero(racing)), what)

    def _note(self, storage: int, elements: int, what: str) -> None:
        for race in self.races:
            if race["kernel"] == self._launch and race["storage"] == storage:
                race["elements"] = int(race["elements"]) + elements
                return
        if len(self.races) < MAX_RACES:
            self.races.append({"kernel": self._launch, "storage": storage, "elements": elements, "access": what})


def _others(touched: Any, me: int) -> Any:
    """Where another program has been."""
    return (touched != 0) & (touched != me)
