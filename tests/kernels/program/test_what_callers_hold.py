"""What a caller of forward has of it beside the numbers: tensors where it expects them, and its own inputs."""

from __future__ import annotations

import pytest

from assay.kernels.problems.sources import make_problem
from support.kernel_graders import Bench
from support.trials import SNAKE, Trials, snaking

HOST = "is on the host"
RIGHT = "return snake(x, self.frequency, torch.empty_like(x))"
DEVICES = {
    "made without a device": (
        "return snake(x, self.frequency, torch.empty(x.shape))",
        "crash",
        "Pointer argument (at 2",
    ),
    "made with one": ("return snake(x, self.frequency, torch.empty(x.shape, device=x.device))", "ok", ""),
    "made on the host": ("return snake(x, self.frequency, torch.empty(x.shape, device='cpu'))", "crash", "cpu tensor"),
    "moved": ("return snake(x, self.frequency, torch.zeros(x.shape).to(x.device))", "ok", ""),
    "moved as another tensor": ("return snake(x, self.frequency, torch.zeros(x.shape, dtype=int).to(x))", "ok", ""),
    "under a context": (
        "with torch.device('cuda'):\n    y = torch.zeros(x.shape)\nreturn snake(x, self.frequency, y)",
        "ok",
        "",
    ),
    "another GPU": ("return snake(x, self.frequency, torch.empty_like(x, device='cuda:1'))", "crash", "invalid device"),
    "mixed": (
        "y = snake(x, self.frequency, torch.empty_like(x))\nreturn y + torch.zeros(x.shape)",
        "crash",
        "same device",
    ),
    "a number of the host": (f"x = x.clone()\nx[0, 0].mul_(torch.tensor(1.0))\n{RIGHT}", "ok", ""),
    "a literal": ("return snake(x, torch.tensor([1.0] * x.shape[1]), torch.empty_like(x))", "crash", "at 1"),
    "copied to the host": ("return snake(x, self.frequency, torch.empty_like(x)).cpu()", "wrong", HOST),
    "asked for": (f"assert x.is_cuda and not x.is_cpu and torch.zeros(1).device.type == 'cpu'\n{RIGHT}", "ok", ""),
    "an attribute": ("return snake(x, self.frequency, self.y.expand(x.shape))", "crash", "register it as a buffer"),
}
REPLACED = {
    "data": "y = snake(x, self.frequency, torch.empty_like(x))\nx.data = y\nreturn y",
    "swapped": "y, z = snake(x, self.frequency, torch.empty_like(x)), torch.empty_like(x)\n"
    "torch.utils.swap_tensors(x, z)\nreturn y",
}
DOUBLES = """
import torch


class Model(torch.nn.Module):
    def forward(self, x):
        x.mul_(2)
        return torch.sin(x), x + 1


def get_inputs():
    return [torch.randn(20, 30)]


def get_init_inputs():
    return []
"""
KERNEL = """
import torch
import triton
import triton.language as tl


@triton.jit
def kernel(x_ptr, y_ptr, z_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = 2 * tl.load(x_ptr + i, mask=i < n, other=0.0)
    tl.store(y_ptr + i, tl.sin(x), mask=i < n)
    tl.store(z_ptr + i, x + 1, mask=i < n)
    WRITE


class ModelNew(torch.nn.Module):
    def forward(self, x):
        y, z = torch.empty_like(x), torch.empty_like(x)
        kernel[(triton.cdiv(x.numel(), 256),)](x, y, z, x.numel(), BLOCK=256)
        return RETURNED
"""
BACK = "tl.store(x_ptr + i, x, mask=i < n)"
KEPT = {
    "written back": (BACK, "y, z", "ok", ""),
    "left alone": ("pass", "y, z", "wrong", "input 0 is left otherwise"),
    "half": ("tl.store(x_ptr + i, x * 0.5, mask=i < n)", "y, z", "wrong", "input 0 is left otherwise"),
    "a list": (BACK, "[y, z]", "ok", ""),
    "a dictionary": (BACK, "{'a': y, 'b': z}", "wrong", "the reference returns (tensor, tensor)"),
    "nested": (BACK, "y, (z,)", "wrong", "forward returned (tensor, (tensor))"),
}

