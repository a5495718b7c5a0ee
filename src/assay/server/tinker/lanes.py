"""The requests of one adapter, worked on in the order of their numbers, each once, however they arrive."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from assay.server.tinker.errors import RequestError, failure
from assay.server.tinker.futures import Promise, Result

Work = Callable[[], Awaitable[Result]]
GAP = (
    "Request {missing} of this adapter never arrived, and this one comes after it. Nothing was done. Make a new client "
    "from the last saved state."
)


@dataclass(frozen=True)
class Job:
    """A request and the work that it asks for."""

    promise: Promise
    work: Work


class Lane:
    """Numbers begin at 1; a request without a number (0) is worked on as it arrives."""

    def __init__(self, missing_s: float) -> None:
        self._missing_s = missing_s
        self._next = 1
        self._numbered: dict[int, Job] = {}
        self._unnumbered: deque[Job] = deque()
        self._task: asyncio.Task[None] | None = None
        self._closed: RequestError | None = None
        self._waits_since = time.monotonic()

    def seen(self, number: int) -> bool:
        """Whether a request of this number was worked on already."""
        return 0 < number < self._next

    @property
    def busy(self) -> bool:
        """Whether a request is being worked on."""
        return self._task is not None and not self._task.done()

    @property
    def started(self) -> bool:
        """Whether any numbered request was begun."""
        return self._next > 1

    def submit(self, number: int, job: Job) -> None:
        """Take a request on; its promise is resolved in its turn."""
        if self._closed is not None:
            job.promise.resolve(self._closed)
            return
        if number > 0:
            self._numbered[number] = job
        else:
            self._unnumbered.append(job)
        if not self.busy:
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        while self._closed is None and (job := self._take()) is not None:
            try:
                job.promise.resolve(await job.work())
            except asyncio.CancelledError:
                raise
            except Exception as error:  # noqa: BLE001 - of one client's request, who is told
                job.promise.resolve(failure(error))
        self._waits_since = time.monotonic()

    def _take(self) -> Job | None:
        if self._unnumbered:
            return self._unnumbered.popleft()
        job = self._numbered.pop(self._next, None)
        if job is not None:
            self._next += 1
        return job

    def check_gap(self, now: float) -> None:
        """Fail the requests that wait, where the one before them has not come for too long."""
        if not self.busy and self._numbered and now - self._waits_since > self._missing_s:
            self.close(RequestError(400, GAP.format(missing=self._next), "user"))

    def close(self, error: RequestError) -> None:
        """Fail what waits, and what comes."""
        self._closed = error
        for job in (*self._numbered.values(), *self._unnumbered):
            job.promise.resolve(error)
        self._numbered.clear()
        self._unnumbered.clear()
