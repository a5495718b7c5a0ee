"""Starters: each problem's file to begin with has the problem's signatures, and is graded as it says."""

from __future__ import annotations

import ast

import pytest

from assay.kernels.problems.sources import Problem, make_problem
from assay.kernels.problems.starter import SUMMARY_CHARACTERS, requirements, starter, summary
from assay.kernels.text.examining import examine
from support.kernel_graders import Bench
from support.kernelbench_data import PUBLISHED, needs_published, shipped

SHIPPED = shipped()
TRICKY = make_problem(
    1,
    7,
    "tricky",
    '''
import math
import torch.nn as nn
import torch.nn.functional as F
from torch import Tensor as T

WIDTH = 8
UNUSED = 9
HALF = WIDTH // 2

def make(n):
    return [nn.Linear(HALF, n)]

class Model(nn.Module):
    """Says \\x1b[31m"three\\"\\"\\" things\\"."""
    @staticmethod
    def size(k: int = WIDTH) -> int:
        return k

    def __init__(self, UNUSED):
        super(Model, self).__init__()
        self.layers = nn.ModuleList(make(Model.size()))
        self.width = UNUSED

    def forward(self, *tensors: T, scale=HALF, **more):
        return F.relu(tensors[0]) * math.pi * scale

def get_inputs():
    return []

def get_init_inputs():
    return [3]
''',
    "test",
)


def of_class(code: str, name: str) -> dict[str, ast.FunctionDef]:
    [cls] = [node for node in ast.parse(code).body if isinstance(node, ast.ClassDef) and node.name == name]
    return {node.name: node for node in cls.body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("backend", ["triton", "cuda"])
def test_every_shipped_problem_has_a_starter_with_its_signatures_that_its_examination_lets_pass(backend: str) -> None:
    for problem in SHIPPED.values():
        text = starter(problem, backend)  # type: ignore[arg-type]
        report = examine(text, backend)  # type: ignore[arg-type]
        assert report.fault is None and report.findings == (), (problem.key, report)
        theirs, ours = of_class(problem.code, "Model"), of_class(text, "ModelNew")
        assert theirs.keys() == ours.keys(), problem.key
        for name, function in theirs.items():
            assert ast.unparse(function.args) == ast.unparse(ours[name].args), problem.key
            if name != "forward":
                assert ast.unparse(function) == ast.unparse(ours[name]), problem.key
        assert f"assay grade --problem {problem.key} --kernel THIS_FILE" in text
        assert ("TODO" in text) == (problem.key != "1/1")


@pytest.mark.parametrize("key", ["1/1", "1/7", "2/2", "3/4"])
def test_a_starter_is_graded_as_it_says(bench: Bench, key: str) -> None:
    text = starter(SHIPPED[key])
    verdict = bench.grade(SHIPPED[key], text)
    assert verdict.kind == ("ok" if key == "1/1" else "wrong"), verdict
    assert ("is graded `wrong`" in text) == (verdict.kind == "wrong")


def test_what_a_problem_refers_to_comes_along_and_nothing_else() -> None:
    text = starter(TRICKY, name="a file.py")
    lines = text.splitlines()
    assert all(line.startswith("#") for line in lines[: lines.index("import torch")]) and "\x1b" not in text
    assert "--problem 'a file.py'" in text
    assert "WIDTH = 8" in lines and "HALF = WIDTH // 2" in lines and "def make(n):" in lines
    assert "UNUSED = 9" not in lines, "a parameter of that name is not the constant"
    assert "from torch import Tensor as T" in lines and "import math" not in lines
    assert "super(ModelNew, self).__init__()" in text and "make(ModelNew.size())" in text
    assert "def forward(self, *tensors: T, scale=HALF, **more):" in text and "source = tensors[0].contiguous()" in text
    assert examine(text).fault is None


def test_only_the_shipped_problem_has_the_whole_solution() -> None:
    first = SHIPPED["1/1"]
    other = Problem(first.level, first.id, first.name, first.code, "elsewhere.jsonl")
    assert "TODO" not in starter(first) and "TODO" in starter(other)


def test_a_problem_in_a_line_and_what_a_solution_must_define() -> None:
    assert all(summary(problem) for problem in SHIPPED.values())
    assert summary(SHIPPED["1/6"]) == "Inclusive prefix sum along the last dimension."
    assert "\x1b" not in summary(TRICKY)
    long = make_problem(1, 9, "long", TRICKY.code.replace("things", "things " * 100), "test")
    assert len(summary(long)) <= SUMMARY_CHARACTERS
    silent = make_problem(
        1, 9, "silent", "class Model: pass\ndef get_inputs(): ...\ndef get_init_inputs(): ...", "test"
    )
    assert summary(silent) == "" and "def forward(self, x):" in starter(silent)
    said = " ".join(requirements(SHIPPED["2/2"]).split())
    assert "ModelNew(features)" in said and "forward(x, residual)" in said and "Triton kernels" in said
    assert "load_inline" in requirements(SHIPPED["2/2"], "cuda")


@needs_published
def test_every_published_problem_has_a_starter_that_its_examination_lets_pass() -> None:
    from assay.kernels.problems.sources import read_jsonl

    for problem in read_jsonl(PUBLISHED)[::4]:
        report = examine(starter(problem))
        assert report.fault is None and report.cheats == (), (problem.key, report)