LAID = """
import torch


class Model(torch.nn.Module):
    def forward(self, x, bias, whole, part):
        whole.mul_(0.5)
        return torch.softmax(x + bias, -1), torch.tanh(part) + 1.0


def get_inputs():
    whole = torch.randn(8, 48)
    return [torch.randn(48, 8).t(), torch.randn(1, 48).expand(8, 48), whole, whole[:4]]


def get_init_inputs():
    return []
"""
LYING = """
import torch
import triton
import triton.language as tl


@triton.jit
def rows(x_ptr, b_ptr, y_ptr, n, xr, xc, br, bc, BLOCK: tl.constexpr):
    row, i = tl.program_id(0), tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * xr + i * xc, mask=i < n, other=0.0)
    x = tl.where(i < n, x + tl.load(b_ptr + row * br + i * bc, mask=i < n, other=0.0), float("-inf"))
    e = tl.exp(x - tl.max(x, 0))
    tl.store(y_ptr + row * n + i, e / tl.sum(e, 0), mask=i < n)


@triton.jit
def halved(x_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x_ptr + i, 0.5 * tl.load(x_ptr + i, mask=i < n), mask=i < n)


@triton.jit
def squashed(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + i, 2.0 * tl.sigmoid(2.0 * tl.load(x_ptr + i, mask=i < n)), mask=i < n)


class ModelNew(torch.nn.Module):
    def forward(self, x, bias, whole, part):
        y, z = torch.empty(x.shape, device=x.device), torch.empty_like(part)
        m, n = x.shape
        rows[(m,)](x, bias, y, n, *STRIDES, BLOCK=64)
        STEPS
        return y, z
"""
HALVED, SQUASHED = "halved[(m,)](whole, m * n, BLOCK=64)", "squashed[(4,)](part, z, part.numel(), BLOCK=64)"
STRIDES = "x.stride(), *bias.stride()"
IN_PLACES = {
    "as they lie": (STRIDES, f"{HALVED}; {SQUASHED}", "ok", ""),
    "rows one after the other": ("(n, 1), *bias.stride()", f"{HALVED}; {SQUASHED}", "wrong", "family"),
    "a row for each": ("x.stride(), n, 1", f"{HALVED}; {SQUASHED}", "crash", "past the end of a tensor"),
    "memory of their own": (STRIDES, f"{SQUASHED}; {HALVED}", "wrong", "family"),
}


@pytest.fixture(scope="module")
def trials(bench: Bench) -> Trials:
    own = [make_problem(9, 1, "Doubles", DOUBLES, "local"), make_problem(9, 2, "Laid", LAID, "local")]
    return Trials(bench, own)


@pytest.mark.parametrize("what", DEVICES)
def test_kernels_and_callers_take_tensors_of_one_gpu(trials: Trials, what: str) -> None:
    forward, end, said = DEVICES[what]
    outcome = trials.run(SNAKE, snaking(forward, constructor="self.y = torch.zeros(1)"))
    assert outcome.end == end and said in outcome.message, outcome


@pytest.mark.parametrize("how", REPLACED)
def test_an_input_stays_the_tensor_that_its_caller_holds(trials: Trials, how: str) -> None:
    outcome = trials.run(SNAKE, snaking(REPLACED[how]))
    assert outcome.end == "wrong" and "in the place of input 0" in outcome.message, outcome


@pytest.mark.parametrize("what", KEPT)
def test_inputs_and_outputs_are_those_of_the_reference(trials: Trials, what: str) -> None:
    write, returned, end, said = KEPT[what]
    outcome = trials.run("9/1", KERNEL.replace("WRITE", write).replace("RETURNED", returned))
    assert outcome.end == end and said in outcome.message, outcome


@pytest.mark.parametrize("how", IN_PLACES)
def test_inputs_lie_in_memory_as_the_problem_makes_them(trials: Trials, how: str) -> None:
    strides, steps, end, said = IN_PLACES[how]
    outcome = trials.run("9/2", LYING.replace("STRIDES", strides).replace("STEPS", steps))
    assert outcome.end == end and said in outcome.message, outcome
