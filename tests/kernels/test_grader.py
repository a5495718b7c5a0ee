"""The grader with its real sandbox, references and compilers: every verdict reached by a submission, and bad input."""

from __future__ import annotations

import asyncio
import os
import random
import re
import signal
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import chz
import pytest
from benchmarks.common.submissions import read_submission

from assay.errors import MissingDependencyError, ReferenceModelError, SandboxError
from assay.kernels.compile import stage as compile_stage
from assay.kernels.compile.stage import TRITON_HARNESS
from assay.kernels.compile.toolkit import find_toolkit
from assay.kernels.config import GraderConfig
from assay.kernels.grader import Grader
from assay.kernels.numerics.reference import ReferenceProcess, fit_problem
from assay.kernels.prepared import Preparations, Prepared
from assay.kernels.problems.scaling import unscaled
from assay.kernels.problems.sources import Problem, make_problem
from assay.kernels.program import trial
from assay.kernels.program.grading import Grading
from assay.kernels.program.jobs import RECORD, REPLAY
from assay.kernels.program.judging.outcome import Outcome
from assay.kernels.program.verdict import verdict_of
from assay.kernels.source_text import MAX_SOURCE_CHARACTERS
from assay.kernels.text.examining import examine
from assay.kernels.verdicts import KINDS, Verdict
from assay.sandbox import AfterRound, Job, JobResult
from assay.sandbox import local as local_module
from assay.sandbox.host.probe import NAMESPACE_CURE, Features, Missing
from assay.sandbox.local import LocalSandbox
from support.kernel_graders import QUICK, Bench
from support.kernelbench_data import ATTACKS, HONEST, TINY, shipped
from support.sandboxes import needs_walls, running

pytestmark = needs_walls

SHIPPED = shipped()
SMALL = make_problem(
    1, 1, "small", TINY.replace("batch_size = 64\nfeatures = 4096", "batch_size = 8\nfeatures = 48"), "test"
)
PAIR = make_problem(
    1,
    2,
    "pair",
    """
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(features))
        self.shift = nn.Parameter(torch.rand(features))

    def forward(self, x):
        y = x * self.weight + self.shift
        return y, y.sum(dim=-1)


def get_inputs():
    return [torch.rand(8, 48)]


def get_init_inputs():
    return [48]
""",
    "test",
)

CANDIDATE = """
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def kernel(x, out, n, scale, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n, other=0.0)
    BODY
    tl.store(out + i, v, mask=i < n)


class ModelNew(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale
        INIT

    def forward(self, x):
        HOST
        out = torch.empty_like(x)
        n = x.numel()
        kernel[(triton.cdiv(n, 256),)](x.contiguous(), out, n, self.scale, BLOCK=256)
        return RESULT
"""


def candidate(
    body: str = "v = tl.maximum(v, 0.0) * scale", host: str = "pass", result: str = "out", init: str = "pass"
) -> str:
    """A right answer to `SMALL`, unless something is changed."""
    text = CANDIDATE.replace("RESULT", result)
    for place, lines, indent in (("BODY", body, 4), ("HOST", host, 8), ("INIT", init, 8)):
        text = text.replace(place, lines.replace("\n", "\n" + " " * indent))
    return text


PAIR_CANDIDATE = """
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def kernel(x, w, b, out, total, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    m = i < columns
    y = tl.load(x + row * columns + i, mask=m, other=0.0) USE_WEIGHT + tl.load(b + i, mask=m, other=0.0)
    tl.store(out + row * columns + i, y, mask=m)
    tl.store(total + row, tl.sum(y.to(tl.float32), 0))


class ModelNew(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(features))
        self.shift = nn.Parameter(torch.rand(features))

    def forward(self, x):
        out, total = torch.empty_like(x), torch.empty(x.shape[0], dtype=x.dtype, device=x.device)
        kernel[(x.shape[0],)](x.contiguous(), self.weight, self.shift, out, total, x.shape[1], BLOCK=64)
        return out, total
"""
RIGHT_PAIR = PAIR_CANDIDATE.replace("USE_WEIGHT", "* tl.load(w + i, mask=m, other=0.0)")


@pytest.mark.parametrize("name", ["squeeze_excite", "snake_autotuned", "top_one_experts", "matvec_atomic"])
def test_honest_kernels_are_ok(bench: Bench, name: str) -> None:
    honest = read_submission(HONEST / f"{name}.py")
    mark = "\ufeff" if name == "squeeze_excite" else ""  # of byte order, which Python takes before a file
    verdict = bench.grade(SHIPPED[honest.problem], mark + honest.code)
    assert verdict.ok, verdict
    # One call is made once more; an autotuned kernel is called with each of its configurations.
    assert verdict.tests_passed == verdict.tests_total > QUICK.num_correct_trials and verdict.stage == "numerics"
    assert verdict.evidence["launches"] and verdict.evidence["scaling"]["rule"] == "none"
    assert verdict.problem == SHIPPED[honest.problem].hash and not verdict.cached and 0 < verdict.cpu_s < 20


