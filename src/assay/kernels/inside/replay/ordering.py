"""Which accesses of the programs of a launch are ordered by atomic operations: vector clocks.

A program counts its atomic operations. One on an element tells the programs that come to that element later all that
this program has done, or knows, so far. An access of one program is ordered before that of another if the other was
told of it. An element that is touched atomically may also be stored to plainly (a lock given back) or loaded.

Programs are replayed one after another, so each is told of all that the ones before it have told.
"""

from __future__ import annotations

from typing import Any

import numpy as np

_CLOCK = 24
_MOST_CLOCK = (1 << _CLOCK) - 1
MAX_AT_ONCE = 32
"""An operation on more elements is a sum, not a lock."""
MAX_ENTRIES = 1 << 22
"""Programs times elements that order them. Further elements order nothing."""


class Ordering:
    """The programs of one launch. A `stamp` is a program and how many atomic operations it had made."""

    def __init__(self, programs: int) -> None:
        self._programs = programs
        self._told: dict[int, Any] = {}
        """Address -> for each program, how many of its atomic operations are over for whoever comes there."""
        self.begin(0)

    def begin(self, program: int) -> None:
        """A program begins; it knows of none that ran before."""
        self._me, self._clock = program + 1, 0
        self._known: Any = None
        self.stamp = self._me << _CLOCK

    def of_others(self, stamps: Any) -> Any:
        """Which stamps are another program's; 0 is none."""
        return (stamps != 0) & (stamps >> _CLOCK != self._me)

    def unordered(self, stamps: Any, others: Any) -> Any:
        """Which stamps of others were made by an access that this program was not told of."""
        if self._known is None:
            return others
        return others & ((stamps & _MOST_CLOCK) >= self._known[(stamps >> _CLOCK) - 1])

    def touched(self, addresses: Any, what: str) -> None:
        """Take an access into the account."""
        atomic = what not in ("load", "store")
        if addresses.size > MAX_AT_ONCE or not (atomic or self._told):
            return
        for address in addresses.tolist():
            if atomic or address in self._told:
                self._meet(address, hears=what != "store", tells=what != "load")

    def _meet(self, address: int, hears: bool, tells: bool) -> None:
        there = self._told.get(address)
        if there is None and (len(self._told) + 1) * self._programs > MAX_ENTRIES:
            return
        if self._known is None:
            self._known = np.zeros(self._programs, dtype=np.int32)
        if hears and there is not None:
            np.maximum(self._known, there, out=self._known)
        if tells:
            self._clock = min(self._clock + 1, _MOST_CLOCK)
            self._known[self._me - 1] = self._clock
            self._told[address] = self._known.copy() if there is None else np.maximum(self._known, there)
            self.stamp = self._me << _CLOCK | self._clock
