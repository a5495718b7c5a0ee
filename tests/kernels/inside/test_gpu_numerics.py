"""Numerics on a GPU, as far as it goes without one: how CUDA sources are judged, and what a missing device becomes."""

from __future__ import annotations

import asyncio
import json
import os
import random
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import chz
import numpy as np
import pytest

from assay.errors import ConfigError
from assay.kernels import config as config_module
from assay.kernels.arrays import host_tensor
from assay.kernels.config import GraderConfig
from assay.kernels.grader import Grader
from assay.kernels.numerics.on_gpu import not_started, refused_by_compiler
from assay.kernels.numerics.screening import Case
from assay.kernels.numerics.secret_inputs import InputSet
from assay.kernels.numerics.stage import run_cuda
from assay.kernels.problems.sources import find_problem, load_problems
from assay.kernels.program.judging.outcome import Attempt
from assay.kernels.program.limits import ON_DEVICE
from assay.kernels.program.on_device import replay_on_device
from assay.kernels.program.planning import plan
from assay.kernels.program.trial import record
from assay.kernels.program.verdict import verdict_of
from assay.sandbox import JobResult
from support.kernel_graders import LIMITS, Bench
from support.kernelbench_data import ROOT
from support.sandboxes import needs_walls
from support.trials import SNAKE, Trials, snaking

torch = pytest.importorskip("torch")
pytest.importorskip("triton")


def apart(code: str) -> str:
    """What a program prints that imports the harness as a worker does."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


PRELOADED = """
import os
from assay.kernels.inside import numerics_gpu
from assay.kernels.inside.replay import device_harness
from assay.kernels.inside.timing import harness as timed
import torch
for harness in (timed, numerics_gpu, device_harness):
    harness.preload()
    mapped = any("libcuda.so" in line for line in open("/proc/self/maps"))
    print(torch.cuda.is_initialized(), len(os.listdir("/proc/self/task")), mapped)
"""


def test_workers_start_no_device_and_no_thread() -> None:
    assert apart(PRELOADED).splitlines() == ["False 1 False"] * 3


class OnCpu:
    """The processor in the place of a GPU."""

    device = "cpu"

    def seed(self, value: int) -> None:
        torch.manual_seed(value)

    def settle(self) -> None:
        pass

    def kind_of(self, error: Exception) -> str:
        return "compile" if type(error).__name__ == "BuildError" else "error"


SOURCES = """
import torch
from torch.utils import cpp_extension
ext = cpp_extension.load_inline(name="ours", cuda_sources="...")
class ModelNew(torch.nn.Module):
    def forward(self, x):
        {body}
