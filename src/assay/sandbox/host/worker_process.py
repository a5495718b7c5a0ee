"""The parent's handle of one warm worker: start it, run one job at a time on it, end it.

A worker that dies, or does not answer long past a job's limit, raises `WorkerDied`; the caller decides on a retry.
Ending a worker means killing the first process of its process namespace, with which the kernel ends all others.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import logging
import math
import os
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from assay.errors import SandboxError
from assay.sandbox.base import AfterRound, Job, JobResult
from assay.sandbox.host import bubblewrap
from assay.sandbox.host.buffers import Buffers
from assay.sandbox.host.cgroups import WorkerGroup
from assay.sandbox.host.results import Ended, result
from assay.sandbox.inside.channel import ASKED, BARE, ENDED, MESSAGE_BYTES, ORDER, PROFILES, Cause, Kind
from assay.sandbox.inside.worker import Setting

log = logging.getLogger(__name__)

OVERDUE_S = 30.0
"""A worker that says nothing this long after its child's limit is taken for dead."""
ENDING_S = 10.0
_BOOT_TEXT_BYTES = 2000

_START = (
    "import sys; sys.path[:0] = {roots!r}; from assay.sandbox.inside.worker import main; sys.exit(main(sys.argv[1]))"
)


class WorkerDied(Exception):
    """The worker went away in the middle of a job, or never came up."""


@dataclass(frozen=True, slots=True)
class Blueprint:
    """How to start workers of one harness."""

    harness: str
    bwrap: str
    mode: bubblewrap.Mode | None
    """None: without walls."""
    seen: bubblewrap.View
    environment: Mapping[str, str]
    executables: tuple[str, ...]
    boot_s: float
    scratch: str = ""
    """Where children without walls get their folders."""
    cgroup: str = ""
    """Control group in which workers get groups of their own; empty for none."""
    must_have_group: bool = False
    """False where the group was found and not asked for: a worker that can have none measures its jobs instead."""