def test_several_outputs_and_weights(bench: Bench) -> None:
    verdict = bench.grade(PAIR, RIGHT_PAIR)
    assert verdict.ok and verdict.evidence["weights_moved"] is True, verdict
    # A weight that starts as ones may not be left out, and one output may not be passed off as two.
    lazy = bench.grade(PAIR, PAIR_CANDIDATE.replace("USE_WEIGHT", ""))
    assert lazy.kind == "wrong" and "once the weights have other values" in lazy.message, lazy
    one = bench.grade(PAIR, RIGHT_PAIR.replace("return out, total", "return out"))
    assert one.kind == "wrong" and "forward returned tensor, the reference returns (tensor, tensor)" in one.message
    swapped = bench.grade(PAIR, RIGHT_PAIR.replace("return out, total", "return total, out"))
    assert swapped.kind == "wrong" and "shape" in swapped.message


NO_MAXIMUM = """
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def kernel(x_ptr, o_ptr, N, temperature, BLOCK: tl.constexpr):
    row, c = tl.program_id(0), tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * N + c, mask=c < N, other=0.0) / temperature
    e = tl.where(c < N, tl.exp(x), 0.0)
    tl.store(o_ptr + row * N + c, e / tl.sum(e, axis=0), mask=c < N)


class ModelNew(nn.Module):
    def __init__(self, temperature):
        super().__init__()
        self.temperature = temperature

    def forward(self, x):
        out, n = torch.empty_like(x), x.shape[1]
        kernel[(x.shape[0],)](x, out, n, self.temperature, BLOCK=triton.next_power_of_2(n))
        return out
"""


def test_a_kernel_meets_every_family_however_few_trials_are_asked_for(bench: Bench) -> None:
    config = chz.replace(QUICK, num_correct_trials=1)
    for number in range(4):  # a family that is left out is another one each time
        verdict = bench.grade(SHIPPED["1/2"], f"{NO_MAXIMUM}# {number}\n", config)
        assert verdict.kind == "wrong" and re.search("'(large|sparse)'", verdict.message), verdict


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"tl.arange(0, BLOCK)": "tl.arange(0, BLOCK + 1)"}, "arange's range must be a power of 2"),
        ({"tl.exp(x)": "tl.expo(x)"}, "tl.expo"),
    ],
)
def test_what_triton_refuses_does_not_compile_whoever_is_asked_first(
    bench: Bench, change: dict[str, str], said: str
) -> None:
    code = NO_MAXIMUM
    for old, new in change.items():
        code = code.replace(old, new)
    for check in ("off", "all"):
        verdict = bench.grade(SHIPPED["1/2"], code, chz.replace(QUICK, compile_check=check))
        assert verdict.kind == "compile_error" and said in verdict.message, verdict


def test_a_wrong_configuration_is_named(bench: Bench) -> None:
    tuned = NO_MAXIMUM.replace(
        "@triton.jit",
        "@triton.autotune([triton.Config({'BLOCK': size}) for size in (128, 256)], key=['N'])\n@triton.jit",
    ).replace(", BLOCK=triton.next_power_of_2(n)", "")
    tuned = tuned.replace("other=0.0) / temperature", "other=float('-inf')) / temperature")
    tuned = tuned.replace("tl.exp(x)", "tl.exp(x - tl.max(x, axis=0))")
    verdict = bench.grade(SHIPPED["1/2"], tuned)
    assert verdict.kind == "wrong" and "in the configuration BLOCK=128" in verdict.message, verdict


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_other_precisions(bench: Bench, precision: Any) -> None:
    config = chz.replace(QUICK, precision=precision)
    assert bench.grade(PAIR, RIGHT_PAIR, config).ok
    single = RIGHT_PAIR.replace("torch.empty_like(x)", "torch.empty(x.shape, dtype=torch.float32, device=x.device)")
    verdict = bench.grade(PAIR, single, config)
    assert verdict.kind == "wrong" and f"dtype float32, the reference has {precision}" in verdict.message


WRONG = "v = tl.maximum(v, 0.0) * scale + 0.01"
ENDLESS = candidate(host="while True: pass")


