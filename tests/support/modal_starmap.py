"""Modal's `starmap`, played by a script: real exceptions of the SDK, answers in the order of their ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from types import SimpleNamespace
from typing import Any

from assay.sandbox import Job, JobResult
from assay.sandbox.modal.config import ModalConfig
from assay.sandbox.modal.payload import decode_job, encode_answer
from assay.sandbox.modal.service import ModalRemote

Play = Callable[["Call"], Awaitable[object]]
"""What a container does with a call: a value is its answer, an exception what Modal reports in its place."""


class Call:
    """One input in one container."""

    def __init__(self, job: Job, token: str, attempt: int, batch: int) -> None:
        self.job, self.token, self.attempt, self.batch = job, token, attempt, batch

    def answer(self, end: Any = "ok", **fields: Any) -> bytes:
        """What an honest container says: every output is a run of the first byte of the source."""
        outputs = tuple(tuple(self.job.source[:1].encode() * size for size in r.outputs) for r in self.job.rounds)
        result = JobResult(end, "as played", outputs=outputs if end == "ok" else (), **fields)
        return encode_answer(result, self.token, "a play")


class WholeBatch(Exception):
    """Carries an exception that the whole starmap raises."""


class PlayedRemote(ModalRemote):
    """`ModalRemote` with everything but the method that it looks up."""

    def __init__(self, config: ModalConfig, play: Play) -> None:
        super().__init__(config)
        self.play = play
        self.batches: list[int] = []
        """Sizes of the starmaps, in the order of their calls."""
        self.cancelled = 0
        self.running = self.most_running = 0
        self.attempts: dict[str, int] = {}

    async def _method(self, harness: str) -> Any:
        return SimpleNamespace(starmap=SimpleNamespace(aio=self.starmap))

    async def starmap(
        self, inputs: Sequence[tuple[bytes]], *, order_outputs: bool, return_exceptions: bool
    ) -> AsyncIterator[object]:
        assert not order_outputs
        assert return_exceptions
        batch = len(self.batches)
        self.batches.append(len(inputs))
        tasks = [asyncio.ensure_future(self.container(payload, batch)) for (payload,) in inputs]
        try:
            for done in asyncio.as_completed(tasks):
                answer = await done
                if isinstance(answer, WholeBatch):
                    raise answer.args[0]
                yield answer
        except (GeneratorExit, asyncio.CancelledError):
            self.cancelled += 1
            raise
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def container(self, payload: bytes, batch: int) -> object:
        job, token = decode_job(payload)
        attempt = self.attempts[job.source] = self.attempts.get(job.source, -1) + 1
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            (answer,) = await asyncio.gather(self.play(Call(job, token, attempt, batch)), return_exceptions=True)
            return answer
        finally:
            self.running -= 1
