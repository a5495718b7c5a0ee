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
from assay.kernels.inside.replay.order.seen import Seen
from assay.kernels.inside.replay.order.units import Units
from assay.kernels.inside.replay.ordering import Ordering
from assay.kernels.inside.triton.commutation import MAX_NAMES, commute, commutes_as
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
    assert len(lanes._stamps) <= MAX_NAMES + 1
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


def test_what_a_program_does_itself_hides_no_other() -> None:
    seen, ordering = Seen(SLOTS), Ordering(2)
    for program, names in enumerate((["FADD 4"], ["FADD 4", "MAX 4"])):
        ordering.begin(program)
        found = [seen.take(np.array([1]), "atomic operation", ordering, True, name)[1] for name in names]
    assert found[0] is None and found[1] is not None and found[1].any()


OPERATIONS = ("ADD", "FADD", "MAX", "UMAX", "MIN", "UMIN", "AND", "OR", "XOR", "XCHG")


def done(operation: str, there: np.ndarray, value: np.ndarray) -> np.ndarray:
    """What an atomic operation leaves of 32 bits."""
    unsigned, signed = (lambda a, b, f: f(a, b)), (lambda a, b, f: f(a.view("i4"), b.view("i4")).view("u4"))
    return {
        "ADD": lambda: there + value,
        "FADD": lambda: (there.view("f4") + value.view("f4")).view("u4"),
        "MAX": lambda: signed(there, value, np.maximum),
        "MIN": lambda: signed(there, value, np.minimum),
        "UMAX": lambda: unsigned(there, value, np.maximum),
        "UMIN": lambda: unsigned(there, value, np.minimum),
        "AND": lambda: there & value,
        "OR": lambda: there | value,
        "XOR": lambda: there ^ value,
        "XCHG": lambda: value,
    }[operation]()


words = st.sampled_from([0, 1, 3, 7, 1 << 30, (1 << 31) - 1, 1 << 31, (1 << 31) + 5, (1 << 32) - 1])
steps = st.tuples(st.sampled_from([each for each in OPERATIONS if each != "FADD"]), words)


@given(words, steps, steps)
@settings(max_examples=3000, deadline=None)
def test_what_commutes_makes_the_same_in_either_order(start: int, one: tuple[str, int], other: tuple[str, int]) -> None:
    def values(step: tuple[str, int]) -> np.ndarray:
        return np.array([step[1]], dtype="u4")

    names = [commutes_as(step[0], [values(step)]) for step in (one, other)]
    there = np.array([start], dtype="u4")
    ends = []
    for first, second in ((one, other), (other, one)):
        ends.append(int(done(second[0], done(first[0], there, values(first)), values(second))[0]))
    assert not commute(*names) or ends[0] == ends[1], names


def test_operations_that_commute() -> None:
    up, down = np.array([0.0, 5.0], "f4").view("i4"), np.array([-0.0, -5.0], "f4").view("u4")
    assert commute(commutes_as("MAX", [up]), commutes_as("UMIN", [down])), "the largest of floats"
    assert commute(commutes_as("MIN", [up]), commutes_as("UMAX", [down])), "the least of floats"
    assert commute(commutes_as("MAX", [up]), commutes_as("MAX", [down.view("i4")]))
    assert not commute(commutes_as("MAX", [up]), commutes_as("UMIN", [down.view("u4") >> 1]))
    assert commute(commutes_as("XCHG", [up[:1]]), commutes_as("XCHG", [np.zeros(9, "i4")]))
    assert not commute(commutes_as("XCHG", [up]), commutes_as("XCHG", [up])), "several numbers"
    assert not commute(commutes_as("ADD", [up]), commutes_as("ADD", [up.astype("i8")]))


def test_programs_have_few_kinds_of_atomic_operations() -> None:
    seen, ordering = Seen(SLOTS), Ordering(2)
    ordering.begin(0)
    for number in range(40):
        seen.take(np.array([1]), "atomic operation", ordering, True, f"ADD {number}")
    assert len(seen._commuting) <= MAX_NAMES + 1


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
