"""Triton reads the submission's own kernels: they are what their text says, or the verdict says what they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import chz
import pytest
from benchmarks.common.submissions import Submission, read_submissions

from assay.kernels.compile.stage import texts_of
from assay.kernels.program.form import Program
from assay.kernels.program.own_text import outcome_of
from assay.sandbox import JobResult
from support.kernel_graders import QUICK, Bench
from support.kernelbench_data import ATTACKS, shipped
from support.programs import launch, made

COMPILED = chz.replace(QUICK, compile_check="right")
SHIPPED = shipped()
OTHERWISE = {
    attack.id.removeprefix("front_end/"): attack
    for attack in read_submissions(ATTACKS)
    if attack.id.startswith("front_end/")
}
SAID = {
    "plain_global": "Cannot access global variable ONE",
    "default_rebound": "Triton reads another kernel in reciprocal",
    "text_in_a_decorator": "Triton reads another kernel in reciprocal",
    "two_helpers_of_one_name": "Triton reads another kernel in reciprocal",
    "equal_constexprs": "Triton's cache takes this launch for the one in line",
    "number_and_its_text": "Triton's cache takes this launch for the one in line",
}


@pytest.mark.parametrize("name", SAID)
def test_a_kernel_that_triton_reads_otherwise_is_not_ok(bench: Bench, name: str) -> None:
    attack: Submission = OTHERWISE[name]
    verdict = bench.grade(SHIPPED[attack.problem], attack.code, COMPILED)
    assert verdict.kind in attack.expect and SAID[name] in verdict.message, verdict
    # Nothing but this tells: with the compiler left out they are right.
    assert bench.grade(SHIPPED[attack.problem], attack.code, QUICK).ok


PROGRAM: Program = made(forward=[launch(), launch()])


def told(report: Any, texts: Sequence[str], end: str = "ok") -> str:
    """How a recording that reports this about a program ends, or an empty text."""
    result = JobResult(end, "", report=report)  # type: ignore[arg-type]
    found = outcome_of(result, PROGRAM, texts)
    return "" if found is None else f"{found.end}: {found.message}"


SAME = ["a", "b"]
REPORTS: dict[str, tuple[Any, str]] = {
    "the same": ({"own": {"texts": SAME}}, ""),
    "another one": ({"own": {"texts": ["a", "c"]}}, "unsupported: Triton reads another kernel"),
    "one that is not known": ({"own": {"texts": ["a", ""]}}, "unsupported: Triton reads another kernel"),
    "fewer launches": ({"own": {"texts": ["a"]}}, "unsupported: the submission was recorded a second time"),
    "more launches": ({"own": {"texts": ["a", "b", "b"]}}, "unsupported: the submission was recorded a second time"),
    "no text": ({"own": {"texts": [1, None]}}, "unsupported: Triton reads another kernel"),
    "lists": ({"own": {"texts": [["a"], ["b"]]}}, "unsupported: Triton reads another kernel"),
    "nothing": ({}, "unsupported: the submission was recorded a second time"),
    "no report": (None, "unsupported: the submission was recorded a second time"),
    "refused": (
        {"own": {"refused": {"kernel": "k", "line": 7, "text": "NameError: one"}}},
        "not_triton: kernel k, line 7: NameError: one",
    ),
    "refused without a word": ({"own": {"refused": {}}}, "not_triton: kernel "),
    "refused in a list": ({"own": {"refused": ["k"]}}, "unsupported: the submission was recorded a second time"),
    "merged": ({"own": {"merged": {"kernel": "k", "line": -1, "text": "x" * 9000}}}, "wrong: kernel k: xxx"),
}


@pytest.mark.parametrize("name", REPORTS)
def test_what_a_recording_says_of_its_kernels_is_read_with_care(name: str) -> None:
    report, said = REPORTS[name]
    found = told(report, SAME)
    assert found.startswith(said) and bool(found) == bool(said) and len(found) < 2000, found


def test_a_kernel_that_the_compiler_was_not_asked_about_is_not_compared() -> None:
    assert told({"own": {"texts": ["a", "c"]}}, ["a", ""]) == ""


def test_a_sandbox_that_fails_says_nothing_of_the_kernels() -> None:
    assert told(None, SAME, end="infra").startswith("infra: ")


@pytest.mark.parametrize("found", [None, 1, "ab", [1, 2], [[{}]], [["a"], 3], ["a", None]])
def test_texts_of_a_child_are_texts(found: Any) -> None:
    texts = texts_of(found)
    given = found if isinstance(found, list) else []
    assert texts == tuple(each if isinstance(each, str) else "" for each in given)
