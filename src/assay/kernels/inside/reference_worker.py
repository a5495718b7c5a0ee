"""The process that runs references: PyTorch, and one fork for each request, behind the walls of the sandbox.

Started by `assay.kernels.numerics.reference` in a view of its own, without network and environment; imports PyTorch
once. Requests and answers are byte strings behind their length (8 bytes, little endian), on what were standard input
and output. A problem is somebody else's code: its fork lies in namespaces of its own and can do no more than a
candidate's (`assay.sandbox.inside.jail`). The fork keeps what a problem does to PyTorch's state, to descriptors or to
memory from the next request, and is killed at its deadline, when the parent is gone, and with all that it started when
it ends. What a problem prints is dropped.
"""

from __future__ import annotations

import gc
import json
import math
import os
import random
import resource
import select
import signal
import sys
import time
import traceback
from typing import Literal, NoReturn

import numpy.ma  # noqa: F401  np.unique imports it when it is first called, which would be in each fork
import torch

from assay.kernels.frames import Frame, write_frame
from assay.kernels.inside.problem import truncated
from assay.kernels.inside.problem.cases import TooLargeError, out_of_memory
from assay.kernels.inside.reference_model import evaluate, shapes
from assay.kernels.numerics.families import FAMILIES
from assay.sandbox.inside import jail, linux
from assay.sandbox.inside.seccomp import Filter
from assay.sandbox.inside.syscalls import machine
from assay.types import Json

_MEBIBYTE = 1 << 20
_DONE = 90
"""Exit status of a fork that wrote its answer; a problem that leaves by itself gives another."""
_WARM_UP: Json = {
    "code": """
import torch
class Model(torch.nn.Linear):
    pass
get_inputs = lambda: [torch.ones(2, 3)]
get_init_inputs = lambda: [3, 2]
""",
    **{"input_seed": 0, "weight_seed": 0, "families": list(FAMILIES), "precision": "float32", "device": "cpu"},
    **{
        "screen": True,
        "perturb": "none",
        "only": [],
        "manners": {},
        "state": True,
        "max_output": None,
        "number_seed": 0,
    },
}
"""What PyTorch and NumPy do for the first time takes longer than most problems; done before a fork, it is done once."""
_LOOK_S = 2.0
"""Seconds between looks at whether the parent still lives, where its end of a pipe may be held by others."""
_REAP_S = 2.0
_SCRATCH_BYTES = 64 * _MEBIBYTE
_RESERVE_BYTES = 512 * _MEBIBYTE
"""Address space beyond a problem's limit in which its answer is written."""
_REQUESTS_OF_A_BUSY_WORKER = 3
"""After so many requests it pays to spend a third of a second on cheaper forks. One grade makes two at most."""


def answer(request: Json) -> Frame:
    """The answer to a request, which may say that there is none."""
    try:
        return shapes(request) if request["shapes"] else evaluate(request)
    except TooLargeError as error:
        return Frame({"error": "too_large", "message": str(error)})
    except BaseException as error:  # noqa: BLE001  the boundary: whatever a problem raises is its own failure, named
        text = "".join(traceback.format_exception_only(error)).strip()[:2000]
        if _asks_for_the_machine(error):
            text += _SEALED_OFF
        return Frame({"error": "memory" if out_of_memory(error) else "error", "message": text})


_SEALED_OFF = (
    " (A problem runs sealed off: it sees the installed packages and a small scratch folder, and neither other files "
    "nor the network nor any variable of the environment, and starts no process. Let it make its data itself.)"
)


def _asks_for_the_machine(error: BaseException) -> bool:
    """Whether an error may come of what a problem cannot reach: files, network, processes, variables, own modules."""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    from_os = last is not None and last.tb_frame.f_globals.get("__name__") == "os"
    return isinstance(error, OSError | ImportError) or (isinstance(error, KeyError) and from_os)


