"""Who touched the elements of a storage last, and where an access meets theirs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from assay.kernels.inside.replay.ordering import Ordering

_MEETING = {"load": ("store", "atomic operation"), "store": ("store", "load", "load before", "atomic operation")}
_MEETING_AN_ATOMIC_ONE = ("store", "load", "load before")
MAX_KINDS = 16
"""Of atomic operations that are told apart."""


class Seen:
    """Who touched the elements of a storage in a launch last, and how, as stamps of `Ordering`; 0 for no one."""

    def __init__(self, slots: int) -> None:
        self._slots = slots
        self._last: dict[str, Any] = {}
        """`load before`: the last load by another program than the one of `load`."""
        self._unused: dict[str, Any] = {}
        """The same of atomic operations whose result nobody uses, by what makes the same in whatever order."""

    def take(
        self, slots: Any, what: str, ordering: Ordering, one: bool, alike: str | None = None
    ) -> tuple[Any, Any, int]:
        """Where an access meets those of others, one of the two being plain and one writing; and where they are not
        ordered, but for an atomic operation after a load. None for nowhere. Last, the stamp of one of those that are
        ordered; 0 for none.

        Two atomic operations whose results nobody uses meet as well, unless they are `alike` (`ledger.Access`); None
        for any other access.
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
        for unordered in self._unlike(slots, ordering, alike) if alike is not None else ():
            meets = unordered if meets is None else meets | unordered
            races = unordered if races is None else races | unordered
        if what == "load" and "load" in self._last:
            stamps = self._last["load"][slots]
            others = ordering.of_others(stamps)
            if others.any():
                self._stamps("load before")[slots[others]] = stamps[others]
        self._stamps(what)[slots] = ordering.stamp(one)
        if alike is not None:
            alike = alike if alike in self._unused or len(self._unused) < MAX_KINDS else ""
            self._unused.setdefault(alike, np.zeros(self._slots, dtype=np.int64))[slots] = ordering.stamp(one)
        return meets, races, told

    def _unlike(self, slots: Any, ordering: Ordering, alike: str) -> Iterator[Any]:
        """Where an atomic operation meets others that are not alike, in no order."""
        for other, last in self._unused.items():
            if other != alike or not alike:
                stamps = last[slots]
                yield ordering.unordered(stamps, ordering.of_others(stamps))

    def _stamps(self, kind: str) -> Any:
        if kind not in self._last:
            self._last[kind] = np.zeros(self._slots, dtype=np.int64)
        return self._last[kind]
