"""The calls of a replay: every configuration of an autotuned kernel is run."""

from __future__ import annotations

import itertools
import json
import random
import tokenize
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.kernels.arrays import host_tensor
from assay.kernels.language.flow.lowering import lowered
from assay.kernels.language.form import Kernels
from assay.kernels.language.parsing import parse
from assay.kernels.numerics.screening import Case
from assay.kernels.numerics.secret_inputs import InputSet
from assay.kernels.program.form import Program
from assay.kernels.program.jobs import NO_KERNEL
from assay.kernels.program.planning import AT_ONCE, MAX_TOGETHER, _logical_lines, configurations, plan
from assay.kernels.program.reading import Refusal, read
from support.kernel_graders import Bench
from support.programs import N, launch, made, operation, written
from support.trials import SNAKE, Trials, snaking


def case(family: str, seed: int) -> Case:
    x = np.random.default_rng(seed).normal(size=N).astype(np.float32)
    return Case(family, (host_tensor(x, "float32"),), (x.astype(np.float64) * 2,), (x * 2,))


DRAW = InputSet(1, 2, (), tuple(case(name, 5) for name in ("given", "large", "flat")), (("float32", (N,)),), (), {})


def tuned(counts: Sequence[int], kernels: int = 0) -> Program:
    """A program with a launch of each number of configurations, of so many kernels; 0 is one for each."""
    steps = [
        launch(place % (kernels or len(counts))) | {"variants": launch()["variants"] * count}
        for place, count in enumerate(counts)
    ]
    program = read(json.dumps(written(forward=steps, kernels=written()["kernels"][:1] * max(len(counts), 2))).encode())
    assert not isinstance(program, Refusal), program
    return program


