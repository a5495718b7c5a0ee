"""Which calls a candidate is put to, and what its answers prove: pure, with job results made by hand."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.kernels.arrays import HostTensor, host_tensor
from assay.kernels.config import GraderConfig
from assay.kernels.numerics.calls import Call, cuda_job, plan_calls
from assay.kernels.numerics.families import FAMILIES
from assay.kernels.numerics.screening import Case
from assay.kernels.numerics.secret_inputs import InputSet
from assay.kernels.numerics.stage import Answers, verdict_of
from assay.kernels.verdicts import Verdict
from assay.sandbox import JobResult, Limits
from assay.types import Json

SHAPE = (4, 5)
LIMITS = Limits()


def case(family: str, seed: int) -> Case:
    """A problem that doubles its input."""
    x = np.random.default_rng(seed).normal(size=SHAPE).astype(np.float32)
    return Case(family, (host_tensor(x, "float32"),), (x.astype(np.float64) * 2,), (x * 2,))


def draw(
    families: Sequence[str] = FAMILIES, moved: bool = False, work: dict[str, tuple[int, int]] | None = None
) -> InputSet:
    return InputSet(
        input_seed=1,
        weight_seed=2,
        init_inputs=(3, host_tensor(np.ones(2), "float32")),
        cases=tuple(case(family, place) for place, family in enumerate(families)),
        outputs=(("float32", SHAPE),),
        weights=(("scale", (5,)),) if moved else (),
        work={"mul": (1, 20)} if work is None else work,
        moved=case("given", 99) if moved else None,
        moved_weights={"scale": host_tensor(np.arange(5), "float32")} if moved else {},
    )


@given(
    trials=st.integers(1, 12),
    seed=st.integers(0, 2**32),
    families=st.lists(st.sampled_from(FAMILIES), min_size=1, max_size=len(FAMILIES), unique=True),
    moved=st.booleans(),
)
@settings(deadline=None, max_examples=100)
def test_the_plan(trials: int, seed: int, families: list[str], moved: bool) -> None:
    calls = plan_calls(draw(families, moved), trials, random.Random(seed))
    plain = [c for c in calls if not c.moved]
    assert len(plain) == max(trials, len(families)) and len(calls) == len(plain) + moved
    counts = [sum(c.case.family == family for c in plain) for family in families]
    assert max(counts) - min(counts) <= 1, "families take turns"
    assert [place for place, c in enumerate(calls) if c.moved] == ([len(calls) - 1] if moved else [])


def test_the_order_is_the_parents_own() -> None:
    drawn = draw()
    orders = {tuple(c.case.family for c in plan_calls(drawn, 5, random.Random(s))) for s in range(40)}
    assert len(orders) > 15
    assert plan_calls(drawn, 5, random.Random(7)) == plan_calls(drawn, 5, random.Random(7))


def test_the_job_holds_no_secret() -> None:
    drawn = draw(moved=True)
    calls = plan_calls(drawn, 4, random.Random(0))
    job = cuda_job("code", drawn, calls, GraderConfig())
    assert [round.outputs for round in job.rounds] == [(), (), *[(80,)] * len(calls)], "the first is for CUDA alone"
    assert set(job.header) == {
        *("weight_seed", "init_inputs", "inputs", "outputs", "parameters", "precision", "structure"),
    }
    everything = (
        b"".join(bytes(buffer) for round in job.rounds for buffer in round.inputs) + json.dumps(job.header).encode()
    )
    for call in calls:
        exact = call.case.exact[0]
        assert exact.tobytes() not in everything and exact.astype(np.float32).tobytes() not in everything
    controls = [json.loads(bytes(round.inputs[-1])) for round in job.rounds[2:]]
    assert all(set(control) == {"weights"} for control in controls)
    assert [bool(control["weights"]) for control in controls] == [call.moved for call in calls]


def right(call: Call) -> bytes:
    return call.case.exact[0].astype(np.float32).tobytes()


def zeros(call: Call) -> bytes:
    return bytes(80)


class Candidate:
    """What a job left behind, made by hand: an honest one, until a test changes something."""

    def __init__(self, moved: bool = False, work: dict[str, tuple[int, int]] | None = None) -> None:
        self.draw = draw(moved=moved, work=work)
        self.calls = plan_calls(self.draw, 3, random.Random(5))
        self.outputs = [right(call) for call in self.calls]
        self.report: Json = {"rounds": [self.trace(call) for call in self.calls]}
        self.result = JobResult("ok", "every round was done", cpu_s=0.5)
        self.policy = "strict"

    def trace(self, call: Call) -> dict[str, Json]:
        said: dict[str, Json] = {"launches": {"extension": 2, "scale": 2}, "work": {"empty": [1, 0]}}
        return said | ({"weights": True} if call.moved else {})

    def judged(self, taken: int | None = None) -> Verdict:
        """The verdict, after the first `taken` calls were answered (None for all)."""
        answers = Answers(self.draw, self.calls, "float32")
        assert answers.take(0, ())
        outputs: list[tuple[bytes, ...]] = [()]
        for place, data in enumerate(self.outputs[: len(self.calls) if taken is None else taken]):
            outputs.append((data,))
            if place + 1 < len(self.calls) and not answers.take(place + 1, (data,)):
                self.result = replace(self.result, end="stopped")
                break
        result = replace(self.result, report=self.report, outputs=tuple(outputs))
        verdict = verdict_of(result, answers, self.policy, {"known": 1})
        assert Verdict.from_json(json.loads(json.dumps(verdict.to_json(), allow_nan=False))) == verdict
        assert verdict.evidence["known"] == 1 and verdict.stage == "numerics" and verdict.cpu_s == 0.5
        return verdict


@pytest.mark.parametrize("moved", [False, True])
def test_an_honest_candidate(moved: bool) -> None:
    verdict = Candidate(moved).judged()
    assert verdict.ok and (verdict.message, verdict.cheat) == ("", "")
    assert verdict.tests_passed == verdict.tests_total == len(FAMILIES)
    assert verdict.evidence["weights_moved"] is (True if moved else None)
    assert verdict.evidence["launches"] == {"extension": 2, "scale": 2} and verdict.evidence["operators"] == {}
    assert 0 <= verdict.evidence["worst"] <= 1


@pytest.mark.parametrize(
    ("end", "report", "kind", "said"),
    [
        ("infra", None, "infra_error", "the sandbox failed: told"),
        ("timeout", None, "timeout", "the kernel was told"),
        ("crash", None, "crash", "the process of the kernel told: first\nlast words"),
        ("memory", None, "crash", "the process of the kernel told"),
        ("crash", {"fault": "text"}, "crash", "told"),
        ("infra", {"fault": {"kind": "unsupported", "message": "m"}}, "infra_error", "told"),
    ],
)
def test_jobs_that_do_not_end_well(end: Any, report: Json, kind: str, said: str) -> None:
    candidate = Candidate()
    candidate.result = JobResult(end, "told", stderr="\n\nfirst\n\nlast words\n", cpu_s=0.5)
    candidate.report = report
    verdict = candidate.judged(taken=2)
    assert verdict.kind == kind and said in verdict.message
    assert verdict.tests_passed <= 2 and verdict.errored is (kind == "infra_error")


@pytest.mark.parametrize(
    ("fault", "kind", "said"),
    [
        ({"kind": "unsupported", "message": "needs a GPU"}, "unsupported", "needs a GPU"),
        ({"kind": "wrong_output", "message": "shape (1,)"}, "wrong", "shape (1,)"),
        (
            {"kind": "error", "type": "ValueError", "message": "bad", "line": 7},
            "crash",
            "ValueError while forward (line 7): bad",
        ),
        (
            {"stage": "construct", "type": "TypeError", "message": "x"},
            "crash",
            "TypeError while constructing ModelNew: x",
        ),
        ({}, "crash", "while forward"),
    ],
)
def test_faults(fault: dict[str, Json], kind: str, said: str) -> None:
    candidate = Candidate()
    candidate.result = JobResult("crash", "left before its last round was done", cpu_s=0.5)
    candidate.report = {"rounds": [], "fault": fault}
    verdict = candidate.judged(taken=1)
    assert verdict.kind == kind and said in verdict.message
    assert set(verdict.evidence["fault"]) == {"stage", "kind", "type", "line"}


def test_a_fault_after_a_wrong_answer_hides_nothing() -> None:
    candidate = Candidate()
    candidate.outputs[0] = zeros(candidate.calls[0])
    candidate.report = {"fault": {"kind": "unsupported", "message": "needs a GPU"}}
    assert candidate.judged(taken=1).kind == "wrong"


@pytest.mark.parametrize("place", [0, 1, -1])
def test_a_wrong_answer(place: int) -> None:
    candidate = Candidate()
    plain = range(len(candidate.calls))
    call = candidate.calls[plain[place]]
    candidate.outputs[plain[place]] = (call.case.exact[0] * 1.01).astype(np.float32).tobytes()
    verdict = candidate.judged()
    assert verdict.kind == "wrong" and call.case.family in verdict.message and "elements are wrong" in verdict.message
    assert verdict.evidence["call"] == plain[place] and verdict.evidence["worst"] > 1
    assert verdict.tests_passed < verdict.tests_total == len(FAMILIES)


def test_nan_and_infinity_are_wrong_and_the_verdict_stays_json() -> None:
    for value in (np.nan, np.inf):
        candidate = Candidate()
        candidate.outputs[0] = np.full(20, value, np.float32).tobytes()
        assert candidate.judged().kind == "wrong"


@pytest.mark.parametrize("launches", [{}, {"stranger": 3}, None, [1], "kernel"])
def test_right_answers_without_an_extension_of_its_own_are_a_cheat(launches: Json) -> None:
    candidate = Candidate()
    candidate.report["rounds"][1]["launches"] = launches
    verdict = candidate.judged()
    assert (verdict.kind, verdict.cheat) == ("cheat", "no_launch") and verdict.evidence["call"] == 1


MATMUL = {"mm": (1, 1000), "add": (1, 20)}


@pytest.mark.parametrize(
    ("reference", "done", "policy", "kind"),
    [
        (MATMUL, {"mm": [1, 1000]}, "strict", "cheat"),
        (MATMUL, {"mm": [1, 1000]}, "partial", "cheat"),
        (MATMUL, {"bmm": [1, 500]}, "strict", "cheat"),
        (MATMUL, {"bmm": [1, 500]}, "partial", "ok"),
        (MATMUL, {"add": [1, 20]}, "strict", "ok"),
        (MATMUL, {"mm": [1, 300], "add": [1, 10]}, "partial", "cheat"),
        (MATMUL, {"mm": [1, 10], "add": [1, 10]}, "partial", "ok"),
        (MATMUL, {"add": [1, 900]}, "partial", "cheat"),
        ({"mul": (1, 20)}, {"mm": [1, 1]}, "strict", "ok"),
        ({"mul": (1, 20)}, {"mm": [1, 5]}, "strict", "cheat"),
        ({"mul": (1, 20)}, {"mm": [1, 5]}, "partial", "ok"),
        ({"mul": (1, 20)}, {"mm": [1, 10]}, "partial", "cheat"),
        ({}, {"mm": [1, 10]}, "strict", "cheat"),
        (MATMUL, {"view": [9, 0]}, "strict", "ok"),
    ],
)
def test_work_that_pytorch_did(reference: Any, done: Any, policy: str, kind: str) -> None:
    candidate = Candidate(work=reference)
    candidate.policy = policy
    candidate.report["rounds"][-1]["work"] = done
    verdict = candidate.judged()
    assert verdict.kind == kind
    if kind == "cheat":
        assert verdict.cheat == "library_work" and verdict.evidence["operators"] == {n: w for n, (_, w) in done.items()}


@pytest.mark.parametrize("said", [True, False, None, 1, "yes"])
def test_an_answer_under_other_weights(said: Json) -> None:
    candidate = Candidate(moved=True)
    candidate.outputs[-1] = zeros(candidate.calls[-1])
    candidate.report["rounds"][-1]["weights"] = said
    verdict = candidate.judged()
    assert verdict.kind == "wrong"
    wanted = "weights scale have other values" if said is True else "keep all of the reference's parameters"
    assert wanted in verdict.message


def test_what_was_answered_before_a_worker_died_is_forgotten() -> None:
    candidate = Candidate()
    answers = Answers(candidate.draw, candidate.calls, "float32")
    answers.take(0, ())
    assert not answers.take(1, (bytes(80),))
    answers.take(0, ())
    assert (
        answers.comparisons == {} and answers.outputs == {} and answers.passed == 0 and answers.total == len(FAMILIES)
    )


def test_the_right_number_of_outputs_is_compared() -> None:
    drawn = replace(draw(), outputs=(("float32", SHAPE), ("float32", SHAPE)))
    cases = tuple(replace(c, exact=c.exact * 2, rounded=c.rounded * 2) for c in drawn.cases)
    drawn = replace(drawn, cases=cases)
    calls = plan_calls(drawn, 1, random.Random(0))
    answers = Answers(drawn, calls, "float32")
    good = right(calls[0])
    assert (
        answers.take(1, (good, good))
        and not answers.take(1, (good, bytes(80)))
        and not answers.take(1, (bytes(80), good))
    )


GARBAGE: list[Json] = [
    *(
        None,
        True,
        7,
        1.5,
        float("nan"),
        float("inf"),
        -1,
        10**4000,
        "",
        "text",
        "\ud800\x1b[31m\0",
        [],
        {},
        [[]],
        [None],
    ),
    *([1, 2, 3], {"": None}, {"kernel": []}, {"kernel": {"kernel": 1}}, [{"launches": {"kernel": 1}}] * 900),
    *({"mm": [1, 10**4000]}, {"mm": [True, True]}, {"mm": [1, -5]}, {"mm": [1, 1e308]}, {"\ud800": [1, 2]}),
    [[[[[[]]]]]],
]
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.sampled_from(GARBAGE)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(
            st.sampled_from(
                ["rounds", "fault", "launches", "work", "weights", "kind", "message", "line", "kernel", "mm"]
            ),
            inner,
            max_size=5,
        ),
    ),
    max_leaves=12,
)


def never_better(candidate: Candidate, end: Any) -> None:
    """Whatever a report says, a job that went wrong, or whose answers are wrong, is not `ok`; and nothing raises."""
    candidate.result = JobResult(end, "told", cpu_s=0.5)
    ended = candidate.judged(taken=None if end == "ok" else 1)
    assert ended.kind != "ok" or end == "ok"
    ended.message.encode()
    json.dumps(ended.to_json(), allow_nan=False).encode()
    candidate.outputs[0] = zeros(candidate.calls[0])
    candidate.result = JobResult(end, "told", cpu_s=0.5)
    assert candidate.judged(taken=1).kind in ("wrong", "infra_error")


@pytest.mark.parametrize("garbage", GARBAGE, ids=range(len(GARBAGE)))
def test_garbage_anywhere_in_a_report(garbage: Json) -> None:
    end: Any = "ok"

    def honest() -> Candidate:
        return Candidate(moved=True)

    for other in ("ok", "crash", "timeout", "infra"):
        whole = honest()
        whole.report = garbage
        never_better(whole, other)
    for key in ("rounds", "fault"):
        part = honest()
        part.report = {**part.report, key: garbage}
        never_better(part, end)
    for key in ("launches", "work", "weights", "programs"):
        part = honest()
        for trace in part.report["rounds"]:
            trace[key] = garbage
        never_better(part, end)
    for key in ("stage", "kind", "type", "message", "line"):
        part = honest()
        part.report = {**part.report, "fault": {"kind": "error", key: garbage}}
        never_better(part, end)


@given(report=JSON, end=st.sampled_from(["ok", "crash", "memory", "timeout", "infra"]))
@settings(deadline=None, max_examples=60)
def test_no_report_raises_or_makes_anything_ok(report: Json, end: Any) -> None:
    candidate = Candidate()
    candidate.report = report
    never_better(candidate, end)


def test_answers_of_other_dtypes() -> None:
    """The bytes are read as what the reference gives, whatever a candidate thinks that they are."""
    drawn = replace(draw(), outputs=(("bool", SHAPE),))
    exact = np.eye(4, 5, dtype=bool)
    drawn = replace(drawn, cases=tuple(replace(c, exact=(exact,), rounded=(exact,)) for c in drawn.cases))
    calls = plan_calls(drawn, 1, random.Random(0))
    answers = Answers(drawn, calls, "float32")
    assert answers.take(1, (HostTensor("bool", SHAPE, exact.tobytes()).data,))
    assert not answers.take(1, ((exact * np.uint8(7)).tobytes(),)), "operators take 7 for either"
    assert not answers.take(1, (b"\x01" * 20,))
