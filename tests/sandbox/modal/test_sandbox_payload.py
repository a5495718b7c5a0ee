"""Jobs and answers as bytes: what goes in comes out, and what has not the form of the job's answer is refused."""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from assay.errors import DataError
from assay.sandbox import Job, JobResult, Limits, Round
from assay.sandbox.modal.payload import decode_job, encode_answer, encode_job, open_answer

JOB = Job(
    source="x = '\ud800 ü'",
    harness="assay.sandbox.plain",
    rounds=(Round((b"", b"abc"), (2, 0)), Round((), (3,))),
    header={"shapes": [[2, 3]], "nan": float("inf")},
    limits=Limits(wall_s=3.5, memory_mb=99),
    profile="compile",
    seed=7,
)
RESULT = JobResult(
    "ok",
    "every round was done",
    outputs=((b"\0\xff", b""), (b"xyz",)),
    exit_code=0,
    stderr="warning: \udcff",
    report={"launches": 3},
    wall_s=1.5,
    cpu_s=1.25,
    setup_s=0.5,
    round_s=(0.25, 0.125),
)


def test_a_job_comes_out_as_it_went_in() -> None:
    job, token = decode_job(encode_job(JOB, "t0"))
    assert token == "t0"
    assert [[bytes(b) for b in r.inputs] for r in job.rounds] == [[b"", b"abc"], []]
    assert replace(job, rounds=JOB.rounds) == JOB
    assert [r.outputs for r in job.rounds] == [r.outputs for r in JOB.rounds]


def test_arrays_go_as_their_bytes() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    job, _ = decode_job(encode_job(replace(JOB, rounds=(Round((memoryview(array),), (24,)),)), "t"))
    assert bytes(job.rounds[0].inputs[0]) == array.tobytes()


def test_a_result_comes_out_as_it_went_in() -> None:
    answer = open_answer(encode_answer(RESULT, "t1", "a wall"))
    assert (answer.token, answer.refused) == ("t1", False)
    assert replace(answer.result(JOB), message=RESULT.message) == RESULT
    assert answer.result(JOB).message == "every round was done [walls: a wall]"


def test_a_crash_in_the_second_round_keeps_the_first() -> None:
    crash = replace(RESULT, end="crash", outputs=RESULT.outputs[:1], round_s=(0.25,), exit_code=None, signal=11)
    assert replace(open_answer(encode_answer(crash, "t", "w")).result(JOB), message=crash.message) == crash


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"garbage that is long enough to have a head",
        encode_job(JOB, "t"),
        encode_answer(RESULT, "t", "w")[:40],
        struct.pack("<8sI", b"assayA01", 4) + b"{{{{",
        struct.pack("<8sI", b"assayA01", 2) + b"[]",
        struct.pack("<8sI", b"assayA01", 2) + b"{}",
        struct.pack("<8sI", b"assayA01", 200_000) + b"[" * 200_000,
        struct.pack("<8sI", b"assayA01", 1 << 30) + b"{",
        struct.pack("<8sI", b"assayA01", 2_000_000) + b" " * 1_999_998 + b"{}",
        "text",
        None,
    ],
    ids=range(12),
)
def test_what_is_no_answer(payload: object) -> None:
    with pytest.raises(DataError):
        open_answer(payload)


@pytest.mark.parametrize(
    "change",
    [
        {"end": "stopped"},
        {"end": "correct"},
        {"end": ["ok"]},
        {"rounds": 1},
        {"rounds": 3},
        {"rounds": True},
        {"rounds": -1},
        {"round_s": [0.1, 0.1, 0.1]},
        {"round_s": ["a"]},
        {"wall_s": -1.0},
        {"wall_s": float("nan")},
        {"wall_s": None},
        {"wall_s": True},
        {"cpu_s": float("inf")},
        {"exit_code": "0"},
        {"signal": -9},
        {"message": 5},
        {"stderr": None},
        {"walls": {}},
    ],
    ids=str,
)
def test_what_is_not_the_answer_of_this_job(change: dict[str, Any]) -> None:
    with pytest.raises(DataError):
        changed(change).result(JOB)


@pytest.mark.parametrize("more", [b"", b"too much"])
def test_outputs_have_the_sizes_asked_for(more: bytes) -> None:
    payload = encode_answer(RESULT, "t", "w")
    with pytest.raises(DataError, match="bytes of outputs"):
        open_answer(payload + more if more else payload[:-1]).result(JOB)


def test_long_text_is_cut() -> None:
    result = changed({"stderr": "x" * 50_000, "message": "y" * 50_000}).result(JOB)
    assert len(result.stderr) == 4096
    assert len(result.message) < 3000


@pytest.mark.parametrize("payload", [b"", b"x" * 50, encode_job(JOB, "t")[:-1], encode_answer(RESULT, "t", "w")])
def test_what_is_no_job(payload: bytes) -> None:
    with pytest.raises(DataError):
        decode_job(payload)


def changed(change: dict[str, Any]) -> Any:
    """An answer whose JSON was tampered with."""
    payload = encode_answer(RESULT, "t", "w")
    kind, length = struct.unpack_from("<8sI", payload)
    text = json.dumps(json.loads(payload[12 : 12 + length]) | change).encode()
    return open_answer(struct.pack("<8sI", kind, len(text)) + text + payload[12 + length :])
