"""Workers of sandboxes and a process for references that outlive the grader of a test, for the grader of the next.

Each imports PyTorch, which takes two seconds, and a grader has three. Jobs run in fresh forks of them as ever. Tests of
what is started, ended and killed (`sandbox/`, `kernels/`) have processes of their own.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from assay.kernels import grader
from assay.kernels.numerics.reference import ReferenceProcess
from assay.sandbox import local
from assay.sandbox.host.worker_process import Blueprint, WorkerProcess
from assay.server.grading import desk

MOST = 6
"""Idle workers that are kept."""
ORDINARY = {"device": "cpu", "walls": "strict"}
_STARTER = ThreadPoolExecutor(1, thread_name_prefix="kept-workers")
"""What bubblewrap starts ends with the thread that started it, so workers are started by one that lasts."""


class KeptWorker(WorkerProcess):
    """A worker that can go from one event loop to another."""

    def __init__(self, blueprint: Blueprint) -> None:
        super().__init__(blueprint)
        self.blueprint = blueprint

    async def boot(self) -> None:
        """Once alone: a kept one is warm."""
        if not self.pid:
            await super().boot()

    def _spawn(self, control: int, info_end: int) -> subprocess.Popen[bytes]:
        return _STARTER.submit(super()._spawn, control, info_end).result()

    def leave(self) -> None:
        """Belong to no event loop."""
        self._loop.remove_reader(self._socket)

    def enter(self) -> None:
        """Belong to the event loop that runs."""
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._socket, self._readable)


class KeptReference(ReferenceProcess):
    """Closed by nobody who shares it."""

    def close(self) -> None:
        """Nothing: see `end`."""

    def end(self) -> None:
        """End its processes."""
        super().close()


class KeptProcesses:
    """All that one process of tests keeps. A fork of it has none of them."""

    def __init__(self) -> None:
        self._workers: list[KeptWorker] = []
        self._reference = KeptReference()
        self._owner = os.getpid()

    def worker(self, blueprint: Blueprint) -> WorkerProcess:
        """A kept worker of this blueprint, or a new one."""
        if not self._mine() or blueprint.mode is None:
            return WorkerProcess(blueprint)
        for place, worker in enumerate(self._workers):
            if worker.blueprint == blueprint:
                del self._workers[place]
                worker.enter()
                return worker
        return KeptWorker(blueprint)

    async def keep(self, worker: WorkerProcess) -> bool:
        """Take an idle worker of a sandbox that closes; False if the sandbox has to end it."""
        if not (self._mine() and isinstance(worker, KeptWorker) and worker.alive):
            return False
        worker.leave()
        self._workers.append(worker)
        if len(self._workers) > MOST:
            await self._end_oldest()
        return True

    async def _end_oldest(self) -> None:
        worker = self._workers.pop(0)
        worker.enter()
        await worker.close()

    def reference(self, **settings: str) -> ReferenceProcess:
        """The process for references that all share, where the settings are the usual ones."""
        return self._reference if self._mine() and settings == ORDINARY else ReferenceProcess(**settings)  # type: ignore[arg-type]

    def _mine(self) -> bool:
        return os.getpid() == self._owner

    def end(self) -> None:
        """End all of them."""

        async def main() -> None:
            while self._workers:
                await self._end_oldest()

        asyncio.run(main())
        self._reference.end()


@contextmanager
def sandboxes_keep(kept: KeptProcesses) -> Iterator[None]:
    """Sandboxes and graders that are made meanwhile take what is kept, and leave it at their end."""
    close = local.LocalSandbox.close

    async def leaving(sandbox: local.LocalSandbox) -> None:
        for worker in [worker for idle in sandbox._idle.values() for worker in idle]:
            if await kept.keep(worker):
                sandbox._all.discard(worker)
        await close(sandbox)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local, "WorkerProcess", kept.worker)
        patch.setattr(local.LocalSandbox, "close", leaving)
        for user in (grader, desk):
            patch.setattr(user, "ReferenceProcess", kept.reference)
        yield
