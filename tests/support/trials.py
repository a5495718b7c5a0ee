"""Submissions put to the test on draws that tests share, and small ones to put to it."""

from __future__ import annotations

import random
import textwrap
from collections.abc import Sequence
from dataclasses import replace

from assay.kernels.numerics.secret_inputs import InputBank, InputSet
from assay.kernels.problems.scaling import unscaled
from assay.kernels.problems.sources import Problem, load_problems
from assay.kernels.program.judging.outcome import Attempt, Outcome
from assay.kernels.program.planning import plan
from assay.kernels.program.trial import record, replay
from support.kernel_graders import LIMITS, Bench

HEAD = """
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def copy_kernel(x_ptr, out_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out_ptr + i, tl.load(x_ptr + i, mask=i < n), mask=i < n)


@triton.jit
def snake_kernel(x_ptr, f_ptr, y_ptr, n, F, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n)
    a = tl.load(f_ptr + i % F, mask=i < n, other=1.0)
    s = tl.sin(a * x)
    tl.store(y_ptr + i, x + s * s / a, mask=i < n)


def copied(x):
    x = x.contiguous()
    out = torch.empty_like(x)
    copy_kernel[(triton.cdiv(x.numel(), 1024),)](x, out, x.numel(), BLOCK=1024)
    return out


def snake(x, f, y):
    snake_kernel[(triton.cdiv(x.numel(), 512),)](x, f, y, x.numel(), x.shape[-1], BLOCK=512)
    return y

"""
SNAKE = "1/1"
_ROWS, _FEW_ROWS = "batch_size = 32\n", "batch_size = 8\n"
PRODUCT = "1/4"


def snaking(forward: str, head: str = "", constructor: str = "") -> str:
    """A candidate for the problem SNAKE, with a body of forward(self, x)."""
    body = textwrap.indent(textwrap.dedent(forward).strip(), " " * 8)
    more = textwrap.indent(textwrap.dedent(constructor).strip(), " " * 8)
    return (
        f"{HEAD}{textwrap.dedent(head)}\n\nclass ModelNew(nn.Module):\n    def __init__(self, features):\n"
        f"        super().__init__()\n        self.frequency = nn.Parameter(torch.rand(features) + 0.5)\n{more}\n\n"
        f"    def forward(self, x):\n{body}\n"
    )


def multiplying(forward: str, head: str = "") -> str:
    """A candidate for the problem PRODUCT, with a body of forward(self, a, b)."""
    body = textwrap.indent(textwrap.dedent(forward).strip(), " " * 8)
    return (
        f"{HEAD}{textwrap.dedent(head)}\n\nclass ModelNew(nn.Module):\n    def forward(self, a, b):\n"
        f"        out = torch.empty((a.shape[0], b.shape[0]), device=a.device)\n{body}\n"
    )


def _small(problem: Problem) -> Problem:
    """A problem with fewer rows than it is shipped with, where most trials are of it."""
    if problem.key != SNAKE:
        return problem
    assert _ROWS in problem.code
    return replace(problem, code=problem.code.replace(_ROWS, _FEW_ROWS))


class Trials:
    """Puts submissions to the test, each problem drawn once."""

    def __init__(self, bench: Bench, own: Sequence[Problem] = ()) -> None:
        """`own`: problems beside the shipped ones, under keys that those have not."""
        self._bench = bench
        problems = map(_small, load_problems("shipped", (1, 2, 3)))
        self._problems = {problem.key: problem for problem in (*problems, *own)}
        self._draws: dict[str, InputSet] = {}

    def draw(self, key: str) -> InputSet:
        """The draw of a problem."""
        if key not in self._draws:
            bank = InputBank(unscaled(self._problems[key]), self._bench.reference, draws=1, seed=7, updates=True)
            draw = self._bench.wait(bank.take())
            assert draw is not None, f"problem {key} is worth a reward"
            self._draws[key] = draw
        return self._draws[key]

    def run(self, key: str, code: str, seed: int = 1) -> Outcome:
        """What a trial of a submission shows."""
        rng = random.Random(seed)
        attempt, draw = self.record(key, code), self.draw(key)
        if isinstance(attempt, Outcome):
            return attempt
        calls = plan(attempt.program, draw, 5, rng)
        return self._bench.wait(replay(self._bench.sandbox, attempt, draw, calls, LIMITS, 4096, "float32"))

    def record(self, key: str, code: str) -> Attempt | Outcome:
        """What is recorded of a submission."""
        return self._bench.wait(record(self._bench.sandbox, code, self.draw(key), LIMITS, "float32"))
