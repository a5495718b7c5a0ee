"""Programs replayed as on a GPU, without one: rounds and verdicts with the interpreter in its place, and the launcher
with Triton compiling for it."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from assay.kernels.arrays import host_tensor
from assay.kernels.config import GraderConfig
from assay.kernels.numerics import on_gpu
from assay.kernels.numerics.screening import Case
from assay.kernels.numerics.secret_inputs import InputSet
from assay.kernels.program.jobs import NO_KERNEL, Recorded, Replay, measured, record_job, recorded, replay_job
from assay.kernels.program.on_device import REPLAY, changed, in_device_order
from assay.kernels.program.trial import plan
from assay.sandbox import JobResult
from support.device_stand_in import run_on_stand_in
from support.kernel_graders import LIMITS, Bench
from support.kernelbench_data import HONEST
from support.trials import SNAKE, Trials, snaking

pytest.importorskip("torch")
pytest.importorskip("triton")


@pytest.fixture(scope="module")
def trials(bench: Bench) -> Trials:
    return Trials(bench)


def recording(bench: Bench, trials: Trials, key: str, code: str) -> Recorded:
    found = recorded(bench.wait(bench.sandbox.run(record_job(code, trials.draw(key), LIMITS, "float32"))))
    assert isinstance(found, Recorded), found
    return found


def replayed(found: Recorded, draw: InputSet, kind: str) -> tuple[JobResult, list[Replay]]:
    calls = in_device_order(plan(found.program, draw, 3, random.Random(5)))
    job = replay_job(found.text, draw, calls, LIMITS, 4096)
    result = run_on_stand_in(on_gpu.started_first(job, REPLAY, GraderConfig()), kind)
    assert on_gpu.not_started(result) is None
    return on_gpu.without_start(result), calls


TWO = snaking(
    """
    y = torch.empty_like(x)
    {first}
    return snake({given}, self.frequency, y)
    """
)


def test_calls_without_a_kernel_come_last_and_tell_whether_it_mattered(bench: Bench, trials: Trials) -> None:
    draw = trials.draw(SNAKE)
    found = recording(bench, trials, SNAKE, TWO.format(first="x = copied(x)", given="x"))
    result, calls = replayed(found, draw, "interpreted")
    assert [call.skip == NO_KERNEL for call in calls] == [*[True] * (len(calls) - 2), False, False]
    assert not any(call.follow or call.in_order for call in calls)
    answers = dict(enumerate(result.outputs[1:]))
    assert "fault" not in result.report, result.report  # type: ignore[operator]
    assert changed(calls, answers, draw, "float32") == {0: True, 1: True}
    seen = measured(result)
    assert len(seen) == len(calls) and all(account.unwritten == (0,) for account in seen)
    for place, call in enumerate(calls):
        if call.skip == NO_KERNEL:
            expected = np.asarray(call.case.exact[0], dtype=np.float32)
            given = np.frombuffer(answers[place][0], dtype=np.float32).reshape(expected.shape)
            assert np.allclose(given, expected, rtol=1e-4, atol=1e-4)
    idle = recording(bench, trials, SNAKE, TWO.format(first="copied(x)", given="x"))
    result, calls = replayed(idle, draw, "interpreted")
    assert changed(calls, dict(enumerate(result.outputs[1:])), draw, "float32") == {0: False, 1: True}


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
    found = recording(bench, trials, SNAKE, SCATTERED)
    result, calls = replayed(found, trials.draw(SNAKE), "interpreted")
    faults = [account.fault for account in measured(result)]
    assert "fault" not in result.report  # type: ignore[operator]
    assert [bool(fault) for fault in faults] == [call.skip == 0 for call in calls]
    assert changed(calls, dict(enumerate(result.outputs[1:])), trials.draw(SNAKE), "float32") == {0: True, 1: True}
    assert trials.run(SNAKE, SCATTERED).end == "ok"


@pytest.mark.parametrize("name", ["snake_autotuned", "matmul_descriptors"])
def test_launches_are_what_triton_compiles(bench: Bench, trials: Trials, name: str) -> None:
    """Names, options, grids, descriptors and compile-time values reach Triton's own launch."""
    from benchmarks.common.submissions import read_submission

    submission = read_submission(HONEST / f"{name}.py")
    found = recording(bench, trials, submission.problem, submission.code)
    result, calls = replayed(found, trials.draw(submission.problem), "compiled")
    assert "fault" not in result.report, result.report  # type: ignore[operator]
    kernels = {found.program.kernels[step.kernel].name for step in found.program.forward if hasattr(step, "kernel")}
    assert set(measured(result)[0].launches) == kernels and len(result.outputs) == 1 + len(calls)


REFUSED = """
    @triton.jit
    def wide_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
        i = tl.arange(0, BLOCK)
        tl.store(y_ptr + i, tl.load(x_ptr + i, mask=i < n), mask=i < n)
"""


def test_a_compiler_that_refuses_names_the_line(bench: Bench, trials: Trials) -> None:
    code = snaking("y = torch.empty_like(x)\nwide_kernel[(1,)](x, y, x.numel(), BLOCK=1000)\nreturn y", head=REFUSED)
    found = recording(bench, trials, SNAKE, code)
    result, _ = replayed(found, trials.draw(SNAKE), "compiled")
    words = on_gpu.refused_by_compiler(result)
    line = next(number for number, text in enumerate(code.splitlines(), 1) if "def wide_kernel" in text) + 1
    assert words is not None and words.startswith(f"line {line}: ") and "power of 2" in words, words


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
    assert changed(calls, answers, DRAW, "float32") == {2: mattered}
