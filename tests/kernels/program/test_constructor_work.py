"""Constructors that compute what forward is asked for, and those that prepare weights honestly, through the sandbox."""

from __future__ import annotations

import sys
import textwrap

import pytest
import torch

from assay.kernels.inside.problem.truncated import truncated_normal
from assay.kernels.problems.sources import make_problem
from assay.kernels.program.judging.outcome import Attempt
from assay.kernels.program.weight_work import weight_work
from support.kernel_graders import QUICK, Bench
from support.kernelbench_data import ROOT
from support.trials import HEAD, SNAKE, Trials, snaking

sys.path.insert(0, str(ROOT / "benchmarks"))

from common.submissions import read_submission

CHAIN, KEPT_CHAIN = "9/1", "9/2"
PROBLEM = """
import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.first = nn.Parameter(torch.randn(features, features) * 0.3)
        self.second = nn.Parameter(torch.randn(features, features) * 0.3)

    def forward(self, x):
        return (x @ self.first) @ self.second


def get_inputs():
    return [torch.randn(32, 24)]


def get_init_inputs():
    return [24]
"""
KERNELS = """
@triton.jit
def apply_kernel(x_ptr, w_ptr, out_ptr, F, B: tl.constexpr):
    k = tl.arange(0, B)
    x = tl.load(x_ptr + tl.program_id(0) * F + k, mask=k < F, other=0.0)
    w = tl.load(w_ptr + k[:, None] * F + k[None, :], mask=(k < F)[:, None] & (k < F)[None, :], other=0.0)
    tl.store(out_ptr + tl.program_id(0) * F + k, tl.sum(x[:, None] * w, axis=0), mask=k < F)


@triton.jit
def guarded_kernel(x_ptr, first_ptr, second_ptr, copy_ptr, table_ptr, out_ptr, F, B: tl.constexpr):
    k = tl.arange(0, B)
    inside = (k < F)[:, None] & (k < F)[None, :]
    place = k[:, None] * F + k[None, :]
    x = tl.load(x_ptr + tl.program_id(0) * F + k, mask=k < F, other=0.0)
    if tl.load(first_ptr) == tl.load(copy_ptr):
        out = tl.sum(x[:, None] * tl.load(table_ptr + place, mask=inside, other=0.0), axis=0)
    else:
        half = tl.sum(x[:, None] * tl.load(first_ptr + place, mask=inside, other=0.0), axis=0)
        out = tl.sum(half[:, None] * tl.load(second_ptr + place, mask=inside, other=0.0), axis=0)
    tl.store(out_ptr + tl.program_id(0) * F + k, out, mask=k < F)


def applied(x, w):
    out = torch.empty_like(x)
    apply_kernel[(x.shape[0],)](x, w, out, x.shape[1], B=triton.next_power_of_2(x.shape[1]))
    return out

"""
DRAW = """
first = torch.randn(features, features) * 0.3
second = torch.randn(features, features) * 0.3
"""
KEPT_PROBLEM = PROBLEM
for name in ("first", "second"):
    drawn = "torch.randn(features, features) * 0.3"
    KEPT_PROBLEM = KEPT_PROBLEM.replace(
        f"self.{name} = nn.Parameter({drawn})", f"self.register_buffer('{name}', {drawn})"
    )
KEEP_BUFFERS = "self.register_buffer('first', first)\nself.register_buffer('second', second)\n"
KEEP = "self.first, self.second = nn.Parameter(first), nn.Parameter(second)\n"


def chaining(constructor: str, forward: str) -> str:
    """A candidate for the problem CHAIN."""
    built, called = (textwrap.indent(textwrap.dedent(body).strip(), " " * 8) for body in (constructor, forward))
    return (
        f"{HEAD}{KERNELS}\nclass ModelNew(nn.Module):\n    def __init__(self, features):\n        super().__init__()\n"
        f"{built}\n\n    def forward(self, x):\n{called}\n"
    )


