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
    format: str
    """`whole`, of numbers with a sign, or `unsigned`; `fraction`, of IEEE 754; or the name of another type of
    fractions."""

    @property
    def number(self) -> int:
        """It as a number."""
        return self.itemsize | _FORMATS[self.format] << _SHIFT


_FORMATS = {name: place for place, name in enumerate(("whole", "unsigned", "fraction", "bf16", "fp8e4nv", "fp8e5"))}
_SHIFT = 4
_WHOLE = 2
"""Formats below it are of whole numbers."""
_WHOLE_OR_FRACTION = 3


class Noted(NamedTuple):
    """What is known of the bytes of a storage: the bound of the element that each is of, the element's kind, and what
    it shares (`bounds.Lean`), at its first byte."""

    limits: Any
    kinds: Any
    origins: Any
    leans: Any
    copies: Any

    def copy(self) -> Noted:
        """The same, to be kept."""
        return Noted(*(part.copy() for part in self))


class Sums(NamedTuple):
    """What atomic operations have added to the elements of a storage since they were stored, at the first byte of
    each: the sizes of all terms, how many they are, and whether all are whole numbers."""

    sizes: Any
    counts: Any
    whole: Any

    def copy(self) -> Sums:
        """The same, to be kept."""
        return Sums(*(part.copy() for part in self))


class Range(NamedTuple):
    """What atomic sums of a type of fractions have room for: up to which whole numbers they are exact, the last bit of
    1, the largest number, and below which numbers become zero."""

    whole: float
    epsilon: float
    largest: float
    flushed: float


class Found(NamedTuple):
    """What is known of some elements: their bounds, what they share, which were written as the other kind, whole
    numbers as fractions or fractions as whole numbers, and which as whole numbers without a sign that have one here, or
    the other way round."""

    limits: Any
    origins: Any
    leans: Any
    copies: Any
    other: Any
    resigned: Any


class Copy(NamedTuple):
    """What was known once."""

    noted: dict[int, Noted]
    sums: dict[int, Sums]


