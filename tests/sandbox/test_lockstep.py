"""Jobs in step: whose turn it is, what the end of one does to the others, and the same in one container elsewhere."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import replace

import pytest

from assay.errors import ConfigError, DataError
from assay.sandbox import AfterRound, Job, JobResult, Limits, Round
from assay.sandbox.local import LocalConfig, LocalSandbox
from assay.sandbox.lockstep import Group, run_in_step
from assay.sandbox.modal.config import Lost, ModalConfig
from assay.sandbox.modal.container import Contained
from assay.sandbox.modal.payload import decode_group, encode_answer, encode_answers, encode_group, open_answer
from assay.sandbox.modal.sandbox import ModalSandbox
from support.sandboxes import FEATURES, needs_walls

PLAIN = "assay.sandbox.plain"
LIMITS = Limits(wall_s=30, cpu_s=30, memory_mb=256, tmp_mb=8)
ECHO = "def run(inputs, header):\n    return [inputs[0][::-1]]"
DIES = "import os\ndef run(inputs, header):\n    os._exit(7) if inputs[0] == b'b1' else None\n    return [inputs[0]]"


def job(name: str, source: str = ECHO, rounds: int = 3) -> Job:
    """A job with inputs of its own name."""
    return Job(source, PLAIN, tuple(Round((f"{name}{i}".encode(),), (2,)) for i in range(rounds)), limits=LIMITS)


PAIR = Group((job("a"), job("b")), (0, 0, 1, 0, 1, 1))
FATAL = Group((job("a"), job("b", DIES)), (0, 1, 0, 1, 1, 0))
ANSWERS = tuple(tuple((f"{i}{name}".encode(),) for i in range(3)) for name in "ab")


class Logged:
    """A sandbox that writes down which round of which job was done."""

    def __init__(self) -> None:
        self.log: list[str] = []

    async def run(self, job: Job, after_round: AfterRound | None = None) -> JobResult:
        for index, item in enumerate(job.rounds):
            await asyncio.sleep(0)
            self.log.append(bytes(item.inputs[0]).decode())
            if index < len(job.rounds) - 1:
                assert after_round is not None
                answer = after_round(index, ())
                assert not isinstance(answer, bool)
                if not await answer:
                    return JobResult("stopped", "by its caller")
        return JobResult("ok", "done")

    async def close(self) -> None:
        """Nothing to give back."""


def test_the_order_is_kept() -> None:
    sandbox = Logged()
    results = asyncio.run(run_in_step(sandbox, PAIR))
    assert [result.end for result in results] == ["ok", "ok"]
    assert sandbox.log == ["a0", "a1", "b0", "a2", "b1", "b2"]


@pytest.mark.parametrize("order", [(0, 0, 0, 1, 1), (0, 0, 0, 1, 1, 1, 1), (0, 0, 0, 1, 1, 2), ()])
def test_an_order_that_fits_no_jobs_is_refused(order: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="once for each of its rounds"):
        Group(PAIR.jobs, order)


@needs_walls
def test_the_end_of_one_stops_the_other() -> None:
    async def main() -> list[tuple[JobResult, ...]]:
        async with LocalSandbox(LocalConfig(workers=2), FEATURES) as sandbox:
            return [await run_in_step(sandbox, group) for group in (PAIR, FATAL)]

    pair, fatal = asyncio.run(main())
    assert [result.outputs for result in pair] == list(ANSWERS)
    assert [(result.end, result.exit_code) for result in fatal] == [("stopped", None), ("crash", 7)]


class Containers:
    """Containers on this machine: each payload in a `Contained` of its own, as the deployed class has it."""

    def __init__(self, damage: Callable[[bytes], bytes] = bytes) -> None:
        self.damage = damage
        self.sent = 0

    async def answers(self, harness: str, payloads: Sequence[bytes]) -> AsyncGenerator[object, None]:
        for payload in payloads:
            self.sent += 1
            yield self.damage(await asyncio.to_thread(self.contained, harness, payload))

    def contained(self, harness: str, payload: bytes) -> bytes:
        inside = Contained(harness, "auto", FEATURES)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # no walls, where this machine has none
                inside.start()
            return inside.answer(payload)
        finally:
            inside.close()

    async def close(self) -> None:
        """Nothing to give back."""


def at_modal(group: Group, containers: Containers, **settings: float) -> tuple[JobResult, ...]:
    async def main() -> tuple[JobResult, ...]:
        async with ModalSandbox(ModalConfig(modal_batch_window=0.0, **settings), containers) as sandbox:  # type: ignore[arg-type]
            return await run_in_step(sandbox, group)

    return asyncio.run(main())


def test_both_go_to_one_container() -> None:
    containers = Containers()
    results = at_modal(PAIR, containers)
    assert [(result.end, result.outputs) for result in results] == [("ok", answers) for answers in ANSWERS]
    assert containers.sent == 1
    assert all(len(result.round_s) == 3 for result in results)


def test_the_end_of_one_is_told_from_that_of_the_other() -> None:
    stopped, dead = at_modal(FATAL, Containers())
    assert (stopped.end, dead.end, dead.exit_code) == ("stopped", "crash", 7)


def test_a_damaged_answer_is_lost_for_both() -> None:
    containers = Containers(damage=lambda answer: answer[:-1])
    results = at_modal(PAIR, containers, modal_retries=1)
    assert {result.end for result in results} == {"infra"}
    assert containers.sent == 2


def test_a_container_that_is_lost_is_lost_for_both() -> None:
    class Gone(Containers):
        async def answers(self, harness: str, payloads: Sequence[bytes]) -> AsyncGenerator[object, None]:
            for _ in payloads:
                yield Lost("timeout", "its time ran out")

    assert [result.end for result in at_modal(PAIR, Gone())] == ["timeout", "timeout"]


def test_payloads_of_jobs_in_step() -> None:
    group, token = decode_group(encode_group(PAIR, "t"))
    assert (group.order, token) == (PAIR.order, "t")
    assert all(item.pause for item in group.jobs), "nothing of one may run in the turn of the other"
    assert [bytes(item.rounds[2].inputs[0]) for item in group.jobs] == [b"a2", b"b2"]
    done = JobResult("ok", "done", outputs=ANSWERS[0])
    answer = open_answer(encode_answers((done, done), "t", "none"))
    assert answer.token == "t" and [result.outputs for result in answer.results(PAIR)] == [ANSWERS[0], ANSWERS[0]]
    for wrong in ((done,), (done, done, done), (done, replace(done, outputs=((b"short",),)))):
        with pytest.raises(DataError):
            open_answer(encode_answers(wrong, "t", "none")).results(PAIR)
    with pytest.raises(DataError, match="Several answers"):
        answer.result(PAIR.jobs[0])
    stopped = encode_answer(JobResult("stopped", "said the container"), "t", "none")
    with pytest.raises(DataError, match="stopped"):
        open_answer(stopped).result(PAIR.jobs[0])
    for payload in (encode_group(PAIR, "t")[:-1], b"assayG01", encode_answer(done, "t", "none")):
        with pytest.raises(DataError):
            decode_group(payload)
