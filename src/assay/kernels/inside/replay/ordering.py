"""Which accesses of the programs of a launch are ordered by atomic operations: vector clocks.

An atomic operation that releases tells the programs that come to its element later what this program has done, or
knows, so far; one that acquires hears it. An access of one program is ordered before that of another if the other was
told of it. Plain accesses tell and hear nothing, nor do relaxed operations or those in the scope of one program.

One thread of a program makes an atomic operation on a single element. It tells what the other threads did only once
they have met at a barrier; what it hears reaches them with its result.

Where programs are replayed one after another, each is told of all that the ones before it have told. Whether it would
wait for them is another question (`reruns`, `triton.running.turns`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from assay.kernels.inside.triton.ledger import Sync

_CLOCK = 24
_MOST_CLOCK = (1 << _CLOCK) - 1
_PROGRAM = _CLOCK + 1
"""Bits of a stamp below its program: the clock, and one that is set for an access to a single element."""
MAX_AT_ONCE = 32
"""An operation on more elements is a sum, not a lock."""
MAX_ENTRIES = 1 << 22
"""Programs times elements that order them. Further elements order nothing."""


def program_of(stamp: int) -> int:
    """Whose access a stamp is of."""
    return (stamp >> _PROGRAM) - 1


class Ordering:
    """The programs of one launch. A `stamp` is a program, whether its first thread alone made the access, and a clock
    that counts the barriers and tellings before it."""

    def __init__(self, programs: int) -> None:
        self._programs = programs
        self._told: dict[int, Any] = {}
        """Address -> for each program and each of its two kinds of accesses, the clock at which those that are told
        end."""
        self.begin(0)

    def begin(self, program: int) -> None:
        """A program begins; it knows of none that ran before."""
        self._me, self._clock, self._met = program + 1, 0, 0
        self._known: Any = None
        self._heard: Any = None
        """What single threads of it were told, and will share at the next barrier."""

    def suspend(self) -> tuple[Any, ...]:
        """Another program is to run; gives back what `resume` takes."""
        return self._me, self._clock, self._met, self._known, self._heard

    def resume(self, state: tuple[Any, ...]) -> None:
        """A program goes on."""
        self._me, self._clock, self._met, self._known, self._heard = state

    def stamp(self, one: bool) -> int:
        """That of an access made now, to a single element or to more."""
        return self._me << _PROGRAM | one << _CLOCK | self._clock

    def of_others(self, stamps: Any) -> Any:
        """Which stamps are another program's; 0 is none."""
        return (stamps != 0) & (stamps >> _PROGRAM != self._me)

    def unordered(self, stamps: Any, others: Any) -> Any:
        """Which stamps of others were made by an access that this program was not told of."""
        if self._known is None:
            return others
        return others & ((stamps & _MOST_CLOCK) >= self._known[(stamps >> _CLOCK) - 2])

    def tells(self, stamp: int, one: bool) -> bool:
        """Whether an atomic operation that releases would now tell of an access of this program. `one`: it is made on a
        single element."""
        clock = stamp & _MOST_CLOCK
        return clock <= self._clock if one and stamp >> _CLOCK & 1 else clock < self._met

    def barrier(self) -> None:
        """All threads of the program meet."""
        self._clock = self._met = min(self._clock + 1, _MOST_CLOCK)
        self._share()

    def _share(self) -> None:
        if self._heard is not None:
            self._known = self._heard if self._known is None else np.maximum(self._known, self._heard)
            self._heard = None

    def atomic(self, addresses: Any, one: bool, sync: Sync, unused: bool = False) -> None:
        """Take an atomic operation into the account; `one`: a single thread makes it. `unused`: no other thread is
        given its result, nor waits for it."""
        if addresses.size <= MAX_AT_ONCE:
            for address in addresses.tolist():
                there = self._told.get(address)
                if there is not None and sync.hears:
                    self._heard = there if self._heard is None else np.maximum(self._heard, there)
                if sync.tells:
                    self._tell(address, there, one)
        if one and not unused:
            self._share()

    def _tell(self, address: int, there: Any, one: bool) -> None:
        if there is None and (len(self._told) + 1) * self._programs > MAX_ENTRIES:
            return
        news = np.zeros(2 * self._programs, dtype=np.int32) if self._known is None else self._known.copy()
        if one and self._heard is not None:
            np.maximum(news, self._heard, out=news)
        self._clock = min(self._clock + 1, _MOST_CLOCK)
        mine = 2 * (self._me - 1)
        news[mine], news[mine + 1] = self._met, self._clock if one else self._met
        self._told[address] = news if there is None else np.maximum(news, there)
