"""Accesses of one program against a plain account of who touched what since the last barrier."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("torch")
pytest.importorskip("triton")

from assay.kernels.inside.replay.lanes import Lanes, Spread
from assay.kernels.inside.replay.order.seen import MAX_KINDS, Seen
from assay.kernels.inside.replay.order.units import Units
from assay.kernels.inside.replay.ordering import Ordering
from assay.kernels.inside.triton.ledger import Sync

SLOTS = 6
SHAPES = (((4,), 4), ((2, 2), 4), (), None)
ADDS, EXCHANGES = "atomic ADD 4", "atomic "
ATOMIC = {ADDS, "atomic MAX 4", EXCHANGES}
CONFLICTS = {one: {"load", "store", *ATOMIC} - ({one} - {EXCHANGES}) for one in ATOMIC}
CONFLICTS |= {"load": {"store", *ATOMIC}, "store": {"load", "store", *ATOMIC}}

events = st.tuples(
    st.sampled_from(["load", "store", *sorted(ATOMIC), "barrier", "begin", "loop", "leave"]),
    st.sampled_from(SHAPES),
    st.integers(0, SLOTS - 1),
    st.booleans(),
)


@given(st.lists(events, max_size=12))
@settings(max_examples=600, deadline=None)
def test_accesses_meet_where_lanes_differ_and_no_barrier_is_between(script: list) -> None:
    lanes, account, loops = Lanes(lambda storage: SLOTS), [], []
    loop_from = None
    for what, shape, place, early in script:
        if what in ("barrier", "begin"):
            if what == "begin":
                loops, loop_from = [], None
                lanes.begin()
            else:
                lanes.barrier()
            account, loop_from = [], None if loop_from is None else 0
        elif what == "loop":
            if not loops:
                loops, loop_from = [lanes.loop()], len(account)
        elif what == "leave":
            if loops:
                lanes.leave(loops.pop())
                loop_from = None
        else:
            count = 1 if shape == () else 4
            slots = (np.arange(count) + place) % SLOTS
            early = early and what == "load"
            found, handed = lanes.take(0, slots, what, Spread(shape, partial(np.arange, count), early))
            expected = []
            for lane, slot in enumerate(slots.tolist()):
                met = False
                for number, (other, its_shape, its_lanes) in enumerate(account):
                    if other not in CONFLICTS[what] or slot not in its_lanes:
                        continue
                    same = shape is not None and its_shape == shape and its_lanes[slot] == lane
                    in_loop = early and loop_from is not None and number >= loop_from
                    met = met or not same or in_loop
                expected.append(met)
            assert handed is None
            assert (found.tolist() if found is not None else [False] * count) == expected, (what, shape, place)
            if any(expected):
                return  # a program ends there, and only its last store is remembered
            account.append((what, shape, {slot: lane for lane, slot in enumerate(slots.tolist())}))


def access(lanes: Lanes, what: str, shape: object, slots: list[int]) -> tuple[object, object]:
    found, handed = lanes.take(0, np.array(slots), what, Spread(shape, partial(np.arange, len(slots))))
    return found is not None, None if handed is None else lanes.results_after(int(handed.max()))


def test_results_of_atomic_operations_are_told_from_barriers() -> None:
    lanes, wide = Lanes(lambda storage: SLOTS), ((4,), 4)
    access(lanes, "store", wide, [0, 1, 2, 3])
    lanes.result(1)
    lanes.result(2)
    assert access(lanes, "load", wide, [1, 2, 3, 4]) == (False, (1, 2))
    assert access(lanes, "load", wide, [0, 1, 2, 3]) == (False, None)
    access(lanes, "store", wide, [2, 3, 4, 5])
    assert access(lanes, "load", wide, [3, 4, 5, 0])[0]
    lanes.barrier()
    assert access(lanes, "load", wide, [1, 2, 3, 4]) == (False, None)


@pytest.mark.parametrize(("threads", "doubtful"), [(4, False), (32, True)])
def test_fewer_elements_than_threads_are_in_doubt_once_they_are_loaded_again(threads: int, doubtful: bool) -> None:
    lanes, few = Lanes(lambda storage: SLOTS), ((4,), 4)
    lanes.threads = threads
    for between in ("nothing", "result", "barrier"):
        lanes.begin()
        access(lanes, "store", few, [0, 1, 2, 3])
        if between == "result":
            lanes.result(1)
        elif between == "barrier":
            lanes.barrier()
        assert not access(lanes, "load", few, [0, 1, 2, 3])[0]
        assert (lanes.doubtful == 4) == (doubtful and between == "nothing")
        assert (lanes.doubtful_by_result == 4) == (doubtful and between == "result")


def test_many_accesses_are_not_kept_one_by_one() -> None:
    slots = 1 << 16
    lanes, wide = Lanes(lambda storage: slots), ((slots,), 4)
    for number in range(20):
        access(lanes, "load", wide, [(place + number) % slots for place in range(slots)])
        assert sum(len(each[2]) for waiting in lanes._waiting.values() for each in waiting) <= 1 << 18
    assert access(lanes, "store", wide, list(range(slots)))[0]
    lanes.begin()
    assert not access(lanes, "store", wide, list(range(slots)))[0]


def test_a_result_that_is_used_meets_what_other_lanes_did() -> None:
    def asked_after(before: str, what: str, shape: object = ()) -> bool:
        lanes = Lanes(lambda storage: SLOTS)
        access(lanes, before, ((4,), 4), [1, 1, 1, 1])
        return access(lanes, what, shape, [1])[0]

    assert asked_after(ADDS, "question")
    assert not asked_after(ADDS, ADDS) and asked_after(EXCHANGES, EXCHANGES)
    assert not asked_after("ticket", "ticket")
    assert asked_after(ADDS, "ticket") and asked_after("question", ADDS)


def test_atomic_operations_of_many_kinds_are_told_from_no_others() -> None:
    lanes = Lanes(lambda storage: SLOTS)
    for number in range(40):
        access(lanes, f"atomic XCHG {number}", (), [number % 2])
    assert len(lanes._stamps) <= 17
    assert access(lanes, "atomic XCHG 90", ((2,), 4), [0, 1])[0]


def test_atomic_operations_of_two_programs_meet_where_their_order_matters() -> None:
    def races(one: str, other: str, told: bool = False) -> bool:
        seen, ordering = Seen(SLOTS), Ordering(2)
        for program, alike in enumerate((one, other)):
            ordering.begin(program)
            if told and program:
                ordering.atomic(np.array([64]), True, Sync(hears=True, tells=False))
            _, found, _ = seen.take(np.array([1]), "atomic operation", ordering, True, alike)
            if told:
                ordering.atomic(np.array([64]), True, Sync(hears=False, tells=True))
        return found is not None and bool(found.any())

    assert not races("ADD 4", "ADD 4") and races("ADD 4", "FADD 4") and races("", "")
    assert races("XCHG 4 1", "XCHG 4 2") and not races("XCHG 4 1", "XCHG 4 1")
    assert not races("XCHG 4 1", "XCHG 4 2", told=True)


def test_programs_have_few_kinds_of_atomic_operations() -> None:
    seen, ordering = Seen(SLOTS), Ordering(2)
    ordering.begin(0)
    for number in range(40):
        seen.take(np.array([1]), "atomic operation", ordering, True, str(number))
    assert len(seen._unused) <= MAX_KINDS + 1


def test_descriptors_and_pointers_meet_whatever_barrier_is_between() -> None:
    def met(*script: tuple[bool, str]) -> list[int]:
        units = Units(lambda storage: SLOTS)
        return [
            units.take(0, np.array([2, 3]), apart=apart, reads=what != "store", writes=what != "load")
            for apart, what in script
        ]

    assert met((False, "store"), (True, "load")) == [0, 2]
    assert met((True, "store"), (False, "load")) == [0, 2]
    assert met((False, "load"), (True, "store")) == [0, 2]
    assert met((False, "atomic operation"), (True, "store")) == [0, 2]
    assert met((True, "store"), (True, "load"), (True, "store")) == [0, 0, 0]
    assert met((False, "load"), (True, "load")) == [0, 0]
    assert met((False, "store"), (False, "load")) == [0, 0]
