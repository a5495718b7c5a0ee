"""What a submission may touch of its caller's, and of which classes it may be and return."""

from __future__ import annotations

import pytest

from assay.kernels.problems.sources import make_problem
from support.kernel_graders import Bench
from support.trials import SNAKE, Trials, snaking

PARTS = """
import torch


class Model(torch.nn.Module):
    def forward(self, x):
        return torch.sin(x) + x


def get_inputs():
    return [torch.randn(8, 96)[:, 32:64]]


def get_init_inputs():
    return []
"""
PART = """
import torch
import triton
import triton.language as tl


@triton.jit
def rows(x_ptr, y_ptr, xs, ys, ALL: tl.constexpr, MORE: tl.constexpr):
    row, i = tl.program_id(0), tl.arange(0, 32)
    x = tl.load(x_ptr + row * xs + i)
    if ALL:
        x = tl.sum(tl.where(i[None, :] < 0, tl.load(x_ptr + row * xs + 32 + i)[None, :], x[None, :]), 0)
    if MORE:
        tl.atomic_add(x_ptr + row * xs - 16 + i, 0.0, mask=i < 16)
    tl.store(y_ptr + row * ys + i, tl.sin(x) + x)


class ModelNew(torch.nn.Module):
    def forward(self, x):
        y = torch.empty(x.shape, device=x.device)
        beside = x.as_strided((8, 16), x.stride(), x.storage_offset() + 32)
        FORWARD
        return y
"""
ROWS, BESIDE = "rows[(8,)](x, y, x.stride(0), y.stride(0), ALL=False, MORE=False)", "that belongs to another tensor"
PARTLY = {
    "by its strides": (ROWS, "ok", ""),
    "an output beside it": (f"y = x.as_strided(x.shape, x.stride(), 64); {ROWS}", "crash", BESIDE),
    "an output under it": (f"y = x.as_strided(x.shape, x.stride(), 0); {ROWS}", "crash", BESIDE),
    "reads beside it": (ROWS.replace("ALL=False", "ALL=True"), "crash", BESIDE),
    "adds nothing beside it": (ROWS.replace("MORE=False", "MORE=True"), "crash", BESIDE),
    "clears what is beside it": (f"beside.zero_(); {ROWS}", "crash", "zero reads or writes memory"),
    "copies into it": (f"{ROWS}; beside.copy_(y[:, :16])", "crash", "copy reads or writes memory"),
    "keeps a copy of it": (f"kept = beside.clone(); {ROWS}", "crash", "clone reads or writes memory"),
}
DERIVED = """
class Lying(type(torch.Tensor)):
    def __eq__(self, other): return True
    def __hash__(self): return 0
class Mine(torch.Tensor, metaclass=Lying):
    pass
class Named(tuple): pass
class Text(str): pass
class Own(torch.nn.Parameter): pass
"""
MADE = "y = snake(x, self.frequency, torch.empty_like(x))\n"
RETURNS = {
    "a parameter": ("return torch.nn.Parameter(y)", "ok", ""),
    "a tensor of its own class": ("return y.as_subclass(Mine)", "wrong", "forward returned a Mine"),
    "one whose class is set": ("y.__class__ = Mine\nreturn y", "wrong", "forward returned a Mine"),
    "a parameter of its own class": ("return Own(y)", "wrong", "forward returned a Own"),
    "a tuple of its own class": ("return Named([y])", "wrong", "forward returned a Named"),
    "a dictionary by texts of its own": ("return {Text('y'): y}", "wrong", "forward returned a dict"),
    "a tensor with a note": ("y.note = 3\nreturn y", "ok", ""),
    "a method of its own": ("y.cpu = lambda: 0\nreturn y", "wrong", "a tensor with a cpu of its own"),
    "an input's method": ("x.sub = lambda *a: 0\nreturn y", "wrong", "another sub in the place of that of input 0"),
    "another place for an input": (
        "x.data_ptr = y.data_ptr\nreturn y",
        "wrong",
        "another data_ptr in the place of that of input 0",
    ),
    "an input's method, before a launch": (
        "y.sub = lambda *a: 0\nreturn snake(x, self.frequency, y)",
        "unsupported",
        "a tensor with a sub of its own",
    ),
    "an input of its class": ("x.__class__ = Mine\nreturn y", "wrong", "a Mine"),
    "a weight of its class": (
        "self.frequency.__class__ = Own\nreturn y",
        "wrong",
        "forward makes a Own of the parameter frequency",
    ),
}


@pytest.fixture(scope="module")
def trials(bench: Bench) -> Trials:
    return Trials(bench, [make_problem(9, 1, "Parts", PARTS, "local")])


@pytest.mark.parametrize("what", PARTLY)
def test_what_lies_beside_an_input_is_of_others(trials: Trials, what: str) -> None:
    forward, end, said = PARTLY[what]
    outcome = trials.run("9/1", PART.replace("FORWARD", forward))
    assert outcome.end == end and said in outcome.message, outcome


@pytest.mark.parametrize("what", RETURNS)
def test_what_is_returned_is_of_pytorchs_own_classes(trials: Trials, what: str) -> None:
    returned, end, said = RETURNS[what]
    outcome = trials.run(SNAKE, snaking(MADE + returned, head=DERIVED))
    assert outcome.end == end and said in outcome.message, outcome


def test_a_model_is_a_module(trials: Trials) -> None:
    code = snaking(MADE + "return y").replace("class ModelNew(nn.Module)", "class ModelNew")
    outcome = trials.run(SNAKE, code.replace("super().__init__()", "pass").replace("def forward", "def __call__"))
    assert outcome.end == "crash" and "no torch.nn.Module" in outcome.message


NAMED = {
    "the class": "def named_parameters(self, *args, **named):\n        yield from self.kept.named_parameters()",
    "parameters": "def parameters(self, recurse=True):\n        yield self.frequency",
    "loading": "def load_state_dict(self, *args, **named):\n        pass",
}


@pytest.mark.parametrize("what", NAMED)
def test_a_model_has_its_parameters_told_by_pytorch(trials: Trials, what: str) -> None:
    code = snaking(MADE + "return y").replace("    def forward", f"    {NAMED[what]}\n\n    def forward")
    outcome = trials.run(SNAKE, code)
    assert outcome.end == "unsupported" and "leave that to torch.nn.Module" in outcome.message, outcome


def test_a_method_of_an_instance_tells_nothing_either(trials: Trials) -> None:
    code = snaking(MADE + "return y").replace("def forward", "def unused(self):\n        pass\n\n    def forward", 1)
    code = code.replace("super().__init__()", "super().__init__()\n        self.named_buffers = lambda: []")
    outcome = trials.run(SNAKE, code)
    assert outcome.end == "unsupported" and "named_buffers" in outcome.message, outcome


def test_the_worst_error_is_of_calls_that_count(trials: Trials) -> None:
    code = snaking(MADE.replace("self.frequency", "self.f") + "return y")
    joined = code.replace("self.frequency = nn.Parameter(", "self.f = nn.Parameter((").replace(
        "+ 0.5)", "+ 0.5)[None])"
    )
    outcome = trials.run(SNAKE, joined)
    assert outcome.end == "ok" and 0.0 < outcome.facts["worst"] <= 1.0, outcome
