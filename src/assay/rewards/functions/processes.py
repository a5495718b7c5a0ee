"""Worker processes that a reward function runs in when it may hang: at its deadline a process is killed and replaced.

Each process is spawned (nothing of a parent with threads is forked) and owned by one thread, which hands it one call at
a time. A process imports the function by its module or file; it ends with its pipe, with its parent, or at a deadline,
together with everything that it started.
"""

from __future__ import annotations

import asyncio
import logging
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import Any, NamedTuple

from assay.errors import ConfigError, RewardError
from assay.plugins import Kind, in_words, reference_to

logger = logging.getLogger(__name__)

START_S = 120.0
"""Longest that a process may take to import the function's file."""
BUSY_SHARE = 0.25
"""A call that used more than this share of its time limit as processor time was computing."""
LAST_WORDS_S = 5.0
"""How long a process that has closed its pipe may take to end."""
MOST_BY_DEFAULT = 4
FUNCTION = Kind("reward function")


class Failure(NamedTuple):
    """Why a function returned nothing."""

    kind: str
    """`timeout`, `died`, or `reward`: its own code raised."""
    message: str
    busy: bool = False
    """A timeout at which the function had been computing, and had not waited for something or for a processor."""


@dataclass(eq=False)
class _Job:
    payload: bytes
    future: Future[Any]
    worker: _Worker | None = None
    """Whose process has it."""


class Processes:
    """A pool of worker processes for one function; they start when they are needed. A `Place` for functions.

    Args:
        said: names the function in messages.
        timeout_s: longest that one call may take; None waits without limit.
        count: most processes; None takes as many as there are CPUs, at most four.

    Raises:
        ConfigError: the function cannot be imported by another process.
    """

    def __init__(self, function: Callable[..., Any], said: str, timeout_s: float | None, count: int | None) -> None:
        self._reference = _importable(function, said)
        self._said, self._timeout_s = said, timeout_s
        self._count = count or min(MOST_BY_DEFAULT, os.cpu_count() or 1)
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._workers: list[_Worker] = []
        self._pending = 0

    async def call(self, arguments: Mapping[str, Any]) -> Any:
        """What the function returns, or why it did not.

        Raises:
            ConfigError: the process cannot load the function, or an argument cannot be sent.
        """
        try:
            payload = pickle.dumps(dict(arguments))
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            what = f"{self._said} runs in other processes, and one of its columns cannot be sent to them"
            raise ConfigError(f"{what}: {error}.") from error
        job = self._submit(payload)
        try:
            return await asyncio.wrap_future(job.future)
        except asyncio.CancelledError:
            if (worker := job.worker) is not None:
                worker.drop(job)
            raise

    def _submit(self, payload: bytes) -> _Job:
        if self._pid != os.getpid():  # a forked child has none of these threads
            self._pid, self._lock, self._jobs = os.getpid(), threading.Lock(), queue.SimpleQueue()
            self._workers, self._pending = [], 0
        job = _Job(payload, Future())
        with self._lock:
            self._pending += 1
            job.future.add_done_callback(self._on_done)
            if len(self._workers) < min(self._count, self._pending):
                worker = _Worker(self._reference, self._said, self._timeout_s, self._jobs)
                self._workers.append(worker)
                worker.start()
            self._jobs.put(job)
        return job

    def _on_done(self, _: Future[Any]) -> None:
        with self._lock:
            self._pending -= 1

    def close(self) -> None:
        """Kill the processes, fail the calls under way, and wait for the threads."""
        if self._pid != os.getpid():
            return
        with self._lock:
            workers, self._workers = self._workers, []
            jobs, self._jobs = self._jobs, queue.SimpleQueue()
        for worker in workers:
            worker.stop()
        with suppress(queue.Empty):
            while True:
                job = jobs.get_nowait()
                if job is not None and job.future.set_running_or_notify_cancel():
                    job.future.set_exception(_closed(self._said))
        for _ in workers:
            jobs.put(None)
        for worker in workers:
            worker.join()


