"""What a submission is given and gives back beside the elements of tensors: lists, tuples, texts, numbers."""

from __future__ import annotations

import textwrap

import pytest

from assay.kernels.arrays import Listed
from assay.kernels.frames import Frame
from assay.kernels.problems.sources import make_problem
from support.kernel_graders import Bench
from support.trials import Trials

REFERENCE = """
import torch


class Model(torch.nn.Module):
    def __init__(self, sizes):
        super().__init__()

    def forward(self, xs, pair):
        y = torch.sin(xs[0]) + xs[1]
        return RETURNED


def get_inputs():
    return [[torch.randn(8, 24), torch.randn(8, 24)], (3, 4)]


def get_init_inputs():
    return [(8, 24)]
"""
ALL = '{"y": y, "kind": "sine", 1: None}, y.shape[1]'
KERNEL = """
import torch
import triton
import triton.language as tl


@triton.jit
def kernel(a_ptr, b_ptr, y_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < n
    y = tl.sin(tl.load(a_ptr + i, mask=inside)) + tl.load(b_ptr + i, mask=inside)
    tl.store(y_ptr + i, y, mask=inside)


class ModelNew(torch.nn.Module):
    def __init__(self, sizes):
        super().__init__()
        CONSTRUCTOR

    def forward(self, xs, pair):
        y = torch.empty_like(xs[0])
        kernel[(triton.cdiv(y.numel(), 64),)](xs[0], xs[1], y, y.numel(), BLOCK=64)
        BODY
        return RETURNED
"""
CHANGED = "changes a list among its arguments"
SUBMISSIONS = {
    "the same": ("", "", ALL, "ok", ""),
    "a list more": ("", "ys = xs + [y]", ALL, "ok", ""),
    "a tuple more": ("", "ys = pair + (y,)", ALL, "ok", ""),
    "a tuple that is told from a number": (
        "sizes = sizes if isinstance(sizes, tuple) else (sizes,)",
        "",
        ALL,
        "ok",
        "",
    ),
    "a tuple for a list": ("", "ys = xs + (y,)", ALL, "crash", "TypeError"),
    "a list for a tuple": ("", "ys = pair + [y]", ALL, "crash", "TypeError"),
    "a list for a tuple of the constructor": ("sizes + [1]", "", ALL, "crash", "TypeError"),
    "a list that grows": ("", "xs.append(y)", ALL, "wrong", CHANGED),
    "a list in another order": ("", "xs.reverse()", ALL, "wrong", CHANGED),
    "a list of another tensor": ("", "xs[1] = torch.zeros_like(y)", ALL, "wrong", CHANGED),
    "a list that shrinks in the next call": (
        "self.kept = []",
        "self.kept.clear()\nself.kept = xs",
        ALL,
        "wrong",
        CHANGED,
    ),
    "without what is None": ("", "", '{"y": y, "kind": "sine"}, y.shape[1]', "wrong", "the reference returns"),
    "another text": ("", "", '{"y": y, "kind": "cosine", 1: None}, y.shape[1]', "wrong", "'kind': 'cosine'"),
    "a text for a number": ("", "", '{"y": y, "kind": "sine", "1": None}, y.shape[1]', "wrong", "'1': None"),
    "another number": ("", "", '{"y": y, "kind": "sine", 1: None}, y.shape[1] + 1', "wrong", "25)"),
    "a fraction for a number": ("", "", '{"y": y, "kind": "sine", 1: None}, float(y.shape[1])', "wrong", "24.0)"),
    "a number alone": ("", "", "y, y.shape[1]", "wrong", "forward returned (tensor, 24)"),
}


@pytest.fixture(scope="module")
def trials(bench: Bench) -> Trials:
    return Trials(bench, [make_problem(9, 1, "Lists", REFERENCE.replace("RETURNED", ALL), "local")])


@pytest.mark.parametrize("what", SUBMISSIONS)
def test_lists_and_constants_are_those_of_the_reference(trials: Trials, what: str) -> None:
    constructor, body, returned, end, said = SUBMISSIONS[what]
    code = KERNEL.replace("CONSTRUCTOR", textwrap.indent(constructor, " " * 8).strip()).replace("RETURNED", returned)
    outcome = trials.run("9/1", code.replace("BODY", textwrap.indent(body, " " * 8).strip()))
    assert outcome.end == end and said in outcome.message, outcome


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        ("y, {1}", "an output of type set cannot be compared"),
        ("y, float(y.mean())", "other constants or parts elsewhere"),
        ("(y, None) if float(y.mean()) > 0 else (y,)", "other constants or parts elsewhere"),
    ],
)
def test_a_problem_whose_output_no_launches_give_is_refused(bench: Bench, returned: str, said: str) -> None:
    problem = make_problem(9, 2, "Odd", REFERENCE.replace("RETURNED", returned), "local")
    verdict = bench.grade(problem, KERNEL.replace("CONSTRUCTOR", "").replace("BODY", "").replace("RETURNED", "y, None"))
    assert (verdict.kind, verdict.stage) == ("unsupported", "problem") and said in verdict.message, verdict


def test_lists_and_tuples_travel_as_what_they_are() -> None:
    value = (1, Listed(("a", (), Listed())), None)
    frame = Frame({})
    entry = frame.add(value)
    assert entry == {"tuple": [1, ["a", {"tuple": []}, []], None]}
    found = frame.value(entry)
    assert type(found) is tuple and type(found[1]) is Listed and found == value
    assert type(found[1][1]) is tuple and type(found[1][2]) is Listed