class Walls:
    """What each fork of a worker puts up around itself, made once."""

    def __init__(self, scratch: str, devices: bool) -> None:
        self._scratch, self._devices = scratch, devices
        self._filter = Filter(machine(), False, devices)

    def enter(self, sink: int, request: Json, memory: int) -> int:
        """Put them up; returns the number under which `sink` is open from then on."""
        nothing = os.open(os.devnull, os.O_RDWR)
        files = jail.Descriptors(nothing, nothing, sink, nothing, nothing, nothing)
        quota = jail.Quota(
            cpu_s=math.ceil(2 * request["timeout_s"]) + 1,
            memory=memory + _RESERVE_BYTES,
            tmp_bytes=_SCRATCH_BYTES,
            processes=64,
            open_files=256,
            file_bytes=request["memory_mb"] * _MEBIBYTE,
            sparse=self._devices,
        )
        jail.enter(files, quota, self._scratch, self._filter.address, [], self._devices)
        return jail.OUTPUT_FD


def _enter_unsafe(private: tuple[int, ...]) -> None:
    """Without walls: close what is the worker's own, and drop what is printed."""
    linux.die_with_parent()
    for descriptor in private:
        os.close(descriptor)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(nowhere, standard)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _run_child(request: Json, sink: int, private: tuple[int, ...], walls: Walls | None) -> NoReturn:
    """Answer in a fork, and leave in a way that only an answered request does."""
    status, myself = 1, os.getpid()
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        gc.enable()
        before = _resident_kib()
        limit = request["memory_mb"] * _MEBIBYTE + _address_space()
        if walls is not None:
            sink = walls.enter(sink, request, limit)
        else:
            _enter_unsafe(private)
        _, ceiling = resource.getrlimit(resource.RLIMIT_AS)
        if request["device"] == "cpu":  # CUDA reserves terabytes of addresses that it never uses
            resource.setrlimit(resource.RLIMIT_AS, (limit if ceiling < 0 else min(limit, ceiling), ceiling))
        random.seed()  # forks share its state, and a problem may draw from it
        frame = answer(request)
        if os.getpid() != myself:
            os._exit(status)  # a fork that the problem made and forgot: one answer is enough
        # What the problem left behind may fill the limit, and its answer has still to be written.
        resource.setrlimit(resource.RLIMIT_AS, (ceiling, ceiling))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        frame.header["peak_mb"] = max(0, peak - before) / 1024
        with os.fdopen(sink, "wb") as file:
            write_frame(file, frame)
        status = _DONE
    finally:
        os._exit(status)


def _address_space() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


def _resident_kib() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize() // 1024


