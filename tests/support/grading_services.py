"""Grading services on loopback: the real one over a grader whose verdicts a test decides, and ones that misbehave."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

from assay.errors import SandboxError
from assay.kernels.config import GraderConfig
from assay.kernels.grader import Grader
from assay.kernels.pool import GradingPool
from assay.kernels.problems.scaling import ScaledProblem
from assay.kernels.problems.sources import Problem
from assay.kernels.verdicts import Verdict
from assay.server.grading.app import serve
from assay.server.grading.config import GradeServerConfig
from assay.server.grading.desk import Desk


class StubGrader:
    """A grader whose verdicts a test decides: the kind is the candidate's text. `gate` holds all grades back."""

    as_configured = True

    def __init__(self, width: int = 2) -> None:
        self.width = width
        self.config = GraderConfig(cache=False)
        self.gate = asyncio.Event()
        self.gate.set()
        self.started: list[str] = []
        self.prepared: list[str] = []
        self.running = self.peak = 0
        self.closed = 0

    async def grade(self, problem: Problem | ScaledProblem, code: str) -> Verdict:
        self.started.append(code)
        self.running += 1
        self.peak = max(self.peak, self.running)
        try:
            await asyncio.sleep(0)
            await self.gate.wait()
        finally:
            self.running -= 1
        kind = code.partition(" ")[0]
        if kind == "raise":
            raise SandboxError("this machine cannot isolate untrusted code")
        return Verdict(cast(Any, kind), "numerics", code, problem=problem.hash)

    async def prepare(self, problem: Problem | ScaledProblem) -> None:
        self.prepared.append(problem.hash)
        await self.gate.wait()

    async def close(self) -> None:
        self.closed += 1


class StubDesk(Desk):
    """The service's own desk, over a `StubGrader`."""

    def __init__(self, config: GraderConfig, stub: StubGrader, max_settings: int = 4) -> None:
        self.stub = stub
        super().__init__(config, max_settings)

    def _open(self, config: GraderConfig) -> Any:
        counter = super()._open(config)
        counter.grader = cast(Grader, self.stub)
        counter.pool = GradingPool(self.stub.config, counter.grader)
        return counter


@asynccontextmanager
async def served(**changes: Any) -> AsyncIterator[SimpleNamespace]:
    """A running service: `url`, `port`, `stub`, `stop` and the `task` that serves."""
    config = GradeServerConfig(**{"port": 0, "cache": False, "compile_check": "off", "workers": 1, **changes})
    stub, stop = StubGrader(), asyncio.Event()
    url: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    task = asyncio.create_task(serve(config, url.set_result, stop, StubDesk(config, stub, config.max_settings)))
    await asyncio.wait((task, url), return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        task.result()
    try:
        port = int(url.result().rpartition(":")[2])
        yield SimpleNamespace(url=url.result(), port=port, stub=stub, stop=stop, task=task)
    finally:
        stop.set()
        stub.gate.set()
        await task


Behaviour = Callable[[asyncio.StreamReader, asyncio.StreamWriter, bytes], Awaitable[None]]


@asynccontextmanager
async def misbehaving(behave: Behaviour) -> AsyncIterator[tuple[str, list[bytes]]]:
    """A server that reads requests and leaves what then happens to `behave`; its address, and the bodies so far."""
    bodies: list[bytes] = []

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
                bodies.append(await reader.readexactly(length))
                await behave(reader, writer, bodies[-1])
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", bodies


def response(body: bytes, status: str = "200 OK", **headers: str) -> bytes:
    """A whole response."""
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{lines}\r\n".encode() + body
