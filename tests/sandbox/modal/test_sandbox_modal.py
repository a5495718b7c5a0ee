"""Jobs at Modal: batches in which nobody waits for a slow neighbour, and what each of Modal's own errors becomes."""

from __future__ import annotations

import asyncio
import re
import sys
import warnings
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("modal", reason="the package modal is not installed")

from modal import exception as errors

from assay.errors import ConfigError, MissingDependencyError, SandboxError
from assay.sandbox import Job, JobResult, Limits, Round
from assay.sandbox.modal.config import Lost, ModalConfig
from assay.sandbox.modal.payload import encode_answer, encode_job, open_answer
from assay.sandbox.modal.sandbox import ModalSandbox, settle
from assay.sandbox.modal.service import classify
from support.modal_starmap import Call, Play, PlayedRemote, WholeBatch
from support.sandboxes import FEATURES
from support.virtual_time import play as in_virtual_time

CONSTRAINTS = Path(__file__).parents[3] / "constraints.txt"
HARNESS = "assay.sandbox.plain"
JOB = Job("a", HARNESS, (Round((b"in",), (2,)), Round((), (1, 1)), Round((), (3,))), limits=Limits(wall_s=500))
NAMES = [chr(ord("a") + i) for i in range(26)] + [str(i) for i in range(6)]
JOBS = [replace(JOB, source=name) for name in NAMES]
"""32 jobs, told apart by their sources."""
LOST = errors.InternalFailure("the container went away")

Body = Callable[[ModalSandbox, PlayedRemote], Awaitable[None]]


def outputs_of(job: Job) -> tuple[tuple[bytes, ...], ...]:
    return tuple(tuple(job.source.encode() * size for size in item.outputs) for item in job.rounds)


def played(play: Play, body: Body, **settings: Any) -> PlayedRemote:
    """Run a test in virtual time against containers that follow a script."""
    config = ModalConfig(**settings)
    remote = PlayedRemote(config, play)

    async def main() -> None:
        async with ModalSandbox(config, remote) as sandbox:
            await body(sandbox, remote)

    in_virtual_time(main())
    return remote


def all_of(sandbox: ModalSandbox, jobs: list[Job] = JOBS) -> asyncio.Future[list[JobResult]]:
    return asyncio.gather(*(sandbox.run(job) for job in jobs))


async def honest(call: Call) -> bytes:
    return call.answer()


def test_jobs_of_a_moment_leave_together_and_each_gets_its_own_answer() -> None:
    async def shuffled(call: Call) -> bytes:
        await asyncio.sleep(ord(call.job.source) % 7)
        return call.answer()

    async def body(sandbox: ModalSandbox, remote: PlayedRemote) -> None:
        results = await all_of(sandbox)
        assert [result.outputs for result in results] == [outputs_of(job) for job in JOBS]
        assert {(result.end, result.retried) for result in results} == {("ok", False)}

    assert played(shuffled, body).batches == [32]


def test_a_full_batch_leaves_at_once_and_the_rest_after_the_window() -> None:
    async def body(sandbox: ModalSandbox, remote: PlayedRemote) -> None:
        loop = asyncio.get_running_loop()
        start = loop.time()
        running = all_of(sandbox)
        await asyncio.sleep(0.1)
        assert remote.batches == [10, 10, 10]
        await running
        assert loop.time() - start == pytest.approx(0.5, abs=0.01)

    assert played(honest, body, modal_batch_size=10, modal_batch_window=0.5).batches == [10, 10, 10, 2]


