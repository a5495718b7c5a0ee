"""Triton candidates compiled by the real compiler in the real sandbox: honest kernels pass, illegal ones are named."""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from benchmarks.common.submissions import Submission, read_submissions

from assay.errors import ConfigError
from assay.kernels.arrays import Value, host_tensor
from assay.kernels.base import shared_limit
from assay.kernels.compile.stage import CompileReport, compile_triton, shortened, triton_report
from assay.kernels.compile.toolkit import triton_executables
from assay.kernels.frames import Frame
from assay.kernels.numerics.reference import ReferenceProcess
from assay.kernels.problems.scaling import scale
from assay.kernels.problems.sources import read_jsonl
from assay.sandbox import JobResult, Limits
from assay.sandbox.local import LocalConfig, LocalSandbox
from support.kernelbench_data import HONEST, PUBLISHED, SOLUTIONS, needs_published, shipped
from support.sandboxes import FEATURES, needs_walls

pytestmark = [
    needs_walls,
    pytest.mark.skipif(
        importlib.util.find_spec("triton") is None or importlib.util.find_spec("torch") is None,
        reason="no triton or no torch here",
    ),
]
AWKWARD = ("autotuned", "heuristics", "wrapper", "in_place", "im2col", "experts", "properties", "scan")
"""Honest kernels whose launches or host code are out of the ordinary."""
LIMITS = Limits(wall_s=60, cpu_s=20, memory_mb=4096)

Compile = Callable[..., CompileReport]

MODULE = """
import torch
import torch.nn as nn
import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def kernel(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n)
    BODY
    tl.store(out + i, v, mask=i < n)


class ModelNew(nn.Module):
    def forward(self, x):
        out = torch.empty_like(x)
        n = x.numel()
        HOST
        kernel[(triton.cdiv(n, 256),)](x, out, n, BLOCK=256)
        return out
"""


def module(body: str = "", host: str = "", launch: str = "") -> str:
    text = MODULE.replace("BODY", body.replace("\n", "\n    ")).replace("HOST", host.replace("\n", "\n        "))
    return text.replace("kernel[(triton.cdiv(n, 256),)](x, out, n, BLOCK=256)", launch) if launch else text


@pytest.fixture(scope="module")
def compiled() -> Iterator[Compile]:
    config = LocalConfig(workers=1, executables=triton_executables())
    with asyncio.Runner() as runner:
        sandbox = LocalSandbox(config, FEATURES)

        def compile_it(
            code: str, inputs: tuple[Value, ...] | None = None, init: tuple[Value, ...] = (), **options: Any
        ) -> CompileReport:
            given = (host_tensor(np.ones((8, 64)), "float32"),) if inputs is None else inputs
            first, second = Frame({}), Frame({})
            header = {
                "weight_seed": 1,
                "init_inputs": [first.add(value) for value in init],
                "inputs": [second.add(value) for value in given],
            }
            options = {"limits": LIMITS, **options}
            blobs = (first.blobs, second.blobs)
            return runner.run(compile_triton(sandbox, code, header=header, inputs=blobs, **options))

        yield compile_it
        runner.run(sandbox.close())


def refusals(compiled: Compile, process: ReferenceProcess, submissions: list[tuple[Submission, str]]) -> dict[str, str]:
    """What is said against submissions (with the code of their problems) that do not simply compile."""
    found = {}
    for submission, code in submissions:
        result = process.evaluate(code, input_seed=1, weight_seed=2, families=("given",))
        init = result.init_inputs
        assert isinstance(init, tuple)
        report = compiled(submission.code, result.cases[0].inputs, init)
        if report.outcome != "ok" or report.message or not report.kernels:
            found[submission.id] = f"{report.outcome}: {report.message}"
    return found


def test_honest_kernels_compile(compiled: Compile, reference_process: ReferenceProcess) -> None:
    problems = shipped()
    honest = read_submissions(HONEST)
    chosen = [s for place, s in enumerate(honest) if place % 30 == 0 or any(word in s.id for word in AWKWARD)]
    assert len(chosen) > 10
    assert refusals(compiled, reference_process, [(s, problems[s.problem].code) for s in chosen]) == {}


@needs_published
def test_solutions_of_published_problems_compile(compiled: Compile, reference_process: ReferenceProcess) -> None:
    problems = {f"kernelbench {problem.key}": problem for problem in read_jsonl(PUBLISHED)}
    chosen = read_submissions(SOLUTIONS)[::20]
    cases = [(s, scale(problems[s.problem], s.cap, s.batch_cap).code) for s in chosen]
    assert refusals(compiled, reference_process, cases) == {}