@pytest.mark.parametrize(
    ("code", "kind", "said"),
    [
        (candidate(body=WRONG), "wrong", "elements are wrong; the first is"),
        (candidate(result="torch.relu(x) * self.scale"), "cheat", "line"),
        ("x = 1", "compile_error", "ModelNew"),
        (candidate(host="if x.dim() == 2: raise ValueError('no')"), "crash", "line 23: ValueError while forward: no"),
        (candidate(init="raise ValueError('no')"), "crash", "line 20: ValueError while constructing ModelNew: no"),
        (candidate(body="v = tl.view(v, (256,))"), "unsupported", "change the order"),
        (candidate().replace("mask=i < n, other=0.0", ""), "crash", "line 11: OutOfBoundsError while forward"),
    ],
    ids=["wrong", "cheat", "compile_error", "crash", "constructor", "unsupported", "bounds"],
)  # fmt: skip
def test_verdicts(bench: Bench, code: str, kind: str, said: str) -> None:
    verdict = bench.grade(SMALL, code)
    assert verdict.kind == kind and said in verdict.message, verdict
    assert verdict.problem == SMALL.hash and not verdict.ok
    assert Verdict.from_json(verdict.to_json()) == verdict


def test_the_kinds_that_other_tests_reach_are_all() -> None:
    here = {"ok", "wrong", "cheat", "compile_error", "crash", "unsupported"}
    assert here | {"timeout", "compiled_not_run", "infra_error"} == set(KINDS)


@pytest.mark.parametrize(("limit", "seconds"), [("wall_s", 0.5), ("cpu_s", 1.0)])
def test_a_timeout(bench: Bench, limit: str, seconds: float) -> None:
    verdict = bench.grade(SMALL, ENDLESS, chz.replace(QUICK, **{limit: seconds}))
    assert (verdict.kind, verdict.tests_passed) == ("timeout", 0) and "limit" in verdict.message, verdict


def test_a_kernel_that_does_nothing_for_its_answer_is_a_cheat(bench: Bench) -> None:
    ghost = bench.grade(SMALL, candidate(result="x.clamp(min=0).mul(self.scale)"), text_checks=False)
    assert (ghost.kind, ghost.cheat) == ("cheat", "arithmetic") and "line 27" in ghost.message, ghost
    twice = (
        candidate(host="kernel[(1,)](x, torch.empty_like(x), 4, 1.0, BLOCK=256)")
        .replace(
            "@triton.jit\n",
            "@triton.jit\ndef idle(x, out, n, scale, BLOCK: tl.constexpr):\n    pass\n\n\n@triton.jit\n",
            1,
        )
        .replace("kernel[(1,)](x, torch", "idle[(1,)](x, torch")
    )
    idle = bench.grade(SMALL, twice)
    assert (idle.kind, idle.cheat) == ("cheat", "kernels") and "without the kernel idle" in idle.message, idle
    unlaunched = candidate().replace("kernel[(triton", "0 and kernel[(triton")
    none = bench.grade(SMALL, unlaunched)
    assert (none.kind, none.cheat) == ("cheat", "kernels") and "launches no kernel" in none.message, none