def test_one_slow_kernel_stalls_neither_its_batch_nor_the_next() -> None:
    async def one_slow(call: Call) -> bytes:
        await asyncio.sleep(100 if call.job.source == "a" else 1)
        return call.answer()

    async def body(sandbox: ModalSandbox, remote: PlayedRemote) -> None:
        loop = asyncio.get_running_loop()
        start, ends = loop.time(), {}

        async def timed(job: Job) -> None:
            await sandbox.run(job)
            ends[job.source] = loop.time() - start

        async def later() -> None:
            await asyncio.sleep(2)
            await timed(replace(JOB, source="Z"))

        await asyncio.gather(later(), *(timed(job) for job in JOBS))
        assert ends.pop("a") == pytest.approx(100, abs=0.5)
        assert ends.pop("Z") == pytest.approx(3, abs=0.5)
        assert len(ends) == 31
        assert max(ends.values()) == pytest.approx(1, abs=0.5)

    assert played(one_slow, body, modal_max_containers=64).batches == [32, 1]


def test_no_more_jobs_are_in_flight_than_containers() -> None:
    async def slow(call: Call) -> bytes:
        await asyncio.sleep(1)
        return call.answer()

    async def body(sandbox: ModalSandbox, remote: PlayedRemote) -> None:
        assert {result.end for result in await all_of(sandbox)} == {"ok"}

    assert played(slow, body, modal_max_containers=5).most_running == 5


def test_a_lost_container_is_tried_again_alone() -> None:
    async def twice(call: Call) -> bytes:
        if call.job.source in "cd" and call.attempt < 2:
            raise LOST
        return call.answer()

    async def body(sandbox: ModalSandbox, remote: PlayedRemote) -> None:
        results = await all_of(sandbox)
        assert [result.outputs for result in results] == [outputs_of(job) for job in JOBS]
        assert [job.source for job, result in zip(JOBS, results, strict=True) if result.retried] == ["c", "d"]

    assert played(twice, body).batches == [32, 1, 1, 1, 1]


@pytest.mark.parametrize(
    "error",
    [
        LOST,
        errors.RemoteError("container exited"),
        errors.ExecutionError("Could not deserialize remote exception"),
        errors.OutputExpiredError("too late"),
        errors.NotFoundError("a blob"),
        errors.ImageBuildError("no such package", "im-1"),
        errors.InvalidError("for this input"),
        ValueError("in the trusted code"),
    ],
    ids=lambda e: type(e).__name__,
)
def test_what_is_lost_for_good_is_infra(error: Exception) -> None:
    async def always(call: Call) -> bytes:
        if call.job.source == "b":
            raise error
        return call.answer()

    async def body(sandbox: ModalSandbox, remote: PlayedRemote) -> None:
        good, bad = await all_of(sandbox, JOBS[:2])
        assert good.end == "ok"
        assert (bad.end, bad.retried, bad.outputs) == ("infra", True, ())
        assert type(error).__name__ in bad.message

    assert played(always, body, modal_retries=1).attempts["b"] == 1


def test_an_input_out_of_time_is_a_timeout_and_not_tried_again() -> None:
    async def one_hangs(call: Call) -> bytes:
        if call.job.source == "b":
            raise errors.FunctionTimeoutError("Task's current input hit its timeout of 180s")
        return call.answer()

    async def body(sandbox: ModalSandbox, remote: PlayedRemote) -> None:
        results = await all_of(sandbox)
        assert [result.end for result in results] == ["ok", "timeout"] + ["ok"] * 30
        assert "modal_timeout=120" in results[1].message

    assert played(one_hangs, body).batches == [32]


def test_failures_without_names_are_told_apart_by_trying_alone() -> None:
    async def mixed(call: Call) -> bytes:
        if call.job.source == "b":
            raise errors.FunctionTimeoutError("timed out")
        if call.job.source == "c" and call.attempt == 0:
            raise LOST
        return call.answer()

    async def body(sandbox: ModalSandbox, remote: PlayedRemote) -> None:
        results = await all_of(sandbox, JOBS[:4])
        assert [result.end for result in results] == ["ok", "timeout", "ok", "ok"]

    assert played(mixed, body).batches == [4, 1, 1]


