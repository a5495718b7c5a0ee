"""Races that the replay's order hides: programs that meet without an atomic operation between them are wrong."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.kernels.inside.replay.ordering import Ordering
from support.kernel_graders import Bench
from support.trials import SNAKE, Trials, snaking

pytest.importorskip("torch")
pytest.importorskip("triton")


@pytest.fixture(scope="module")
def trials(bench: Bench) -> Trials:
    return Trials(bench)


ADDING = snaking(
    """
    y, locks = torch.zeros_like(x), torch.zeros(1, dtype=torch.int32, device=x.device)
    adding[(2,)](x, self.frequency, y, locks, x.numel(), x.shape[-1], BLOCK=triton.next_power_of_2(x.numel()))
    return y
    """,
    head="""
    @triton.jit
    def adding(x_ptr, f_ptr, y_ptr, lock, n, F, BLOCK: tl.constexpr):
        i = tl.arange(0, BLOCK)
        x = tl.load(x_ptr + i, mask=i < n)
        a = tl.load(f_ptr + i % F, mask=i < n, other=1.0)
        s = tl.sin(a * x)
        part = tl.where(tl.program_id(0) == 0, x, s * s / a)
        BEFORE
        PLACE
        tl.debug_barrier()
        AFTER
    """,
)
PLAIN = "tl.store(y_ptr + i, tl.load(y_ptr + i, mask=i < n) + part, mask=i < n)"
TAKE, GIVE = "tl.atomic_cas(lock, 0, 1)", "tl.atomic_xchg(lock, 0)"
SPIN = f"while {TAKE} == 1: pass"
WAYS = {
    "no lock": ("pass", PLAIN, "pass", "wrong"),
    "a lock": (SPIN, PLAIN, GIVE, "ok"),
    "given back by a store": (SPIN, PLAIN, "tl.store(lock, 0)", "ok"),
    "nothing taken": ("pass", PLAIN, GIVE, "wrong"),
    "nothing given back": (TAKE, PLAIN, "pass", "wrong"),
    "locks of their own": ("tl.atomic_add(x_ptr + tl.program_id(0), 0.0)", PLAIN, GIVE, "wrong"),
    "atomic sums": ("pass", "tl.atomic_add(y_ptr + i, part, mask=i < n)", "pass", "ok"),
}


@pytest.mark.parametrize("way", WAYS)
def test_what_programs_add_without_a_lock_is_lost(trials: Trials, way: str) -> None:
    before, place, after, end = WAYS[way]
    code = ADDING.replace("BEFORE", before).replace("PLACE", place).replace("AFTER", after)
    outcome = trials.run(SNAKE, code)
    assert outcome.end == end, outcome
    if end == "wrong":
        line = next(number for number, text in enumerate(code.splitlines(), 1) if "adding[(2,)]" in text)
        assert outcome.line == line and "adding" in outcome.message and "race" in outcome.message


BESIDE = snaking(
    """
    y, work = torch.empty_like(x), torch.empty(4096, device=x.device)
    beside[(triton.cdiv(x.numel(), 512),)](x, self.frequency, y, work, x.numel(), x.shape[-1], BLOCK=512)
    return y
    """,
    head="""
    @triton.jit
    def beside(x_ptr, f_ptr, y_ptr, work, n, F, BLOCK: tl.constexpr):
        i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + i, mask=i < n)
        a = tl.load(f_ptr + i % F, mask=i < n, other=1.0)
        s = tl.sin(a * x)
        MORE
        tl.store(y_ptr + i, x + s * s / a, mask=i < n)
    """,
)
MORE = {
    "its own place": ("tl.store(work + tl.program_id(0), tl.load(x_ptr))", "ok"),
    "the same bytes": ("tl.store(work, 1.0)", "ok"),
    "the same bytes, read again": ("tl.store(work, 1.0)\n    s *= tl.load(work)", "ok"),
    "other bytes": ("tl.store(work, tl.program_id(0) * 1.0)", "wrong"),
    "what the next one writes": (
        "tl.store(work + tl.program_id(0), 0.0)\n    s += 0 * tl.load(work + (tl.program_id(0) + 1) % 8)",
        "wrong",
    ),
}


@pytest.mark.parametrize("more", MORE)
def test_places_that_programs_share(trials: Trials, more: str) -> None:
    text, end = MORE[more]
    outcome = trials.run(SNAKE, BESIDE.replace("MORE", text))
    assert outcome.end == end, outcome


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 2)), max_size=12))
@settings(max_examples=60, deadline=None)
def test_the_order_is_that_of_the_atomic_operations(script: list[tuple[int, int]]) -> None:
    """Against reachability in the graph of what each program did: 0 is a plain access, others are atomic operations on
    the element of that number. Programs run one after another."""
    script = sorted(script, key=lambda event: event[0])
    before: list[set[int]] = []  # for each event, the events that are ordered before it
    ordering, stamps, current = Ordering(4), {}, None
    for number, (program, element) in enumerate(script):
        if program != current:
            ordering.begin(program)
            current = program
        edges = [
            other
            for other, (whose, where) in enumerate(script[:number])
            if whose == program or (element and where == element)
        ]
        before.append({part for other in edges for part in before[other] | {other}})
        if element:
            ordering.touched(np.array([element * 8], dtype=np.uint64), "atomic operation")
            continue
        for other, stamp in stamps.items():
            others = ordering.of_others(np.array([stamp]))
            unordered = bool(ordering.unordered(np.array([stamp]), others)[0])
            assert unordered == (script[other][0] != program and other not in before[number])
        stamps[number] = ordering.stamp
