"""Error bounds of what lies in memory: `Bounds` has them for the storages of a call."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

UNKNOWN = np.inf
"""The bound of what may be anything."""
_FILE = "submission.py"
MOST_LINES = 4
BITS = -1.0
"""The bound of a NaN that is certain, whose bits are not."""


class Kind(NamedTuple):
    """What kind of elements an access sees."""

    itemsize: int
    fractions: bool

    @property
    def number(self) -> int:
        """It as a number."""
        return self.itemsize | (0x20 if self.fractions else 0)


class Noted(NamedTuple):
    """What is known of the bytes of a storage: the bound of the element that each is of, the element's kind, and what
    it shares of its error (`bounds.Lean`), at its first byte."""

    limits: Any
    kinds: Any
    origins: Any
    leans: Any

    def copy(self) -> Noted:
        """The same, to be kept."""
        return Noted(*(part.copy() for part in self))


class Found(NamedTuple):
    """What is known of some elements: their bounds, what they share, and which were written as the other kind."""

    limits: Any
    origins: Any
    leans: Any
    other: Any


Copy = dict[int, Noted]


class Bounds:
    """What is known of what lies in some storages; where nothing is noted all is exact."""

    def __init__(self, starts: Sequence[int], sizes: Sequence[int]) -> None:
        """`starts`, `sizes`: the address of each storage, and its bytes."""
        order = sorted((start, place) for place, (start, size) in enumerate(zip(starts, sizes, strict=True)) if size)
        self._starts = np.array([start for start, _ in order], dtype=np.uint64)
        self._places = [place for _, place in order]
        self._sizes = list(sizes)
        self.noted: dict[int, Noted] = {}
        self.unspecified: Any = None
        """Of the operation under way: which lanes of its result have no value."""
        self.lines: dict[int, None] = {}
        """Lines in which something undecided was decided."""

    def decided(self) -> None:
        """Something undecided is decided in the line that is run."""
        if len(self.lines) < MOST_LINES and (line := line_of_kernel()):
            self.lines[line] = None

    def load(self, pointers: Any, mask: Any, kind: Kind) -> Found | None:
        """What is known of elements at some addresses, nothing where a mask is false; None where all are exact."""
        if not self.noted:
            return None
        shape = pointers.shape
        found = Found(np.zeros(shape), np.zeros(shape, np.int64), np.zeros(shape), np.zeros(shape, bool))
        for place, lanes, at in self._by_storage(pointers, mask):
            if place in self.noted:
                for whole, part in zip(found, self._seen(place, at, kind), strict=True):
                    whole[lanes] = part
        return found if found.limits.any() else None

    def _seen(self, place: int, at: Any, kind: Kind) -> Found:
        noted = self.noted[place]
        limits, other = np.zeros(at.shape), np.zeros(at.shape, bool)
        for part in range(kind.itemsize):
            here, kinds = noted.limits[at + part], noted.kinds[at + part]
            unlike = (here != 0) & (kinds != kind.number)
            other |= unlike & (kinds & 0x1F == kind.itemsize)
            broken = unlike & ((kinds & 0x1F != kind.itemsize) | (here == BITS))
            limits = np.maximum(limits, np.where(broken, UNKNOWN, here))
        return Found(limits, noted.origins[at], noted.leans[at], other)

    def store(self, pointers: Any, mask: Any, limits: Any, kind: Kind, shared: Any = None) -> None:
        """Give elements at some addresses other bounds. `limits`: None for exact ones. `shared`: their `Lean`."""
        if limits is None and not self.noted:
            return
        for place, lanes, at in self._by_storage(pointers, mask):
            if limits is None and place not in self.noted:
                continue
            parts = (
                0 if part is None else np.broadcast_to(part, pointers.shape)[lanes]
                for part in (limits, *(shared or (None, None)))
            )
            self.note(place, at, kind, *parts)

    def add(self, pointers: Any, mask: Any, limits: Any, kind: Kind) -> None:
        """Add to the bounds of elements at some addresses, each as often as it is there."""
        for place, lanes, at in self._by_storage(pointers, mask):
            noted = self._of(place)
            sums = noted.limits.copy()
            np.add.at(sums, at, np.broadcast_to(limits, pointers.shape)[lanes])
            mixed = (noted.limits[at] != 0) & (noted.kinds[at] != kind.number)
            self.note(place, at, kind, np.where(mixed, UNKNOWN, sums[at]))

    def note(self, place: int, at: Any, kind: Kind, limits: Any, origins: Any = 0, leans: Any = 0) -> None:
        """Give elements of a storage, at some bytes, other bounds."""
        noted = self._of(place)
        noted.origins[at], noted.leans[at] = origins, leans
        for part in range(kind.itemsize):
            noted.limits[at + part] = limits
            noted.kinds[at + part] = kind.number

    def _of(self, place: int) -> Noted:
        if place not in self.noted:
            size = self._sizes[place]
            self.noted[place] = Noted(
                np.zeros(size), np.zeros(size, np.uint8), np.zeros(size, np.int64), np.zeros(size)
            )
        return self.noted[place]

    def _by_storage(self, pointers: Any, mask: Any) -> Iterator[tuple[int, Any, Any]]:
        """Storages, which lanes lie in them, and at which byte."""
        active = np.ones(pointers.shape, bool) if mask is None else np.broadcast_to(mask, pointers.shape)
        touched = pointers[active]
        if not touched.size or not self._places:
            return
        places = np.searchsorted(self._starts, touched, side="right").astype(np.int64) - 1
        first = int(places[0])
        if (places == first).all():
            yield self._places[first], active, (touched - self._starts[first]).astype(np.int64)
            return
        for number in np.unique(places):
            chosen = places == number
            lanes = active.copy()
            lanes[active] = chosen
            yield self._places[number], lanes, (touched[chosen] - self._starts[number]).astype(np.int64)

    def of_window(self, window: Any, kind: Kind) -> Found | None:
        """What is known of the elements that a window shows; None where all are exact."""
        if window.storage not in self.noted:
            return None
        found = self._seen(window.storage, self.places_of(window, kind), kind)
        return found if found.limits.any() else None

    def places_of(self, window: Any, kind: Kind) -> Any:
        """The first byte of each element that a window shows."""
        at = np.full(window.size, window.offset * kind.itemsize, np.int64)
        for axis, (extent, stride) in enumerate(zip(window.size, window.stride, strict=True)):
            steps = np.arange(extent, dtype=np.int64) * stride * kind.itemsize
            at += steps.reshape((-1,) + (1,) * (len(window.size) - axis - 1))
        return at

    def forget(self, places: Sequence[int] | None = None) -> None:
        """All that some storages hold is exact again."""
        for place in list(self.noted) if places is None else places:
            self.noted.pop(place, None)

    def copy(self) -> Copy:
        """What is noted."""
        return {place: noted.copy() for place, noted in self.noted.items()}

    def take_back(self, copy: Copy) -> None:
        """Note what was noted then."""
        self.noted = {place: noted.copy() for place, noted in copy.items()}


def line_of_kernel() -> int:
    """The line of the submission that is run; 0 where none is."""
    frame: Any = sys._getframe()
    while frame is not None and frame.f_code.co_filename != _FILE:
        frame = frame.f_back
    return 0 if frame is None else int(frame.f_lineno)