@pytest.mark.parametrize("garbage", [b"", b"\x80\x04garbage" * 9, "text", 17, {"end": "ok"}, None], ids=repr)
def test_garbage_is_nobodys_answer(garbage: object) -> None:
    async def babble(call: Call) -> object:
        return garbage if call.job.source == "b" else call.answer()

    async def body(sandbox: ModalSandbox, remote: PlayedRemote) -> None:
        assert [result.end for result in await all_of(sandbox, JOBS[:3])] == ["ok", "infra", "ok"]

    played(babble, body)


def test_a_container_cannot_answer_for_another_job() -> None:
    tokens: dict[str, str] = {}

    async def impostor(call: Call) -> bytes:
        tokens[call.job.source] = call.token
        if call.job.source == "b":
            return encode_answer(JobResult("crash", "forged"), "0" * 32, "w")
        await asyncio.sleep(1)
        return call.answer()

    async def body(sandbox: ModalSandbox, remote: PlayedRemote) -> None:
        assert [result.end for result in await all_of(sandbox, JOBS[:3])] == ["ok", "infra", "ok"]

    played(impostor, body, modal_retries=0)
    assert len(set(tokens.values())) == 3
    assert min(map(len, tokens.values())) == 32


def test_an_answer_of_the_wrong_form_harms_its_own_job_only() -> None:
    async def short(call: Call) -> bytes:
        return call.answer()[:-1] if call.job.source == "b" else call.answer()

    async def body(sandbox: ModalSandbox, remote: PlayedRemote) -> None:
        results = await all_of(sandbox, JOBS[:3])
        assert [result.end for result in results] == ["ok", "infra", "ok"]
        assert "bytes of outputs" in results[1].message

    played(short, body)


def test_who_goes_away_disturbs_nobody() -> None:
    async def slow(call: Call) -> bytes:
        await asyncio.sleep(10)
        return call.answer()

    async def body(sandbox: ModalSandbox, remote: PlayedRemote) -> None:
        tasks = [asyncio.ensure_future(sandbox.run(job)) for job in JOBS[:31]]
        await asyncio.sleep(0.1)
        tasks[0].cancel()  # before its batch leaves
        await asyncio.sleep(1)
        tasks[1].cancel()  # on its way
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert [isinstance(result, asyncio.CancelledError) for result in results] == [True, True] + [False] * 29
        assert all(isinstance(result, JobResult) and result.end == "ok" for result in results[2:])

    remote = played(slow, body)
    assert (remote.batches, remote.cancelled) == ([30], 0)


def test_a_batch_that_all_have_left_is_given_up() -> None:
    async def slow(call: Call) -> bytes:
        await asyncio.sleep(0 if call.job.source == "a" else 1000)
        return call.answer()

    async def body(sandbox: ModalSandbox, remote: PlayedRemote) -> None:
        first, *others = [asyncio.ensure_future(sandbox.run(job)) for job in JOBS[:3]]
        assert (await first).end == "ok"
        others[0].cancel()
        await asyncio.sleep(1)
        assert (remote.running, remote.cancelled) == (2, 0)
        others[1].cancel()
        await asyncio.sleep(1)
        assert (remote.running, remote.cancelled) == (0, 1)

    played(slow, body)


@pytest.mark.parametrize(
    ("error", "cure"),
    [
        (errors.AuthError("Token missing"), "MODAL_TOKEN_ID"),
        (errors.PermissionDeniedError("not yours"), "MODAL_TOKEN_ID"),
        (
            errors.NotFoundError("Lookup failed"),
            "modal deploy -m assay.sandbox.modal.app --name assay-kernels --env testing",
        ),
        (errors.VersionError("too old"), "pip install --upgrade modal"),
        (errors.InvalidError("Unknown GPU type"), "modal_gpu_type=A100"),
    ],
    ids=lambda e: type(e).__name__,
)
def test_what_no_job_can_pass_raises_with_the_cure(error: Exception, cure: str) -> None:
    async def refused(call: Call) -> bytes:
        raise WholeBatch(error)

    async def body(sandbox: ModalSandbox, remote: PlayedRemote) -> None:
        results = await asyncio.gather(*(sandbox.run(job) for job in JOBS[:3]), return_exceptions=True)
        assert all(isinstance(result, SandboxError) and cure in str(result) for result in results)

    assert played(refused, body, modal_environment="testing").batches == [3]