class WorkerProcess:
    """One started worker. Belongs to the event loop that started it."""

    def __init__(self, blueprint: Blueprint) -> None:
        self._blueprint = blueprint
        self._messages: deque[bytes] = deque()
        self._waiting: asyncio.Future[bool] | None = None
        """Of whoever waits for the next message: True when there is one, False when it is late."""
        self._jobs = 0
        self._busy = False
        self._first = 0
        self._leader = -1
        """pidfd of the first process of the worker's namespace, which takes all others with it."""
        self.pid = 0
        """Process id of the worker itself, as this machine sees it; known once it has booted."""
        self.alive = True
        self._closing = False
        self._group: WorkerGroup | None = None
        self._loop = asyncio.get_running_loop()
        with contextlib.ExitStack() as kept, contextlib.ExitStack() as passing:
            try:
                self._open(kept, passing)
            except (OSError, ValueError, KeyError) as error:  # the latter two: half of bubblewrap's answer
                self.alive = False
                raise WorkerDied(f"a worker could not be started: {error!r}") from error
            kept.pop_all()
        self._loop.add_reader(self._socket, self._readable)

    def _open(self, kept: contextlib.ExitStack, passing: contextlib.ExitStack) -> None:
        """Start the process. What has to be undone if that fails goes on `kept`, the worker's ends on `passing`."""
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        kept.enter_context(self._socket)
        passing.enter_context(theirs)
        self._socket.setblocking(False)
        self._said = os.memfd_create("assay-worker-said", os.MFD_CLOEXEC)
        kept.callback(os.close, self._said)
        info, info_end = os.pipe2(os.O_CLOEXEC)
        passing.callback(os.close, info)
        with os.fdopen(info_end, "wb"):
            self._process = self._spawn(theirs.fileno(), info_end)
        kept.callback(_end, self._process)
        self._find_leader(info)

    def _spawn(self, control: int, info_end: int) -> subprocess.Popen[bytes]:
        plan = self._blueprint
        drop_to = 65534 if plan.mode == "drop" else None
        strict = plan.mode is not None
        scratch = plan.seen.scratch if strict else plan.scratch
        devices = bool(plan.seen.devices)
        setting = Setting(control, plan.harness, strict, drop_to, devices, scratch, plan.executables)
        start = _START.format(roots=list(plan.seen.import_roots))
        program = [sys.executable, "-s", "-P", "-B", "-c", start, json.dumps(asdict(setting))]
        outer: dict[str, str] = {}
        if plan.mode is not None:
            program = bubblewrap.command(plan.bwrap, plan.mode, plan.seen, plan.environment, info_end, program)
        else:
            outer = {**bubblewrap.ENVIRONMENT, "HOME": scratch, "TMPDIR": scratch, **plan.environment}
        nobody = plan.mode == "nobody"
        return subprocess.Popen(
            program,
            stdin=subprocess.DEVNULL,
            stdout=self._said,
            stderr=self._said,
            pass_fds=(control, info_end),
            env=outer,
            cwd="/",
            start_new_session=True,
            user=65534 if nobody else None,
            group=65534 if nobody else None,
            extra_groups=[] if nobody else None,
        )

    def _find_leader(self, info: int) -> None:
        """Learn which process bubblewrap started; empty where it failed, which the boot then reports."""
        if self._blueprint.mode is None:
            self._first = self._process.pid
        else:
            text = b""
            while part := os.read(info, 4096):
                text += part
            self._first = int(json.loads(text)["child-pid"]) if text else 0
        if self._first:
            with contextlib.suppress(ProcessLookupError):
                self._leader = os.pidfd_open(self._first)

    def _readable(self) -> None:
        try:
            message = self._socket.recv(MESSAGE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            message = b""
        if not message:
            self.alive = False
            self._loop.remove_reader(self._socket)
        self._arrived(message)

    def _arrived(self, message: bytes) -> None:
        self._messages.append(message)
        self._wake(True)

    def _wake(self, there: bool) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(there)

    async def _next(self, timeout_s: float) -> bytes:
        """The next message. Raises WorkerDied when there will be none, or none came in time."""
        if not self._messages:
            if not self.alive:
                raise WorkerDied("the worker is dead")
            self._waiting = self._loop.create_future()
            late = self._loop.call_later(timeout_s, self._wake, False)
            try:
                there = await self._waiting
            finally:
                late.cancel()
            if not there:
                self.kill()
                raise WorkerDied(f"the worker said nothing for {timeout_s:.0f} s")
        message = self._messages.popleft()
        if not message:
            raise WorkerDied("the worker died")
        return message

    async def boot(self) -> None:
        """Wait until it is warm.

        Raises:
            SandboxError: it says itself that it cannot run jobs.
            WorkerDied: it died or stalled at its start.
        """
        try:
            message = await self._next(self._blueprint.boot_s)
        except WorkerDied as error:
            raise WorkerDied(f"{error} at its start. It wrote: {self._last_words() or 'nothing'}") from error
        if message[0] != Kind.READY:
            text = message[BARE.size :].decode("utf-8", "replace")
            raise SandboxError(
                f"A worker for the harness {self._blueprint.harness} cannot run untrusted code safely, so none is run: "
                f"{text}. If a wall is missing, {_cure()} If the harness failed, see its preload()."
            )
        self.pid = self._first if self._blueprint.mode is None else _only_child(self._first)
        if self._blueprint.cgroup:
            self._group = self._own_group()

    def _own_group(self) -> WorkerGroup | None:
        """The control group that bounds this worker's jobs; None where it can have none and need not.

        Raises:
            SandboxError: the group that was asked for cannot be divided.
            WorkerDied: it died meanwhile.
        """
        home, group = self._blueprint.cgroup, None
        try:
            group = WorkerGroup(home, f"assay-{os.getpid()}-{self.pid}")
            group.add(self.pid)
            return group
        except (OSError, SandboxError) as error:
            if group is not None:
                with contextlib.suppress(OSError):  # empty; if it cannot be removed now, the next start does it
                    group.close()
            if isinstance(error, ProcessLookupError):
                raise WorkerDied("it died when it had just booted") from error
            if self._blueprint.must_have_group:
                said = f"A worker cannot be moved into a group of its own in cgroup={home!r} ({error})."
                raise error if isinstance(error, SandboxError) else SandboxError(said) from error
            log.warning("no control group can be made any more, so a worker measures its jobs itself: %s", error)
            return None

    def _last_words(self) -> str:
        if self._said < 0:  # closed while it was starting
            return ""
        return os.pread(self._said, _BOOT_TEXT_BYTES, 0).decode("utf-8", "replace").strip()

    def _send(self, kind: Kind, number: int) -> None:
        try:
            self._socket.send(BARE.pack(kind, number))
        except OSError as error:
            raise WorkerDied(f"the worker cannot be reached: {error}") from error

    async def run(self, job: Job, buffers: Buffers, after_round: AfterRound | None) -> JobResult:
        """One attempt at a job.

        Raises:
            WorkerDied: the outcome is unknown.
        """
        self._jobs += 1
        number = self._jobs
        limits = job.limits
        order = ORDER.pack(
            Kind.JOB,
            number,
            limits.wall_s,
            math.ceil(limits.cpu_s),
            limits.memory_mb,
            limits.tmp_mb,
            limits.processes,
            limits.open_files,
            PROFILES.index(job.profile),
            job.pause,
            self._group is None and may_spread(job.profile),
        )
        try:
            if self._group is not None:
                self._group.allow((limits.memory_mb << 20) + buffers.size)
            socket.send_fds(self._socket, [order], buffers.descriptors)
        except OSError as error:
            raise WorkerDied(f"the worker cannot be reached: {error}") from error
        self._busy = True
        turns: list[float] = []
        outputs: list[tuple[bytes, ...]] = []
        stopped = overdone = False
        while True:
            message = await self._next(limits.wall_s + OVERDUE_S)
            if message[0] == Kind.DONE:
                self._busy = False
                break
            turns.append(ASKED.unpack(message)[2])
            done = len(turns) - 1
            if 0 < done < len(job.rounds):
                outputs.append(buffers.take(done - 1))
                stopped = after_round is not None and not await _verdict(after_round, done - 1, outputs[-1])
            overdone = done > len(job.rounds)
            if stopped or overdone:
                self._send(Kind.KILL, number)
            elif done < len(job.rounds):
                buffers.deliver(done)
                self._send(Kind.GO, number)
            else:
                self._send(Kind.END, number)
        _, cause, _, status, wall_s, cpu_s = ENDED.unpack_from(message)
        text = message[ENDED.size :].decode("utf-8", "replace")
        if len(turns) > len(job.rounds):
            outputs.append(buffers.take(len(job.rounds) - 1))
        ended = Ended(Cause(cause), status, wall_s, cpu_s, text, stopped, overdone)
        return result(job, buffers, ended, outputs, turns)

    async def abandon(self) -> bool:
        """Kill the job in flight, if any, and wait for its end; False if the worker did not survive it."""
        try:
            if self._busy:
                self._send(Kind.KILL, self._jobs)
            while self._busy:
                self._busy = (await self._next(OVERDUE_S))[0] != Kind.DONE
        except WorkerDied:
            return False
        return self.alive

    def kill(self) -> None:
        """End the worker and everything in it, now."""
        self.alive = False
        if self._process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            if self._leader >= 0:
                signal.pidfd_send_signal(self._leader, signal.SIGKILL)
            else:
                bubblewrap.kill(self._process)

    async def close(self) -> None:
        """End it and wait until it and all its children are gone. Safe to call twice."""
        if self._closing:
            return
        self._closing = True
        self.kill()
        self._loop.remove_reader(self._socket)
        self._socket.close()
        self._arrived(b"")  # a waiter for its next message learns that there is none
        deadline = time.monotonic() + ENDING_S
        while self._process.poll() is None:
            if time.monotonic() > deadline:
                bubblewrap.kill(self._process)
            await asyncio.sleep(0.002)
        if self._leader >= 0:
            os.close(self._leader)
            self._leader = -1
        os.close(self._said)
        self._said = -1
        if self._group is not None:
            try:
                await asyncio.to_thread(self._group.close)
            except OSError as error:
                log.warning("a control group is left behind, which the next start removes: %s", error)


def may_spread(profile: str) -> bool:
    """Whether jobs of a profile may hold more memory than their limit in several processes, so that without a control
    group the worker has to measure them."""
    return profile.endswith("compile")


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill a process that never became a worker; what bubblewrap started dies with it."""
    bubblewrap.kill(process)
    process.wait()


def _only_child(pid: int) -> int:
    """The process that bubblewrap's first process started; that itself where the kernel does not say."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    except OSError:
        return pid
    return int(children[0]) if len(children) == 1 else pid


async def _verdict(after_round: AfterRound, index: int, outputs: tuple[bytes, ...]) -> bool:
    answer = after_round(index, outputs)
    return await answer if inspect.isawaitable(answer) else answer


def _cure() -> str:
    from assay.sandbox.host.probe import NAMESPACE_CURE

    return f"{NAMESPACE_CURE}; or set sandbox=unsafe, which has no walls at all."