class Worker:
    """Both ends of the conversation with the parent, and the fork that is at work."""

    def __init__(self, requests: int, answers: int, walls: Walls | None) -> None:
        self.requests, self.answers, self.walls = requests, answers, walls
        self.parent = os.getppid()

    def serve(self) -> None:
        """Answer requests until the parent is gone."""
        linux.prepare_forks()
        answered = 0
        while (size := self._read(8)) is not None:
            text = self._read(int.from_bytes(size, "little"))
            if text is None:
                return
            self._answer(json.loads(text))
            answered += 1
            if answered == _REQUESTS_OF_A_BUSY_WORKER:
                linux.use_huge_pages()

    def _answer(self, request: Json) -> None:
        sink = os.memfd_create("answer", os.MFD_CLOEXEC)
        try:
            child, handle = linux.fork(jail.NAMESPACES if self.walls is not None else 0)
            if child == 0:
                _run_child(request, sink, (self.requests, self.answers), self.walls)
            ended = self._wait(handle, time.monotonic() + request["timeout_s"])
            os.kill(child, signal.SIGKILL)
            _, status = os.waitpid(child, 0)
            end_descendants()
            if ended == "alone":
                sys.exit("the parent is gone")
            empty = os.fstat(sink).st_size == 0
            if ended == "late" or empty or os.waitstatus_to_exitcode(status) != _DONE:
                _replace(sink, _failure(ended, os.waitstatus_to_exitcode(status), request["timeout_s"]))
            self._send(sink)
        finally:
            os.close(sink)

    def _wait(self, handle: int, deadline: float) -> Literal["ended", "late", "alone"]:
        """Until the child behind a pidfd ends, its time is over, or the parent is gone. The child is not reaped."""
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        poll.register(self.requests, 0)  # a pipe without writers reports POLLHUP unasked
        try:
            while (left := deadline - time.monotonic()) > 0:
                seen = dict(poll.poll(1000 * min(left, _LOOK_S)))
                if handle in seen:
                    return "ended"
                if self.requests in seen or os.getppid() != self.parent:
                    return "alone"
            return "late"
        finally:
            os.close(handle)

    def _read(self, size: int) -> bytes | None:
        """So many bytes of the parent's; None when it is gone."""
        parts = []
        while size:
            ready, _, _ = select.select([self.requests], [], [], _LOOK_S)
            if not ready:
                if os.getppid() != self.parent:
                    return None
                continue
            part = os.read(self.requests, min(size, _MEBIBYTE))
            if not part:
                return None
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def _send(self, source: int) -> None:
        size = os.fstat(source).st_size
        os.write(self.answers, size.to_bytes(8, "little"))
        offset = 0
        while offset < size:
            offset += os.sendfile(self.answers, source, offset, size - offset)


def _failure(ended: str, status: int, limit_s: float) -> Frame:
    if ended == "late":
        return Frame({"error": "timeout", "message": f"it took more than {limit_s:g} s"})
    if status == -signal.SIGXCPU:
        return Frame({"error": "timeout", "message": "it took more than its CPU time"})
    if status == -signal.SIGKILL:
        return Frame({"error": "memory", "message": "its process was killed, as one is when the machine has no memory"})
    how = f"died of {signal.Signals(-status).name}" if status < 0 else f"left with status {status}"
    return Frame({"error": "ended", "message": f"its process {how} before it had an answer"})


def _replace(sink: int, frame: Frame) -> None:
    os.ftruncate(sink, 0)
    os.lseek(sink, 0, os.SEEK_SET)
    with os.fdopen(os.dup(sink), "wb") as file:
        write_frame(file, frame)


def end_descendants() -> None:
    """Kill and reap what a problem started and left; a crowd that grows faster is killed together with this process."""
    deadline = time.monotonic() + _REAP_S
    while time.monotonic() < deadline:
        try:
            while os.waitpid(-1, os.WNOHANG) != (0, 0):
                continue
        except ChildProcessError:
            return
        for child in _children():
            os.kill(child, signal.SIGKILL)
        time.sleep(0.001)
    os.killpg(0, signal.SIGKILL)


def _children() -> list[int]:
    with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
        return [int(word) for word in file.read().split()]


def _leave(*_: object) -> None:
    end_descendants()
    os._exit(0)


def main(scratch: str, drop_to: int | None, device: str) -> None:
    """Answer requests until standard input ends.

    Args:
        scratch: Where each fork gets a private folder; empty for forks without walls.
        drop_to: User to become for good, where the process was started as root.
        device: PyTorch's name of the device that references run on.
    """
    if drop_to is not None:
        linux.become(drop_to)
    walls = Walls(scratch, device != "cpu") if scratch else None
    if walls is not None:
        linux.set_dumpable(False)
        linux.no_new_privileges()
    torch.set_num_threads(1)
    truncated.install()
    evaluate(_WARM_UP)
    gc.freeze()
    linux.adopt_orphans()
    signal.signal(signal.SIGTERM, _leave)
    requests, answers = os.dup(0), os.dup(1)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1):
        os.dup2(nowhere, standard)
    os.write(answers, b"ready\n")
    try:
        Worker(requests, answers, walls).serve()
    except BrokenPipeError:
        sys.exit("the parent is gone")