@pytest.mark.parametrize(
    "error",
    [
        errors.ConnectionError("no route"),
        errors.ServiceError("unavailable"),
        errors.ResourceExhaustedError("slow down"),
        errors.ConflictError("being deployed"),
        errors.RequestSizeError("too large"),
        ConnectionResetError("reset"),
        TimeoutError("connecting"),
    ],
    ids=lambda e: type(e).__name__,
)
def test_a_broken_connection_loses_nothing_that_came_before(error: Exception) -> None:
    async def cut(call: Call) -> bytes:
        if call.attempt == 0 and call.job.source != "a":
            await asyncio.sleep(1)
            raise WholeBatch(error)
        return call.answer()

    async def body(sandbox: ModalSandbox, remote: PlayedRemote) -> None:
        results = await all_of(sandbox, JOBS[:3])
        assert [(result.end, result.retried) for result in results] == [("ok", False), ("ok", True), ("ok", True)]

    assert played(cut, body).batches == [3, 1, 1]


def test_a_mistake_of_ours_is_raised_and_not_called_infra() -> None:
    async def wrong(call: Call) -> bytes:
        raise WholeBatch(KeyError("a bug"))

    async def body(sandbox: ModalSandbox, remote: PlayedRemote) -> None:
        with pytest.raises(KeyError, match="a bug"):
            await sandbox.run(JOB)

    played(wrong, body)


def test_a_batch_that_waits_too_long_for_gpus_is_lost() -> None:
    async def queued(call: Call) -> bytes:
        await asyncio.sleep(1 if call.job.source == "a" else 5000)
        return call.answer()

    async def body(sandbox: ModalSandbox, remote: PlayedRemote) -> None:
        results = await all_of(sandbox, JOBS[:2])
        assert [result.end for result in results] == ["ok", "infra"]
        assert "modal_queue_timeout=60" in results[1].message

    played(queued, body, modal_queue_timeout=60.0, modal_retries=1)


def test_closing_answers_those_who_wait() -> None:
    async def never(call: Call) -> bytes:
        await asyncio.sleep(5000)
        return call.answer()

    async def body(sandbox: ModalSandbox, remote: PlayedRemote) -> None:
        running = all_of(sandbox, JOBS[:6])
        await asyncio.sleep(1)
        late = asyncio.ensure_future(sandbox.run(replace(JOB, harness="another")))
        await asyncio.sleep(0)
        await sandbox.close()
        await sandbox.close()
        assert {(result.end, result.message) for result in [*await running, await late]} == {
            ("infra", "the sandbox was closed")
        }
        assert (await sandbox.run(JOB)).end == "infra"

    played(never, body, modal_max_containers=4)


def test_the_time_of_a_kernel_is_bounded_where_it_is_measured() -> None:
    seen = []

    async def look(call: Call) -> bytes:
        seen.append(call.job.limits.wall_s)
        return call.answer()

    async def body(sandbox: ModalSandbox, remote: PlayedRemote) -> None:
        await all_of(sandbox, [JOB, replace(JOB, limits=Limits(wall_s=5))])

    played(look, body, modal_timeout=33.5)
    assert sorted(seen) == [5, 33.5]