@given(st.lists(st.integers(1, 9), min_size=1, max_size=4), st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_every_configuration_is_chosen_and_all_together_where_they_are_few(counts: list[int], seed: int) -> None:
    found = configurations(tuned(counts), random.Random(seed))
    every = set(itertools.product(*map(range, counts)))
    assert set(found) <= every and len(found) == len(set(found))
    if len(every) <= MAX_TOGETHER:
        assert set(found) == every
    else:
        assert max(counts) <= len(found) <= MAX_TOGETHER
        assert all(
            set(column) == set(range(count)) for column, count in zip(zip(*found, strict=True), counts, strict=True)
        )


def pairs(found: Sequence[tuple[int, ...]], one: int, other: int) -> set[tuple[int, int]]:
    """The configurations of two launches that meet."""
    return {(choice[one], choice[other]) for choice in found}


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("counts", [(5, 5, 5), (8, 2, 6), (7, 1, 7, 2), (3,) * 6])
def test_every_pair_of_two_kernels_meets_where_so_many_choices_hold_them(counts: tuple[int, ...], seed: int) -> None:
    found = configurations(tuned(counts), random.Random(seed))
    assert len(found) <= MAX_TOGETHER
    for one, other in itertools.combinations(range(len(counts)), 2):
        assert pairs(found, one, other) == set(itertools.product(range(counts[one]), range(counts[other])))


def test_as_many_pairs_meet_as_so_many_choices_hold() -> None:
    found = configurations(tuned((30, 30)), random.Random(1))
    assert len(found) == len(pairs(found, 0, 1)) == MAX_TOGETHER
    assert len(configurations(tuned((64, 2)), random.Random(1))) == MAX_TOGETHER


def test_launches_of_one_kernel_have_each_configuration_at_once() -> None:
    """As a tuner chooses it for all launches of a key; and once each among others."""
    found = configurations(tuned((8, 8, 8), kernels=1), random.Random(1))
    assert {(number,) * 3 for number in range(8)} <= set(found) and 8 < len(found) <= 16


@pytest.mark.parametrize(("counts", "trials"), [((30,), 5), ((64,), 2), ((3,), 5), ((2, 5), 1), ((4, 30), 3)])
def test_every_configuration_has_a_followed_call_on_inputs_that_tell(counts: tuple[int, ...], trials: int) -> None:
    program = tuned(counts)
    calls = plan(program, DRAW, trials, random.Random(8), ("flat",))
    assert {call.case.family for call in calls} == {"given", "large", "flat"} or trials < 3
    telling = [call for call in calls if call.case.family != "flat" and call.follow and call.skip == NO_KERNEL]
    for place, count in enumerate(counts):
        assert {call.configurations[place] for call in telling} == set(range(count))
    (whole,) = (call for call in calls if call.in_order and call.skip == NO_KERNEL)
    assert all(call.configurations == whole.configurations for call in calls if call.skip != NO_KERNEL)


@pytest.mark.parametrize(("count", "trials"), [(1, 1), (1, 5), (3, 1), (3, 5), (20, 5)])
def test_where_an_autotuner_tunes_calls_begin_with_what_it_tries(count: int, trials: int) -> None:
    step = launch() | {"variants": launch()["variants"] * count}
    for seed in range(8):
        tried = plan(made(forward=[step | {"tuning": [[], [], []]}]), DRAW, trials, random.Random(seed))
        assert any(call.tuning and call.configurations == tried[0].configurations for call in tried[1:])
        assert not tried[0].tuning
        without = {call.configurations for call in tried if not call.tuning and not call.in_order}
        assert {call.configurations for call in tried if call.tuning} <= without and len(without) == count
        assert all(call.restored and call.skip == NO_KERNEL and not call.in_order for call in tried if call.tuning)
        assert not any(call.tuning for call in plan(made(forward=[step]), DRAW, trials, random.Random(seed)))


def test_calls_in_a_row_are_followed_where_an_earlier_one_may_have_left_something() -> None:
    window = [3, "int32", [2], [1], 0]
    left = {"storages": [4 * N, 4 * N, 4 * N, 8], "init": [operation("zeros.default", [2], outs=(window,))]}
    for steps, follows in (([launch()], False), ([launch(), operation("zero_.default", window, outs=(window,))], True)):
        program = made(**left, forward=steps)
        for trials, seed in itertools.product((1, 2, 5), range(5)):
            calls = plan(program, DRAW, trials, random.Random(seed))
            assert all(call.follow for call in calls if not call.restored) or not follows
            assert follows or sum(call.follow for call in calls) == 1


@pytest.mark.parametrize("tunes", [False, True])
def test_weights_move_back_where_something_may_be_kept_of_them(tunes: bool) -> None:
    window = [3, "int32", [2], [1], 0]
    left = {"storages": [4 * N, 4 * N, 4 * N, 8], "init": [operation("zeros.default", [2], outs=(window,))]}
    step = launch() | {"variants": launch()["variants"] * 2} | ({"tuning": [[], [], []]} if tunes else {})
    weights = {"weight": host_tensor(np.ones(3), "float32")}
    draw = replace(
        DRAW, moved=case("given", 6), moved_weights=weights, updated=case("given", 7), updated_weights=weights
    )
    for kept, seed in itertools.product((False, True), range(5)):
        forward = [step, operation("zero_.default", window, outs=(window,))] if kept else [step]
        calls = plan(made(**left, forward=forward), draw, 2, random.Random(seed))
        back = [place for place, call in enumerate(calls) if call.moved_back]
        assert len(back) == kept * (8 if tunes else 4)
        for place, after in zip(back[::2], back[1::2], strict=True):  # on the inputs of either trial
            moved, again, third = calls[place - 1], calls[place], calls[after]
            assert after == place + 1 and again.case is not third.case
            assert moved.weights and moved.restored and moved.configurations == again.configurations
            for one in (again, third):
                assert not one.weights and not one.restored and not one.tuning and one.follow
        assert {calls[place - 1].tuning for place in back[::2]} == ({False, tunes} if kept else set())


def test_no_call_is_added_where_nothing_is_tuned() -> None:
    calls = plan(made(), DRAW, 5, random.Random(8))
    assert [call.skip for call in calls].count(NO_KERNEL) == 6 and sum(call.follow for call in calls) == 1


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("trials", [1, 5])
def test_all_calls_have_error_bounds_but_those_that_leave_a_kernel_out_and_what_they_are_held_against(
    count: int, trials: int
) -> None:
    moved = ({"weight": host_tensor(np.ones(3), "float32")},) * 2
    draw = replace(
        DRAW, moved=case("given", 6), moved_weights=moved[0], updated=case("given", 7), updated_weights=moved[1]
    )
    for seed in range(5):
        calls = plan(tuned((count,)), draw, trials, random.Random(seed))
        assert all(call.bounded is not call.in_order for call in calls)
        assert all(call.in_order for call in calls if call.skip != NO_KERNEL)
        (whole,) = (call for call in calls if call.in_order and call.skip == NO_KERNEL)
        held = [call for call in calls if call.bounded]
        assert any(call.case is whole.case and call.configurations == whole.configurations for call in held)
        assert {call.configurations for call in held if not call.weights} == {(number,) for number in range(count)}
        assert sum(bool(call.weights) for call in held) == 2
        assert len({call.seed for call in held}) == len(held)


ATOMIC = {
    "tl.atomic_add(x, 1)": False,
    "tl.atomic_add(\n        x,  # atomic_add in words\n        1,\n    )": False,
    "tl.atomic_add(x, tl.atomic_add(y, 1))": True,
    "tl.atomic_add(x + 1, 1); old = tl.atomic_add(y, 1); tl.store(y, old)": True,
    "old = \\\n        tl.atomic_add(x, 1)\n    tl.store(y, old)": True,
    "old = (\n        tl.atomic_add(x, 1)\n    )\n    tl.store(y, old)": True,
    "# a comment\r    tl.store(y, tl.atomic_add(x, 1))": True,
    "tl.store(y, tl.\uff41tomic_add(x, 1))": True,
}
"""Statements with atomic operations, and whether a result is used."""


@pytest.mark.parametrize(("statement", "asks"), ATOMIC.items())
def test_calls_are_added_wherever_the_language_sees_the_result_of_an_atomic_operation_used(
    statement: str, asks: bool
) -> None:
    source = f"@triton.jit\ndef double(x, y, n, BLOCK: tl.constexpr):\n    {statement}\n"
    names = {"tl": {"module": "triton.language"}}
    found = parse({"double": {"source": source, "names": names}})
    assert isinstance(found, Kernels) and bool(lowered(found.functions).asks) is asks
    program = made(kernels=[{"name": "double", "source": source, "names": names, "line": 1}])
    calls = plan(program, DRAW, 5, random.Random(8))
    assert [call.skip for call in calls].count(NO_KERNEL) == 6 + AT_ONCE * asks
    followed = {call.case.family for call in calls if call.follow}
    assert followed == ({case.family for case in DRAW.cases} if asks else {calls[0].case.family})


MARKS = "\u0f73\u0f75\u0f81" * 10_000
"""Characters that combine with nothing, and are made of such as do."""


@pytest.mark.parametrize(
    "text",
    [
        "'a\n" * 9_000,
        'x = """\n' + "\n" * 9_000,
        "\ufdfa" * 2_000,
        "(" * 40_000,
        "#\u0301\u0316",
        "\u0f73" * 30_000,
        "\u0f75\u0f81" * 15_000,
    ],
)
def test_a_text_that_takes_long_to_read_is_taken_for_one_that_asks(text: str) -> None:
    source = f"# atomic_\n{text}\n"
    kernel = {"name": "double", "source": source, "names": {}, "line": 1}
    calls = plan(made(kernels=[kernel]), DRAW, 5, random.Random(8))
    assert [call.skip for call in calls].count(NO_KERNEL) == 6 + AT_ONCE


def test_reading_ends_at_the_first_quote_that_does_not_end() -> None:
    with pytest.raises((SyntaxError, tokenize.TokenError)):
        next(_logical_lines("'" * 9))


@pytest.fixture(scope="module")
def trials(bench: Bench) -> Trials:
    return Trials(bench)


RARE = """
@triton.autotune([triton.Config({"PART": 2 if number == 23 else 1, "N": number}) for number in range(24)], key=[])
@triton.jit
def tuned(x_ptr, f_ptr, y_ptr, n, F, BLOCK: tl.constexpr, PART: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, BLOCK)
    inside = (i < n) & (i % PART == 0)
    x = tl.load(x_ptr + i, mask=inside)
    a = tl.load(f_ptr + i % F, mask=inside, other=1.0)
    s = tl.sin(a * x)
    tl.store(y_ptr + i, x + s * s / a, mask=inside)
"""
TUNED = """
y = torch.empty_like(x)
tuned[(1,)](x, self.frequency, y, x.numel(), x.shape[-1], BLOCK=triton.next_power_of_2(x.numel()))
return y
"""


def test_one_wrong_configuration_of_many_is_found(trials: Trials) -> None:
    assert trials.run(SNAKE, snaking(TUNED, RARE)).end == "wrong"
    right = trials.run(SNAKE, snaking(TUNED, RARE.replace("number == 23", "False")))
    assert right.end == "ok" and right.passed == right.total >= 24, right


CONSTRUCTED = """
@triton.autotune([triton.Config({"OFF": 1.0 if number == 23 else 0.0, "N": number}) for number in range(24)], key=[])
@triton.jit
def tuned(f_ptr, n, BLOCK: tl.constexpr, OFF: tl.constexpr, N: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(f_ptr + i, tl.load(f_ptr + i, mask=i < n) + OFF, mask=i < n)
"""


@pytest.mark.parametrize(("wrong", "end"), [("number == 23", "wrong"), ("False", "ok")])
def test_configurations_of_the_constructor_are_all_run(trials: Trials, wrong: str, end: str) -> None:
    build = "tuned[(1,)](self.frequency.data, features, BLOCK=triton.next_power_of_2(features))"
    code = snaking(
        "return snake(x, self.frequency, torch.empty_like(x))", CONSTRUCTED.replace("number == 23", wrong), build
    )
    outcome = trials.run(SNAKE, code)
    assert outcome.end == end, outcome