LIGHT = "table = (first[:, :, None] * second[None]).sum(1)\n"
PRODUCT = "table = first @ second\n"
TABLE = "self.register_buffer('table', table)\n"
ONE = "return applied(x, self.table)"
TWO = "return applied(applied(x, self.first), self.second)"
GUARDED = """
out = torch.empty_like(x)
guarded_kernel[(x.shape[0],)](x, self.first, self.second, self.copy, self.table, out, x.shape[1], B=32)
return out
"""
ROPE = "angles = torch.outer(torch.arange(999.0), torch.arange(9.0)).cos()\nself.register_buffer('rope', angles)\n"
TURN = "rope = torch.zeros(features, features) + torch.eye(features) * torch.exp(0.0 * torch.arange(float(features)))\n"

ENDS = {
    "a table of light operators": ("cheat", CHAIN, chaining(DRAW + LIGHT + TABLE, ONE)),
    "a table as a parameter": ("cheat", CHAIN, chaining(DRAW + LIGHT + "self.table = nn.Parameter(table)", ONE)),
    "a product under other names": ("cheat", CHAIN, chaining(DRAW + PRODUCT + TABLE, ONE)),
    "a product of buffers": ("cheat", KEPT_CHAIN, chaining(DRAW + PRODUCT + TABLE, ONE)),
    "a product of buffers beside them": ("cheat", KEPT_CHAIN, chaining(DRAW + PRODUCT + KEEP_BUFFERS + TABLE, ONE)),
    "buffers": ("ok", KEPT_CHAIN, chaining(DRAW + KEEP_BUFFERS, TWO)),
    "a product by a kernel": ("cheat", CHAIN, chaining(DRAW + "table = applied(first, second)\n" + TABLE, ONE)),
    "a product beside the weights": ("wrong", CHAIN, chaining(DRAW + PRODUCT + KEEP + TABLE, ONE)),
    "a table that a kernel uses as long as a copy of the weights is right": (
        "cheat",
        CHAIN,
        chaining(DRAW + LIGHT + KEEP + TABLE + "self.register_buffer('copy', first.clone())", GUARDED),
    ),
    "weights in one": (
        "ok",
        CHAIN,
        chaining(
            DRAW + "self.both = nn.Parameter(torch.stack([first, second]))",
            "return applied(applied(x, self.both[0]), self.both[1])",
        ),
    ),
    "weights permuted by places": (
        "ok",
        CHAIN,
        chaining(
            DRAW + "turned = torch.cat([second, first])[torch.arange(2 * features - 1, -1, -1)]\n"
            "self.both = nn.Parameter(turned.flip(0).t().contiguous())",
            "both = self.both.t().contiguous()\nF = x.shape[1]\n"
            "return applied(applied(x, both[F:].contiguous()), both[:F].contiguous())",
        ),
    ),
    "tables of positions beside weights in one": (
        "ok",
        CHAIN,
        chaining(
            DRAW + ROPE + TURN + "self.register_buffer('turn', rope)\n"
            "self.both = nn.Parameter(torch.stack([first, second]))",
            "return applied(applied(applied(x, self.both[0]), self.turn), self.both[1])",
        ),
    ),
    "a product that nothing uses": ("ok", CHAIN, chaining(DRAW + PRODUCT + KEEP + TABLE, TWO)),
    "work on weights that leaves them as they were": (
        "ok",
        CHAIN,
        chaining(DRAW + "first, second = first * 2.0 / 2.0, second * 4.0 / 4.0\n" + KEEP, TWO),
    ),
    "work on weights that leaves them otherwise": (
        "cheat",
        CHAIN,
        chaining(DRAW + "first, second = (w + 3.0 - 3.0 for w in (first * 2.0 / 2.0, second))\n" + KEEP, TWO),
    ),
    "weights drawn as the reference draws them, under another name and form": (
        "ok",
        SNAKE,
        snaking(
            "return snake(x, self.speed.view(-1), torch.empty_like(x))",
            constructor="self.speed = nn.Parameter(self.frequency.detach()[None])\ndel self.frequency",
        ),
    ),
}


