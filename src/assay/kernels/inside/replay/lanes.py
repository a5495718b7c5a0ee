"""Which accesses of one program a GPU puts in order: those of one thread, and those with a barrier between them.

A program is a block of threads, and each of its accesses is spread over them. The same lane of two accesses of one
shape and one element size is taken for one thread: Triton spreads both alike, unless it knows more of the addresses of
one than of the other's. What a descriptor does, a unit beside the threads does.

Where an access has fewer elements than there are threads, several load an element and one stores it. What the others
load of it, with no barrier after the store, may be anything. That is of no account as long as the program goes on with
as few elements (a sum that one thread keeps in memory), and shows in the first larger block that it writes.

An atomic operation on a single element is made by one thread, which hands the result to all others: a barrier, if the
result is needed. Whether it is, shows in another run (`reruns`).

Loads of a pipelined loop (`language.flow.lowering`) start before what earlier iterations and lines have stored.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np

from assay.kernels.inside.triton.commutation import MAX_NAMES, commute
from assay.kernels.inside.triton.ledger import Access

_LANE = 40
"""Bits of a stamp for shape and lane; those above count the stretches of a launch, from a barrier to the next."""
_LANES = (1 << _LANE) - 1
_SHAPE = 28
_SHAPES = 1 << (_LANE - _SHAPE)
_SEVERAL = _LANES
"""No lane: several of them, or a unit beside them."""
_MOST_STRETCHES = 1 << (62 - _LANE)
_NONE = 1 << 62
_MOST_WAITING = 1 << 18
"""Elements of one storage whose accesses are kept one by one, until others meet them."""

_ATOMIC = "atomic "
_KINDS = {"ticket": "ticket", "value": "question"}


def kind_of(access: Access) -> str:
    """What an access is here: `load`, `store`, `question` (an atomic operation whose result is used), `ticket` (one of
    which only that no two are the same), or `atomic ` and the name of one whose result nobody uses (`commutation`)."""
    name = access.of_no_result
    return f"{_ATOMIC}{name}" if name is not None else _KINDS.get(access.asks, access.what)


def _is_atomic(kind: str) -> bool:
    return kind.startswith(_ATOMIC)


def _meets(what: str, other: str) -> bool:
    """Whether an access must not meet one of another kind without a barrier, another lane having done it."""
    if _is_atomic(what) and _is_atomic(other):
        return not commute(what.removeprefix(_ATOMIC), other.removeprefix(_ATOMIC))
    return what != other or what not in ("load", "ticket")


class Spread(NamedTuple):
    """How an access is spread over the threads of its program."""

    shape: Any
    """Of the whole access, and the size of its elements; `()` for a single one, None for an access of no thread."""
    lanes: Callable[[], Any]
    """The lane of each of its elements in one storage."""
    early: bool = False
    """Whether it is a load that starts early where its loop is pipelined."""

    @property
    def elements(self) -> int:
        """Of the whole access."""
        return math.prod(self.shape[0]) if self.shape else 1


class Lanes:
    """What the program under way touched since its last barrier."""

    def __init__(self, slots: Callable[[int], int]) -> None:
        """`slots`: how many elements a storage has."""
        self._slots = slots
        self.threads = 1
        self._stretch = 0
        self._stamps: dict[tuple[int, str], Any] = {}
        """Storage and kind of access -> for each element a stamp: stretch, shape and lane of the last one."""
        self._shapes: dict[Any, int] = {}
        self.only_early = False
        """Whether the last that `take` found is so for the loop alone, and would be in order in one that is not
        pipelined."""
        self.begin()

    def begin(self) -> None:
        """A program begins: it has touched nothing."""
        self._loop = _NONE
        self.doubtful = self.doubtful_by_result = _NONE
        """Elements of the smallest access that loaded what one thread of several had stored, without a barrier; and
        with nothing between but results of atomic operations."""
        self.in_doubt: Literal["", "lanes", "result"] = ""
        """Of the last access: whether it loaded such elements, and what was between."""
        self.doubted = 0
        """The stamp of what the last of the latter loaded."""
        self.leans = False
        """Whether the last access came to elements that the same lane had written, with nothing between: a GPU has the
        two in order where Triton gives the lane to one thread in both."""
        self.barrier()

    def barrier(self) -> None:
        """All of its threads meet: what was before is in order with what follows."""
        self._next_stretch()
        self._since = self._handed = self._stretch << _LANE
        self._results: list[tuple[int, int]] = []
        self._waiting: dict[int, list[tuple[str, int, Any, Spread]]] = {}
        self._kinds: dict[int, set[str]] = {}
        self._elements: dict[int, int] = {}

    def result(self, number: int) -> None:
        """One thread hands the result of an atomic operation to all others; `number`: how many the program made."""
        self._next_stretch()
        self._handed = self._stretch << _LANE
        self._results.append((self._stretch, number))

    def results_after(self, stamp: int) -> tuple[int, int]:
        """The first and the last result that were handed over after an access, by number."""
        return next(number for stretch, number in self._results if stretch > stamp >> _LANE), self._results[-1][1]

    @property
    def is_pipelined(self) -> bool:
        """Whether the program is in a pipelined loop."""
        return self._loop != _NONE

    def loop(self) -> int:
        """A pipelined loop begins; gives back what `leave` takes."""
        before = self._loop
        self._next_stretch()
        self._loop = self._stretch << _LANE
        return before

    def leave(self, before: int) -> None:
        """It is over."""
        self._loop = before

    def take(self, storage: int, slots: Any, what: str, spread: Spread) -> tuple[Any, Any]:
        """Which elements of an access meet others of the same program in no order, None for none; and for each the
        stamp of the last one that only results of atomic operations put in order with it, if there is one.
        Then it is noted.

        Args:
            storage: What it touches.
            slots: Numbers of the elements.
            what: `kind_of` it.
            spread: Over the threads.
        """
        self.in_doubt, self.leans = "", False
        kinds = self._kinds.setdefault(storage, set())
        if _is_atomic(what) and what not in kinds and sum(map(_is_atomic, kinds)) >= MAX_NAMES:
            what = _ATOMIC
        others = [each for each in kinds if _meets(what, each)]
        waiting = self._waiting.setdefault(storage, [])
        elements = self._elements.get(storage, 0) + len(slots)
        if others or elements > _MOST_WAITING:
            for each in waiting:
                self._note(storage, *each)
            waiting.clear()
            elements = len(slots)
        self._elements[storage] = elements
        meets: Any = None
        handed: Any = None
        mine = self._stamped(spread) if others else 0
        self.only_early = True
        for kind in others:
            there = self._stamps[storage, kind][slots]
            recent = there >= self._since
            found = recent if spread.shape is None else recent & (((there ^ mine) & _LANES) != 0)
            if kind != "load" and spread.shape:
                self.leans |= bool((recent & ~found & (there >= self._handed)).any())
            if what == "load":
                self._doubt(there, recent & ~found, spread)
            if self._handed > self._since:
                by_result = np.where(found & (there < self._handed), there, 0)
                handed = by_result if handed is None else np.maximum(handed, by_result)
                found = found & (there >= self._handed)
            self.only_early &= not found.any()
            if spread.early:
                found = found | (there >= max(self._loop, self._since))
            if found.any():
                meets = found if meets is None else meets | found
        kinds.add(what)
        waiting.append((what, self._stretch, slots, spread))
        return meets, handed if handed is not None and handed.any() else None

    def _doubt(self, there: Any, own: Any, spread: Spread) -> None:
        """Note a load of elements that one thread of several stored (`own`)."""
        few = spread.elements
        if few >= self.threads or not own.any():
            return
        if (there[own] >= self._handed).any():
            self.doubtful, self.in_doubt = min(self.doubtful, few), "lanes"
        else:
            self.doubtful_by_result, self.in_doubt = min(self.doubtful_by_result, few), "result"
            self.doubted = int(there[own].max())

    def _stamped(self, spread: Spread) -> Any:
        """Shape and lane of each element of an access."""
        if spread.shape is None:
            return _SEVERAL
        if spread.shape == ():
            return 0
        number = self._shapes.setdefault(spread.shape, len(self._shapes) + 1)
        return number % _SHAPES << _SHAPE | spread.lanes()

    def _note(self, storage: int, what: str, stretch: int, slots: Any, spread: Spread) -> None:
        key = (storage, what)
        if key not in self._stamps:
            self._stamps[key] = np.zeros(self._slots(storage), dtype=np.int64)
        stamps, mine = self._stamps[key], stretch << _LANE | self._stamped(spread)
        there = stamps[slots]
        several = (there >= self._since) & (((there ^ mine) & _LANES) != 0) if what != "store" else False
        stamps[slots] = mine
        several |= stamps[slots] != mine
        if several.any():
            stamps[slots[several]] = stretch << _LANE | _SEVERAL

    def _next_stretch(self) -> None:
        self._stretch += 1
        if self._stretch >= _MOST_STRETCHES:
            self._stretch = 1
            self._stamps.clear()
