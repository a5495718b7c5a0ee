"""Numerics on a GPU, as far as it goes without one: what is counted and left out, and what a missing device becomes."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from assay.errors import ConfigError
from assay.kernels import config as config_module
from assay.kernels.config import GraderConfig
from assay.kernels.grader import Grader
from assay.kernels.numerics.on_gpu import NATIVE, not_started, refused_by_compiler
from assay.kernels.numerics.reference import ReferenceProcess
from assay.kernels.problems.sources import find_problem, load_problems
from assay.kernels.verdicts import Verdict
from assay.sandbox import JobResult
from support.sandboxes import needs_walls

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

KERNEL = """
import torch
import triton
import triton.language as tl

@triton.jit
def double(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + i, 2 * tl.load(x + i, mask=i < n), mask=i < n)

class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty_like(x)
        double[(1,)](x, y, x.numel(), BLOCK=16)
        return y
"""


def apart(code: str) -> str:
    """What a program prints that imports the harness as a worker does."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


PRELOADED = """
import json, os, sys
from assay.kernels.inside import numerics_gpu
from assay.kernels.inside.timing import harness as timed
import torch
for harness in (timed, numerics_gpu):
    harness.preload()
    mapped = any("libcuda.so" in line for line in open("/proc/self/maps"))
    print(torch.cuda.is_initialized(), len(os.listdir("/proc/self/task")), mapped)
import triton.runtime.jit as jit, triton.compiler
print(jit.JITFunction.run.__name__, triton.compiler.CompiledKernel.__getitem__.__name__)

from types import SimpleNamespace
from assay.kernels.inside.triton import launches
seen = []
def run(self, *args, grid, warmup, **kwargs):
    seen.append([list(args), warmup])
    return "kernel"
run = launches.counted(run)
double = SimpleNamespace(fn=SimpleNamespace(__name__="double"))
compiled = SimpleNamespace(metadata=SimpleNamespace(name="ready"))
direct = launches.counted_direct(lambda self, grid: lambda *args: seen.append(["direct", list(args)]))
reports = []
for skip in (False, True):
    with launches.recording(launches.Launches(skip)) as account:
        assert run(double, 1, grid=(1,), warmup=False) == "kernel"
        assert run(double, 2, grid=(1,), warmup=True) == "kernel"
        direct(compiled, (1,))(3)
    reports.append(account.to_json())
run(double, 4, grid=(1,), warmup=False)
print(json.dumps([seen, reports, launches.current().counts]))
"""


def test_workers_start_no_device_and_no_thread_and_count_launches_or_leave_them_out() -> None:
    timed, numerics, counted, launches = apart(PRELOADED).splitlines()
    assert timed.split() == numerics.split() == ["False", "1", "False"]
    assert counted.split() == ["counting", "counting"]
    seen, reports, outside = json.loads(launches)
    ran = [[[1], False], [[2], True], ["direct", [3]]]
    left_out = [[[1], True], [[2], True]]  # compiled, as always, but not launched
    assert seen == [*ran, *left_out, [[4], False]]
    assert reports == 2 * [{"launches": {"double": 1, "ready": 1}}]
    assert outside == {"double": 1}


def native_call(function: Any, skip: bool, *args: Any) -> tuple[Any, dict[str, int]]:
    from assay.kernels.inside import extensions
    from assay.kernels.inside.triton import launches

    with launches.recording(launches.Launches(skip, poison=7.0)) as account:
        return extensions.accounted(function, "scale")(*args), dict(account.counts)


def test_a_native_call_that_is_left_out_is_undone() -> None:
    def into(x: Any, out: Any) -> Any:
        return out.copy_(2 * x)

    def fresh(x: Any) -> Any:
        return 2 * x, [x]

    x = torch.ones(3)
    out = torch.zeros(3)
    result, counts = native_call(into, True, x, out)
    assert counts == {NATIVE: 1, "scale": 1}
    assert result is out and out.tolist() == [0, 0, 0]
    (made, (given,)), _ = native_call(fresh, True, x)
    assert made.tolist() == [7, 7, 7] and given is x and x.tolist() == [1, 1, 1]
    assert native_call(into, False, x, out)[0].tolist() == [2, 2, 2]


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
    assert lost is not None and lost.kind == "infra_error" and "no driver" in lost.message
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
def test_without_a_device_nothing_is_ever_right(
    reference_process: ReferenceProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="/dev/nvidia"):
        GraderConfig(device="cuda")
    monkeypatch.setattr(config_module, "nvidia_devices", lambda: ("/dev/nvidia0",))
    problem = find_problem(load_problems("shipped", (1,), None, None), 1, 1)

    async def grade() -> Verdict:
        config = GraderConfig(device="cuda", workers=1)
        async with Grader(config, reference=reference_process, static=False) as grader:
            return await grader.grade(problem, KERNEL)

    verdict = asyncio.run(grade())
    assert (verdict.kind, verdict.stage) == ("infra_error", "numerics")
    assert "CUDA did not start" in verdict.message and "CUDA" in verdict.message.partition("(")[2]
