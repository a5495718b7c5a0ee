"""Who touched the elements of a storage last, and where an access meets theirs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from assay.kernels.inside.replay.ordering import Ordering
from assay.kernels.inside.triton.commutation import MAX_NAMES, commute

_MEETING = {"load": ("store", "atomic operation"), "store": ("store", "load", "load before", "atomic operation")}
_MEETING_AN_ATOMIC_ONE = ("store", "load", "load before")


class Seen:
    """Who touched the elements of a storage in a launch last, and how, as stamps of `Ordering`; 0 for no one."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._last: dict[str, Any] = {}
        """`load before`: the last load by another program than the one of `load`."""
        self._commuting: dict[str, tuple[Any, Any]] = {}
        """Of atomic operations whose results nobody uses, by name: the last one, and the last one by another program
        than that."""

    def take(
        self, slots: Any, what: str, ordering: Ordering, one: bool, name: str | None = None
    ) -> tuple[Any, Any, int]:
        """Where an access meets those of others, one of the two being plain and one writing; and where they are not
        ordered, but for an atomic operation after a load. None for nowhere. Last, the stamp of one of those that are
        ordered; 0 for none.

        Two atomic operations whose results nobody uses meet as well, unless they commute. `name`: of one; None for any
        other access.
        """
        meets = races = None
        told = 0
        for kind in _MEETING.get(what, _MEETING_AN_ATOMIC_ONE):
            if kind not in self._last:
                continue
            stamps = self._last[kind][slots]
            others = ordering.of_others(stamps)
            if not others.any():
                continue
            meets = others if meets is None else meets | others
            if what in _MEETING or kind == "store":
                unordered = ordering.unordered(stamps, others)
                races = unordered if races is None else races | unordered
                if (ordered := others & ~unordered).any():
                    told = int(stamps[ordered][0])
        for unordered in self._apart(slots, ordering, name) if name is not None else ():
            meets = unordered if meets is None else meets | unordered
            races = unordered if races is None else races | unordered
        if what == "load" and "load" in self._last:
            stamps = self._last["load"][slots]
            others = ordering.of_others(stamps)
            if others.any():
                self._stamps("load before")[slots[others]] = stamps[others]
        self._stamps(what)[slots] = ordering.stamp(one)
        if name is not None:
            self._note(slots, ordering, one, name)
        return meets, races, told

    def _apart(self, slots: Any, ordering: Ordering, name: str) -> Iterator[Any]:
        """Where an atomic operation meets others that it does not commute with, in no order."""
        for other, both in self._commuting.items():
            if not commute(name, other):
                for last in both:
                    stamps = last[slots]
                    yield ordering.unordered(stamps, ordering.of_others(stamps))

    def _note(self, slots: Any, ordering: Ordering, one: bool, name: str) -> None:
        if name not in self._commuting:
            name = name if len(self._commuting) < MAX_NAMES else ""
        if name not in self._commuting:
            self._commuting[name] = np.zeros(self._slots, dtype=np.int64), np.zeros(self._slots, dtype=np.int64)
        last, before = self._commuting[name]
        stamps = last[slots]
        others = ordering.of_others(stamps)
        before[slots[others]] = stamps[others]
        last[slots] = ordering.stamp(one)

    def _stamps(self, kind: str) -> Any:
        if kind not in self._last:
            self._last[kind] = np.zeros(self._slots, dtype=np.int64)
        return self._last[kind]
