"""What runs inside the Ray actor that makes the calls of all workers: a `Client`, and a mailbox for each worker.

A worker submits calls and collects answers. An answer stays in the mailbox until the worker says that it has it, and a
call that is submitted twice is made once, so a message that Ray loses loses nothing.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from assay.errors import AssayError
from assay.rewards.base import CallFailure, Outcome, Request, Usage
from assay.rewards.client.client import Client
from assay.rewards.config import EngineConfig, JudgeConfig

IDLE_S = 1800.0
"""How long an actor lives after the last call."""
WAIT_S = 20.0
"""Longest wait of a worker for answers before it is told that there are none yet."""
GATHER_S = 0.002
"""How long the first answer of a message waits for others."""
FORGOTTEN_S = 600.0
"""A mailbox whose worker has not fetched for this long belongs to a worker that died."""


@dataclass
class _Mailbox:
    """The calls of one worker, and the answers that it has not fetched yet."""

    running: dict[int, asyncio.Task[Outcome]] = field(default_factory=dict)
    done: dict[int, Outcome] = field(default_factory=dict)
    news: asyncio.Event = field(default_factory=asyncio.Event)
    visited: float = field(default_factory=time.monotonic)


class JudgeActor:
    """The actor. Its `Client` is made when the first worker greets it, in the actor's own event loop."""

    def __init__(self, judge: JudgeConfig, engine: EngineConfig, idle_s: float = IDLE_S) -> None:
        self._judge, self._engine, self._idle_s = judge, engine, idle_s
        self._client: Client | None = None
        self._greeted: set[str] = set()
        self._mailboxes: defaultdict[str, _Mailbox] = defaultdict(_Mailbox)
        self._used = time.monotonic()
        self._watch: asyncio.Task[None] | None = None

    async def greet(self, worker: str, paid: Usage) -> AssayError | None:
        """Register a worker, with what it has paid through earlier actors; returns the problem, if any."""
        self._used = time.monotonic()
        try:
            client = self._made()
        except AssayError as error:
            return error
        if worker not in self._greeted:
            self._greeted.add(worker)
            client.add_spent(paid)
        return None

    async def submit(
        self, worker: str, calls: Sequence[tuple[int, Request, float | None]], withdrawn: Sequence[int] = ()
    ) -> None:
        """Begin calls: (number, request, seconds that are left for it, since clocks differ between processes)."""
        loop, mailbox, client = asyncio.get_running_loop(), self._mailboxes[worker], self._made()
        for number, request, left_s in calls:
            if number not in mailbox.running and number not in mailbox.done:
                deadline = None if left_s is None else loop.time() + left_s
                task = mailbox.running[number] = loop.create_task(client.call(request, deadline))
                task.add_done_callback(partial(self._file, mailbox, number))
        await self.withdraw(worker, withdrawn)

    async def withdraw(self, worker: str, numbers: Sequence[int]) -> None:
        """These calls are no longer awaited."""
        mailbox = self._mailboxes[worker]
        for number in numbers:
            mailbox.done.pop(number, None)
            if (task := mailbox.running.get(number)) is not None:
                task.cancel()

    async def collect(self, worker: str, received: Sequence[int]) -> dict[int, Outcome]:
        """The answers that there are, or the next ones; `received` are those that need not be kept any longer."""
        mailbox = self._mailboxes[worker]
        mailbox.visited = time.monotonic()
        for number in received:
            mailbox.done.pop(number, None)
        if not mailbox.done:
            mailbox.news.clear()
            try:
                async with asyncio.timeout(WAIT_S):
                    await mailbox.news.wait()
                await asyncio.sleep(GATHER_S)
            except TimeoutError:
                pass
        mailbox.visited = time.monotonic()
        return dict(mailbox.done)

    async def forget(self, request: Request) -> None:
        """See `Caller.forget`."""
        await self._made().forget(request)

    async def counters(self) -> dict[str, float]:
        """See `Caller.counters`."""
        return await self._made().counters()

    def _file(self, mailbox: _Mailbox, number: int, task: asyncio.Task[Outcome]) -> None:
        """Put an answer in its mailbox."""
        mailbox.running.pop(number, None)
        self._used = time.monotonic()
        if task.cancelled():
            return
        error = task.exception()
        failed = CallFailure("connection", f"the actor that makes the calls failed: {error!r}")
        mailbox.done[number] = task.result() if error is None else failed
        mailbox.news.set()

    def _made(self) -> Client:
        if self._client is None:
            self._client = Client(self._judge, self._engine)
            self._watch = asyncio.get_running_loop().create_task(self._end_when_idle())
        return self._client

    async def _end_when_idle(self) -> None:
        import ray

        while any(m.running for m in self._mailboxes.values()) or time.monotonic() - self._used < self._idle_s:
            await asyncio.sleep(min(60.0, self._idle_s / 4))
            forgotten = time.monotonic() - FORGOTTEN_S
            for worker in [w for w, m in self._mailboxes.items() if not m.running and m.visited < forgotten]:
                del self._mailboxes[worker]
        if self._client is not None:
            await self._client.close()
        ray.actor.exit_actor()