class Bounds:
    """What is known of what lies in some storages; where nothing is noted all is exact."""

    def __init__(self, starts: Sequence[int], sizes: Sequence[int]) -> None:
        """`starts`, `sizes`: the address of each storage, and its bytes."""
        order = sorted((start, place) for place, (start, size) in enumerate(zip(starts, sizes, strict=True)) if size)
        self._starts = np.array([start for start, _ in order], dtype=np.uint64)
        self._places = [place for _, place in order]
        self._sizes = list(sizes)
        self.noted: dict[int, Noted] = {}
        self._sums: dict[int, Sums] = {}
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
        found = Found(*(np.zeros(shape, kind) for kind in (float, np.int64, float, np.int64, bool, bool)))
        for place, lanes, at in self._by_storage(pointers, mask):
            if place in self.noted:
                for whole, part in zip(found, self._seen(place, at, kind), strict=True):
                    whole[lanes] = part
        return found if found.limits.any() else None

    def _seen(self, place: int, at: Any, kind: Kind) -> Found:
        noted, first = self.noted[place], self.noted[place].limits[at]
        limits, (other, resigned, torn) = np.zeros(at.shape), np.zeros((3, *at.shape), bool)
        for part in range(kind.itemsize):
            here, kinds = noted.limits[at + part], noted.kinds[at + part]
            unlike = (here != 0) & (kinds != kind.number)
            same_bits = (kinds & ((1 << _SHIFT) - 1) == kind.itemsize) & (kinds >> _SHIFT < _WHOLE_OR_FRACTION)
            same_bits &= _FORMATS[kind.format] < _WHOLE_OR_FRACTION
            whole = (kinds >> _SHIFT < _WHOLE) & (_FORMATS[kind.format] < _WHOLE)
            other |= unlike & same_bits & ~whole
            resigned |= unlike & same_bits & whole
            torn |= (unlike & (~same_bits | (here == BITS))) | (here != first)
            limits = np.maximum(limits, here)
        limits = np.where(torn, UNKNOWN, limits)
        copies = np.where(torn | resigned, 0, noted.copies[at])
        return Found(limits, noted.origins[at], noted.leans[at], copies, other & ~torn, resigned & ~torn)

    def store(self, pointers: Any, mask: Any, limits: Any, kind: Kind, shared: Any = None) -> None:
        """Give elements at some addresses other bounds. `limits`: None for exact ones. `shared`: their `Lean`."""
        if limits is None and not self.noted and not self._sums:
            return
        for place, lanes, at in self._by_storage(pointers, mask):
            if limits is None and place not in self.noted:
                if place in self._sums:
                    self._sums[place].counts[at] = 0
                continue
            parts = (
                0 if part is None else np.broadcast_to(part, pointers.shape)[lanes]
                for part in (limits, *(shared or (None, None, None)))
            )
            self.note(place, at, kind, *parts)

    def add(self, pointers: Any, mask: Any, limits: Any, kind: Kind) -> None:
        """Add to the bounds of elements at some addresses, each as often as it is there."""
        for place, lanes, at in self._by_storage(pointers, mask):
            noted = self._of(place)
            mixed = (noted.limits[at] != 0) & (noted.kinds[at] != kind.number)
            np.add.at(noted.limits, at, np.broadcast_to(limits, pointers.shape)[lanes])
            self._note(place, at, kind, np.where(mixed, UNKNOWN, noted.limits[at]))

    def widen(self, pointers: Any, mask: Any, limits: Any, kind: Kind) -> None:
        """Let elements at some addresses have at least some bounds."""
        for place, lanes, at in self._by_storage(pointers, mask):
            noted = self._of(place)
            np.maximum.at(noted.limits, at, np.broadcast_to(limits, pointers.shape)[lanes])
            self._note(place, at, kind, noted.limits[at])

    def summed(self, pointers: Any, mask: Any, terms: Any, before: Any, kind: Kind, range_: Range) -> None:
        """Note terms that atomic operations add to fractions, in any order: n terms are off by n last bits of what
        their sizes come to. `before`: what was there, whoever wrote it; `range_`: of the type."""
        for place, lanes, at in self._by_storage(pointers, mask):
            sizes, counts, whole = sums = self._sums_of(place)
            mine, start = (np.broadcast_to(each, pointers.shape)[lanes] for each in (terms, before))
            fresh = counts[at] == 0
            sizes[at] = np.where(fresh, 0.0, sizes[at])
            whole[at] |= fresh
            earlier = _lost(sums, at, range_)
            np.maximum.at(sizes, at, np.abs(start))
            np.logical_and.at(whole, at, np.rint(start) == start)
            np.add.at(sizes, at, np.abs(mine))
            np.add.at(counts, at, mine != 0)
            np.logical_and.at(whole, at, np.rint(mine) == mine)
            with np.errstate(invalid="ignore"):
                more = np.nan_to_num(_lost(sums, at, range_) - earlier, nan=UNKNOWN, posinf=UNKNOWN)
            if more.any() or place in self.noted:
                noted = self._of(place)
                mixed = (noted.limits[at] != 0) & (noted.kinds[at] != kind.number)
                self._note(place, at, kind, np.where(mixed, UNKNOWN, noted.limits[at] + more))

    def note(
        self, place: int, at: Any, kind: Kind, limits: Any, origins: Any = 0, leans: Any = 0, copies: Any = 0
    ) -> None:
        """Give elements of a storage, at some bytes, other bounds: they were stored."""
        if place in self._sums:
            self._sums[place].counts[at] = 0
        self._note(place, at, kind, limits, origins, leans, copies)

    def _note(
        self, place: int, at: Any, kind: Kind, limits: Any, origins: Any = 0, leans: Any = 0, copies: Any = 0
    ) -> None:
        noted = self._of(place)
        noted.limits[at], noted.origins[at], noted.leans[at], noted.copies[at] = limits, origins, leans, copies
        twice = (noted.limits[at] != limits) | (noted.origins[at] != origins) | (noted.copies[at] != copies)
        if np.any(twice):  # several lanes store to one address, and any of them may be the last
            widest = np.broadcast_to(limits, at.shape)
            np.maximum.at(noted.limits, at, widest)
            noted.origins[at[twice]] = noted.copies[at[twice]] = 0
            limits = noted.limits[at]
        for part in range(1, kind.itemsize):
            noted.limits[at + part] = limits
        for part in range(kind.itemsize):
            noted.kinds[at + part] = kind.number

    def _of(self, place: int) -> Noted:
        if place not in self.noted:
            size = self._sizes[place]
            kinds = float, np.uint8, np.int64, float, np.int64
            self.noted[place] = Noted(*(np.zeros(size, kind) for kind in kinds))
        return self.noted[place]

    def _sums_of(self, place: int) -> Sums:
        if place not in self._sums:
            size = self._sizes[place]
            self._sums[place] = Sums(np.zeros(size), np.zeros(size), np.ones(size, bool))
        return self._sums[place]

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
        for place in {*self.noted, *self._sums} if places is None else places:
            self.noted.pop(place, None)
            self._sums.pop(place, None)

    def copy(self) -> Copy:
        """What is known."""
        noted = {place: each.copy() for place, each in self.noted.items()}
        return Copy(noted, {place: each.copy() for place, each in self._sums.items()})

    def take_back(self, copy: Copy) -> None:
        """Know what was known then."""
        self.noted = {place: noted.copy() for place, noted in copy.noted.items()}
        self._sums = {place: sums.copy() for place, sums in copy.sums.items()}


def _lost(sums: Sums, at: Any, range_: Range) -> Any:
    """What any order may lose of the sums at some bytes."""
    sizes, counts = sums.sizes[at], sums.counts[at]
    exact = (sums.whole[at] & (sizes <= range_.whole)) | (counts == 0)
    with np.errstate(invalid="ignore"):
        limits = np.where(exact, 0.0, counts * (range_.epsilon * sizes + range_.flushed))
    return np.where(~(sizes <= range_.largest) & (counts > 0), UNKNOWN, limits)


def line_of_kernel() -> int:
    """The line of the submission that is run; 0 where none is."""
    frame: Any = sys._getframe()
    while frame is not None and frame.f_code.co_filename != _FILE:
        frame = frame.f_back
    return 0 if frame is None else int(frame.f_lineno)
