"""Programs replayed as on a GPU, without one: rounds and verdicts with the interpreter in its place, and the launcher
with Triton compiling for it."""

from __future__ import annotations

import random
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from assay.kernels import config as config_module
from assay.kernels.arrays import host_tensor
from assay.kernels.config import GraderConfig
from assay.kernels.numerics import on_gpu
from assay.kernels.numerics.held_inputs import Left
from assay.kernels.numerics.screening import Case
from assay.kernels.numerics.secret_inputs import InputSet
from assay.kernels.problems.scaling import unscaled
from assay.kernels.problems.sources import load_problems
from assay.kernels.program import grading
from assay.kernels.program.grading import Grading
from assay.kernels.program.jobs import NO_KERNEL, REPLAY, Replay, measured
from assay.kernels.program.judging.answers import Answers
from assay.kernels.program.judging.outcome import Attempt, Outcome
from assay.kernels.program.limits import ON_DEVICE
from assay.kernels.program.noise import changed_beyond_noise
from assay.kernels.program.on_device import device_job, in_device_order, judge_on_device
from assay.kernels.program.planning import plan
from assay.kernels.program.sizes.given import OtherSizes, Size
from assay.kernels.program.trial import record
from assay.sandbox import JobResult
from support.device_stand_in import run_on_stand_in
from support.kernel_graders import LIMITS, Bench
from support.kernelbench_data import HONEST, ROOT
from support.trials import SNAKE, Trials, snaking

sys.path.insert(0, str(ROOT / "benchmarks"))

from common.submissions import read_submission

pytest.importorskip("torch")
pytest.importorskip("triton")


@pytest.fixture(scope="module")
def trials(bench: Bench) -> Trials:
    return Trials(bench)


def recording(bench: Bench, draw: InputSet, code: str) -> Attempt:
    attempt = bench.wait(record(bench.sandbox, code, draw, LIMITS, "float32", sizes=ON_DEVICE))
    assert isinstance(attempt, Attempt), attempt
    return attempt


def replayed(attempt: Attempt, draw: InputSet, kind: str) -> tuple[Outcome, JobResult]:
    answers = Answers(draw, in_device_order(plan(attempt.program, draw, 3, random.Random(5))), "float32", exact=False)
    config = GraderConfig()
    result = run_on_stand_in(device_job(attempt.text, draw, answers.calls, config), kind)
    for number, outputs in enumerate(result.outputs[1:-1]):
        answers.take(number, outputs)
    return judge_on_device(result, attempt, answers, config), on_gpu.without_start(result)


TWO = snaking(
    """
    y = torch.empty_like(x)
    {first}
    return snake({given}, self.frequency, y)
    """
)


def test_calls_without_a_kernel_come_last_and_tell_whether_it_mattered(bench: Bench, trials: Trials) -> None:
    draw = trials.draw(SNAKE)
    attempt = recording(bench, draw, TWO.format(first="x = copied(x)", given="x"))
    calls = in_device_order(plan(attempt.program, draw, 3, random.Random(5)))
    assert [call.skip == NO_KERNEL for call in calls] == [*[True] * (len(calls) - 2), False, False]
    assert not any(call.follow for call in calls)
    outcome, _ = replayed(attempt, draw, "interpreted")
    assert (outcome.end, outcome.passed, outcome.total) == ("ok", 4, 4), outcome
    idle, _ = replayed(recording(bench, draw, TWO.format(first="copied(x)", given="x")), draw, "interpreted")
    assert idle.end == "cheat" and "copy_kernel" in idle.message, idle
    wrong, _ = replayed(recording(bench, draw, TWO.format(first="x = copied(x)", given="y")), draw, "interpreted")
    assert wrong.end == "wrong", wrong


SCATTERED = snaking(
    """
    order = torch.empty(x.numel(), dtype=torch.int32, device=x.device)
    y = torch.empty_like(x)
    order_kernel[(1,)](order, x.numel(), BLOCK=triton.next_power_of_2(x.numel()))
    fetch_kernel[(1,)](x, self.frequency, order, y, x.numel(), x.shape[-1], BLOCK=triton.next_power_of_2(x.numel()))
    return y
    """,
    head="""
    @triton.jit
    def order_kernel(order, n, BLOCK: tl.constexpr):
        i = tl.arange(0, BLOCK)
        tl.store(order + i, i, mask=i < n)

    @triton.jit
    def fetch_kernel(x_ptr, f_ptr, order, y_ptr, n, F, BLOCK: tl.constexpr):
        i = tl.arange(0, BLOCK)
        i = tl.load(order + i, mask=i < n, other=0)
        x = tl.load(x_ptr + i, mask=i < n)
        a = tl.load(f_ptr + i % F, mask=i < n, other=1.0)
        s = tl.sin(a * x)
        tl.store(y_ptr + i, x + s * s / a, mask=i < n)
    """,
)


def test_a_fault_without_a_kernel_is_no_fault_of_the_program(bench: Bench, trials: Trials) -> None:
    """Without the first kernel, the second one reads addresses that no one wrote."""
    attempt = recording(bench, trials.draw(SNAKE), SCATTERED)
    outcome, result = replayed(attempt, trials.draw(SNAKE), "interpreted")
    assert outcome.end == "ok" and any(account.fault for account in measured(result)), outcome
    assert trials.run(SNAKE, SCATTERED).end == "ok"