def test_after_round_decides_what_counts() -> None:
    told: list[tuple[int, tuple[bytes, ...]]] = []

    def first_only(index: int, outputs: tuple[bytes, ...]) -> bool:
        told.append((index, outputs))
        return index == 0

    async def all_rounds(index: int, outputs: tuple[bytes, ...]) -> bool:
        return True

    async def timed(call: Call) -> bytes:
        return call.answer(round_s=(1.0, 2.0, 3.0))

    async def body(sandbox: ModalSandbox, remote: PlayedRemote) -> None:
        stopped = await sandbox.run(JOB, first_only)
        assert told == [(0, (b"aa",)), (1, (b"a", b"a"))]
        assert (stopped.end, stopped.outputs, stopped.round_s) == ("stopped", outputs_of(JOB)[:2], (1.0, 2.0))
        assert (await sandbox.run(JOB, all_rounds)).outputs == outputs_of(JOB)

    played(timed, body)


def test_containers_that_can_run_no_job_say_so_until_one_has_run_one() -> None:
    async def refusing(call: Call) -> bytes:
        if call.job.source == "a":
            return call.answer()
        return encode_answer(JobResult("infra", "no such harness"), call.token, "w", refused=True)

    async def body(sandbox: ModalSandbox, remote: PlayedRemote) -> None:
        with pytest.raises(SandboxError, match="no such harness"):
            await sandbox.run(JOBS[1])
        await sandbox.run(JOBS[0])
        assert (await sandbox.run(JOBS[1])).end == "infra"

    played(refusing, body)


def test_what_the_failures_of_a_batch_mean() -> None:
    late, gone, no = Lost("timeout", "late"), Lost("infra", "gone"), Lost("refused", "no")
    assert settle(2, [late, late]) == late
    assert settle(2, [late, gone]).kind == "infra"
    assert settle(3, [late, late]).kind == "infra"
    assert settle(1, []).kind == "infra"
    assert settle(2, [gone, no]) == no


def test_untrusted_text_is_cut() -> None:
    assert len(classify(errors.RemoteError("x" * 10**6), ModalConfig()).text) < 3000


@pytest.mark.parametrize(
    "settings",
    [
        {"modal_timeout": 0.0},
        {"modal_timeout": float("inf")},
        {"modal_max_containers": 0},
        {"modal_batch_size": 0},
        {"modal_retries": -1},
        {"modal_batch_window": -1.0},
        {"modal_gpu_type": ""},
    ],
    ids=str,
)
def test_settings_that_make_no_sense(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(settings))):
        ModalConfig(**settings)


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "modal", None)
    monkeypatch.delitem(sys.modules, "assay.sandbox.modal.service")
    with pytest.raises(MissingDependencyError, match=r"pip install '\.\[modal\]'"):
        ModalSandbox()


def local_app() -> Any:
    from assay.sandbox.modal import app

    return app


@pytest.mark.skipif(FEATURES is None, reason="Linux only")
def test_the_deployed_class_runs_a_real_job() -> None:
    job = Job(
        "def run(inputs, header):\n    return [inputs[0][::-1]]",
        HARNESS,
        (Round((b"abc",), (3,)),),
        limits=Limits(wall_s=30, cpu_s=30, memory_mb=256, tmp_mb=8),
    )
    container = local_app().KernelContainer(harness=HARNESS, walls="auto")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # no walls, where this machine has none
        try:
            results = [open_answer(container.run.local(encode_job(job, "t"))).result(job) for _ in range(2)]
        finally:
            container._contained.close()
    assert [(result.end, result.outputs) for result in results] == [("ok", ((b"cba",),)), ("infra", ())]


def test_the_image_has_what_candidates_are_graded_with_here() -> None:
    assert set(local_app().PINS) <= set(re.findall(r"^[^#\s]+", CONSTRAINTS.read_text(encoding="utf-8"), re.M))


def test_client_and_app_agree_on_names() -> None:
    from assay.sandbox.modal import service

    app = local_app()
    assert ModalConfig().modal_app_name == app.APP_NAME
    assert app.KernelContainer._get_name() == service.CLASS_NAME
