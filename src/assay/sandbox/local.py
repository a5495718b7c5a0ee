"""Warm, isolated workers on this machine; a fresh process per job.

`LocalSandbox` keeps at most one job per core in flight and any number waiting. It starts a worker for a harness when a
job needs one, keeps it warm, replaces it when it dies, and runs the job that died with it once more. A sandbox belongs
to the event loop that first uses it; `close` leaves no process, descriptor or folder behind.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import shutil
import stat
import tempfile
import warnings
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from assay.errors import ConfigError, SandboxError
from assay.sandbox.base import AfterRound, Job, JobResult
from assay.sandbox.host import bubblewrap
from assay.sandbox.host.buffers import Buffers
from assay.sandbox.host.cgroups import find_home
from assay.sandbox.host.probe import Features, probe, require
from assay.sandbox.host.worker_process import Blueprint, WorkerDied, WorkerProcess

log = logging.getLogger(__name__)

UNSAFE_WARNING = (
    "sandbox=unsafe: untrusted code runs with no walls at all. It can read and change everything that this account "
    "can, use the network, and outlive its job. Use it only where none of that matters, never for rewards that train "
    "a model."
)


@dataclass(frozen=True, slots=True)
class LocalConfig:
    """How jobs are run on this machine."""

    sandbox: Literal["strict", "unsafe"] = "strict"
    """`unsafe` runs candidates without walls, where the machine cannot give any."""
    workers: int = 0
    """Jobs in flight at a time; 0 means one per core that this process may use."""
    import_roots: tuple[str, ...] = ()
    """Folders from which workers may import harnesses, besides Assay and the installed packages."""
    readable: tuple[str, ...] = ()
    """Further folders and files that jobs may read (a CUDA toolkit outside /usr, say)."""
    devices: tuple[str, ...] = ()
    """Device files that workers see besides the harmless ones (/dev/nvidia0, /dev/nvidiactl, /dev/nvidia-uvm and so
    on); only jobs of the GPU profiles can command them."""
    hidden: tuple[str, ...] = ()
    """Folders and files that jobs must not see although they lie in what they may read."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables of the workers, besides the few that they have anyway."""
    executables: tuple[str, ...] = ()
    """What jobs of the compile profile may execute (folders and files; needs a kernel with Landlock, 5.13); empty means
    every program in view."""
    cgroup: str | None = None
    """A cgroup folder (version 1 memory hierarchy, or version 2) that this user may write to. Workers get groups of
    their own in it, which bound the memory of all processes of a job together. None looks for one that this process may
    use; empty uses none, and the worker measures a job's processes instead, and allows fewer."""
    boot_s: float = 180.0
    """Seconds that a worker may take to import and warm its harness."""

    def __post_init__(self) -> None:
        if self.sandbox not in ("strict", "unsafe"):
            raise ConfigError(f"sandbox={self.sandbox!r} is neither 'strict' nor 'unsafe'.")
        if self.workers < 0:
            raise ConfigError(f"workers={self.workers}: give a number of jobs in flight, or 0 for one per core.")
        for path in self.devices:
            if not (os.path.isabs(path) and os.path.exists(path) and stat.S_ISCHR(os.stat(path).st_mode)):
                raise ConfigError(
                    f"devices: {path} is not a character device here, so no job could use it. Check the path and, for "
                    "a GPU, that its driver is loaded (nvidia-smi)."
                )


