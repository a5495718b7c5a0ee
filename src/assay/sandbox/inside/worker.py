"""The warm process that jobs are forked from: single-threaded, without secrets, trusted to supervise.

    parent --order, descriptors--> worker --fork into new namespaces--> child

It imports the harness once, then waits. Per job it forks a child, relays its requests, keeps its clock, kills it at its
limit and says how it ended. It never reads a candidate or an input: whatever it holds, later children inherit. It ends
when its parent's socket closes; the kernel then ends everything in its process namespace.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import importlib
import json
import os
import resource
import select
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NoReturn

from assay.sandbox.inside import child, jail, linux, measure, wall_check
from assay.sandbox.inside.channel import (
    ASK_BYTE,
    ASKED,
    BARE,
    END_BYTE,
    ENDED,
    GO_BYTE,
    MESSAGE_BYTES,
    ORDER,
    PROFILES,
    REFUSED,
    STARTED,
    Cause,
    Kind,
)
from assay.sandbox.inside.seccomp import Filter
from assay.sandbox.inside.syscalls import machine

MIB = 1 << 20
TEXT_BYTES = 4096
JOBS_OF_A_BUSY_WORKER = 2
"""After so many a worker spends a third of a second on cheaper forks, which a single job would not pay back."""
WALLS_S = 20.0
"""A child whose walls are not up by then is given up."""
_FDS_OF_AN_ORDER = 4


@dataclass(frozen=True, slots=True)
class Setting:
    """What the parent tells a worker at its start, as JSON."""

    control: int
    """Descriptor of the socket to the parent."""
    harness: str
    strict: bool
    """False: no walls, because the user said so."""
    drop_to: int | None
    """User to become for good, where the worker was started as root."""
    devices: bool
    """Whether there are devices, whose drivers need to see a /proc."""
    scratch: str
    """Where each child gets its private folder; in unsafe mode, the folder in which such folders are made."""
    executables: tuple[str, ...] = ()
    """What the compile profile may execute; empty means whatever is in view."""


@dataclass(slots=True)
class _Running:
    """A child and its clock. `since` is when the child's turn to move began, None while its parent's turn lasts."""

    number: int
    pid: int
    pidfd: int
    up: int
    down: int
    wall_s: float
    scratch: str
    pause: bool = False
    """Whether the child is stopped during its parent's turns."""
    most_bytes: int | None = None
    """What its processes may hold together, where the worker has to measure that."""
    since: float | None = field(default_factory=time.monotonic)
    spent_s: float = 0.0
    """In turns that are over."""
    cause: Cause = Cause.LEFT
    started: bool = False
    refusal: bytes = b""

    def left_s(self) -> float | None:
        """Seconds until its limit, None while its clock stands still. Putting up walls is not charged to the job."""
        if self.since is None:
            return None
        limit_s = self.wall_s - self.spent_s if self.started else WALLS_S
        return limit_s - (time.monotonic() - self.since)

    def stop_clock(self) -> float:
        """End the child's turn; returns how long it was."""
        if self.since is None:
            return 0.0
        turn_s = time.monotonic() - self.since
        self.spent_s, self.since = self.spent_s + turn_s, None
        return turn_s


