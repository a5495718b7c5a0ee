"""Triton reads the submission's own kernels: they are what their text says, or the verdict says what they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import chz
import pytest
from benchmarks.common.submissions import Submission, read_submission, read_submissions

from assay.kernels.compile.stage import LAUNCHES_TOLD, texts_of
from assay.kernels.program.form import Program
from assay.kernels.program.own_text import outcome_of
from assay.sandbox import JobResult
from support.kernel_graders import QUICK, Bench
from support.kernelbench_data import ATTACKS, HONEST, shipped
from support.programs import launch, made
from support.recorded_programs import module, recording

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


TUNED = """
@triton.autotune([triton.Config({"W": w}) for w in range(64)], key=[])
@triton.jit
def tuned(x, W: tl.constexpr):
    tl.static_assert(W < LEAST)
    tl.store(x, W + 0.0)
"""


def own(bench: Bench, head: str, launch: str) -> Any:
    """What the recording of a submission says of its kernels."""
    result = bench.wait(bench.sandbox.run(recording(module(head=head, launch=launch), reads=90)))
    assert result.end == "ok" and "fault" not in result.report, result
    return result.report["own"]


@pytest.mark.parametrize(("times", "told"), [(30, 30), (600, 600)])
def test_a_report_has_room_for_as_many_launches_as_a_program_may_have(bench: Bench, times: int, told: int) -> None:
    head = TUNED.replace("LEAST", "64") if times == 30 else TUNED.replace("LEAST", "64").replace("64)]", "2)]")
    texts = own(bench, head, f"for _ in range({times}):\n            tuned[(1,)](out)")["texts"]
    assert len(texts) == told and len(set(texts)) == 1 and texts[0]


def test_what_a_tuner_passes_over_is_told_from_what_it_may_choose(bench: Bench) -> None:
    one, other = (own(bench, TUNED.replace("LEAST", least), "tuned[(1,)](out)")["texts"] for least in ("64", "63"))
    assert len(one) == len(other) == 1 and one[0] and other[0] and one != other
    refused = own(bench, TUNED.replace("LEAST", "0"), "tuned[(1,)](out)")["refused"]
    assert refused["kernel"] == "tuned" and "W < 0" in refused["text"], refused


def test_a_failed_assertion_of_what_is_not_tuned_is_refused(bench: Bench) -> None:
    head = TUNED.partition("key=[])")[2].replace("LEAST", "3")
    assert own(bench, head, "tuned[(1,)](out, 2)")["texts"]
    assert own(bench, head, "tuned[(1,)](out, 3)")["refused"]["kernel"] == "tuned"
    # One of a helper's is none to a tuner: it raises.
    helper = "@triton.jit\ndef helper(W: tl.constexpr):\n    tl.static_assert(W < 3)\n    return 0.0\n"
    head = helper + TUNED.replace("tl.static_assert(W < LEAST)", "helper(W)")
    assert own(bench, head, "tuned[(1,)](out)")["refused"]["kernel"] == "tuned"


@pytest.mark.parametrize("arch", ["sm_80", "sm_100"])
def test_kernels_are_read_for_the_gpu_that_they_are_compiled_for(bench: Bench, arch: str) -> None:
    """A descriptor is another text where a GPU has none."""
    honest = read_submission(HONEST / "matmul_descriptors.py")
    verdict = bench.grade(SHIPPED[honest.problem], honest.code, chz.replace(COMPILED, arch=arch))
    assert verdict.ok and verdict.compiled, verdict


PROGRAM: Program = made(forward=[launch(), launch()])


def test_more_launches_than_are_compared_are_not_taken() -> None:
    many = replace(PROGRAM, forward=PROGRAM.forward[:1] * (LAUNCHES_TOLD + 1))
    found = outcome_of(
        JobResult("ok", "", report={"own": {"texts": ["a"] * LAUNCHES_TOLD}}), many, ["a"] * LAUNCHES_TOLD
    )
    assert found is not None and found.end == "unsupported" and "2049 launches" in found.message


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


def test_a_reading_that_takes_too_much_is_told() -> None:
    assert told(None, SAME, end="timeout").startswith("timeout: Triton was reading the kernels")
    assert told(None, SAME, end="memory").startswith("unsupported: Triton was reading the kernels")


@pytest.mark.parametrize("found", [None, 1, "ab", [1, 2], [[{}]], [["a"], 3], ["a", None]])
def test_texts_of_a_child_are_texts(found: Any) -> None:
    texts = texts_of(found)
    given = found if isinstance(found, list) else []
    assert texts == tuple(each if isinstance(each, str) else "" for each in given)