class _Worker(threading.Thread):
    """Owns one process at a time, and gives it one call at a time."""

    def __init__(
        self, reference: str, said: str, timeout_s: float | None, jobs: queue.SimpleQueue[_Job | None]
    ) -> None:
        super().__init__(name="assay-reward-process", daemon=True)
        self._reference, self._said, self._timeout_s = reference, said, timeout_s
        self._jobs = jobs
        self._lock = threading.Lock()
        """Held while the process is started or killed, and while `_job` changes."""
        self._job: _Job | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: Connection | None = None
        self._stopped = False

    def run(self) -> None:
        """Work until there is no more."""
        while (job := self._jobs.get()) is not None:
            self._take(job)  # first: whoever cancels it from now on finds this worker
            if not job.future.set_running_or_notify_cancel():
                continue
            try:
                job.future.set_result(self._run(job.payload))
            except (ConfigError, RewardError) as error:
                job.future.set_exception(error)
            finally:
                self._take(None)
        self._kill()

    def _take(self, job: _Job | None) -> None:
        with self._lock:
            self._job = job
            if job is not None:
                job.worker = self

    def drop(self, job: _Job) -> None:
        """Kill the process if it runs this job, whose result is no longer awaited. From any thread."""
        with self._lock:
            if self._job is job and self._process is not None:
                _kill(self._process)

    def stop(self) -> None:
        """Kill the process, so that a call under way ends now. From any thread."""
        with self._lock:
            self._stopped = True
            if self._process is not None:
                _kill(self._process)

    def _run(self, payload: bytes) -> Any:
        """The outcome of one call."""
        pipe = self._pipe if self._pipe is not None else self._start()
        before = self._cpu_s()
        try:
            pipe.send_bytes(payload)
            if not pipe.poll(self._timeout_s):
                used = self._cpu_s() - before
                self._kill()
                took = f"{self._said} took longer than timeout_s={self._timeout_s:g}"
                busy = self._timeout_s is not None and used > BUSY_SHARE * self._timeout_s
                return Failure("timeout", f"{took}, and its process was killed", busy)
            answer = pipe.recv_bytes()
        except (EOFError, OSError):
            return self._on_death()
        try:
            kind, value = pickle.loads(answer)
        except Exception as error:  # noqa: BLE001 - an object of the user's own is made again by the user's code
            what = f"{self._said} returned an object that its process cannot hand over"
            return Failure("reward", f"{what}: {in_words(error)}")
        return Failure("reward", value) if kind == "raised" else value

    def _cpu_s(self) -> float:
        """Processor time of the process so far; 0 where the system does not say."""
        assert self._process is not None
        try:
            stat = Path(f"/proc/{self._process.pid}/stat").read_text()
            user, system = stat.rpartition(")")[2].split()[11:13]
            return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")
        except (OSError, ValueError):
            return 0.0

    def _start(self) -> Connection:
        """Start a process that has loaded the function.

        Raises:
            ConfigError: it cannot load it, or hangs meanwhile.  RewardError: this machine starts no process.
        """
        try:
            ours, theirs = Pipe()
            with theirs, self._lock:
                if self._stopped:
                    raise _closed(self._said)
                self._process = _started(theirs)
        except OSError as error:
            raise RewardError(f"No process for {self._said} could be started: {error}.") from error
        try:
            ours.send((os.getpid(), sys.path, self._reference))
            problem = ours.recv() if ours.poll(START_S) else f"it did not start within {START_S:g} s"
        except (EOFError, OSError):
            problem = "the process died"
        if problem:
            self._kill()
            if self._stopped:
                raise _closed(self._said)
            raise ConfigError(f"{self._said} cannot be loaded by the processes that should run it: {problem}")
        self._pipe = ours
        return ours

    def _on_death(self) -> Failure:
        if self._stopped:
            raise _closed(self._said)
        assert self._process is not None
        try:
            status = self._process.wait(LAST_WORDS_S)
        except subprocess.TimeoutExpired:
            return Failure("died", f"the process of {self._said} closed its pipe while it scored this sample")
        finally:
            self._kill()
        how = signal.Signals(-status).name if status < 0 else f"exit status {status}"
        return Failure("died", f"the process of {self._said} died ({how}) while it scored this sample")

    def _kill(self) -> None:
        with self._lock:
            if self._pipe is not None:
                self._pipe.close()
            if self._process is not None:
                _kill(self._process)
                self._process.wait()
            self._process = self._pipe = None


def _started(pipe: Connection) -> subprocess.Popen[bytes]:
    """A process that is served through `pipe`."""
    return subprocess.Popen(
        [sys.executable, "-m", "assay.rewards.functions.worker", str(pipe.fileno())],
        pass_fds=[pipe.fileno()],
        stdin=subprocess.DEVNULL,
        stdout=sys.__stderr__.fileno() if sys.__stderr__ is not None else subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": _search_path()},
        start_new_session=True,
    )


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and what it has started."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _closed(said: str) -> RewardError:
    return RewardError(f"The engine was closed before {said} had scored this sample.")


def _search_path() -> str:
    """`PYTHONPATH` with the folder that Assay was imported from, so that the process has the same one."""
    home = str(Path(__file__).parents[3])
    return os.pathsep.join([home, *filter(None, [os.environ.get("PYTHONPATH")])])


def _importable(function: Any, said: str) -> str:
    """The reference by which another process finds a function.

    Raises:
        ConfigError: there is no such reference.
    """
    cure = "Move it to the top level of a file of its own and import it, or leave out timeout_s and processes."
    name = getattr(function, "__qualname__", None)
    if name is None or "<" in name:
        raise ConfigError(
            f"{said} is to run in other processes, which cannot import a function that was made by code. {cure}"
        )
    if function.__module__ == "__main__":
        raise ConfigError(f"{said} is to run in other processes, which would run your whole script to find it. {cure}")
    return reference_to(function, FUNCTION)