class Worker:
    """One worker; `serve` returns when the parent is gone."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._control = socket.socket(fileno=setting.control)
        self._filters = [Filter(machine(), _compiles(p), _drives_devices(p)) for p in PROFILES]
        self._shared_bytes = 0

    def boot(self) -> None:
        """Become harmless, import the harness, warm it, and prove on a trial child that the walls stand."""
        setting = self._setting
        gc.disable()  # for good: it costs a tenth of an import, and a fork copies every page that it touches
        if setting.drop_to is not None:
            if setting.devices:
                linux.uncover("/proc")  # beside a covered one no child may mount its own
            linux.become(setting.drop_to)
        if setting.strict:
            linux.die_with_parent()
        linux.set_dumpable(False)
        linux.no_new_privileges()
        linux.default_signals()
        harness = importlib.import_module(setting.harness)
        harness.preload()
        threads = len(os.listdir("/proc/self/task"))
        if threads != 1:
            raise RuntimeError(f"{setting.harness}.preload() left {threads} threads; a fork of them would hang")
        linux.prepare_forks()
        gc.freeze()
        if setting.strict:
            self._try_walls()
        with open("/proc/self/statm", encoding="ascii") as file:
            self._shared_bytes = int(file.read().split()[0]) * resource.getpagesize()
        self._say(Kind.READY)

    def serve(self) -> None:
        """Run jobs until the parent closes its socket."""
        done = 0
        while True:
            message, descriptors, _, _ = socket.recv_fds(self._control, MESSAGE_BYTES, _FDS_OF_AN_ORDER)
            if not message:
                return
            if message[0] != Kind.JOB:
                continue  # of a job that ended meanwhile
            try:
                running = self._start(message, descriptors)
            except OSError as error:
                number = ORDER.unpack(message)[1]
                ended = ENDED.pack(Kind.DONE, Cause.WALLS, number, 0, 0.0, 0.0)
                self._control.send(ended + str(error).encode()[:TEXT_BYTES])
                continue
            finally:
                for descriptor in descriptors:
                    os.close(descriptor)
            if not self._supervise(running):
                return
            done += 1
            if done == JOBS_OF_A_BUSY_WORKER:
                linux.use_huge_pages()

    def _say(self, kind: Kind, text: str = "") -> None:
        self._control.send(BARE.pack(kind, 0) + text.encode("utf-8", "replace")[:TEXT_BYTES])

    def report_broken(self, text: str) -> None:
        """Tell the parent why no job can be run."""
        self._say(Kind.BROKEN, text)

    def _start(self, message: bytes, descriptors: list[int]) -> _Running:
        _, number, wall_s, cpu_s, memory_mb, *rest = ORDER.unpack(message)
        tmp_mb, processes, open_files, profile, pause, measured = rest
        job, inputs, outputs, stderr = descriptors
        buffers = os.fstat(inputs).st_size + os.fstat(outputs).st_size
        quota = jail.Quota(
            cpu_s=cpu_s,
            memory=self._shared_bytes + buffers + memory_mb * MIB,
            tmp_bytes=tmp_mb * MIB,
            processes=processes,
            open_files=open_files,
            sparse=_drives_devices(PROFILES[profile]),
        )
        running = self._fork(number, wall_s, (job, inputs, outputs, stderr), quota, PROFILES[profile], child.main)
        running.pause, running.most_bytes = bool(pause), buffers + memory_mb * MIB if measured else None
        return running

    def _fork(
        self,
        number: int,
        wall_s: float,
        files: tuple[int, int, int, int],
        quota: jail.Quota,
        profile: str,
        main: Callable[[], NoReturn],
    ) -> _Running:
        """Start a child that puts up its walls and then calls `main`."""
        setting = self._setting
        scratch = setting.scratch if setting.strict else tempfile.mkdtemp(prefix="assay-job-", dir=setting.scratch)
        from_child, low = os.pipe2(os.O_CLOEXEC)
        up = fcntl.fcntl(low, fcntl.F_DUPFD_CLOEXEC, jail.SPARE_FD)
        os.close(low)
        down, to_child = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(to_child, False)
        try:
            pid, pidfd = linux.fork(jail.NAMESPACES if setting.strict else 0)
            if pid == 0:
                self._control.detach()
                _enter(setting, jail.Descriptors(*files, up, down), quota, scratch, self._filters, profile, main)
        except OSError:
            os.close(from_child)
            os.close(to_child)
            raise
        finally:
            os.close(up)
            os.close(down)
        return _Running(number, pid, pidfd, from_child, to_child, wall_s, scratch)

    def _supervise(self, job: _Running) -> bool:
        """Relay, keep the clock, kill at the limit, say how it ended; False if the parent is gone."""
        poller = select.poll()
        for descriptor in (self._control.fileno(), job.up, job.pidfd):
            poller.register(descriptor, select.POLLIN)
        connected = True
        while True:
            left_s = job.left_s()
            if left_s is not None and left_s <= 0:
                job.cause = Cause.TIMEOUT if job.started else Cause.WALLS
                job.refusal = job.refusal or b"they were not up after %d s" % WALLS_S
                break
            if job.most_bytes is not None:
                left_s = min(measure.EVERY_S if left_s is None else left_s, measure.EVERY_S)
                if job.started and measure.too_much(job.pid, job.most_bytes):
                    job.cause = Cause.MEMORY
                    break
            ready = {fd for fd, _ in poller.poll(None if left_s is None else max(1, int(left_s * 1000) + 1))}
            if job.up in ready and not self._hear(job):
                poller.unregister(job.up)
            if self._control.fileno() in ready:
                connected = self._obey(job)
                if not connected or job.cause == Cause.KILLED:
                    break
            if job.pidfd in ready:
                break
        self._finish(job, connected)
        return connected

    def _hear(self, job: _Running) -> bool:
        """One byte of the child; False when nothing more need be heard."""
        byte = os.read(job.up, 1)
        if not byte:
            return False
        if not job.started:
            job.started = byte == STARTED
            job.since = time.monotonic()
            if byte == REFUSED:
                job.cause = Cause.WALLS
                job.refusal = os.read(job.up, TEXT_BYTES)
            return job.started
        if byte == ASK_BYTE and job.since is not None:
            turn_s = job.stop_clock()
            if job.pause:
                signal.pidfd_send_signal(job.pidfd, signal.SIGSTOP)
            self._control.send(ASKED.pack(Kind.ASK, job.number, turn_s))
        return True

    def _obey(self, job: _Running) -> bool:
        """One message of the parent; False if it is gone."""
        message = self._control.recv(MESSAGE_BYTES)
        if not message:
            return False
        kind, number = BARE.unpack_from(message)
        if number != job.number:
            return True
        if kind == Kind.KILL:
            job.cause = Cause.KILLED
        elif kind in (Kind.GO, Kind.END):
            job.since = time.monotonic()
            with contextlib.suppress(OSError):  # it closed its pipe or died: its end or its limit will tell
                os.write(job.down, GO_BYTE if kind == Kind.GO else END_BYTE)
                if job.pause:
                    signal.pidfd_send_signal(job.pidfd, signal.SIGCONT)
        return True

    def _finish(self, job: _Running, connected: bool) -> None:
        """Kill what is left, reap it, and report."""
        strict = self._setting.strict
        signal.pidfd_send_signal(job.pidfd, signal.SIGKILL)
        if not strict:
            linux.kill_session(job.pid)
        _, status, usage = os.wait4(job.pid, 0)
        if not strict:
            shutil.rmtree(job.scratch, ignore_errors=True)
        job.stop_clock()
        for descriptor in (job.pidfd, job.up, job.down):
            os.close(descriptor)
        cause = job.cause if job.started or job.cause != Cause.LEFT else Cause.WALLS
        if connected:
            cpu_s = usage.ru_utime + usage.ru_stime
            ended = ENDED.pack(Kind.DONE, cause, job.number, status, job.spent_s, cpu_s)
            self._control.send(ended + (job.refusal[:TEXT_BYTES] if cause == Cause.WALLS else b""))

    def _try_walls(self) -> None:
        """Run the trial child. Raises RuntimeError with the wall that is missing."""
        files = [linux.sealed_file("trial", 1 << 16, 0) for _ in range(4)]
        quota = jail.Quota(cpu_s=10, memory=1 << 40, tmp_bytes=MIB, processes=8, open_files=64)
        try:
            job = self._fork(0, 60.0, (files[0], files[1], files[2], files[3]), quota, "numerics", wall_check.main)
            try:
                text = b""
                while part := os.read(job.up, TEXT_BYTES):
                    text += part
            finally:
                os.wait4(job.pid, 0)
                for descriptor in (job.pidfd, job.up, job.down):
                    os.close(descriptor)
        finally:
            for file in files:
                os.close(file)
        if text != STARTED:
            raise RuntimeError(text.removeprefix(REFUSED).decode("utf-8", "replace") or "the trial child died")


def _enter(
    setting: Setting,
    descriptors: jail.Descriptors,
    quota: jail.Quota,
    scratch: str,
    filters: list[Filter],
    profile: str,
    main: Callable[[], NoReturn],
) -> NoReturn:
    """In the child: walls first, then `main`. Says which wall could not be put up, and never returns."""
    try:
        if setting.strict:
            executables = list(setting.executables) if _compiles(profile) else []
            program = filters[PROFILES.index(profile)].address
            devices = setting.devices and _drives_devices(profile)
            jail.enter(descriptors, quota, scratch, program, executables, devices)
        else:
            jail.enter_unsafe(descriptors, quota, scratch)
        gc.enable()
        main()
    except BaseException as error:  # noqa: BLE001 - without its walls a candidate must not run, whatever went wrong
        for pipe in (descriptors.up, jail.UP_FD):
            try:
                os.write(pipe, REFUSED + str(error).encode("utf-8", "replace")[:TEXT_BYTES])
                break
            except OSError:
                continue
        os._exit(1)


def _compiles(profile: str) -> bool:
    """Whether jobs of a profile may start processes."""
    return profile.endswith("compile")


def _drives_devices(profile: str) -> bool:
    """Whether jobs of a profile may use the devices of the sandbox."""
    return profile.startswith("gpu")


def main(text: str) -> int:
    """Run a worker with this `Setting` (as JSON) until its parent is gone; returns the exit status."""
    setting = Setting(**json.loads(text))
    worker = Worker(setting)
    try:
        worker.boot()
    except Exception as error:  # noqa: BLE001 - a worker that cannot boot says why; its parent decides
        worker.report_broken(f"{type(error).__name__}: {error}")
        return 1
    worker.serve()
    if not setting.strict:  # the parent may have been killed
        shutil.rmtree(setting.scratch, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