def test_what_a_kernel_needs_is_reported(compiled: Compile) -> None:
    report = compiled(module("v = tl.sum(v, 0) + v"))
    (kernel,) = report.kernels
    assert (report.outcome, kernel.name, kernel.threads) == ("ok", "kernel", 128)
    assert kernel.registers and kernel.shared_bytes and kernel.spill_bytes == 0
    assert report.cpu_s > 0


ILLEGAL = {
    "import in a kernel": (module("import math"), "Import"),
    "dot with K of 8": (
        module("a = tl.zeros((16, 8), tl.float32)\nv += tl.sum(tl.sum(tl.dot(a, tl.trans(a)), 0), 0)"),
        "K >= 16",
    ),
    "unknown function of libdevice": (module("v = libdevice.tanhh(v)"), "tanhh"),
    "function that Triton lacks": (module("v = tl.math.tanh(v)"), "tanh"),
    "range that is no power of 2": (module("v += tl.sum(tl.arange(0, 48), 0)"), "power of 2"),
    "shapes that do not fit": (module("v = v + tl.zeros((128,), tl.float32)"), "256"),
    "a type that cannot be stored": (module("v = tl.load(v)"), "Unsupported ptr type"),
    "a name that is not there": (module("v = v * factor"), "factor"),
    "a list": (module("parts = [v for _ in range(2)]"), "comprehensions"),
    "assembly that is none": (
        module("v = tl.inline_asm_elementwise('bogus.f32 $0, $1;', '=f,f', [v], tl.float32, True, 1)"),
        "bogus",
    ),
    "too many warps": (module(launch="kernel[(1,)](x, out, n, BLOCK=256, num_warps=64)"), "threads"),
    "warps that are no power of 2": (module(launch="kernel[(1,)](x, out, n, BLOCK=256, num_warps=3)"), "power of 2"),
    "an argument too few": (module(launch="kernel[(1,)](x, out, BLOCK=256)"), "n"),
    "an unknown argument": (module(launch="kernel[(1,)](x, out, n, BLOCK=256, colour=3)"), "colour"),
    "a grid that is too high": (module(launch="kernel[(1, 70000)](x, out, n, BLOCK=256)"), "70000"),
    "shared memory": (
        module(
            "k = tl.arange(0, 64)\np = k[:, None] * 64 + k[None, :]\ntotal = tl.zeros((64, 64), tl.float32)\n"
            "for step in range(n // 64):\n    at = x + step * 4096 + p\n"
            "    total = tl.dot(tl.load(at), tl.load(at + n), total)\ntl.store(out + p, total)",
            launch="kernel[(1,)](x, out, n, BLOCK=256, num_stages=12)",
        ),
        "out of resource: shared memory",
    ),
}


@pytest.mark.parametrize("name", ILLEGAL)
def test_what_no_gpu_would_take_is_rejected(compiled: Compile, name: str) -> None:
    code, said = ILLEGAL[name]
    report = compiled(code)
    assert report.outcome == "rejected" and report.message.startswith("kernel kernel: line ")
    assert said in report.message and len(report.message) <= 800


