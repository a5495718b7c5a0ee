"""Follows every access of the kernels: who wrote an element, and where programs of one launch, or lanes of one program,
meet.

Two programs of a launch race at an element if one of them writes it plainly and the other touches it in any way: a GPU
runs them in no order. Atomic operations race with plain accesses of others only.

A race is `lost` if one program writes other bytes than are there, the other reads or writes plainly, and no atomic
operation orders them (`ordering`). That is what a lock, or a ticket for the last program, does. What lanes of one
program do to each other's elements without a barrier (`lanes`) is refused at once.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import Any

import numpy as np

from assay.kernels.inside.replay.lanes import Lanes, Spread, kind_of
from assay.kernels.inside.replay.memory import OF_OTHERS, UNWRITTEN, Memory
from assay.kernels.inside.replay.order.history import History
from assay.kernels.inside.replay.order.seen import Seen
from assay.kernels.inside.replay.order.units import Units
from assay.kernels.inside.replay.ordering import Ordering
from assay.kernels.inside.replay.state import State
from assay.kernels.inside.triton.bounds import spread
from assay.kernels.inside.triton.commutation import by_values
from assay.kernels.inside.triton.ledger import (
    Access,
    OutOfBoundsError,
    UnsupportedError,
    WrongValueError,
    current,
    refuse,
)
from assay.kernels.inside.triton.rebuilt import FILE
from assay.types import Json

WARP = 32
"""Threads."""
MAX_RACES = 8
"""Races that are told, and as many that are lost."""
MAX_BLOCKS = 16
"""Forms of blocks that a call may touch where their lanes have written, with no barrier between."""
_OTHER_LANES = (
    "a race: {0}() makes {1} at {2} elements that other lanes of the same program touched before, one of the two "
    "writing, and the threads of a program run in no order. Call tl.debug_barrier() between the two"
)
_EARLY = (
    "{0}() loads {2} elements that the same loop has stored: a compiler that pipelines the loop starts the load before "
    "the store. Call tl.debug_barrier() in the loop, after the store, which keeps it from that, or give it num_stages=1"
)
_EARLY_RESULT = (
    "a race: {0}() uses the result of an atomic operation in a loop that the compiler pipelines: it makes what early "
    "loads need iterations before what the loop stores, and starts loads before an operation that acquires. Call "
    "tl.debug_barrier() in the loop, which keeps it from that, or give it num_stages=1"
)
_TWO_WAYS = (
    "a race: {0}() touches {1} elements through a descriptor and through pointers, one of the two writing. A unit "
    "beside the threads makes the accesses of descriptors, and tl.debug_barrier() does not hold it back. Use one of "
    "the two for all that a program does to a tensor, or make two launches of it"
)
_IN_DOUBT = (
    "a race: {0}() stores a block after a load of {1} elements that it had stored before. Where they are fewer than "
    "its threads, one thread stores what several load, in no order. Call tl.debug_barrier() between the two"
)
_SPREADS = (
    "a race: {0}() computes a block from {1} elements that it stored and then loaded, or decides by them. Where they "
    "are fewer than its threads, one stores what all load, in no order. Call tl.debug_barrier() between the two"
)
_PART = "{0}() makes a {1} of {2} bytes of elements of {3}, of which the others may be unwritten: use whole elements"
_TOO_MANY = (
    "{0}() touches blocks of more than {1} forms where it has written before, with no barrier between. Whether one "
    "thread has each element both times is looked up for no more. Call tl.debug_barrier() between the two"
)


@dataclass(frozen=True, slots=True)
class Leaning:
    """An access of a program that is in order with an earlier one by nothing but results of atomic operations."""

    program: int
    number: int
    """Of the access, among those of the program."""
    first: int
    """Of the results that may have put it in order, among those of the program."""
    last: int
    access: Access

    def is_alike(self, other: Access) -> bool:
        """Whether another one is at the same addresses."""
        one = self.access
        if one.what != other.what or not np.array_equal(one.pointers, other.pointers):
            return False
        mask, others = (True if access.mask is None else access.mask for access in (one, other))
        return bool(np.all(np.equal(mask, others)))


class Accesses:
    """An observer of the interpreter. One for each call of forward."""

    def __init__(self, memory: Memory, two_ways: bool = False) -> None:
        """`two_ways`: whether kernels may come to memory through descriptors."""
        self._two_ways = two_ways
        self._units: Units | None = None
        order = sorted(range(len(memory.raw)), key=lambda place: memory.raw[place].data_ptr())
        order = [place for place in order if memory.raw[place].numel()]
        self._order = order
        self._starts = np.array([memory.raw[place].data_ptr() for place in order], dtype=np.uint64)
        self._memory = memory
        self._made = {place: memory.made[place].numpy() for place in order}
        self._known = {place: memory.known[place].numpy() for place in order}
        self._others = {place: flags.numpy() for place, flags in memory.others.items()}
        self._seen: dict[int, Seen] = {}
        self._histories: dict[int, History] = {}
        self._launch = ("", 0)
        self._stages = 1
        self._ordering = Ordering(0)
        self._threads = 1
        self._lanes = self._new_lanes()
        self._spare: list[Lanes] = []
        """Of programs that are over, where programs take turns."""
        self._state: State | None = memory.state
        self.excused = False
        """Whether an access was no race, or may be none, for what it stored alone: other values may be others."""
        self._races: dict[tuple[str, int, int, bool], list[int]] = {}
        self.most = self._made_so_far = 0
        """Accesses that a program of the launch made."""
        self.ran: list[int] = []
        """The programs of the launch, in the order in which they began."""
        self._results = 0
        self.ordered: dict[int, int] = {}
        """Lines in which a program of the launch touches what another one was told of by atomic operations, and that
        would be lost without: the stamp of the other's access."""
        self.leaning: dict[int, Leaning] = {}
        """Lines of accesses that are in order with earlier ones of their program by results of atomic operations."""
        self._doubtful: dict[int, Leaning] = {}
        """The same of loads that are in doubt."""
        self._same_lanes: dict[tuple[str, Any, int], int] = {}
        """Kernels, forms of blocks and storages that they touched where the same lanes had written, with no barrier
        between: the line of the first such access."""

    def launch(self, name: str, line: int, programs: int, stages: int, warps: int) -> None:
        """A launch begins: what the last one touched races with nothing any more. `stages`, `warps`: its `num_stages`
        and `num_warps`."""
        self._launch, self._stages, self._threads = (name, line), stages, WARP * warps
        self._seen, self._histories = {}, {}
        self._ordering = Ordering(programs)
        self._units = Units(lambda storage: len(self._made[storage])) if self._two_ways else None
        self.ran, self.ordered, self.leaning, self.most = [], {}, {}, 0

    @property
    def name(self) -> str:
        """Of the kernel."""
        return self._launch[0]

    def begin(self, program: int) -> None:
        """A program begins."""
        self.ran.append(program)
        self._made_so_far = self._results = 0
        self._doubtful = {}
        self._ordering.begin(program)
        self._lanes.begin()
        self._lanes.threads = self._threads

    def _new_lanes(self) -> Lanes:
        return Lanes(lambda storage: len(self._made[storage]))

    def suspend(self) -> Any:
        """Another program is to run; gives back what `resume` takes."""
        own = (self._lanes, self._made_so_far, self._results, self._doubtful)
        self._lanes = self._spare.pop() if self._spare else self._new_lanes()
        return own, self._ordering.suspend()

    def resume(self, state: Any) -> None:
        """A program goes on."""
        self._spare.append(self._lanes)
        (self._lanes, self._made_so_far, self._results, self._doubtful), ordering = state
        self._ordering.resume(ordering)

    def barrier(self) -> None:
        """The threads of the program wait for each other."""
        self._ordering.barrier()
        self._lanes.barrier()

    def loop(self, stages: int | None) -> Callable[[], None]:
        """A loop begins of which the compiler starts loads early where it has more than one stage, its own or the
        launch's; gives back what ends it."""
        if (self._stages if stages is None else stages) <= 1:
            return _nothing
        return partial(self._lanes.leave, self._lanes.loop())

    def touched(self, access: Access) -> None:
        """Take one access into the account, before it is made."""
        pointers, mask, values = access.pointers, access.mask, access.values
        if access.sync is not None and access.asks != "nothing" and self._lanes.is_pipelined:
            refuse(WrongValueError(_EARLY_RESULT.format(self.name)))
        if mask is not None:
            mask = spread(mask, pointers.shape)
            at = pointers[mask]
        else:
            at = pointers.ravel()
        if at.size:
            if values is not None:
                values = spread(values, pointers.shape)
                values = values[mask] if mask is not None else values.ravel()
            places = np.searchsorted(self._starts, at, side="right") - 1
            first = int(places[0])
            if bool((places == first).all()):
                self._within(first, at, access, values, mask, None)
            else:
                for place in np.unique(places):
                    here = places == place
                    some = values[here] if values is not None else None
                    self._within(int(place), at[here], access, some, mask, here)
        self._made_so_far += 1
        self.most = max(self.most, self._made_so_far)
        if access.sync is not None:
            one = pointers.size == 1
            self._ordering.atomic(at, one, access.sync, access.asks == "nothing")
            self._results += 1
            if one:
                self._lanes.result(self._results)

    def result(self, found: Any) -> Any:
        """What an atomic operation found."""
        return found

    def _within(self, index: int, at: Any, access: Access, values: Any, mask: Any, here: Any) -> None:
        """One access to one storage. `here`: which of those that the mask chooses; None for all."""
        storage, what = self._order[index], access.what
        grain = self._memory.granularity[storage]
        if access.size < grain:
            refuse(UnsupportedError(_PART.format(self.name, what, access.size, grain)))
        offsets = (at - self._starts[index]).astype(np.int64)
        slots = offsets // grain
        parts = max(1, access.size // grain)
        if parts > 1:
            slots = (slots[:, None] + np.arange(parts)).ravel()
        inside: Any = slots < len(self._made[storage])
        if inside.all():
            inside = None
        else:
            slots = slots[inside]
        if storage in self._others and (count := int(np.count_nonzero(self._others[storage][slots]))):
            refuse(OutOfBoundsError(OF_OTHERS.format(self.name, what, count, len(slots))))
        known = self._known[storage]
        if what != "store" and not (written := known[slots]).all():
            name, count = self._launch[0], len(slots) - int(np.count_nonzero(written))
            refuse(WrongValueError(UNWRITTEN.format(name, count, len(slots))))
        if what != "load":
            self._made[storage][slots] = True
            known[slots] = True
        self.excused |= bool(access.of_no_result) and by_values(access.commutes)
        if self._state is not None:
            self._state.touched(storage, slots, reads=what != "store", writes=what != "load")
        if self._units is not None:
            self._look_at_units(self._units, storage, slots, access)
        one = access.pointers.size == 1
        if storage not in self._seen:
            self._seen[storage] = Seen(len(self._made[storage]))
            self._histories[storage] = History(len(self._made[storage]))
        meets, races, told = self._seen[storage].take(slots, what, self._ordering, one, access.of_no_result)
        if told:
            self.ordered[_line()] = told
        shape = None if access.apart else () if one else (access.pointers.shape, access.size)
        lanes = partial(_lanes, access.pointers.size, mask, here, parts, inside)
        doubtful = self._lanes.doubtful_by_result
        beside, handed = self._lanes.take(storage, slots, kind_of(access), Spread(shape, lanes, access.early))
        history, changed = self._histories[storage], None
        if what == "store" and (
            history.was_written(slots) or not (races is None and beside is None and handed is None)
        ):
            changed = np.repeat(self._changed(storage, offsets, access.size, values), parts)
            changed = changed if inside is None else changed[inside]
        if what == "store":
            changed = history.stored(slots, changed)
        elif what != "load":
            history.combined(slots)
        if changed is not None:
            met = (each for each in (races, beside, handed) if each is not None)
            self.excused |= any(bool((each.astype(bool) & ~changed).any()) for each in met)
            races = races & changed if races is not None else None
            beside = beside & changed if beside is not None else None
            handed = handed * changed if handed is not None else None
        if beside is not None and beside.any():
            self._refuse_lanes(access, int(np.count_nonzero(beside)))
        if self._lanes.leans and (self.name, shape, storage) not in self._same_lanes:
            if len(self._same_lanes) == MAX_BLOCKS:
                refuse(WrongValueError(_TOO_MANY.format(self.name, MAX_BLOCKS)))
            self._same_lanes[self.name, shape, storage] = _line()
        if handed is not None and (stamp := int(handed.max())):
            self._lean(access, stamp, self.leaning)
        if self._lanes.doubtful_by_result < doubtful:
            self._lean(access, self._lanes.doubted, self._doubtful)
        if self._lanes.in_doubt:
            current().in_doubt = self._spreads(access)
        if what != "load" and access.pointers.size > min(self._lanes.doubtful, self._lanes.doubtful_by_result):
            if access.pointers.size > self._lanes.doubtful:
                refuse(WrongValueError(_IN_DOUBT.format(self.name, self._lanes.doubtful)))
            self.leaning |= self._doubtful
        self._note(storage, meets, races)

    def _spreads(self, access: Access) -> Callable[[], None]:
        """What is to be done once others use what one thread of several has stored and loaded."""
        if self._lanes.in_doubt == "lanes":
            return partial(refuse, WrongValueError(_SPREADS.format(self.name, access.pointers.size)))
        found: dict[int, Leaning] = {}
        self._lean(access, self._lanes.doubted, found)
        return partial(self.leaning.update, found)

    def _look_at_units(self, units: Units, storage: int, slots: Any, access: Access) -> None:
        """Refuse what reaches memory in two ways that do not wait for each other."""
        reads, writes = access.what != "store", access.what != "load"
        elements = units.take(storage, slots, apart=access.apart, reads=reads, writes=writes)
        if elements:
            refuse(WrongValueError(_TWO_WAYS.format(self.name, elements)))

    def _refuse_lanes(self, access: Access, elements: int) -> None:
        """Refuse what lanes of one program do to each other, with what helps."""
        said = _EARLY if self._lanes.only_early else _OTHER_LANES
        what = "an atomic operation" if access.sync is not None else f"a {access.what}"
        refuse(WrongValueError(said.format(self.name, what, elements)))

    def _lean(self, access: Access, stamp: int, found: dict[int, Leaning]) -> None:
        """Note an access that is in order with one of a stamp by results alone."""
        first, last = self._lanes.results_after(stamp)
        found[_line()] = Leaning(self.ran[-1], self._made_so_far, first, last, access)

    def _changed(self, storage: int, offsets: Any, size: int, values: Any) -> Any:
        """Which of some elements get other bytes than they hold."""
        held = self._memory.raw[storage].numpy()
        before = held[np.minimum(offsets[:, None] + np.arange(size), len(held) - 1)]
        after = np.ascontiguousarray(values).view(np.uint8).reshape(len(offsets), size)
        return (before != after).any(axis=1)

    def _note(self, storage: int, meets: Any, races: Any) -> None:
        elements = int(np.count_nonzero(meets)) if meets is not None else 0
        if not elements:
            return
        lost = int(np.count_nonzero(races)) if races is not None else 0
        key = (*self._launch, storage, lost > 0)
        if key not in self._races:
            if sum(other[-1] == key[-1] for other in self._races) >= MAX_RACES:
                return
            self._races[key] = [0, 0]
        self._races[key][0] += elements
        self._races[key][1] += lost

    def lost(self) -> bool:
        """Whether a race was lost."""
        return any(lost for *_, lost in self._races)

    def take_over(self, other: Accesses) -> None:
        """Add the lost races of another account of the same call."""
        self._races |= {key: counts for key, counts in other._races.items() if key[-1]}

    def same_lanes(self) -> list[Json]:
        """Blocks that were touched where the same lanes had written: what a GPU has in order where Triton gives each
        lane to one thread."""
        return [
            {"kernel": name, "line": line, "shape": list(shape), "bytes": size, "storage": storage}
            for (name, (shape, size), storage), line in self._same_lanes.items()
        ]

    def told(self) -> list[Json]:
        """Of each launch and storage at which programs raced: how often, and how often that is `lost`; those first."""
        found = sorted(self._races.items(), key=lambda race: not race[0][-1])
        return [
            {"kernel": name, "line": line, "storage": storage, "elements": elements, "lost": lost}
            for (name, line, storage, _), (elements, lost) in found
        ]


def _line() -> int:
    """The line of the submission that is under way; 0 where there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename != FILE:
        frame = frame.f_back
    return frame.f_lineno if frame is not None else 0


def _lanes(count: int, mask: Any, here: Any, parts: int, inside: Any) -> Any:
    """The lane of each element of an access to one storage."""
    lanes = np.arange(count) if mask is None else np.flatnonzero(mask)
    if here is not None:
        lanes = lanes[here]
    if parts > 1:
        lanes = np.repeat(lanes, parts)
    return lanes if inside is None else lanes[inside]


def _nothing() -> None:
    """End a loop that is as it is written."""