"""
CUDA_TEXT = (ROOT / "src/assay/kernels/problems/shipped/starters/level1_1_cuda.py").read_text(encoding="utf-8")
RUNS = {
    "its own function": ("return ext.double(x)", "ok", ""),
    "a library": ("return torch.add(x, x)", "cheat", "no_launch"),
    "a library beside its function": ("ext.double(x)\n        return torch.add(x, x)", "cheat", "library_work"),
    "wrong": ("return ext.double(x) + 1", "wrong", ""),
    "another shape": ("return ext.double(x)[:1]", "wrong", ""),
    "a fault": ("raise ValueError('no')", "crash", ""),
    "what the compiler refuses": ("cpp_extension.load_inline(name='broken')", "compile_error", ""),
    "an exit": ("import sys; sys.exit(0)", "crash", ""),
}


class Stand:
    """A sandbox that runs a job for a GPU in this process, on the processor."""

    async def run(self, job: Any, after_round: Any = None) -> JobResult:
        from assay.kernels.inside import rounds

        outputs: list[tuple[bytes, ...]] = [()]
        waiting = iter([list(map(memoryview, map(bytearray, each.inputs))) for each in job.rounds[1:]])
        try:
            report = rounds.run_rounds(
                job.source,
                job.header,
                lambda: next(waiting, None),
                lambda found: outputs.append(tuple(bytes(part) for part in found)),
                OnCpu(),  # type: ignore[arg-type]
            )
        except SystemExit:
            return JobResult("crash", "left early", tuple(outputs))
        report = json.loads(json.dumps(report))
        end: Any = "crash" if "fault" in report else "ok"
        for number, found in enumerate(outputs[:-1]):
            if not await after_round(number, found) if number else False:
                return JobResult("stopped", "stopped", tuple(outputs[: number + 1]), report=report)
        return JobResult(end, "ended", tuple(outputs), report=report)


@pytest.mark.parametrize(("body", "kind", "cheat"), RUNS.values(), ids=RUNS)
def test_cuda_sources_are_judged_by_their_answers(
    monkeypatch: pytest.MonkeyPatch, body: str, kind: str, cheat: str
) -> None:
    from torch.utils import cpp_extension

    from assay.kernels.inside import extensions

    def loader(**kwargs: Any) -> Any:
        if kwargs["name"] == "broken":
            raise RuntimeError("cuda.cu(3): error: expected a ';'")

        def double(x: Any) -> Any:
            return torch.from_numpy(2 * x.numpy())

        return SimpleNamespace(double=double)

    monkeypatch.setattr(cpp_extension, "load_inline", extensions.followed(loader))
    rng = np.random.default_rng(3)
    cases = []
    for family in ("given", "signed"):
        x = rng.standard_normal((4, 5)).astype(np.float32)
        cases.append(Case(family, (host_tensor(x, "float32"),), (2.0 * x.astype(np.float64),), (2 * x,)))
    draw = InputSet(1, 2, (), tuple(cases), (("float32", (4, 5)),), (), {"add": (1, 20)})
    code = SOURCES.format(body=body)
    verdict = asyncio.run(run_cuda(Stand(), code, draw, GraderConfig(), random.Random(2), {"known": 1}))  # type: ignore[arg-type]
    assert (verdict.kind, verdict.cheat) == (kind, cheat), verdict
    assert verdict.evidence["known"] == 1


def test_what_cannot_be_built_or_followed_is_named() -> None:
    from assay.kernels.inside import extensions

    def loader(**kwargs: Any) -> Any:
        if kwargs["name"] == "broken":
            log = "FAILED\nnvcc -c cuda.cu -o error.o\ncuda.cu(3): error: expected a ';'\nninja stopped"
            raise RuntimeError(f"Error building extension 'broken': {log}")
        return SimpleNamespace(scale=lambda x: x, version=3)

    load = extensions.followed(loader)
    assert load(name="sound").version == 3
    with pytest.raises(extensions.BuildError, match=r"cuda.cu\(3\): error: expected a ';'$"):
        load(name="broken")
    with pytest.raises(extensions.ForeignError, match=r"torch\.ops"):
        load(name="sound", is_python_module=False)


def test_a_device_that_fails_is_no_fault_of_a_candidate() -> None:
    fault = {"stage": "device", "kind": "unsupported", "type": "RuntimeError", "message": "no driver"}
    lost = not_started(JobResult("crash", "left early", report={"fault": fault}))
    assert lost is not None and "no driver" in lost
    started = JobResult("crash", "left early", outputs=((),), report={"fault": fault})
    assert not_started(started) is None, "a candidate that has run cannot blame the device"
    assert not_started(JobResult("timeout", "killed at its limit")) is None


def test_a_compiler_that_refuses_is_told_from_a_crash() -> None:
    fault = {"stage": "forward", "kind": "compile", "line": 7, "message": "out of resource: shared memory"}
    result = JobResult("crash", "left early", outputs=((),), report={"fault": fault})
    assert refused_by_compiler(result) == "line 7: out of resource: shared memory"
    assert refused_by_compiler(JobResult("crash", "", report={"fault": {**fault, "kind": "error"}})) is None
    assert refused_by_compiler(JobResult("crash", "", report=["nonsense"])) is None


@needs_walls
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_device_nothing_is_ever_right(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="/dev/nvidia"):
        GraderConfig(device="cuda")
    monkeypatch.setattr(config_module, "nvidia_devices", lambda: ("/dev/nvidia0",))
    config = GraderConfig(device="cuda")
    draw = Trials(bench).draw(SNAKE)
    code = snaking("return snake(x, self.frequency, torch.empty_like(x))")
    attempt = bench.wait(record(bench.sandbox, code, draw, LIMITS, "float32", sizes=ON_DEVICE))
    assert isinstance(attempt, Attempt), attempt
    calls = plan(attempt.program, draw, 2, random.Random(1))
    outcome = bench.wait(replay_on_device(bench.sandbox, attempt, draw, calls, config))
    verdict = verdict_of(outcome, {})
    assert (verdict.kind, verdict.stage) == ("infra_error", "numerics")
    assert "CUDA did not start" in verdict.message and "CUDA" in verdict.message.partition("(")[2]
    verdict = bench.wait(run_cuda(bench.sandbox, code, draw, config, random.Random(1)))
    assert verdict.kind == "infra_error" and "CUDA did not start" in verdict.message
    problem = find_problem(load_problems("shipped", (1,), None, None), 1, 1)
    for language in ("triton", "cuda"):
        grader = Grader(chz.replace(config, backend=language), sandbox=bench.sandbox, reference=bench.reference)
        text = code if language == "triton" else CUDA_TEXT
        verdict = bench.wait(grader.grade(problem, text))
        assert verdict.kind == "infra_error" and "CUDA did not start" in verdict.message, verdict
        bench.wait(grader.close())
