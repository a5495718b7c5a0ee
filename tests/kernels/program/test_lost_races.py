"""Races that the replay's order hides: programs that meet without an atomic operation between them are wrong."""

from __future__ import annotations

import numpy as np
import pytest
from benchmarks.common.submissions import read_submission
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.kernels.inside.replay.ordering import Ordering
from assay.kernels.inside.triton.ledger import Sync
from support.kernel_graders import Bench
from support.kernelbench_data import ATTACKS
from support.trials import SNAKE, Trials, snaking

pytest.importorskip("torch")
pytest.importorskip("triton")


@pytest.fixture(scope="module")
def trials(bench: Bench) -> Trials:
    return Trials(bench)


ADDING = snaking(
    """
    y, locks = torch.zeros_like(x), torch.zeros((2, 2), dtype=torch.int32, device=x.device)
    block = triton.next_power_of_2(x.numel())
    adding[(2,)](x, self.frequency, y, locks, locks[1], x.numel(), x.shape[-1], BLOCK=block)
    return y
    """,
    head="""
    @triton.jit
    def adding(x_ptr, f_ptr, y_ptr, lock, w_ptr, n, F, BLOCK: tl.constexpr):
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
    "a lock that acquires and is released": (
        SPIN.replace("0, 1)", '0, 1, sem="acquire")'),
        PLAIN,
        GIVE.replace("0)", '0, sem="release")'),
        "ok",
    ),
    "a relaxed lock": (SPIN.replace("0, 1)", '0, 1, sem="relaxed")'), PLAIN, GIVE, "wrong"),
    "relaxed when it is given back": (SPIN, PLAIN, GIVE.replace("0)", '0, sem="relaxed")'), "wrong"),
    "a lock for one program": (SPIN.replace("0, 1)", '0, 1, scope="cta")'), PLAIN, GIVE, "wrong"),
    "given back by a store": (SPIN, PLAIN, "tl.store(lock, 0)", "wrong"),
    "given back before the threads have met": (SPIN, PLAIN, "pass", "wrong"),
    "nothing taken": ("pass", PLAIN, GIVE, "wrong"),
    "nothing given back": (TAKE, PLAIN, "pass", "wrong"),
    "taken without a look": (TAKE, PLAIN, GIVE, "wrong"),
    "nobody waits": (SPIN.replace("== 1", "== 2"), PLAIN, GIVE, "wrong"),
    "waits three times": (f"for _ in range(3):\n        t = {TAKE}", PLAIN, GIVE, "wrong"),
    "locks of their own": ("tl.atomic_add(w_ptr + tl.program_id(0), 0)", PLAIN, GIVE, "wrong"),
    "atomic sums": ("pass", "tl.atomic_add(y_ptr + i, part, mask=i < n)", "pass", "ok"),
}


@pytest.mark.parametrize("way", WAYS)
def test_what_programs_add_without_a_lock_is_lost(trials: Trials, way: str) -> None:
    before, place, after, end = WAYS[way]
    if way == "given back before the threads have met":
        place = f"{PLAIN}\n    {GIVE}"
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
    "the same bytes, read again": ("tl.store(work, 1.0)\n    tl.debug_barrier()\n    s *= tl.load(work)", "ok"),
    "the same bytes, once they were others": ("tl.store(work, 2.0)\n    tl.store(work, 1.0)", "wrong"),
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


TICKET = "tl.atomic_add(work, 1.0, sem='relaxed')\n    t = tl.atomic_add(work + 1, 1.0)\n"
LAST = f"{TICKET}    if t == tl.num_programs(0) - 1.0:\n        s *= 1.0 + 0.0 * tl.load(work)"
SUMS = {
    "by a ticket": (LAST, "ok"),
    "by a relaxed ticket": (LAST.replace("1, 1.0)", "1, 1.0, sem='relaxed')"), "wrong"),
    "by a ticket, and loaded before": (f"s += 0.0 * tl.load(work)\n    {LAST}", "wrong"),
    "stored over with the same bytes": ("tl.atomic_add(work, 0.0)\n    tl.store(work, 0.0)", "wrong"),
}


@pytest.mark.parametrize("name", SUMS)
def test_sums_that_programs_share(trials: Trials, name: str) -> None:
    text, end = SUMS[name]
    outcome = trials.run(SNAKE, BESIDE.replace("torch.empty(4096", "torch.zeros(4096").replace("MORE", text))
    assert outcome.end == end and ("race" in outcome.message) == (end == "wrong"), outcome


KINDS = ("block", "single", "barrier", "acq_rel", "acquire", "release", "relaxed")
SYNC = {kind: Sync(hears=kind in ("acq_rel", "acquire"), tells=kind in ("acq_rel", "release")) for kind in KINDS[3:]}


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from(KINDS), st.integers(1, 2)), max_size=14))
@settings(max_examples=300, deadline=None)
def test_the_order_is_that_of_what_programs_tell_and_hear(script: list[tuple[int, str, int]]) -> None:
    """Against reachability in the graph of what each program did, one program after another. Its first thread makes
    single accesses and atomic operations; those of a block come after the last barrier or result, and are over at the
    next barrier."""
    script = sorted(script, key=lambda event: event[0])
    before: list[set[int]] = []  # for each event, the events that are ordered before it
    ordering, stamps, current = Ordering(3), {}, None
    for number, (program, kind, element) in enumerate(script):
        if program != current:
            ordering.begin(program)
            current = program
        own = [other for other in range(number) if script[other][0] == program]
        edges = [other for other in own if script[other][1] != "block"][-1:]
        if kind == "block":
            edges = [other for other in own if script[other][1] not in ("block", "single")][-1:]
        elif kind == "barrier":
            edges += [other for other in own if script[other][1] == "block"]
        elif kind in SYNC and SYNC[kind].hears:
            edges += [
                other
                for other in range(number)
                if script[other][2] == element and script[other][1] in SYNC and SYNC[script[other][1]].tells
            ]
        before.append({part for other in edges for part in before[other] | {other}})
        if kind == "barrier":
            ordering.barrier()
        elif kind in SYNC:
            ordering.atomic(np.array([element * 8], dtype=np.uint64), True, SYNC[kind])
        else:
            for other, stamp in stamps.items():
                others = ordering.of_others(np.array([stamp]))
                unordered = bool(ordering.unordered(np.array([stamp]), others)[0])
                assert unordered == (script[other][0] != program and other not in before[number]), (number, other)
            stamps[number] = ordering.stamp(kind == "single")


@given(st.integers(0, 3), st.booleans())
def test_what_an_operation_on_many_elements_hears_reaches_its_program_at_a_barrier(count: int, one: bool) -> None:
    ordering = Ordering(2)
    ordering.begin(0)
    stamp = np.array([ordering.stamp(True)])
    ordering.atomic(np.array([8], dtype=np.uint64), True, Sync())
    ordering.begin(1)
    ordering.atomic(np.array([8, *range(16, 16 + 8 * count, 8)], dtype=np.uint64), one, Sync())
    assert bool(ordering.unordered(stamp, ordering.of_others(stamp))[0]) is not one
    ordering.barrier()
    assert not ordering.unordered(stamp, ordering.of_others(stamp))[0]


def test_what_an_operation_hears_whose_result_nobody_uses_reaches_its_program_at_a_barrier() -> None:
    ordering = Ordering(2)
    ordering.begin(0)
    stamp = np.array([ordering.stamp(True)])
    ordering.atomic(np.array([8], dtype=np.uint64), True, Sync())
    ordering.begin(1)
    ordering.atomic(np.array([8], dtype=np.uint64), True, Sync(), unused=True)
    assert ordering.unordered(stamp, ordering.of_others(stamp))[0]
    ordering.barrier()
    assert not ordering.unordered(stamp, ordering.of_others(stamp))[0]


@pytest.mark.parametrize("name", ["acquire_nobody_hears", "acquire_of_one_thread"])
def test_an_acquire_whose_result_nobody_uses_orders_no_other_thread(trials: Trials, name: str) -> None:
    attack = read_submission(ATTACKS / f"order/{name}.py")
    outcome = trials.run(attack.problem, attack.code)
    assert outcome.end == "wrong" and "a race" in outcome.message, outcome


MEETING = snaking(
    """
    y, n = torch.empty_like(x), x.numel()
    words, floats = (torch.zeros(8, dtype=kind, device=x.device) for kind in (torch.int32, torch.float32))
    meeting[(triton.cdiv(n, 256),)](x, self.frequency, y, words, floats, n, x.shape[-1], BLOCK=256)
    return y
    """,
    head="""
    @triton.jit
    def meeting(x_ptr, f_ptr, y_ptr, words, floats, n, F, BLOCK: tl.constexpr):
        p = tl.program_id(0)
        i = p * BLOCK + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + i, mask=i < n, other=0.0)
        a = tl.load(f_ptr + i % F, mask=i < n, other=1.0)
        s = tl.sin(a * x)
        y = x + s * s / a
        most = tl.max(tl.abs(x), 0)
        WHAT
        tl.store(y_ptr + i, y, mask=i < n)
    """,
)
FAR = "most > 60.0"
MEET = {
    "nothing": ("pass", "ok"),
    "a store where numbers are large": (f"tl.store(y_ptr + i + BLOCK, y, mask=({FAR}) & (p == 0))", "wrong"),
    "a place that is large": (f"tl.store(words + tl.where({FAR}, 0, p), p)", "wrong"),
    "a branch": (f"if {FAR}:\n        tl.store(words, p)", "wrong"),
    "a load where numbers are large": (
        f"tl.store(words + p, p)\n    y += tl.load(words + p + 1, mask=({FAR}) & (p == 0), other=0) * 0.0",
        "wrong",
    ),
    "what is stored": (f"tl.store(words, tl.where({FAR}, p, 1))", "wrong"),
    "one number": ("tl.store(words, 1)", "ok"),
    "exchanges": ("tl.atomic_xchg(words, p)", "wrong"),
    "exchanges for one number": ("tl.atomic_xchg(words, 1)", "ok"),
    "exchanges where numbers are large": (f"tl.atomic_xchg(words, tl.where({FAR}, p, 1))", "wrong"),
    "exchanges under a mask": ("tl.atomic_xchg(words + i % 2, tl.where(x > 0, 1, 0), mask=x > 0)", "ok"),
    "sums": ("tl.atomic_add(words, p)", "ok"),
    "a sum beside a maximum": ("tl.atomic_add(words, p)\n    tl.atomic_max(words, p)", "wrong"),
    "a sum hidden by an own one": (
        "tl.atomic_add(words, 1)\n    tl.atomic_max(words, p, mask=p == 1)",
        "wrong",
    ),
    "the largest of floats": ("tl.atomic_max(floats, tl.sum(x, 0))", "ok"),
    "the least of floats": ("tl.atomic_min(floats, tl.sum(x, 0))", "ok"),
}  # fmt: skip
"""What programs do beside their work, and how it ends."""


@pytest.mark.parametrize("name", MEET)
def test_programs_meet_in_whatever_call_their_values_let_them(trials: Trials, name: str) -> None:
    what, end = MEET[name]
    outcomes = [trials.run(SNAKE, MEETING.replace("WHAT", f"{what}  # {number}")) for number in range(3)]
    assert {outcome.end for outcome in outcomes} == {end}, outcomes