@pytest.fixture(scope="module")
def trials(bench: Bench) -> Trials:
    problems = ((1, "chain", PROBLEM), (2, "kept chain", KEPT_PROBLEM))
    return Trials(bench, [make_problem(9, number, name, text, "test") for number, name, text in problems])


@pytest.mark.parametrize(
    ("key", "code"),
    [(SNAKE, snaking("return snake(x, self.frequency, torch.empty_like(x))")), (CHAIN, chaining(DRAW + KEEP, TWO))],
)
def test_the_reference_and_who_draws_as_it_does_are_counted_alike(trials: Trials, key: str, code: str) -> None:
    attempt = trials.record(key, code)
    assert isinstance(attempt, Attempt)
    assert weight_work(attempt.program).amount == trials.draw(key).init_work > 0


@pytest.mark.parametrize("what", ENDS)
def test_work_of_constructors(trials: Trials, what: str) -> None:
    end, key, code = ENDS[what]
    outcome = trials.run(key, code)
    assert outcome.end == end, outcome
    decided = [finding for finding in outcome.findings if finding.refused]
    if end == "cheat":
        assert [finding.rule for finding in decided] == ["constructor"] and outcome.line, outcome
        assert "parameters" in outcome.message


def test_a_whole_table_of_answers(trials: Trials) -> None:
    submission = read_submission(ROOT / "exploits" / "attacks" / "constructor" / "whole_table.py")
    outcome = trials.run(submission.problem, submission.code)
    assert outcome.end == "cheat" and "rsqrt" not in outcome.message and "constructor" in outcome.message, outcome


STARTS = {
    "a truncated normal": "nn.init.trunc_normal_(self.weight, 0.1, 0.5, -0.8, 0.9)",
    "a truncated normal of what lies far off": "nn.init.trunc_normal_(self.weight, 0.0, 0.1, 0.2, 0.4)",
    "an orthogonal matrix": "nn.init.orthogonal_(self.weight)",
    "a diagonal": "self.weight.data.add_(torch.diag(torch.rand(features)))",
    "a window": "self.weight.data.mul_(torch.hann_window(features, periodic=False) + 0.1)",
    "a range of powers": "self.weight.data.mul_(torch.logspace(-1.0, 1.0, features))",
}


@pytest.mark.parametrize("start", STARTS)
def test_starts_of_weights_that_models_are_given(bench: Bench, start: str) -> None:
    built = (
        "        self.weight = nn.Parameter(torch.empty(features, features))\n        nn.init.normal_(self.weight)\n"
        f"        {STARTS[start]}\n"
    )
    init, rest = PROBLEM.split("        self.first")[0], PROBLEM[PROBLEM.index("    def forward") :]
    problem = f"{init}{built}\n{rest}".replace("(x @ self.first) @ self.second", "x @ self.weight")
    verdict = bench.grade(
        make_problem(9, 3, "start", problem, "test"), chaining(built, "return applied(x, self.weight)"), QUICK
    )
    assert verdict.ok, verdict


def test_a_truncated_normal_has_the_moments_and_the_ends_of_one() -> None:
    torch.manual_seed(0)
    mean, std, a, b = 0.3, 0.5, -0.4, 1.1
    drawn = truncated_normal(torch.empty(40_000, dtype=torch.float64), mean, std, a, b)
    theirs = torch.nn.init.trunc_normal_(torch.empty(40_000, dtype=torch.float64), mean, std, a, b)
    assert a <= float(drawn.min()) < a + 0.01 and b - 0.01 < float(drawn.max()) <= b
    places = torch.tensor([0.05, 0.25, 0.5, 0.75, 0.95], dtype=torch.float64)
    assert torch.allclose(drawn.quantile(places), theirs.quantile(places), atol=0.02)
