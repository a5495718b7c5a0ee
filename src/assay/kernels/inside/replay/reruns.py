"""Launches with atomic operations run again, to see whether those put in order what they seem to.

A replay whose accesses are followed runs programs one after another, so that even a lock that nobody waits for is
always free. A GPU may stop a program anywhere for a while. So one program is stopped before it tells that it is done,
and the others run: what they then read or write plainly of what it wrote so far is lost (`Pausing`).

The result of an atomic operation is handed to all threads of a program, which is a barrier, unless the compiler finds
that nothing needs it. So a program runs with other results: an access that it then makes all the same did not wait for
them (`Altering`).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from triton.runtime import interpreter as engine

from assay.kernels.inside.replay.accesses import Accesses, Leaning
from assay.kernels.inside.replay.memory import Copy, Memory
from assay.kernels.inside.replay.ordering import program_of
from assay.kernels.inside.triton.ledger import Access, PausedError, WrongValueError, refuse

MOST_RERUNS = 4
"""Accesses of a launch that are looked at in this way, for either question; each stands in another line."""
MOST_AGAIN = 16
"""A program that touches the same elements so often in a row waits for another one."""
MOST_WAITING = 4
"""Once so many programs wait, the rest of the launch is left out."""
MOST_MORE = 64
"""A program that makes so many more accesses than twice what any made before waits, too."""
DELTAS = (1, -1, 1000, -1000)
"""What is added to results."""
_NO_BARRIER = (
    "a race: {0}() makes a {1} in line {2} at elements that other lanes of the same program touched before, one of the "
    "two writing. Between them is an atomic operation on whose result that {1} does not depend, so that the threads of "
    "the program need not wait for it. Call tl.debug_barrier() between the two"
)

Again = Callable[["Rerun"], None]
"""Runs a launch again, its programs in the same order, and told to another observer."""


class Rerun(Accesses):
    """Follows a launch that runs again, and stops programs that wait."""

    def __init__(self, memory: Memory, most: int) -> None:
        """`most`: accesses that a program made at first."""
        super().__init__(memory)
        self._limit = 2 * most + MOST_MORE
        self.waiting = self._program = self._again = 0
        self._last: tuple[Any, ...] = ()

    def begin(self, program: int) -> None:
        """A program begins, unless too many wait."""
        if self.waiting >= MOST_WAITING:
            raise PausedError
        self._program, self._again = program, 0
        super().begin(program)

    def touched(self, access: Access) -> None:
        """Take an access into the account, unless the program only waits."""
        place = (access.what, access.pointers.size, int(access.pointers.flat[0]))
        self._again = self._again + 1 if place == self._last else 0
        self._last = place
        if self._again > MOST_AGAIN or self._made_so_far > self._limit:
            self.waiting += 1
            raise PausedError
        super().touched(access)


class Pausing(Rerun):
    """One program stops before it tells of one of its accesses."""

    def __init__(self, memory: Memory, most: int, stamp: int) -> None:
        """`stamp`: of that access."""
        super().__init__(memory, most)
        self._stamp, self._stopped = stamp, program_of(stamp)

    def touched(self, access: Access) -> None:
        """Stop the program before the access where that would tell."""
        if self._program == self._stopped and access.sync is not None and access.sync.tells:
            one = access.pointers.size == 1
            if self._ordering.tells(self._stamp, one) and (access.mask is None or np.any(access.mask)):
                raise PausedError
        super().touched(access)


class Altering(Rerun):
    """One program finds other results, until it comes to an access that was in order by these alone."""

    def __init__(self, memory: Memory, most: int, leaning: Leaning, delta: int) -> None:
        """`delta`: what is added to the results."""
        super().__init__(memory, most)
        self._leaning, self._delta = leaning, delta
        self.same = self._over = False
        """Whether it makes the same access all the same."""

    def begin(self, program: int) -> None:
        """A program begins; those after the one are of no account."""
        if self._over:
            raise PausedError
        self._over = program == self._leaning.program
        super().begin(program)

    def touched(self, access: Access) -> None:
        """Stop the program at the access."""
        if self._over and self._made_so_far == self._leaning.number:
            self.same = self._leaning.is_alike(access)
            raise PausedError
        super().touched(access)

    def result(self, found: Any) -> Any:
        """Another one, of those in question."""
        if not (self._over and self._leaning.first <= self._results <= self._leaning.last):
            return found
        return engine.TensorHandle((found.data + self._delta).astype(found.data.dtype), found.dtype)


def rerun(memory: Memory, before: Copy, accesses: Accesses, again: Again, chance: random.Random) -> None:
    """Look at a launch in both ways, and add what is lost to its account.

    Args:
        memory: As the launch left it, and as it is afterwards.
        before: As the launch found it.
        accesses: The account of the launch.
        again: Runs it.
        chance: What is looked at, where there is much.

    Raises:
        WrongValueError: lanes of a program are in no order.
    """
    if accesses.lost() or not (accesses.ordered or accesses.leaning):
        return
    after, state = memory.copy(before.held), memory.state
    memory.state = None
    for stamp in _some(sorted(accesses.ordered.values()), chance):
        memory.take_back(before)
        pausing = Pausing(memory, accesses.most, stamp)
        again(pausing)
        accesses.take_over(pausing)
    for line in _some(sorted(accesses.leaning), chance):
        leaning = accesses.leaning[line]
        if all(_is_made_all_the_same(memory, before, accesses.most, leaning, delta, again) for delta in DELTAS):
            refuse(WrongValueError(_NO_BARRIER.format(accesses.name, leaning.access.what, line)))
    memory.take_back(after)
    memory.state = state


def _some(found: Sequence[int], chance: random.Random) -> list[int]:
    return chance.sample(found, min(len(found), MOST_RERUNS))


def _is_made_all_the_same(memory: Memory, before: Copy, most: int, leaning: Leaning, delta: int, again: Again) -> bool:
    memory.take_back(before)
    altering = Altering(memory, most, leaning, delta)
    try:
        again(altering)
    except Exception:  # noqa: BLE001 - results that no memory held may lead anywhere
        return False
    return altering.same