class LocalSandbox:
    """A `Sandbox` of warm workers on this machine.

    Raises:
        SandboxError: the machine lacks a feature that walls need; the message names it and the cure.
    """

    def __init__(self, config: LocalConfig | None = None, features: Features | None = None) -> None:
        """`features` are what `probe` found, where that is known already."""
        self.config = config or LocalConfig()
        self._features = features
        self._mode: bubblewrap.Mode | None = None
        if self.config.sandbox == "unsafe":
            warnings.warn(UNSAFE_WARNING, stacklevel=2)
            log.warning(UNSAFE_WARNING)
        else:
            self._features = features or probe()
            self._mode = require(self._features)
        self._scratch = tempfile.mkdtemp(prefix="assay-unsafe-") if self._mode is None else ""
        self._seen = bubblewrap.view(
            self.config.import_roots, self.config.readable, self.config.hidden, self.config.devices
        )
        if self._mode in ("drop", "nobody") and (closed := bubblewrap.unreadable(self._seen)):
            raise SandboxError(
                f"only their owner can read {', '.join(closed)}, but workers started by root run as the user nobody: "
                "make it readable (chmod -R o+rX), or run as the ordinary user who owns it."
            )
        self._cgroup = self.config.cgroup or ""
        if self.config.cgroup is None and self._mode is not None:
            self._cgroup = find_home()
        self.width = self.config.workers or len(os.sched_getaffinity(0))
        self._slots = asyncio.Semaphore(self.width)
        self._idle: dict[str, list[WorkerProcess]] = defaultdict(list)
        self._all: set[WorkerProcess] = set()
        self._proven: set[str] = set()
        """Harnesses of which a worker has booted."""
        self._recoveries: set[asyncio.Task[None]] = set()
        self._closed = False
        self.deaths = 0
        """Workers that died or were given up."""

    async def __aenter__(self) -> LocalSandbox:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def start(self, harnesses: Sequence[str], each: int | None = None) -> None:
        """Warm workers beforehand: `each` (default: all) per harness, one after the other.

        Raises:
            SandboxError: a harness cannot be loaded, the walls do not stand, a worker died at its start (later it may
                not), or this sandbox is closed.
        """
        for harness in harnesses:
            started: list[WorkerProcess] = []
            try:
                for _ in range(each or self.width):
                    started.append(await self._worker(harness))
            except WorkerDied as error:
                raise SandboxError(f"No worker for {harness} can be started: {error}") from error
            finally:
                self._idle[harness].extend(started)

    def worker_pids(self) -> list[int]:
        """Process ids of the living workers that have booted, for measurements."""
        return [worker.pid for worker in self._all if worker.alive and worker.pid]

    async def run(self, job: Job, after_round: AfterRound | None = None) -> JobResult:
        """The result of one job; waits for a free slot. See `Sandbox.run`."""
        async with self._slots:
            last: JobResult | None = None
            for retried in (False, True):
                if self._closed:
                    return JobResult("infra", "the sandbox was closed", retried=retried)
                last = dataclasses.replace(await self._try(job, after_round), retried=retried)
                if last.end != "infra":
                    return last
                log.warning("a job of %s was lost (%s)", job.harness, last.message)
            assert last is not None
            return last

    async def _try(self, job: Job, after_round: AfterRound | None) -> JobResult:
        """One attempt with memory of its own; `infra` where the machine has none to give."""
        try:
            buffers = Buffers(job)
        except OSError as error:
            return JobResult("infra", f"no memory is available for the job's inputs and outputs: {error}")
        try:
            return await self._attempt(job, buffers, after_round)
        finally:
            buffers.close()

    async def _attempt(self, job: Job, buffers: Buffers, after_round: AfterRound | None) -> JobResult:
        """One attempt; `infra` where it says nothing about the candidate."""
        try:
            worker = await self._worker(job.harness)
        except (WorkerDied, SandboxError) as error:
            if self._closed:
                return JobResult("infra", "the sandbox was closed while a worker was starting")
            if isinstance(error, SandboxError):
                raise
            if job.harness not in self._proven:
                raise SandboxError(f"No worker for {job.harness} can be started: {error}") from error
            return JobResult("infra", str(error))
        settled = False
        try:
            result = await worker.run(job, buffers, after_round)
            settled = True
            self._idle[job.harness].append(worker)
            return result
        except WorkerDied as error:
            settled = True
            await self._discard(worker)
            return JobResult("infra", str(error))
        finally:
            if not settled:  # cancelled, or the caller's own code raised: the child may still run
                await asyncio.shield(self._recover(job.harness, worker))

    async def _worker(self, harness: str) -> WorkerProcess:
        """A warm worker that no other job holds.

        Raises:
            SandboxError: it says itself that it cannot run jobs.
            WorkerDied: it died or stalled at its start, or the sandbox is closed.
        """
        if self._closed:
            raise WorkerDied("the sandbox was closed")
        while self._idle[harness]:
            worker = self._idle[harness].pop()
            if worker.alive:
                return worker
            await self._discard(worker)
        worker = WorkerProcess(self._blueprint(harness))
        self._all.add(worker)
        booted = False
        try:
            await worker.boot()
            booted = True
        finally:
            if not booted:
                await self._discard(worker)
        self._proven.add(harness)
        return worker

    def _blueprint(self, harness: str) -> Blueprint:
        return Blueprint(
            harness=harness,
            bwrap=self._features.bwrap if self._features else "",
            mode=self._mode,
            seen=self._seen,
            environment=dict(self.config.environment),
            executables=self.config.executables,
            boot_s=self.config.boot_s,
            scratch=self._scratch,
            cgroup=self._cgroup,
            must_have_group=bool(self.config.cgroup),
        )

    async def _discard(self, worker: WorkerProcess) -> None:
        self.deaths += 1
        self._all.discard(worker)
        await worker.close()

    def _recover(self, harness: str, worker: WorkerProcess) -> asyncio.Task[None]:
        """Take a worker back whose job was abandoned, once its child is dead."""

        async def recover() -> None:
            if not self._closed and await worker.abandon():
                self._idle[harness].append(worker)
            else:
                await self._discard(worker)

        task = asyncio.get_running_loop().create_task(recover())
        self._recoveries.add(task)
        task.add_done_callback(self._recoveries.discard)
        return task

    async def close(self) -> None:
        """End every worker; jobs in flight end as `infra`. Safe to call twice."""
        self._closed = True
        self._idle.clear()
        for worker in list(self._all):
            worker.kill()
        if self._recoveries:
            await asyncio.gather(*self._recoveries)
        for worker in list(self._all):
            self._all.discard(worker)
            await worker.close()
        if self._scratch:
            shutil.rmtree(self._scratch, ignore_errors=True)
