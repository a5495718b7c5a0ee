"""Follows every access of the kernels: who wrote an element, and where programs of one launch meet.

Two programs of a launch race at an element if one of them writes it plainly and the other touches it in any way: a GPU
runs them in no order. Atomic operations race with plain accesses of others only.

A race is `lost` if one program writes other bytes than are there, the other reads or writes plainly, and no atomic
operation orders them (`ordering`). That is what a lock, or a ticket for the last program, does.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from assay.kernels.inside.replay.memory import Memory
from assay.kernels.inside.replay.ordering import Ordering
from assay.kernels.inside.triton.bounds import spread
from assay.kernels.inside.triton.ledger import WrongValueError, refuse
from assay.types import Json

MAX_RACES = 8
"""Races that are told, and as many that are lost."""


class Accesses:
    """An observer of the interpreter. One for each call of forward."""

    def __init__(self, memory: Memory) -> None:
        order = sorted(range(len(memory.raw)), key=lambda place: memory.raw[place].data_ptr())
        order = [place for place in order if memory.raw[place].numel()]
        self._order = order
        self._starts = np.array([memory.raw[place].data_ptr() for place in order], dtype=np.uint64)
        self._memory = memory
        self._made = {place: memory.made[place].numpy() for place in order}
        self._known = {place: memory.known[place].numpy() for place in order}
        self._seen: dict[int, _Seen] = {}
        self._launch = ("", 0)
        self._ordering = Ordering(0)
        self._races: dict[tuple[str, int, int, bool], list[int]] = {}

    def launch(self, name: str, line: int, programs: int) -> None:
        """A launch begins: what the last one touched races with nothing any more."""
        self._launch = name, line
        self._seen = {}
        self._ordering = Ordering(programs)

    def begin(self, program: int) -> None:
        """A program begins."""
        self._ordering.begin(program)

    def touched(self, pointers: Any, mask: Any, size: int, what: str, values: Any) -> None:
        """Take one access into the account, before it is made."""
        if mask is not None:
            mask = spread(mask, pointers.shape)
            at = pointers[mask]
        else:
            at = pointers.ravel()
        if not at.size:
            return
        if values is not None:
            values = spread(values, pointers.shape)
            values = values[mask] if mask is not None else values.ravel()
        places = np.searchsorted(self._starts, at, side="right") - 1
        first = int(places[0])
        if bool((places == first).all()):
            self._within(first, at, size, what, values)
        else:
            for place in np.unique(places):
                here = places == place
                self._within(int(place), at[here], size, what, values[here] if values is not None else None)
        self._ordering.touched(at, what)

    def _within(self, index: int, at: Any, size: int, what: str, values: Any) -> None:
        storage = self._order[index]
        grain = self._memory.granularity[storage]
        offsets = (at - self._starts[index]).astype(np.int64)
        slots = offsets // grain
        parts = max(1, size // grain)
        if parts > 1:
            slots = (slots[:, None] + np.arange(parts)).ravel()
        inside = slots < len(self._made[storage])
        if not inside.all():
            slots = slots[inside]
        known = self._known[storage]
        if what != "store" and not (written := known[slots]).all():
            name, count = self._launch[0], len(slots) - int(np.count_nonzero(written))
            refuse(
                WrongValueError(
                    f"{name}() reads memory that nothing wrote ({count} of {len(slots)} elements of one access): write "
                    "it first, make it with torch.zeros, or mask the access"
                )
            )
        if what != "load":
            self._made[storage][slots] = True
            known[slots] = True
        if storage not in self._seen:
            self._seen[storage] = _Seen(len(self._made[storage]))
        meets, races = self._seen[storage].take(slots, what, self._ordering)
        if races is not None and what == "store":
            changed = np.repeat(self._changed(storage, offsets, size, values), parts)
            races = races & (changed if inside.all() else changed[inside])
        self._note(storage, meets, races)

    def _changed(self, storage: int, offsets: Any, size: int, values: Any) -> Any:
        """Which of some elements get other bytes than they hold."""
        held = self._memory.raw[storage].numpy()
        before = held[np.minimum(offsets[:, None] + np.arange(size), len(held) - 1)]
        after = np.ascontiguousarray(values).view(np.uint8).reshape(len(offsets), size)
        return (before != after).any(axis=1)

    def _note(self, storage: int, meets: Any, races: Any) -> None:
        elements = int(np.count_nonzero(meets)) if meets is not None else 0
        if not elements:
            return
        lost = int(np.count_nonzero(races)) if races is not None else 0
        key = (*self._launch, storage, lost > 0)
        if key not in self._races:
            if sum(other[-1] == key[-1] for other in self._races) >= MAX_RACES:
                return
            self._races[key] = [0, 0]
        self._races[key][0] += elements
        self._races[key][1] += lost

    def told(self) -> list[Json]:
        """Of each launch and storage at which programs raced: how often, and how often that is `lost`; those first."""
        found = sorted(self._races.items(), key=lambda race: not race[0][-1])
        return [
            {"kernel": name, "line": line, "storage": storage, "elements": elements, "lost": lost}
            for (name, line, storage, _), (elements, lost) in found
        ]


_MEETING = {"load": ("store",), "store": ("store", "load", "load before", "atomic operation")}
_MEETING_AN_ATOMIC_ONE = ("store", "load", "load before")


class _Seen:
    """Who touched the elements of a storage in a launch last, and how, as stamps of `Ordering`; 0 for no one."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._last: dict[str, Any] = {}
        """`load before`: the last load by another program than the one of `load`."""

    def take(self, slots: Any, what: str, ordering: Ordering) -> tuple[Any, Any]:
        """Where an access meets those of others, one of the two being plain and writing; and where both are plain and
        not ordered. None for nowhere."""
        meets = races = None
        for kind in _MEETING.get(what, _MEETING_AN_ATOMIC_ONE):
            if kind not in self._last:
                continue
            stamps = self._last[kind][slots]
            others = ordering.of_others(stamps)
            if not others.any():
                continue
            meets = others if meets is None else meets | others
            if what in _MEETING and kind != "atomic operation":
                unordered = ordering.unordered(stamps, others)
                races = unordered if races is None else races | unordered
        if what == "load" and "load" in self._last:
            stamps = self._last["load"][slots]
            others = ordering.of_others(stamps)
            if others.any():
                self._stamps("load before")[slots[others]] = stamps[others]
        self._stamps(what)[slots] = ordering.stamp
        return meets, races

    def _stamps(self, kind: str) -> Any:
        if kind not in self._last:
            self._last[kind] = np.zeros(self._slots, dtype=np.int64)
        return self._last[kind]
