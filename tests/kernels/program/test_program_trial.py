"""What is made of reports and bytes that come through untrusted processes: pure, with job results made by hand."""

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
from assay.kernels.numerics.held_inputs import Left, forms_of
from assay.kernels.numerics.screening import Case
from assay.kernels.numerics.secret_inputs import InputSet
from assay.kernels.program.jobs import (
    NO_KERNEL,
    NotRecorded,
    Recorded,
    measured,
    record_job,
    recorded,
    replay_job,
    rounds_of,
)
from assay.kernels.program.judging.answers import Answers
from assay.kernels.program.judging.judge import judge
from assay.kernels.program.judging.outcome import Attempt, Outcome
from assay.kernels.program.planning import plan
from assay.kernels.program.verdict import verdict_of
from assay.sandbox import JobResult, Limits
from support.programs import N, made, operation, window, written

FAMILIES = ("given", "signed", "large")


def case(family: str, seed: int) -> Case:
    """A problem that doubles its input."""
    x = np.random.default_rng(seed).normal(size=N).astype(np.float32)
    return Case(family, (host_tensor(x, "float32"),), (x.astype(np.float64) * 2,), (x * 2,))


DRAW = InputSet(
    **{"input_seed": 1234567, "weight_seed": 7654321, "init_inputs": ()},
    cases=tuple(case(family, place) for place, family in enumerate(FAMILIES)),
    outputs=(("float32", (N,)),),
    weights=(("scale", (N,)),),
    work={"mul": (1, N)},
    draws=(("uniform", (0.0, 1.0)),),
    updated=case("given", 99),
    updated_weights={"scale": host_tensor(np.arange(N), "float32")},
)
PROGRAM = made()
ATTEMPT = Attempt(PROGRAM, "", (), 0.0, 0.0)
CALLS = plan(PROGRAM, DRAW, 5, random.Random(3))


def answers(**changed: bytes) -> tuple[tuple[bytes, ...], ...]:
    """Right outputs of every call, those without a kernel wrong as they should be."""
    found: list[tuple[bytes, ...]] = [()]
    for place, call in enumerate(CALLS):
        right = call.case.exact[0].astype(np.float32).tobytes()
        blank = b"\xff" * len(right)
        found.append((changed.get(f"call{place}", right if call.skip == NO_KERNEL else blank),))
    return tuple(found)


def report(**changes: Any) -> dict[str, Any]:
    entry = {"launches": {"double": 1}, "programs": 2, "races": [], "unwritten": [0], "weights": True}
    return {"calls": [entry | changes for _ in CALLS]}


def outcome_of(result: JobResult) -> Outcome:
    taken = Answers(DRAW, CALLS, "float32")
    result = replace(result, outputs=in_rounds(result.outputs))
    for number, outputs in enumerate(result.outputs[: len(taken.rounds)]):
        if not taken.take(number, outputs):
            result = replace(result, outputs=result.outputs[: number + 1], end="stopped")
            break
    return judge(result, ATTEMPT, taken)


def in_rounds(outputs: Sequence[tuple[bytes, ...]]) -> tuple[tuple[bytes, ...], ...]:
    """Outputs of the construction and of each call, as the rounds give them that have all of their calls."""
    whole = [places for places in rounds_of(DRAW, CALLS) if places.stop < len(outputs)]
    return (*outputs[:1], *(tuple(data for place in places for data in outputs[1 + place]) for places in whole))


def judged(outputs: Any = None, told: Any = None, end: Any = "ok") -> str:
    given = outputs if outputs is not None else answers()
    return outcome_of(JobResult(end, "ended", given, report=told or report())).end


def test_the_plan_has_every_kind_of_call() -> None:
    assert {call.case.family for call in CALLS} == set(FAMILIES)
    assert [call.skip for call in CALLS if call.skip != NO_KERNEL] == [0]
    assert sum(call.follow for call in CALLS) == 1
    assert sum(bool(call.weights) for call in CALLS) == 1
    assert len({call.seed for call in CALLS}) == len(CALLS) - 1  # the one without a kernel and its whole twin


def test_right_answers_of_kernels_that_matter_are_ok() -> None:
    assert judged() == "ok"


@pytest.mark.parametrize("place", range(len(CALLS)))
def test_one_wrong_answer_is_wrong_whatever_the_report_says(place: int) -> None:
    call = CALLS[place]
    wrong = (call.case.exact[0] + 1).astype(np.float32).tobytes()
    assert judged(answers(**{f"call{place}": wrong})) == ("ok" if call.skip != NO_KERNEL else "wrong")


def test_a_kernel_that_changes_nothing() -> None:
    (place,) = [place for place, call in enumerate(CALLS) if call.skip != NO_KERNEL]
    right = CALLS[place].case.exact[0].astype(np.float32).tobytes()
    assert judged(answers(**{f"call{place}": right})) == "cheat"


def test_what_no_kernel_wrote() -> None:
    assert judged(told=report(unwritten=[1])) == "cheat"


def test_arithmetic_beside_kernels_that_do_none() -> None:
    sums = operation("add.Tensor", window(2), window(2), outs=(window(2),))
    program = made(forward=[*[sums] * 9, *written()["forward"]])
    taken, given = Answers(DRAW, CALLS, "float32"), in_rounds(answers())
    for number, outputs in enumerate(given):
        taken.take(number, outputs)
    for done, policy, end in (
        (0, "strict", "cheat"),
        (720, "strict", "ok"),
        (719, "strict", "cheat"),
        (72, "partial", "ok"),
    ):
        ended = JobResult("ok", "ended", given, report=report(arithmetic=done))
        outcome = judge(ended, Attempt(program, "", (), 0.25, 0.0), taken, policy)  # type: ignore[arg-type]
        assert outcome.end == end, (done, outcome)
    assert outcome.facts["kernel_share"] == 0.5, "of all arithmetic, which is less than what is left of the reference's"