LEGAL = {
    "functions of libdevice": module("v = libdevice.tanh(v)"),
    "bfloat16": module("v = (v.to(tl.bfloat16) + 1).to(tl.float32)"),
    "names of CUDA": module(
        host="x = x.cuda().to('cuda:0')\nassert x.is_cuda and x.device.type == 'cuda' and x.get_device() == 0\n"
        "with torch.cuda.device(x.device):\n    torch.cuda.synchronize()\n"
        "stream = torch.cuda.current_stream().cuda_stream\n"
        "sms = torch.cuda.get_device_properties(x.device).multi_processor_count\n"
        "major, minor = torch.cuda.get_device_capability()\nassert (major, minor) == (9, 0) and sms > 0\n"
        "out = torch.zeros(n, device='cuda', dtype=x.dtype)"
    ),
    "occupancy asked of a kernel": module(
        host="from triton.runtime import driver\n"
        "limit = driver.active.utils.get_device_properties(0)['max_shared_mem']\n"
        "built = kernel.warmup(x, out, n, BLOCK=256, grid=(1,))\nbuilt._init_handles()\n"
        "assert built.n_regs > 0 and built.metadata.shared <= limit"
    ),
    "no argument": module(launch="kernel[lambda meta: (triton.cdiv(n, meta['BLOCK']),)](x, out, n, BLOCK=256)"),
    "a benchmark": module(host="triton.testing.do_bench(lambda: kernel[(1,)](x, out, n, BLOCK=128))"),
    "an operator of PyTorch's own": module()
    .replace(
        "class ModelNew",
        """
@torch.library.triton_op("assay_test::run", mutates_args={})
def run(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    torch.library.wrap_triton(kernel)[(2,)](x, out, x.numel(), BLOCK=256)
    return out


class ModelNew""",
    )
    .replace("out = torch.empty_like(x)\n        n", "return run(x)\n        n"),
    "descriptors": module(
        launch="from triton.tools.tensor_descriptor import TensorDescriptor\n"
        "        other[(1,)](TensorDescriptor(x, x.shape, x.stride(), [8, 32]), None, out, BLOCK=32)"
    ).replace(
        "class ModelNew",
        """
@triton.jit
def other(d, bias, out, BLOCK: tl.constexpr):
    v = d.load([0, 0])
    if bias is not None:
        v += tl.load(bias)
    tl.store(out + tl.arange(0, 8)[:, None] * 64 + tl.arange(0, BLOCK)[None, :], v)


class ModelNew""",
    ),
    "configurations that do not fit": module(launch="tuned[(1,)](x, out, n)").replace(
        "class ModelNew",
        """
@triton.autotune([triton.Config({}, num_stages=stages) for stages in (12, 2)], key=[])
@triton.jit
def tuned(x, out, n):
    k = tl.arange(0, 64)
    p = k[:, None] * 64 + k[None, :]
    total = tl.zeros((64, 64), tl.float32)
    for step in range(n // 64):
        total = tl.dot(tl.load(x + step * 4096 + p), tl.load(x + step * 4096 + p + n), total)
    tl.store(out + p, total)


class ModelNew""",
    ),
}


@pytest.mark.parametrize("name", LEGAL)
def test_awkward_but_legal_code_compiles(compiled: Compile, name: str) -> None:
    report = compiled(LEGAL[name])
    assert (report.outcome, report.message) == ("ok", "") and report.kernels


def test_compilation_that_never_ends_meets_its_limit(compiled: Compile) -> None:
    code = module("for step in tl.static_range(100000):\n    v = v * 2.0 + step")
    report = compiled(code, limits=Limits(wall_s=60, cpu_s=1, memory_mb=4096))
    assert report.outcome == "timeout" and "limit" in report.message
    assert compiled(module()).outcome == "ok"


HOST = {
    "raises": (module(host="raise ValueError('no')"), "rejected", "line 21: ValueError: no"),
    "does not parse": ("def f(:", "rejected", "SyntaxError"),
    "has no model": ("x = 1", "rejected", "ModelNew"),
    "leaves": (module(host="import os\nos._exit(0)"), "rejected", "ended its process"),
    "exits": (module(host="raise SystemExit"), "rejected", "SystemExit"),
    "dies": (module(host="import ctypes\nctypes.string_at(0)"), "rejected", "crash"),
    "needs a device": (module(host="torch._C._cuda_init()"), "unsupported", "CUDA"),
    "trips over what no kernel wrote": (
        module().replace("return out", "return out[int(out[0, 0]) - 1000]"),
        "ok",
        "host code failed",
    ),
    "launches nothing": (module(launch="out = x + 1"), "ok", "no Triton kernel"),
}


@pytest.mark.parametrize("name", HOST)
def test_host_code_that_fails_is_told_apart_from_kernels(compiled: Compile, name: str) -> None:
    code, outcome, said = HOST[name]
    report = compiled(code)
    assert report.outcome == outcome
    assert said in report.message


def test_a_forged_or_damaged_report_is_read_safely() -> None:
    for report in (None, [], {"kernels": 3}, {"kernels": [3, {"name": 5, "registers": "x"}], "failure": {"kind": 7}}):
        read = triton_report(JobResult("ok", "", report=report), LIMITS)
        assert read.outcome == "rejected"
    assert triton_report(JobResult("infra", "the worker died"), LIMITS).outcome == "failed"
    assert triton_report(JobResult("memory", ""), LIMITS).outcome == "rejected"


def test_messages_keep_both_ends() -> None:
    long = "where " + "x" * 5000 + " what"
    assert len(shortened(long)) <= 800 and shortened(long).startswith("where") and shortened(long).endswith("what")
    assert shortened(" short ") == "short"


def test_an_unknown_architecture_is_refused() -> None:
    assert shared_limit("sm_90") == 232448
    with pytest.raises(ConfigError, match="sm_90"):
        shared_limit("sm_1")
