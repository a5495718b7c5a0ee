"""One job, or a few in step, in a container that is used once: what runs on the far side of a remote sandbox.

The container is a wall of its own; inside it a job goes through the same `LocalSandbox` as on any machine, behind its
walls where they stand. They are tried out at the start, and every answer says what held the candidate. A process that
has run one candidate runs no other.
"""

from __future__ import annotations

import asyncio
import glob
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal

from assay.errors import SandboxError
from assay.sandbox.base import Job, JobResult
from assay.sandbox.host.probe import Features, probe, require
from assay.sandbox.local import LocalConfig, LocalSandbox
from assay.sandbox.lockstep import Group, run_in_step
from assay.sandbox.modal.payload import decode_group, decode_job, encode_answer, encode_answers, is_group

Walls = Literal["auto", "strict"]
"""`strict`: the sandbox's own walls or nothing. `auto`: those where they can hold this work, else the container's."""

_GPU_FILES = "/dev/nvidia[0-9]*"


@dataclass(frozen=True, slots=True)
class Choice:
    """How candidates are held, and that in words."""

    sandbox: Literal["strict", "unsafe"]
    words: str


def choose(walls: str, features: Features, gpu: bool) -> Choice:
    """What holds candidates in a container with these features.

    Raises:
        SandboxError: strict walls are wanted and cannot stand here.
    """
    if walls not in ("auto", "strict"):
        raise SandboxError(f"walls={walls!r} is neither 'auto' nor 'strict'.")
    if walls == "strict":
        require(features)
    if walls == "auto" and features.missing:
        lacking = ", ".join(item.feature for item in features.missing)
        return Choice("unsafe", f"the container and a process of its own, since it lacks {lacking}")
    if walls == "auto" and gpu:
        return Choice("unsafe", "the container and a process of its own; stricter walls would hide its GPU")
    return Choice("strict", "the container and the sandbox's own inside it")


def has_gpu() -> bool:
    """Whether this container was given an NVIDIA GPU."""
    return bool(glob.glob(_GPU_FILES))


class Contained:
    """Runs one job for a remote caller. `start` before the clock of the job runs; `answer` once; `close`.

    They may be called from any threads: a worker dies with the thread that started it, so that is one of our own.
    """

    def __init__(self, harness: str, walls: str = "auto", features: Features | None = None) -> None:
        """`features` are what `probe` found, where that is known already."""
        self._harness = harness
        self._walls = walls
        self._features = features
        self._runner = asyncio.Runner()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="assay-contained")
        self._sandbox: LocalSandbox | None = None
        self._words = "none yet"
        self._broken = ""
        self._used = False

    def start(self) -> None:
        """Probe, and warm a worker. A failure is kept for the answer, where its caller can read it."""
        self._thread.submit(self._start).result()

    def answer(self, payload: bytes) -> bytes:
        """Run the job in a payload, or the jobs in step.

        Raises:
            DataError: this is not a job.
        """
        return self._thread.submit(self._answer, payload).result()

    def close(self) -> None:
        """End every process. Safe to call twice."""
        sandbox, self._sandbox = self._sandbox, None
        if sandbox is not None:
            self._thread.submit(self._close, sandbox).result()
        self._thread.shutdown()

    def _start(self) -> None:
        try:
            features = self._features or probe()
            choice = choose(self._walls, features, has_gpu())
            self._words = choice.words
            known = features if choice.sandbox == "strict" else None
            self._sandbox = LocalSandbox(LocalConfig(sandbox=choice.sandbox, workers=2), known)  # two in step
            self._runner.run(self._sandbox.start([self._harness], each=1))
        except SandboxError as error:
            self._broken = str(error)

    def _answer(self, payload: bytes) -> bytes:
        job, token = decode_group(payload) if is_group(payload) else decode_job(payload)
        if self._used:
            return self._excuse(token, "this container has already run a candidate and runs no other")
        if job.harness != self._harness:
            return self._excuse(token, f"this container is warm for {self._harness}, not for {job.harness}")
        if self._broken or self._sandbox is None:
            return self._excuse(token, self._broken or "it was never started", refused=bool(self._broken))
        self._used = True
        try:
            return self._runner.run(self._run(self._sandbox, job, token))
        except SandboxError as error:
            return self._excuse(token, str(error), refused=True)

    async def _run(self, sandbox: LocalSandbox, job: Job | Group, token: str) -> bytes:
        if isinstance(job, Group):
            return encode_answers(await run_in_step(sandbox, job), token, self._words)
        return encode_answer(await sandbox.run(job), token, self._words)

    def _close(self, sandbox: LocalSandbox) -> None:
        self._runner.run(sandbox.close())
        self._runner.close()

    def _excuse(self, token: str, why: str, refused: bool = False) -> bytes:
        return encode_answer(JobResult("infra", why), token, self._words, refused)
