"""Elements that the programs of a launch touch through descriptors and through pointers.

A unit beside the threads makes the accesses of descriptors, and sees memory by a way of its own. No function of
Triton's language makes one of the two ways wait for what the other one wrote, be it in the same program or told by an
atomic operation; a barrier holds back threads alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np


class Units:
    """What the programs of a launch touched in either way."""

    def __init__(self, slots: Callable[[int], int]) -> None:
        """`slots`: how many elements a storage has."""
        self._slots = slots
        self._last: dict[tuple[int, bool, bool], Any] = {}
        """Storage, whether through descriptors, whether a write -> whether one did so, for each element."""

    def take(self, storage: int, slots: Any, *, apart: bool, reads: bool, writes: bool) -> int:
        """At how many elements an access meets one in the other way, one of the two writing.

        Args:
            storage: What it touches.
            slots: Numbers of the elements.
            apart: Whether it is a descriptor's.
            reads: Whether it reads.
            writes: Whether it writes.
        """
        meets = np.zeros(len(slots), dtype=bool)
        for wrote in (True, False) if writes else (True,):
            there = self._last.get((storage, not apart, wrote))
            if there is not None:
                meets |= there[slots]
        for wrote, done in ((True, writes), (False, reads)):
            key = (storage, apart, wrote)
            if done:
                if key not in self._last:
                    self._last[key] = np.zeros(self._slots(storage), dtype=bool)
                self._last[key][slots] = True
        return int(np.count_nonzero(meets))
