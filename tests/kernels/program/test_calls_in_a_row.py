"""Calls of forward that follow one another: state that kernels keep, and what later calls do otherwise."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_replay_planning import DRAW, tuned

from assay.kernels.inside.record.comparing import compare
from assay.kernels.inside.replay.state import Flow, Row, State
from assay.kernels.program.judging import lasting
from assay.kernels.program.planning import plan
from support.kernel_graders import Bench
from support.programs import launch, made, operation, window
from support.trials import Trials

EXPLOITS = Path(__file__).parents[3] / "exploits"
STATE = sorted((EXPLOITS / "attacks" / "state").glob("*.py"))
HONEST = ("parameters_named_as_fields", "workspace_cleared_in_turn", "workspace_left_clean", "kept_output")
HONEST += ("tickets_set_back", "table_made_once", "counts_its_batches", "outputs_in_turn", "memory_in_a_cycle")


@pytest.fixture(scope="module")
def trials(bench: Bench) -> Trials:
    return Trials(bench)


def problem_of(code: str) -> str:
    return code.split('# problem = "')[1].split('"')[0]


@pytest.mark.parametrize("file", STATE, ids=lambda file: file.stem)
def test_state_that_is_kept_is_no_answer(trials: Trials, file: Path) -> None:
    code = file.read_text(encoding="utf-8")
    expect = json.loads(code.split("# expect = ")[1].splitlines()[0])
    assert trials.run(problem_of(code), code).end in expect


@pytest.mark.parametrize("name", HONEST)
def test_memory_may_be_kept_by_honest_kernels(trials: Trials, name: str) -> None:
    code = (EXPLOITS / "unusual" / f"{name}.py").read_text(encoding="utf-8")
    outcome = trials.run(problem_of(code), code)
    assert outcome.end == "ok", outcome


LEAVES = """
import torch, triton, triton.language as tl
@triton.jit
def leaves(x_ptr, y_ptr, s_ptr, n):
    i = tl.arange(0, 8)
    x = tl.load(x_ptr + i)
    p = s_ptr + i
    {}
    tl.store(y_ptr + i, x + {})