HUGE = 10_000_000
BAD_TEXT: dict[str, str] = {
    "empty": "",
    "blank": "\n \n",
    "syntax": candidate().replace("def forward", "dfe forward"),
    "no_kernel_at_all": "class ModelNew: pass\nclass ModelNew(",
    "ten_megabytes_of_comment": candidate() + "#" + "x" * HUGE,
    "ten_megabytes_of_list": candidate() + "y = [" + "0," * (HUGE // 2) + "]",
    "deep": candidate() + "y = " + "(" * 50_000 + ")" * 50_000,
    "deep_operators": candidate() + "y = " + "-" * 200_000 + "1",
    "nul": candidate() + "\0",
    "binary": bytes(range(256)).decode("utf-8", "surrogateescape"),
    "elf": "\x7fELF\x02\x01\x01" + "\0" * 100,
    "lone_surrogate": "\ud800",
    "surrogate_in_a_literal": candidate() + "y = '\udc80'",
    "indentation": "  x = 1\n" + candidate(),
    "prose": "Here is the kernel:\n" + candidate(),
    "unending_string": candidate() + "y = '''",
    "wrong_name": candidate().replace("ModelNew", "Model"),
}


@pytest.mark.parametrize("name", BAD_TEXT)
def test_text_that_is_no_submission(bench: Bench, name: str) -> None:
    verdict = bench.grade(SMALL, BAD_TEXT[name])
    assert (verdict.kind, verdict.stage) == ("compile_error", "parse") and verdict.message, verdict
    assert len(verdict.message) < 1000
    verdict.message.encode()


SUBCLASS = "class Odd(torch.Tensor):\n    pass\n\n\nclass ModelNew"


@pytest.mark.parametrize(
    ("code", "kind", "said"),
    [
        (candidate().replace("forward(self, x)", "forward(self)"), "crash", "TypeError while forward"),
        (candidate().replace("forward(self, x)", "forward(self, x, y)"), "crash", "missing 1 required positional"),
        (candidate().replace("(self, scale)", "(self)"), "crash", "TypeError while constructing ModelNew"),
        (candidate().replace("def forward", "def forwards"), "crash", "forward"),
        (candidate(result="None"), "wrong", "forward returned None, the reference returns tensor"),
        (candidate(result="'text'"), "wrong", "forward returned 'text'"),
        (candidate(result="(out, out)"), "wrong", "forward returned (tensor, tensor), the reference returns tensor"),
        (candidate(result="[]"), "wrong", "forward returned (), the reference returns tensor"),
        (candidate(result="out.numpy()"), "cheat", "line 27: Tensor.numpy() reads a value"),
        (candidate(result="1.5"), "wrong", "forward returned 1.5"),
        (candidate(result="out.double()"), "wrong", "dtype float64"),
        (candidate(result="out.half()"), "wrong", "dtype float16"),
        (candidate(result="out > 0"), "cheat", "arithmetic operations beside the kernels"),
        (candidate(result="out[:1]"), "wrong", "shape (1, 48)"),
        (candidate(result="out.reshape(-1)"), "wrong", "shape (384,)"),
        (candidate(result="out[None]"), "wrong", "shape (1, 8, 48)"),
        (candidate(result="out.t()"), "wrong", "shape (48, 8)"),
        (candidate(result="out.to_sparse()"), "unsupported", "sparse"),
        (candidate(result="out.as_subclass(Odd)").replace("class ModelNew", SUBCLASS), "wrong", "returned a Odd"),
        (candidate(result="out.t().contiguous().t()"), "ok", ""),
        (candidate(result="nn.Parameter(out)"), "wrong", "requires a gradient"),
        (candidate(result="nn.Parameter(out, requires_grad=False)"), "ok", ""),
        (candidate(host="print('ok ' * 100_000)"), "ok", ""),
        (candidate(host="raise SystemExit(0)"), "crash", ""),
        (candidate(host="raise KeyboardInterrupt"), "crash", ""),
        (candidate(host="import os; os._exit(0)"), "crash", "left before its last round"),
        (candidate(host="import ctypes; ctypes.string_at(0)"), "crash", "signal 11"),
        (candidate(host="torch.zeros(1 << 34)"), "unsupported", ""),
        (candidate(host="self.forward(x)"), "crash", "RecursionError"),
        (candidate(host="x.fill_(7)", result="out"), "wrong", "elements are wrong"),
        ("raise SystemExit\n" + candidate(), "crash", ""),
        ("1 / 0\n" + candidate(), "crash", "line 1: ZeroDivisionError while importing the module"),
        ("raise Exception('\\ud800\\x1b[2J')\n" + candidate(), "crash", "\ufffd"),
        ("ModelNew = 3\n" + candidate(), "ok", ""),
    ],
)
def test_submissions_that_misbehave(bench: Bench, code: str, kind: str, said: str) -> None:
    verdict = bench.grade(SMALL, code, text_checks=False)
    assert verdict.kind == kind and said in verdict.message, verdict
    verdict.message.encode()
    assert all(c.isprintable() or c in "\n\t" for c in verdict.message)


@pytest.mark.parametrize(
    ("forward", "reason"),
    [("x * 0", "zero"), ("x", "identity"), ("torch.ones_like(x) * 3", "constant"), ("x + 0 * x.sum()", "identity")],
)
def test_a_degenerate_problem_is_unsupported(bench: Bench, forward: str, reason: str) -> None:
    code = SMALL.code.replace("torch.relu(x) * self.scale", forward)
    verdict = bench.grade(make_problem(1, 3, "degenerate", code, "test"), candidate())
    assert (verdict.kind, verdict.stage) == ("unsupported", "problem"), verdict
    assert reason in verdict.message and "not worth a reward" in verdict.message


def test_a_problem_whose_reference_fails_is_unsupported(bench: Bench) -> None:
    code = SMALL.code.replace("torch.relu(x)", "torch.no_such_function(x)")
    verdict = bench.grade(make_problem(1, 4, "broken", code, "test"), candidate())
    assert (verdict.kind, verdict.stage) == ("unsupported", "problem")
    assert "own reference does not run here" in verdict.message and "no_such_function" in verdict.message


def test_what_the_compiler_refuses(bench: Bench) -> None:
    config = chz.replace(QUICK, compile_check="right")
    refused = bench.grade(
        SMALL, candidate(body="v = tl.maximum(v, 0.0) * scale\ntl.static_assert(BLOCK == 256 and n == 384)"), config
    )
    assert (refused.kind, refused.stage, refused.compiled) == ("compile_error", "compile", False), refused
    assert refused.tests_passed == refused.tests_total > 0
    right = bench.grade(SMALL, candidate(), config)
    assert right.ok and right.compiled is True
    assert [k["name"] for k in right.evidence["compiler"]["kernels"]] == ["kernel"]


CUDA = '''
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <torch/extension.h>

__global__ void scaled(const float* x, float* out, int n, float scale) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = fmaxf(x[i], 0.0f) * scale;
}

torch::Tensor run(torch::Tensor x, double scale) {
    auto out = torch::empty_like(x);
    int n = x.numel();
    scaled<<<(n + 255) / 256, 256>>>(x.data_ptr<float>(), out.data_ptr<float>(), n, (float)scale);
    return out;
}
"""
extension = load_inline(
    name="scaled",
    cpp_sources="torch::Tensor run(torch::Tensor x, double scale);",
    cuda_sources=SOURCE,
    functions=["run"],
)


class ModelNew(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, x):
        return extension.run(x, self.scale)
'''
FOR_CUDA = GraderConfig(backend="cuda", cache=False, workers=1)


def test_cuda_is_compiled_and_not_run() -> None:
    try:
        find_toolkit()
    except MissingDependencyError as error:
        pytest.skip(str(error))

    async def main() -> tuple[Verdict, Verdict]:
        async with Grader(FOR_CUDA) as grader:
            return await grader.grade(SMALL, CUDA), await grader.grade(SMALL, CUDA.replace("int n", "imt n"))

    right, refused = asyncio.run(main())
    assert (right.kind, right.stage, right.compiled, right.ok) == ("compiled_not_run", "compile", True, False), right
    assert "no GPU" in right.message and right.problem == SMALL.hash
    assert (refused.kind, refused.compiled) == ("compile_error", False) and "imt" in refused.message
    assert refused.problem == SMALL.hash


def test_cuda_without_a_compiler(bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(compile_stage, "find_toolkit", lambda: find_toolkit(str(tmp_path)))
    verdict = bench.grade(SMALL, CUDA, FOR_CUDA)
    assert (
        verdict.kind == "infra_error" and "no nvcc" in verdict.message and "install a CUDA toolkit" in verdict.message
    )


def test_without_bubblewrap(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SandboxError, match=r"(?s)no program bwrap in PATH.*apt-get install bubblewrap.*sandbox=unsafe"):
        Grader(QUICK)


def test_without_namespaces(monkeypatch: pytest.MonkeyPatch) -> None:
    lacking = Features("/usr/bin/bwrap", None, (Missing("namespaces", "bubblewrap failed", NAMESPACE_CURE),))
    monkeypatch.setattr(local_module, "probe", lambda: lacking)
    with pytest.raises(
        SandboxError, match=r"(?s)bubblewrap failed.*kernel.unprivileged_userns_clone=1.*sandbox=unsafe"
    ):
        Grader(QUICK)
    with pytest.warns(UserWarning, match="no walls at all"):
        grader = Grader(chz.replace(QUICK, sandbox="unsafe"))
    asyncio.run(grader.close())


def evidence(verdict: Verdict) -> dict[str, Any]:
    return {name: value for name, value in verdict.to_json().items() if name != "cpu_s"}


def test_a_seed_makes_a_verdict_repeatable(bench: Bench) -> None:
    def graded(seed: int | None) -> dict[str, Any]:
        grader = Grader(QUICK, sandbox=bench.sandbox, reference=bench.reference, seed=seed)

        async def main() -> Verdict:
            async with grader:
                return await grader.grade(SMALL, candidate(body=WRONG.replace("0.01", "0.01 * (v > 0.9)")))

        return evidence(bench.wait(main()))

    first = graded(7)
    assert first["kind"] == "wrong" and graded(7) == first
    assert graded(8)["message"] != first["message"] != graded(None)["message"]


SHIFTED = make_problem(
    1,
    3,
    "shifted",
    """
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, shift):
        super().__init__()
        self.shift = shift

    def forward(self, x):
        return torch.relu(x + self.shift)


rows = 24
shift = 4096


def get_inputs():
    return [torch.rand(rows, 24)]


def get_init_inputs():
    return [shift]
""",
    "test",
)


def test_another_size_has_other_shapes(bench: Bench) -> None:
    code = candidate(body="v = tl.maximum(v + scale, 0.0)")
    found = bench.grade(SHIFTED, code, chz.replace(QUICK, scale="fit"))
    assert found.ok and {change[0] for change in found.evidence["scaling"]["changes"]} == {"shift"}
    assert "rows" in {change[0] for change in found.evidence["other_scaling"]["changes"]}


BY_LAST_BITS = "total = tl.sum(tl.exp(v), 0)\nif total >= tl.sum(tl.exp(v), 0):\n    v = tl.maximum(v, 0.0) * scale"


@pytest.mark.parametrize(("draws", "body", "taken"), [(1, BY_LAST_BITS, 3), (3, BY_LAST_BITS, 3), (1, "v = v", 1)])
def test_values_too_near_to_be_compared_are_drawn_again(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, draws: int, body: str, taken: int
) -> None:
    found: list[Any] = []
    size = Prepared.size

    async def counted(self: Prepared, but: Any = ()) -> Any:
        found.append(await size(self, but))
        return found[-1]

    monkeypatch.setattr(Prepared, "size", counted)
    verdict = bench.grade(SMALL, candidate(body=body), chz.replace(QUICK, draws=draws))
    assert verdict.kind == "wrong" and ("depends on the last bits" in verdict.message) == (taken == 3)
    assert len({id(each.draw) for each in found}) == len(found) == taken


@pytest.mark.parametrize("ties", [1, 2])
def test_ties_of_few_draws_cost_no_verdict(bench: Bench, monkeypatch: pytest.MonkeyPatch, ties: int) -> None:
    attempts: list[Any] = []
    grade = Grading.grade

    async def tied_at_first(self: Grading, *args: Any) -> Any:
        attempts.append(args)
        verdict, attempt = await grade(self, *args)
        return (verdict_of(Outcome("undecided", "a tie"), {}), None) if len(attempts) <= ties else (verdict, attempt)

    monkeypatch.setattr(Grading, "grade", tied_at_first)
    assert bench.grade(SMALL, candidate(), QUICK).ok and len(attempts) == ties + 1


@pytest.mark.parametrize("attack", ["cache/interpreter_state", "obfuscated/type_patch"])
def test_what_one_candidate_does_is_gone_for_the_next(bench: Bench, attack: str) -> None:
    before = bench.sandbox.worker_pids()
    hostile = read_submission(ATTACKS / f"{attack}.py")
    assert not bench.grade(SHIPPED[hostile.problem], hostile.code, text_checks=False).ok
    assert bench.grade(SMALL, candidate(), text_checks=False).ok
    assert bench.grade(SMALL, candidate(body=WRONG), text_checks=False).kind == "wrong"
    assert bench.sandbox.worker_pids() == before, "the same worker did all of it"


class Watched:
    """A sandbox in which `act` is called when a replay has built what it calls."""

    def __init__(self, inner: LocalSandbox, act: Callable[[], Awaitable[None]]) -> None:
        self.inner, self.act = inner, act
        self.jobs = 0

    async def run(self, job: Job, after_round: AfterRound | None = None) -> JobResult:
        self.jobs += 1

        async def watched(number: int, outputs: tuple[bytes, ...]) -> bool:
            if number == 0 and job.harness == REPLAY:
                await self.act()
            found = after_round(number, outputs) if after_round is not None else True
            return found if isinstance(found, bool) else await found

        return await self.inner.run(job, watched)

    async def close(self) -> None:
        await self.inner.close()


def test_a_worker_that_dies_costs_no_verdict(bench: Bench) -> None:
    bench.grade(SMALL, candidate())
    left = [signal.SIGKILL]

    async def kill() -> None:
        while left:
            os.kill(bench.sandbox.worker_pids()[0], left.pop())

    async def main() -> Verdict:
        async with Grader(QUICK, sandbox=Watched(bench.sandbox, kill), reference=bench.reference) as grader:
            return await grader.grade(SMALL, candidate())

    verdict = bench.wait(main())
    assert verdict.ok and not left, verdict


def test_a_cancelled_grade_leaves_nothing_behind(bench: Bench) -> None:
    bench.grade(SMALL, candidate())
    workers = bench.sandbox.worker_pids()
    quiet = running(workers)

    async def main() -> None:
        before = asyncio.all_tasks()
        reached = asyncio.Event()

        async def reach() -> None:
            reached.set()

        grader = Grader(QUICK, sandbox=Watched(bench.sandbox, reach), reference=bench.reference, text_checks=False)
        endless = candidate(body="while n > 0:\n    v += 1.0")
        grade = asyncio.create_task(grader.grade(SMALL, endless))
        await reached.wait()
        assert running(workers) > quiet
        grade.cancel()
        with pytest.raises(asyncio.CancelledError):
            await grade
        assert (await grader.grade(SMALL, candidate())).ok
        await grader.close()
        assert asyncio.all_tasks() == before

    bench.wait(asyncio.wait_for(main(), 60))
    assert bench.sandbox.worker_pids() == workers and running(workers) == quiet


def test_a_problem_is_prepared_once_and_a_failure_of_the_grader_is_not_kept(bench: Bench) -> None:
    calls: list[str] = []

    class Counting(ReferenceProcess):
        """The reference process, counting; its first evaluation is refused."""

        def evaluate(self, code: str, **options: Any) -> Any:
            calls.append(code)
            if len(calls) == 1:
                raise MissingDependencyError("references run on PyTorch")
            return bench.reference.evaluate(code, **options)

        def close(self) -> None:
            raise AssertionError("whoever passes one closes it")

    async def main() -> list[Verdict]:
        async with Grader(QUICK, sandbox=bench.sandbox, reference=Counting()) as grader:
            with pytest.raises(MissingDependencyError):
                await grader.grade(SMALL, candidate())
            return await asyncio.gather(*(grader.grade(SMALL, candidate()) for _ in range(6)))

    assert all(verdict.ok for verdict in bench.wait(main()))
    assert len(calls) == 1 + 1 + QUICK.draws, "one that failed, one to screen, and the draws"


def test_the_problem_type_is_what_a_caller_has(bench: Bench) -> None:
    assert isinstance(SMALL, Problem)
    fitted = bench.grade(SMALL, candidate(), chz.replace(QUICK, scale="fit"))
    assert fitted.ok and fitted.evidence["scaling"]["cap"] >= 0


class Refusing(ReferenceProcess):
    """A reference process of which every evaluation fails in one way."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind, self.calls = kind, 0

    def evaluate(self, code: str, **options: Any) -> Any:
        self.calls += 1
        raise ReferenceModelError(self.kind, "refused")

    def close(self) -> None:
        raise AssertionError("whoever passes one closes it")


@pytest.mark.parametrize(("kind", "tries"), [("timeout", 2), ("memory", 2), ("error", 1)])
def test_a_refusal_that_may_pass_is_not_kept(bench: Bench, kind: str, tries: int) -> None:
    reference = Refusing(kind)

    async def main() -> list[Verdict]:
        async with Grader(QUICK, sandbox=bench.sandbox, reference=reference) as grader:
            return [await grader.grade(SMALL, candidate()) for _ in range(2)]

    assert [verdict.kind for verdict in bench.wait(main())] == ["unsupported"] * 2
    assert reference.calls == tries


def test_fitting_ends_with_the_process_and_blames_a_load_first() -> None:
    gone = Refusing("crash")
    with pytest.raises(ReferenceModelError) as caught:
        fit_problem(SMALL, gone)
    assert (caught.value.kind, gone.calls) == ("crash", 1)

    class Mixed(Refusing):
        def evaluate(self, code: str, **options: Any) -> Any:
            self.kind = "error" if self.calls == 0 else "timeout"
            super().evaluate(code, **options)

    large = make_problem(1, 5, "large", TINY, "test")
    with pytest.raises(ReferenceModelError) as caught:
        fit_problem(large, Mixed(""))
    assert caught.value.kind == "timeout"


def test_the_problems_kept_are_those_graded_last() -> None:
    most = 3
    config = chz.replace(QUICK, max_prepared=most)

    async def main() -> None:
        made: list[str] = []
        hold = asyncio.Event()
        kept = Preparations(config, Refusing("error"), random.Random(1))  # type: ignore[arg-type]

        async def make(key: str, wait: bool = False) -> Prepared:
            made.append(key)
            if wait:
                await hold.wait()
            return Prepared(unscaled(SMALL), None)

        busy = kept.task("busy", lambda: make("busy", True))
        for number in range(most + 1):
            await kept.task(str(number), lambda key=str(number): make(key))  # type: ignore[misc]
            await kept.task("0", lambda: make("0"))
        assert made == ["busy", *(str(number) for number in range(most + 1))]
        assert len(kept.tasks()) == most and busy in kept.tasks()
        await kept.task("1", lambda: make("1"))
        assert made[-1] == "1", "the one graded longest ago was dropped"
        hold.set()
        await busy

    asyncio.run(asyncio.wait_for(main(), 30))


def test_a_problem_is_made_ready_ahead_of_its_grades() -> None:
    class Watched(Refusing):
        """Says when a reference is run."""

        def evaluate(self, code: str, **options: Any) -> Any:
            ran.append(code)
            return super().evaluate(code, **options)

    ran: list[str] = []

    async def main() -> None:
        grader = Grader(QUICK, reference=Watched("error"), seed=1)  # type: ignore[arg-type]
        await grader.prepare(SMALL)
        assert ran and set(ran) == {SMALL.code}
        before = len(ran)
        verdict = await grader.grade(SMALL, "class ModelNew: pass")
        assert (verdict.kind, verdict.stage, len(ran)) == ("unsupported", "problem", before), (
            "run once, before the grade"
        )
        await grader.close()

    asyncio.run(asyncio.wait_for(main(), 30))


def test_closing_while_a_problem_is_made_ready(bench: Bench) -> None:
    reached, go = threading.Event(), threading.Event()
    entered: list[str] = []

    class Slow(Refusing):
        def evaluate(self, code: str, **options: Any) -> Any:
            entered.append(code)
            reached.set()
            go.wait(60)
            super().evaluate(code, **options)

    reference = Slow("crash")

    async def main() -> list[Verdict]:
        grader = Grader(QUICK, reference=reference)
        grades = [asyncio.create_task(grader.grade(SMALL, candidate())) for _ in range(3)]
        assert await asyncio.to_thread(reached.wait, 60)
        grades[0].cancel()
        await asyncio.sleep(0)
        await grader.close()
        ended = await asyncio.gather(*grades, return_exceptions=True)
        go.set()
        assert isinstance(ended[0], asyncio.CancelledError), "cancelled by its caller, not by the close"
        later = [await grader.grade(problem, candidate()) for problem in (SMALL, PAIR)]
        assert isinstance(grader.sandbox, LocalSandbox) and grader.sandbox.worker_pids() == []
        return [*(one for one in ended if isinstance(one, Verdict)), *later]

    verdicts = bench.wait(asyncio.wait_for(main(), 60))
    assert [verdict.kind for verdict in verdicts] == ["infra_error"] * 4, verdicts
    assert all("closed" in verdict.message for verdict in verdicts) and entered == [SMALL.code]


def test_a_worker_that_dies_while_it_is_warmed_costs_no_grade_and_a_close_amid_grades_ends_them_all(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    boot, boots = local_module.WorkerProcess.boot, []

    async def dying(self: local_module.WorkerProcess) -> None:
        boots.append(self)
        if len(boots) == 1:
            raise local_module.WorkerDied("it died at its start")
        await boot(self)

    monkeypatch.setattr(local_module.WorkerProcess, "boot", dying)

    async def main() -> None:
        grader = Grader(chz.replace(QUICK, workers=1), reference=bench.reference)
        assert isinstance(grader.sandbox, LocalSandbox)
        assert [(await grader.grade(SMALL, candidate())).kind for _ in range(2)] == ["ok", "ok"]
        assert len(boots) == 3, "one that died, one that records, one that replays"
        workers = grader.sandbox.worker_pids()
        quiet = running(workers)
        endless = candidate(host="while True: pass")
        grades = [asyncio.create_task(grader.grade(SMALL, code)) for code in (endless, candidate())]
        while running(workers) <= quiet:
            await asyncio.sleep(0.01)
        processes = {*workers, *running(workers)}
        await grader.close()
        ended = await asyncio.gather(*grades)
        assert [verdict.kind for verdict in ended] == ["infra_error"] * 2 and all(v.errored for v in ended), ended
        assert not {pid for pid in processes if Path(f"/proc/{pid}").exists()}

    bench.wait(asyncio.wait_for(main(), 100))


def test_workers_are_warmed_side_by_side_and_a_job_waits_for_its_own_alone(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[str] = []
    others = asyncio.Event()

    async def start(self: LocalSandbox, harnesses: list[str], each: int | None = None) -> None:
        begun.extend(harnesses)
        if TRITON_HARNESS in harnesses:
            others.set()
            await asyncio.Event().wait()  # a compiler that never comes up
        await others.wait()

    monkeypatch.setattr(LocalSandbox, "start", start)

    async def main() -> list[Verdict]:
        config = chz.replace(QUICK, compile_check="right")
        grader = Grader(config, sandbox=bench.sandbox, reference=bench.reference)
        wrong = await grader.grade(SMALL, candidate("v = v * scale"))
        right = asyncio.create_task(grader.grade(SMALL, candidate()))
        await asyncio.sleep(0)
        await grader.close()
        return [wrong, await right]

    wrong, right = bench.wait(asyncio.wait_for(main(), 60))
    assert (wrong.kind, begun) == ("wrong", [RECORD, REPLAY, TRITON_HARNESS])
    assert right.kind == "infra_error" and "closed" in right.message


def test_a_fault_in_the_problem_is_not_the_candidates(bench: Bench) -> None:
    broken = Problem(1, 6, "broken", "def (", "test")
    assert examine(candidate()).fault is None
    verdict = bench.grade(broken, candidate(), chz.replace(QUICK, scale="fit"))
    assert verdict.kind == "unsupported" and "not valid Python" in verdict.message, verdict


def test_a_fault_of_the_grader_is_an_infra_error_and_ends_nothing(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise ZeroDivisionError("a fault of ours")

    monkeypatch.setattr(trial, "judge", broken)
    verdict = bench.grade(SMALL, candidate())
    assert verdict.errored and "the grader itself failed" in verdict.message and "a fault of ours" in verdict.message
    assert "a fault of Assay's" in caplog.text


def test_a_source_that_is_too_long_is_not_sent_anywhere(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("assay.kernels.grader.without_mark", None)
    verdict = bench.grade(SHIPPED["1/1"], "#" * (MAX_SOURCE_CHARACTERS + 1), QUICK)
    assert (verdict.kind, verdict.stage) == ("compile_error", "parse") and "100001 characters" in verdict.message