@pytest.mark.parametrize("name", ["snake_autotuned", "matmul_descriptors"])
def test_launches_are_what_triton_compiles(bench: Bench, trials: Trials, name: str) -> None:
    """Names, options, grids, descriptors and compile-time values reach Triton's own launch. Nothing runs, so nothing is
    right."""
    submission = read_submission(HONEST / f"{name}.py")
    attempt = recording(bench, trials.draw(submission.problem), submission.code)
    outcome, result = replayed(attempt, trials.draw(submission.problem), "compiled")
    assert outcome.end == "wrong" and "fault" not in result.report, outcome  # type: ignore[operator]
    kernels = {kernel.name for kernel in attempt.program.kernels}
    assert all(set(account.launches) == kernels for account in measured(result)[:3])


REFUSED = """
    @triton.jit
    def wide_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
        i = tl.arange(0, BLOCK)
        tl.store(y_ptr + i, tl.load(x_ptr + i, mask=i < n), mask=i < n)
"""


def test_a_compiler_that_refuses_names_the_line(bench: Bench, trials: Trials) -> None:
    code = snaking("y = torch.empty_like(x)\nwide_kernel[(1,)](x, y, x.numel(), BLOCK=1000)\nreturn y", head=REFUSED)
    outcome, _ = replayed(recording(bench, trials.draw(SNAKE), code), trials.draw(SNAKE), "compiled")
    line = next(number for number, text in enumerate(code.splitlines(), 1) if "def wide_kernel" in text) + 1
    assert (outcome.end, outcome.line) == ("not_triton", line) and "power of 2" in outcome.message, outcome


@pytest.mark.parametrize(
    ("code", "kind"),
    [(TWO.format(first="pass", given="x"), "ok"), (TWO.format(first="pass", given="y"), "wrong")],
)
def test_what_a_gpu_has_no_products_for_is_interpreted(
    bench: Bench, trials: Trials, monkeypatch: pytest.MonkeyPatch, code: str, kind: str
) -> None:
    """A smaller size that the compiler refuses is no reason to trust the kernel there, nor to refuse it."""
    draw, seen = trials.draw(SNAKE), []

    async def refuses(sandbox: Any, attempt: Attempt, draw: InputSet, calls: Any, config: GraderConfig) -> Outcome:
        seen.append("gpu")
        return Outcome("ok", "", passed=4, total=4) if seen.count("gpu") == 1 else Outcome("not_triton", "K >= 16")

    async def at_once(harness: str) -> None:
        seen.append(harness)

    monkeypatch.setattr(grading, "replay_on_device", refuses)
    monkeypatch.setattr(config_module, "nvidia_devices", lambda: ("/dev/nvidia0",))
    found = Grading(GraderConfig(device="cuda"), bench.sandbox, random.Random(5), at_once)
    problem = next(found for found in load_problems("shipped", (1,)) if found.key == SNAKE)
    size = Size(unscaled(problem), draw)
    sizes = OtherSizes(lambda: answer(size), *[lambda *_: answer(None)] * 6)
    verdict, _ = bench.wait(found.grade(code, size, sizes))
    assert verdict.kind == kind and REPLAY in seen, verdict


async def answer(what: Any) -> Any:
    return what


def test_a_device_that_does_not_start_is_no_fault_of_the_program(bench: Bench, trials: Trials) -> None:
    draw = trials.draw(SNAKE)
    attempt = recording(bench, draw, TWO.format(first="pass", given="x"))
    fault = {"stage": "device", "kind": "unsupported", "type": "RuntimeError", "message": "no driver"}
    answers = Answers(draw, in_device_order(plan(attempt.program, draw, 1, random.Random(5))), "float32", exact=False)
    lost = judge_on_device(JobResult("crash", "left early", report={"fault": fault}), attempt, answers, GraderConfig())
    assert lost.end == "infra" and "no driver" in lost.message
    started = JobResult("crash", "left early", outputs=((),), report={"fault": fault})
    assert judge_on_device(started, attempt, answers, GraderConfig()).end != "infra"


ONES = np.ones(4)
CASE = Case("given", (host_tensor(ONES, "float32"),), (ONES,), (ONES,))
DRAW = InputSet(1, 2, (), (CASE,), (("float32", (4,)),), (), {})


@pytest.mark.parametrize(
    ("again", "without", "mattered"),
    [
        (0.0, 0.0, False),
        (0.0, 1e-7, True),
        (1e-6, 4e-6, False),  # within what atomic sums differ by
        (1e-6, 2e-5, True),
        (1e-6, 0.5, True),
        (0.5, 0.5, True),  # noise does not make a wrong output a right one
        (0.0, float("nan"), True),
    ],
)
def test_a_kernel_matters_by_more_than_noise(again: float, without: float, mattered: bool) -> None:
    whole = Replay(CASE)
    calls = [whole, replace(whole, seed=3), replace(whole, skip=2)]
    answers = {place: (host_tensor(ONES + by, "float32").data,) for place, by in enumerate((0.0, again, without))}
    assert changed_beyond_noise(calls, answers, DRAW, "float32") == {2: mattered}


@pytest.mark.parametrize("returned", [True, False])
def test_an_input_that_is_returned_may_be_left_as_given(returned: bool) -> None:
    after = Left(0, host_tensor(ONES * 2, "float32"), host_tensor(ONES * 2, "float32"), returned)
    case = replace(CASE, exact=(ONES * 2,), rounded=(ONES * 2,), after=(after,))
    right, given = host_tensor(ONES * 2, "float32").data, host_tensor(ONES, "float32").data
    calls = [Replay(case), replace(Replay(case), skip=0)]
    found = changed_beyond_noise(calls, {0: (right, given), 1: (right, given)}, DRAW, "float32")
    assert found == {0: not returned}
