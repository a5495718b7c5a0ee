"""Sizes that are equal where a problem is small differ at the other size; blocks that fit as published are right."""

from __future__ import annotations

import pytest

from assay.kernels.config import GraderConfig
from assay.kernels.problems.sources import make_problem
from support.kernel_graders import Bench
from support.sandboxes import needs_walls

pytestmark = needs_walls
QUICK = GraderConfig(cache=False, scale="fit", compile_check="off", num_correct_trials=1)
ECHO = """
import torch
import torch.nn as nn

rows = 1024
steps = 4096
delay = 128


class Model(nn.Module):
    def __init__(self, delay):
        super().__init__()
        self.delay = delay

    def forward(self, x):
        y = x * 1.5
        y[:, self.delay :] += 0.5 * x[:, : -self.delay]
        return torch.relu(y)


def get_inputs():
    return [torch.randn(rows, steps)]


def get_init_inputs():
    return [delay]
"""
KERNEL = """
import torch
import torch.nn as nn
import triton
import triton.language as tl


@triton.jit
def echo(x, y, rows, steps, delay, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    t = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + row * steps + t, mask=t < steps, other=0.0)
    before = tl.load(x + row * steps + t - delay, mask=(t >= delay) & (t < steps), other=0.0)
    tl.store(y + row * steps + t, tl.maximum(1.5 * v + 0.5 * before, 0.0), mask=t < steps)


class ModelNew(nn.Module):
    def __init__(self, delay):
        super().__init__()
        self.delay = delay

    def forward(self, x):
        y = torch.empty_like(x)
        rows, steps = x.shape
        echo[(rows, triton.cdiv(steps, 32))](x, y, rows, steps, self.delay, BLOCK=32)
        return y
"""
LEFT_OUT = KERNEL.replace("+ 0.5 * before", "")
FEW_STEPS = ECHO.replace("rows = 1024\nsteps = 4096\ndelay = 128", "rows = 4096\nsteps = 512\ndelay = 4")
UNMASKED = (
    KERNEL.replace(", mask=t < steps, other=0.0", "").replace(", mask=t < steps", "").replace(" & (t < steps)", "")
)


@pytest.mark.parametrize(
    ("text", "code", "kind"),
    [
        (ECHO, KERNEL, "ok"),
        (ECHO, KERNEL.replace("x + row * steps", "x + row * rows"), "wrong"),
        (ECHO, LEFT_OUT, "wrong"),
        (FEW_STEPS, UNMASKED, "ok"),
    ],
    ids=["right", "stride of another size", "delay left out", "blocks without a mask"],
)
def test_what_is_equal_where_a_problem_is_small_is_told_apart(bench: Bench, text: str, code: str, kind: str) -> None:
    verdict = bench.grade(make_problem(1, 1, "Echo", text, "test"), code, QUICK)
    assert verdict.kind == kind, verdict
    if kind == "ok":
        first = {name: new for name, _, _, new in verdict.evidence["scaling"]["changes"]}
        assert first["rows"] == first["steps"] == 32
        other = {name: new for name, _, _, new in verdict.evidence["other_scaling"]["changes"]}
        assert other["rows"] != other["steps"] and (code == KERNEL or min(other.values()) == 64)
    else:
        assert "right at the first size, but not at another one" in verdict.message