class ModelNew(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("s", torch.zeros(9))
    def forward(self, x):
        y = torch.empty_like(x)
        leaves[(1,)](x, y, self.s, 8)
        {}
        return y
"""
LEFT = {
    "counted": ("s = tl.load(p)\n    tl.store(p, s + 1)", "0 * s", "", 8),
    "counted in places": ("s = tl.load(p)\n    tl.store(p, s + 1, mask=i > 2)", "0 * s", "", 5),
    "added to": ("s = tl.atomic_add(p, 1.0)", "0 * s", "", 8),
    "written first": ("tl.store(p, x)\n    s = tl.load(p)", "0 * s", "", 0),
    "given back": ("s = tl.load(p)\n    tl.store(p, s + 1)\n    tl.store(p, s)", "s", "", 0),
    "read alone": ("s = tl.load(p)", "s", "", 0),
    "never read": ("tl.store(p, x)", "0.0", "", 0),
    "cleared by PyTorch": ("s = tl.load(p)\n    tl.store(p, s + 1)", "s", "self.s.zero_()", 0),
    "counted by PyTorch": ("s = tl.load(p)", "0 * s", "self.s.add_(1.0)", 9),
    "counted for itself": ("s = 0.0", "s", "self.s.add_(1.0)", 0),
    "counted for what is left in an input": (
        "s = 0.0",
        "s",
        "self.s.add_(1.0)\n        x.add_(self.s[:8], alpha=0.0)",
        9,
    ),
    "counted for a branch not taken": (
        "s = x\n    if n > 9:\n        s = tl.load(p)",
        "0 * s",
        "self.s.add_(1.0)",
        9,
    ),
    "counted by way of another": ("s = 0.0", "s", "self.s.add_(1.0)\n        y.add_(self.s[:8], alpha=0.0)", 9),
}


@pytest.mark.parametrize("name", LEFT)
def test_what_a_call_reads_of_earlier_ones_it_leaves_as_it_found_it(bench: Bench, name: str) -> None:
    *parts, elements = LEFT[name]
    code, x = LEAVES.format(*parts), np.arange(8, dtype=np.float32)
    later = {"restored": False, "follow": True}
    ran = bench.run(code, x, outputs=(("float32", (8,)),), controls=({}, {}, later, later | {"follow": False}))
    assert ran.result.end == "ok" and not ran.fault, ran.result
    first, second, found, last = (call["left"] for call in ran.result.report["calls"])
    assert first == second == last == [] and sum(one["elements"] for one in found) == elements
    written = parts[2].splitlines()[0] if parts[2] else "leaves[(1,)](x, y, self.s, 8)"
    assert all(code.splitlines()[one["line"] - 1].strip() == written for one in found)
    assert [one.rule for one in lasting.left_as_found(found)] == ["state"] * len(found)


def test_what_one_call_reads_and_another_changes_is_state() -> None:
    raw, row = [torch.zeros(8, dtype=torch.uint8)], Row()
    steps = (Flow(3, frozenset({0}), frozenset({0, 1})),)
    for side, follows, elements in ((1, False, 0), (0, True, 0), (0, True, 0), (1, True, 2)):
        state = State(raw, [4], [0])
        state.touched(0, np.array([side]), reads=True, writes=False)
        state.touched(0, np.array([1 - side]), reads=False, writes=True)
        raw[0][4 * (1 - side)] += 1
        row.take(state, follows=follows)
        assert sum(one["elements"] for one in row.left({1}, steps)) == (elements or side == 0)
        assert row.left({2}, steps) == []


@pytest.mark.parametrize("trials_", [1, 2, 5])
@pytest.mark.parametrize("seed", range(8))
def test_a_plan_has_a_call_that_follows_another_on_other_inputs(trials_: int, seed: int) -> None:
    for program in (made(), tuned((3,))):
        calls = plan(program, DRAW, trials_, random.Random(seed), ("flat",))
        assert calls[0].restored
        later = [place for place, call in enumerate(calls) if not call.restored]
        assert any(calls[place].case.family != "flat" for place in later)
        if trials_ > 1:
            assert any(calls[place].case is not calls[place - 1].case for place in later)
        for place in later:
            assert calls[place].skip == calls[place - 1].skip == -1 and not calls[place - 1].weights
            assert calls[place].configurations == calls[place - 1].configurations


def compared(
    *steps: list[Any], before: int = 0, constants: dict[int, str] | None = None, repeated: list[Any] | None = None
) -> Any:
    calls = [([window(100 + place)], found, [window(9)]) for place, found in enumerate(steps)]
    last = ([window(200)], steps[-1] if repeated is None else repeated, [window(9)])
    return compare(calls, last, before, constants or {}, ["double"])


def test_names_of_parameters_mean_nothing_to_the_comparison() -> None:
    one, two = launch(line=1, window=3), launch(line=2, window=3)
    assert "launch 1 (double, line 9)" in compared([one], [two]).differs
    assert not compared([one], [one]).differs


@pytest.mark.parametrize(("one", "other"), [(1, True), (1, 1.0), (0.0, -0.0)])
def test_numbers_that_are_equal_in_python_alone_differ(one: Any, other: Any) -> None:
    assert compared([launch(n=one)], [launch(n=other)]).differs


def test_what_the_first_call_alone_does_and_what_it_keeps() -> None:
    clear = operation("zeros.default", [8], outs=(window(5),))
    use = launch(x={"window": window(5)})
    found = compared([clear, use], [use], before=4)
    assert (found.differs, found.kept, found.once) == ("", [5, 9], [0])
    again = operation("zero_.default", window(5), outs=(window(5),))
    assert compared([clear, use], [again, use], before=4).once == []
    more = operation("add.Tensor", window(5), 1, outs=(window(5),))
    assert "runs what the first one does not: add.Tensor (line 7)" in compared([clear, use], [more, use]).differs


def test_a_call_without_a_change_may_leave_out_operations_and_no_launch() -> None:
    pack, use = operation("clone.default", window(2), outs=(window(5),)), launch(x={"window": window(5)})
    found = compared([pack, use], [pack, use], before=4, repeated=[use])
    assert (found.differs, found.once) == ("", [])
    assert "makes 1 launches, call 3 makes 0" in compared([pack, use], [pack, use], before=4, repeated=[pack]).differs
    said = compared([use], [use], before=4, repeated=[pack, use]).differs
    assert "call 3 of forward runs what the first one does not: clone.default" in said


def test_other_buffers_and_other_constants_differ() -> None:
    one, two = (launch(x={"window": window(place)}) for place in (5, 6))
    assert compared([one], [two], before=7).differs
    assert compared([one], [two], constants={5: "AA==", 6: "AQ=="}).differs
    assert not compared([one], [two], constants={5: "AA==", 6: "AA=="}).differs
    assert not compared([one], [two]).differs  # fresh in both


def copy(to: int, of: int) -> Any:
    return operation("copy_.default", window(to), window(of), outs=(window(to),))


def chained(first: int, *places: int) -> list[Any]:
    """Copies through memory that no launch names, each place from the one before, to what a launch is given. `first`:
    the number of the first of it; the first two are made of storages 1 and 2."""
    made = [operation("clone.default", window(1 + one), outs=(window(first + one),)) for one in (0, 1)]
    pairs = zip(places[1:], places[:-1], strict=True)
    moves = [
        operation("copy_.default", window(first + to), window(first + of), outs=(window(first + to),))
        for to, of in pairs
    ]
    last = operation("copy_.default", window(first + 9), window(first + places[-1]), outs=(window(first + 9),))
    return [*made, *moves, last, launch(x={"window": window(first + 9)})]


def test_memory_that_no_launch_names_is_told_apart() -> None:
    def differs(one: list[Any], other: list[Any]) -> str:
        return str(compared(one, other, before=4).differs)

    assert not differs(chained(20, 0, 2), chained(40, 0, 2))
    assert "call 2 of forward runs what the first one does not: copy_.default" in differs(
        chained(20, 0, 2), chained(40, 1, 2)
    )
    assert "copy_.default" in differs(chained(20, 0, 2, 3), chained(40, 0, 2, 0))
    pack = operation("clone.default", window(3), outs=(window(60),))
    assert not differs([pack, *chained(20, 0, 2)], chained(40, 0, 2)), "a later call may leave out operations"


def test_allocators_and_what_tuners_do_are_compared() -> None:
    plain = launch(x={"window": window(5)})
    given, hook = plain | {"allocator": True}, operation("zero_.default", window(5), outs=(window(5),))
    tuned, restored = plain | {"tuning": [[], [], []]}, plain | {"tuning": [[hook], [], []]}
    for one, other in ((given, plain), (plain, given), (plain, tuned), (restored, tuned), (tuned, restored)):
        assert "launch 1 (double, line 9) differs" in compared([one], [other]).differs
    for one, other in ((given, given), (tuned, plain), (restored, restored), (restored, plain)):
        assert not compared([one], [other]).differs
