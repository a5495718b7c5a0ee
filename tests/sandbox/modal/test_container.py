"""One job in a container used once, with the real sandbox inside: which walls hold it, and what it refuses."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest

from assay.errors import DataError, SandboxError
from assay.sandbox import Job, JobResult, Limits, Round
from assay.sandbox.host.probe import Features, Missing
from assay.sandbox.modal.container import Contained, choose
from assay.sandbox.modal.payload import encode_job, open_answer
from support.sandboxes import FEATURES, needs_walls

PLAIN = "assay.sandbox.plain"
JOB = Job(
    "def run(inputs, header):\n    return [inputs[0][::-1]]",
    PLAIN,
    (Round((b"abc",), (3,)), Round((b"12",), (2,))),
    limits=Limits(wall_s=30, cpu_s=30, memory_mb=256, tmp_mb=8),
)
ANSWER = ((b"cba",), (b"21",))
BARE = Features("", None, (Missing("namespaces", "refused", "ask for them"),))
ALL = Features("/usr/bin/bwrap", "user", ())


@contextmanager
def contained(harness: str = PLAIN, walls: str = "auto", features: Features | None = FEATURES) -> Iterator[Contained]:
    inside = Contained(harness, walls, features)
    try:
        inside.start()
        yield inside
    finally:
        inside.close()


def ask(inside: Contained, job: Job = JOB) -> JobResult:
    answer = open_answer(inside.answer(encode_job(job, "token")))
    assert answer.token == "token"
    return answer.result(job)


@needs_walls
def test_a_job_behind_the_sandboxs_own_walls() -> None:
    with contained() as inside:
        result = ask(inside)
    assert (result.end, result.outputs) == ("ok", ANSWER)
    assert "the sandbox's own inside it" in result.message


@pytest.mark.skipif(FEATURES is None, reason="Linux only")
def test_a_job_in_a_process_of_its_own_where_no_walls_stand() -> None:
    with pytest.warns(UserWarning, match="no walls"), contained(features=BARE) as inside:
        result = ask(inside)
    assert (result.end, result.outputs) == ("ok", ANSWER)
    assert "since it lacks namespaces" in result.message


@needs_walls
def test_a_process_that_ran_one_candidate_runs_no_other() -> None:
    with contained() as inside:
        assert ask(inside, replace(JOB, source="import os; os._exit(3)")).end == "crash"
        again = ask(inside)
    assert again.end == "infra"
    assert "no other" in again.message


@needs_walls
def test_a_worker_outlives_the_thread_that_asked_for_it() -> None:
    inside = Contained(PLAIN, "auto", FEATURES)
    starter = threading.Thread(target=inside.start)
    starter.start()
    starter.join()
    try:
        result = ask(inside)
    finally:
        inside.close()
        inside.close()
    assert (result.end, result.retried) == ("ok", False)


@needs_walls
def test_a_harness_that_cannot_be_loaded_is_said_in_the_answer() -> None:
    job = replace(JOB, harness="no.such.harness")
    with contained("no.such.harness") as inside:
        answer = open_answer(inside.answer(encode_job(job, "t")))
    assert answer.refused
    assert "no.such.harness" in answer.result(job).message


@needs_walls
def test_a_container_warm_for_another_harness() -> None:
    with contained() as inside:
        result = ask(inside, replace(JOB, harness="another.harness"))
        assert result.end == "infra"
        assert "not for another.harness" in result.message
        assert ask(inside).end == "ok"


@needs_walls
def test_a_payload_of_another_kind_is_no_job() -> None:
    with contained() as inside, pytest.raises(DataError):
        inside.answer(b"garbage")


def test_strict_walls_or_none() -> None:
    with contained(walls="strict", features=BARE) as inside:
        answer = open_answer(inside.answer(encode_job(JOB, "t")))
    assert answer.refused
    assert "namespaces: refused" in answer.result(JOB).message


def test_which_walls_are_chosen() -> None:
    assert choose("auto", ALL, gpu=False).sandbox == "strict"
    assert choose("auto", ALL, gpu=True).sandbox == "unsafe"
    assert choose("strict", ALL, gpu=True).sandbox == "strict"
    assert choose("auto", BARE, gpu=False).sandbox == "unsafe"
    with pytest.raises(SandboxError, match="ask for them"):
        choose("strict", BARE, gpu=False)
    with pytest.raises(SandboxError, match="neither"):
        choose("none", ALL, gpu=False)
