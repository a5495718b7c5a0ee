"""How many bytes a thread may move at once in each access: as many as follow each other, from an address that divides
by them, under one mask.

Triton's compiler moves up to 16 bytes at once where it believes that of an access. What it believes is not always so:
of blocks that `tl.where` or a shift has made, of promises (`values.promises`), of values that come from memory. So what
it made (`compiled.machine_code`) is held against what the accesses allow.
"""

from __future__ import annotations

from typing import Any

import numpy as np

WIDEST = 16
"""Bytes that a thread moves at once."""
MOST = 1024
"""Accesses that are told, over all launches."""
Key = tuple[int, int, int, int]
"""Number of a launch's step, of its variant, of the access and of the helper's call around it, 0 for none."""


class Widths:
    """What the accesses of some calls of forward allow, of each launch by itself."""

    def __init__(self) -> None:
        self._found: dict[Key, int] = {}
        self._last: dict[Key, tuple[int, Any]] = {}
        """What an access without a mask was made at last: how far the first address is from a multiple of 16, and the
        others from the first one. Most are alike in all programs and calls."""
        self._launch = (0, 0)

    def launch(self, step: int, variant: int) -> None:
        """A launch begins."""
        self._launch = step, variant

    def take(self, site: tuple[int, int], pointers: Any, active: Any, size: int, broken: Any) -> None:
        """Take one access into the account.

        Args:
            site: Its number, and that of the helper's call around it.
            pointers: Addresses, which divide by 16 where a GPU's do.
            active: The mask; None for all.
            size: Bytes of an element.
            broken: The shortest access that breaks each lane, whose value is anything then; None for none.
        """
        key = (*self._launch, *site)
        known = self._found.get(key, WIDEST)
        if known <= size:
            return
        if broken is None and (active is None or active.all()):
            first = pointers.flat[0]
            steps, rest = pointers - first, int(first) % WIDEST
            last = self._last.get(key)
            if last is not None and last[0] == rest and np.array_equal(last[1], steps):
                return
            self._last[key] = rest, steps
        self._found[key] = allowed(pointers, active, size, broken, known)

    def told(self) -> list[list[int]] | None:
        """The accesses that a thread may not make of 16 bytes, each with the bytes that it may; None for too many."""
        narrow = [[*key, width] for key, width in self._found.items() if width < WIDEST]
        return narrow if len(narrow) <= MOST else None


def allowed(pointers: Any, active: Any, size: int, broken: Any, most: int) -> int:
    """The most bytes, up to `most`, that a thread may move at once, along one of the axes of a block."""
    shape, best = pointers.shape, size
    active = np.broadcast_to(True if active is None else active, shape)
    broken = None if broken is None else np.broadcast_to(broken, shape)
    for axis in reversed(range(len(shape))):
        sides = [None if side is None else np.moveaxis(side, axis, -1) for side in (pointers, active, broken)]
        count = min(most // size, shape[axis])
        while count * size > best:
            groups, used, bad = (None if side is None else side.reshape(-1, count) for side in sides)
            if _holds(groups, used, bad, size):
                best = count * size
                break
            count //= 2
        if best == most:
            break
    return best


def _holds(groups: Any, active: Any, broken: Any, size: int) -> bool:
    """Whether a thread may move each group at once. What is broken of one is anything already."""
    count = groups.shape[1]
    steps = np.arange(count, dtype=np.uint64) * np.uint64(size)
    sound = (groups == groups[:, :1] + steps).all(axis=1) & (groups[:, 0] % np.uint64(count * size) == 0)
    sound = (sound & active.all(axis=1)) | ~active.any(axis=1)
    if broken is not None:
        sound |= (broken <= count).any(axis=1)
    return bool(sound.all())