@pytest.mark.parametrize(("everywhere", "end"), [(True, "ok"), (False, "wrong")])
def test_inputs_change_where_the_references_do(everywhere: bool, end: str) -> None:
    told = report(inputs_changed=[0])
    assert judged(told=told) == "wrong"
    changed = {}
    for each in (call.case for call in CALLS):
        (given,) = each.inputs
        assert isinstance(given, HostTensor)
        changes = everywhere or each.family != "large"
        changed[id(each)] = replace(each, after=(Left(0, given, given),) if changes else ())
    calls = [replace(call, case=changed[id(call.case)]) for call in CALLS]
    taken = Answers(replace(DRAW, after=forms_of([call.case.after for call in calls])), calls, "float32")
    held = [given.data for call in calls for given in call.case.inputs if isinstance(given, HostTensor)]
    made = in_rounds(((), *((*right, data) for right, data in zip(answers()[1:], held, strict=True))))
    for number, outputs in enumerate(made):
        taken.take(number, outputs)
    assert judge(JobResult("ok", "ended", made, report=told), ATTEMPT, taken).end == end


def test_weights_of_another_form_need_not_follow() -> None:
    (place,) = [place for place, call in enumerate(CALLS) if call.weights]
    wrong = (CALLS[place].case.exact[0] + 1).astype(np.float32).tobytes()
    assert judged(answers(**{f"call{place}": wrong}), report(weights=False)) == "ok"


def test_missing_answers_and_reports_are_never_ok() -> None:
    assert judged(answers()[:-1]) == "crash"
    assert judged(told={"calls": []}) == "crash"
    assert judged(told=report(unwritten=[])) == "crash"
    assert judged(end="timeout", outputs=()) == "timeout"
    assert judged(end="infra", outputs=()) == "infra"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8) | st.just(10**4000),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["fault", "calls", "kind", "message", "line", "unwritten", "launches", "races", "x"]),
            inner,
            max_size=5,
        )
    ),
    max_leaves=20,
)


@given(told=json_values, rounds=st.booleans())
@settings(deadline=None, max_examples=150)
def test_no_report_raises(told: Any, rounds: bool) -> None:
    told = {"calls": [told] * len(CALLS)} if rounds else told
    result = JobResult("ok", "ended", answers(), report=told)
    outcome = outcome_of(result)
    assert outcome.end != "ok" or rounds
    assert len(outcome.message) < 5000 and 0 <= outcome.line < 1 << 24
    json.dumps(verdict_of(outcome, {}).to_json(), allow_nan=False)
    for account in measured(result):
        assert all(0 <= count <= 1 << 62 for count in account.unwritten)
    assert isinstance(recorded(JobResult("ok", "ended", ((bytes(64),),), report=told)), NotRecorded)


@given(data=st.binary(max_size=40), size=st.integers(0, 2**64 - 1))
@settings(deadline=None, max_examples=150)
def test_no_bytes_of_a_recording_raise(data: bytes, size: int) -> None:
    result = JobResult("ok", "ended", ((size.to_bytes(8, "little") + data,),), report={})
    assert isinstance(recorded(result), NotRecorded)


def test_a_program_in_another_encoding_is_none() -> None:
    for encoding, kind in (("utf-8", Recorded), ("utf-16", NotRecorded), ("utf-8-sig", NotRecorded)):
        data = json.dumps(written()).encode(encoding)
        framed = (len(data).to_bytes(8, "little") + data).ljust(1 << 13, b"\0")
        assert isinstance(recorded(JobResult("ok", "ended", ((framed,),), report={})), kind), encoding


def test_the_recording_job_holds_no_secret() -> None:
    job, again = (record_job("", DRAW, Limits(), "float32", reads=reads) for reads in (0, 90))
    known = {"init_inputs", "inputs", "precision", "program_bytes", "text_checks", "structure", "weights"}
    assert job.header.keys() == known | {"reads"} and replace(again, header=job.header) == job
    assert again.header == {**job.header, "reads": 90} and job.header["reads"] == 0
    assert all(not one.inputs for one in job.rounds)
    told = json.dumps(job.header)
    assert str(DRAW.input_seed) not in told and str(DRAW.weight_seed) not in told


def test_the_replay_job_tells_the_calls_apart_in_their_rounds_alone() -> None:
    job = replay_job("{}", DRAW, CALLS, Limits(), 64)
    told = [json.loads(bytes(one.inputs[-1])) for one in job.rounds[1:]]
    assert [len(calls) for calls in told] == [1, len(CALLS) - 1]
    assert [call["seed"] for calls in told for call in calls] == [call.seed for call in CALLS]
    blobs = [sum(call["blobs"] for call in calls) for calls in told]
    assert blobs == [len(one.inputs) - 1 for one in job.rounds[1:]]
    assert not {"skip", "poison", "seed"} & job.header.keys()


def test_counts_of_a_report_are_bounded() -> None:
    told = report(unwritten=[10**4000, -5, True], launches={"k" * 999: 10**4000}, races=[{"elements": 10**4000}])
    account = measured(JobResult("ok", "ended", (), report=told))[0]
    assert account.unwritten == (1 << 62, 0, 0)
    assert account.launches == {"k" * 128: 1 << 62}
    assert account.races == ({"kernel": "", "elements": 1 << 62, "lost": 0, "line": 0},)
