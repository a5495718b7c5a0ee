"""The real client of Modal against a server on loopback: look-up, options, maps, and pickles of hostile containers.

Modal itself was never asked: there are no credentials here.
"""

from __future__ import annotations

import asyncio
import os
import pickle
import sys
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("modal", reason="the package modal is not installed")

from modal import _serialization
from modal_proto import api_pb2

from assay.errors import SandboxError
from assay.sandbox import Job, JobResult, Round
from assay.sandbox.modal import service
from assay.sandbox.modal.config import ModalConfig
from assay.sandbox.modal.container import Contained
from assay.sandbox.modal.payload import decode_job, encode_answer
from assay.sandbox.modal.sandbox import ModalSandbox
from support.modal_loopback import Container, DeployingModal, LoopbackModal, Output, failure, serving, success
from support.sandboxes import FEATURES, needs_walls

HARNESS = "assay.sandbox.plain"
JOB = Job("a", HARNESS, (Round((b"in",), (2,)),))
JOBS = [replace(JOB, source=chr(ord("a") + i)) for i in range(8)]
TIMEOUT = api_pb2.GenericResult.GENERIC_STATUS_TIMEOUT
GONE = api_pb2.GenericResult.GENERIC_STATUS_INTERNAL_FAILURE
FAILED = api_pb2.GenericResult.GENERIC_STATUS_FAILURE
TERMINATED = api_pb2.GenericResult.GENERIC_STATUS_TERMINATED

Body = Callable[[ModalSandbox, LoopbackModal], Awaitable[None]]


def honest(payload: bytes) -> Output:
    job, token = decode_job(payload)
    return success(encode_answer(JobResult("ok", "played", outputs=((job.source.encode() * 2,),)), token, "w"))


def against(
    container: Container, body: Body, monkeypatch: pytest.MonkeyPatch, deployed: str = "assay-kernels", **settings: Any
) -> LoopbackModal:
    """Run a test against a workspace on loopback."""
    modal = LoopbackModal(deployed, service.CLASS_NAME, "run", ("harness", "walls"), container)
    monkeypatch.setenv("MODAL_TOKEN_ID", "ak-good")
    monkeypatch.setenv("MODAL_TOKEN_SECRET", "as-good")

    async def main() -> None:
        async with serving(modal) as address:
            monkeypatch.setenv("MODAL_SERVER_URL", address)
            async with ModalSandbox(ModalConfig(modal_batch_window=0.05, **settings)) as sandbox:
                await body(sandbox, modal)

    asyncio.run(main())
    return modal


def test_the_gpu_and_the_limits_asked_for_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    async def container(payload: bytes) -> Output:
        return honest(payload)

    async def body(sandbox: ModalSandbox, modal: LoopbackModal) -> None:
        results = await asyncio.gather(*(sandbox.run(job) for job in JOBS))
        assert [result.outputs for result in results] == [((job.source.encode() * 2,),) for job in JOBS]

    modal = against(container, body, monkeypatch, modal_gpu_type="H100", modal_timeout=33.5, modal_max_containers=9)
    assert modal.maps == [8]
    (bound,) = modal.bound
    options = bound.function_options
    assert options.resources.gpu_config.gpu_type == "H100"
    assert options.timeout_secs == 34 + service.GRACE_S
    assert options.concurrency_limit == 9
    assert _serialization.deserialize_proto_params(bound.serialized_params) == {"harness": HARNESS, "walls": "auto"}


def test_a_slow_kernel_stalls_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    release = asyncio.Event()

    async def container(payload: bytes) -> Output:
        if decode_job(payload)[0].source == "a":
            await release.wait()
        return honest(payload)

    async def body(sandbox: ModalSandbox, modal: LoopbackModal) -> None:
        slow, *others = [asyncio.create_task(sandbox.run(job)) for job in JOBS]
        assert {result.end for result in await asyncio.gather(*others)} == {"ok"}
        assert (await sandbox.run(replace(JOB, source="z"))).end == "ok"
        assert not slow.done()
        release.set()
        assert (await slow).end == "ok"

    assert against(container, body, monkeypatch).maps == [8, 1]


def test_who_leaves_disturbs_nobody_and_closing_waits_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    release = asyncio.Event()
    began: list[str] = []

    async def container(payload: bytes) -> Output:
        source = decode_job(payload)[0].source
        began.append(source)
        await (release if source in "ab" else asyncio.Event()).wait()
        return honest(payload)

    async def body(sandbox: ModalSandbox, modal: LoopbackModal) -> None:
        gone, kept, *never = [asyncio.create_task(sandbox.run(job)) for job in JOBS[:4]]
        while len(began) < 4:
            await asyncio.sleep(0.01)
        gone.cancel()
        release.set()
        assert (await kept).end == "ok"
        assert gone.cancelled()
        await sandbox.close()
        assert {(await task).message for task in never} == {"the sandbox was closed"}

    against(container, body, monkeypatch)


