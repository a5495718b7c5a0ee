"""Whether programs that atomic operations put in order wait for each other: one is stopped before it says that it is
done, and the others run.

A replay runs programs one after another, so that even a lock that nobody waits for is always free. A GPU may stop a
program anywhere for a while; what the others then read or write plainly of what it wrote so far is lost.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np

from assay.kernels.inside.replay.accesses import Accesses
from assay.kernels.inside.replay.memory import Copy, Memory
from assay.kernels.inside.replay.ordering import program_of
from assay.kernels.inside.triton.ledger import Access, PausedError

PAUSES = 2
"""Programs of a launch that are stopped, one at a time."""
MOST_AGAIN = 16
"""A program that touches the same elements so often in a row waits for another one."""
MOST_WAITING = 4
"""Once so many programs wait, the rest of the launch is left out."""
MOST_MORE = 64
"""A program that makes so many more accesses than twice what any made before waits, too."""


class Pausing(Accesses):
    """Follows a launch in which one program stops before it tells of one of its accesses."""

    def __init__(self, memory: Memory, stamp: int, most: int) -> None:
        """`stamp`: of that access; `most`: accesses that a program made without a pause."""
        super().__init__(memory)
        self._stamp, self._stopped = stamp, program_of(stamp)
        self._limit = 2 * most + MOST_MORE
        self._waiting = 0
        self._program = self._again = 0
        self._last: tuple[Any, ...] = ()

    def begin(self, program: int) -> None:
        """A program begins, unless too many wait."""
        if self._waiting >= MOST_WAITING:
            raise PausedError
        self._program, self._again = program, 0
        super().begin(program)

    def touched(self, access: Access) -> None:
        """Stop the program before the access, where it would say that it is done, or where it waits."""
        if self._program == self._stopped and access.sync is not None and access.sync.tells:
            one = access.pointers.size == 1
            if self._ordering.tells(self._stamp, one) and (access.mask is None or np.any(access.mask)):
                raise PausedError
        place = (access.what, access.pointers.size, int(access.pointers.flat[0]))
        self._again = self._again + 1 if place == self._last else 0
        self._last = place
        if self._again > MOST_AGAIN or self._made_so_far > self._limit:
            self._waiting += 1
            raise PausedError
        super().touched(access)


def pause(
    memory: Memory, before: Copy, accesses: Accesses, again: Callable[[Pausing], None], chance: random.Random
) -> None:
    """Run a launch again, some of its programs paused, and add what is lost then to the account of it.

    Args:
        memory: As the launch left it, and as it is afterwards.
        before: As the launch found it.
        accesses: The account of the launch.
        again: Runs it, its programs in the same order.
        chance: Which programs are paused.
    """
    stamps = sorted(accesses.ordered.values())
    if not stamps or accesses.lost():
        return
    after, state = memory.copy(), memory.state
    memory.state = None
    for stamp in chance.sample(stamps, min(len(stamps), PAUSES)):
        memory.take_back(before)
        paused = Pausing(memory, stamp, accesses.most)
        again(paused)
        if paused.lost():
            accesses.take_over(paused)
            break
    memory.take_back(after)
    memory.state = state