@pytest.mark.parametrize(
    ("status", "end"), [(TIMEOUT, "timeout"), (GONE, "infra"), (FAILED, "infra"), (TERMINATED, "infra")]
)
def test_what_modal_reports_in_place_of_an_answer(status: Any, end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def container(payload: bytes) -> Output:
        return failure(status, "as Modal puts it") if decode_job(payload)[0].source == "b" else honest(payload)

    async def body(sandbox: ModalSandbox, modal: LoopbackModal) -> None:
        results = await asyncio.gather(*(sandbox.run(job) for job in JOBS[:3]))
        assert [result.end for result in results] == ["ok", end, "ok"]
        assert "as Modal puts it" in results[1].message

    against(container, body, monkeypatch, modal_retries=0)


class Bomb:
    """Unpickled, it makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.path,)


@pytest.mark.parametrize("as_exception", [False, True], ids=["a value", "an exception"])
def test_a_hostile_pickle_runs_nothing_here(
    as_exception: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bomb = tmp_path / "ran"
    pickled = pickle.dumps(Bomb(bomb), protocol=4)

    async def container(payload: bytes) -> Output:
        if decode_job(payload)[0].source != "b":
            return honest(payload)
        if as_exception:
            result, form = failure(FAILED, "boom", pickled)
            result.serialized_tb = result.tb_line_cache = pickled
            return result, form
        return success(Bomb(bomb))

    async def body(sandbox: ModalSandbox, modal: LoopbackModal) -> None:
        results = await asyncio.gather(*(sandbox.run(job) for job in JOBS[:3]))
        assert [result.end for result in results] == ["ok", "infra", "ok"]

    against(container, body, monkeypatch, modal_retries=0)
    assert not bomb.exists()
    with pytest.raises(_serialization.DeserializationError):  # other clients: as Modal has it, bomb and all
        _serialization.deserialize(pickled[:-9], None)
    _serialization.deserialize(pickled, None)
    assert bomb.exists()


def test_a_client_that_cannot_be_bound_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    async def container(payload: bytes) -> Output:
        return honest(payload)

    async def body(sandbox: ModalSandbox, modal: LoopbackModal) -> None:
        with pytest.raises(SandboxError, match="hostile container could run code"):
            await sandbox.run(JOB)

    monkeypatch.setattr(_serialization, "deserialize", lambda data, client: pickle.loads(data))
    assert against(container, body, monkeypatch).maps == []


def test_an_app_that_was_not_deployed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def container(payload: bytes) -> Output:
        return honest(payload)

    async def body(sandbox: ModalSandbox, modal: LoopbackModal) -> None:
        with pytest.raises(SandboxError, match=r"modal deploy -m assay\.sandbox\.modal\.app --name assay-kernels"):
            await sandbox.run(JOB)

    against(container, body, monkeypatch, deployed="another")


def test_a_token_that_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    async def container(payload: bytes) -> Output:
        return honest(payload)

    async def body(sandbox: ModalSandbox, modal: LoopbackModal) -> None:
        modal.token = ("ak-other", "as-other")
        with pytest.raises(SandboxError, match=r"(?s)Token validation failed.*MODAL_TOKEN_ID"):
            await sandbox.run(JOB)

    against(container, body, monkeypatch)


def test_no_token_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "settings", {})

    async def main() -> None:
        async with ModalSandbox(ModalConfig()) as sandbox:
            with pytest.raises(SandboxError, match="MODAL_TOKEN_ID and MODAL_TOKEN_SECRET"):
                await sandbox.run(JOB)

    asyncio.run(main())


def test_the_deploy_command_makes_containers_for_one_candidate_each() -> None:
    modal = DeployingModal()
    command = [sys.executable, "-m", "modal", "deploy", "-m", "assay.sandbox.modal.app", "--name", "other"]

    async def main() -> str:
        async with serving(modal) as address:
            token = {"MODAL_TOKEN_ID": "ak-1", "MODAL_TOKEN_SECRET": "as-1"}
            process = await asyncio.create_subprocess_exec(
                *command,
                env={**os.environ, "MODAL_SERVER_URL": address, **token},
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
            )
            try:
                return (await process.communicate())[0].decode()
            finally:
                if process.returncode is None:
                    process.kill()
                    await process.wait()

    said = asyncio.run(main())
    assert "enough was seen" in said
    (request,) = modal.seen["FunctionCreate"]
    deployed = request.function
    assert (deployed.module_name, deployed.function_name) == (
        "assay.sandbox.modal.app",
        f"{service.CLASS_NAME}.*",
    )
    assert (deployed.single_use_containers, deployed.block_network, deployed.untrusted) == (True, True, True)
    assert deployed.retry_policy.retries == 0
    assert deployed.startup_timeout_secs > deployed.timeout_secs
    assert set(deployed.method_definitions) == {"run"}
    assert [item.name for item in deployed.class_parameter_info.schema] == ["harness", "walls"]
    lines = [line for item in modal.seen["ImageGetOrCreate"] for line in item.image.dockerfile_commands]
    assert any(line.startswith("FROM nvidia/cuda:") for line in lines)
    assert any("torch==" in line and "triton==" in line for line in lines)
    files = [item.filename for request in modal.seen["MountGetOrCreate"] for item in request.files]
    assert any(name.endswith("site-packages/assay/sandbox/modal/container.py") for name in files)
    assert not [name for name in files if name.startswith("/root/")]


@needs_walls
def test_a_real_job_through_the_real_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything but Modal: client, wire, container's side, sandbox, worker, child."""
    source = "def run(inputs, header):\n    return [inputs[0][::-1]]"
    big = bytes(range(256)) * 1024

    def inside(payload: bytes) -> bytes:
        contained = Contained(HARNESS, "strict", FEATURES)
        try:
            contained.start()
            return contained.answer(payload)
        finally:
            contained.close()

    async def container(payload: bytes) -> Output:
        return success(await asyncio.to_thread(inside, payload))

    async def body(sandbox: ModalSandbox, modal: LoopbackModal) -> None:
        job = Job(source, HARNESS, (Round((big,), (len(big),)),))
        good, bad = await asyncio.gather(sandbox.run(job), sandbox.run(replace(job, source="import os; os._exit(3)")))
        assert (good.end, good.outputs) == ("ok", ((big[::-1],),))
        assert (bad.end, bad.exit_code) == ("crash", 3)

    against(container, body, monkeypatch)
