"""Starting the process that runs references behind walls, and what passes through its pipes."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Literal

from assay.errors import AssayError, SandboxError
from assay.kernels.devices import nvidia_devices
from assay.sandbox.host import bubblewrap
from assay.sandbox.host.probe import Features, probe, require

Walls = Literal["strict", "unsafe"]

NOBODY = 65534
PCI = ("/sys/devices", "/sys/bus/pci")
"""Where CUDA looks for the place of its GPUs."""
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
_OF_DEVICES = ("CUDA_VISIBLE_DEVICES",)
"""What of the environment a process on a GPU is told."""
_START = (
    "import sys; sys.path[:0] = {roots!r}; import gc; gc.disable(); import json; "
    "from assay.kernels.inside.reference_worker import main; main(*json.loads(sys.argv[1]))"
)
"""Garbage is collected in the forks alone: while PyTorch is imported that would take a tenth of the time."""
_CHUNK = 1 << 20
_KEPT = 64


def launch(python: str, device: str, walls: Walls, ended: threading.Event) -> subprocess.Popen[bytes]:
    """Start the process, with pipes for its standard streams and an environment that holds nothing of this one's.

    Bubblewrap ends it when the thread that started it is gone, and callers' threads come and go; so it is started by a
    thread that waits for `ended`.

    Raises:
        SandboxError: this machine cannot wall it in, and `walls` asks for that.
        OSError: it cannot be started.
    """
    features = probe() if walls == "strict" else None
    found: list[subprocess.Popen[bytes] | OSError | AssayError] = []
    ready = threading.Event()

    def keep() -> None:
        try:
            found.append(_popen(python, device, features))
        except (OSError, AssayError) as error:  # raised again in the caller's thread
            found.append(error)
            return
        finally:
            ready.set()
        ended.wait()

    threading.Thread(target=keep, name="assay-reference", daemon=True).start()
    ready.wait()
    (process,) = found
    if isinstance(process, OSError | AssayError):
        raise process
    return process


def _popen(python: str, device: str, features: Features | None) -> subprocess.Popen[bytes]:
    environment = {
        **_ONE_THREAD,
        **({n: os.environ[n] for n in _OF_DEVICES if n in os.environ} if device != "cpu" else {}),
    }
    mode = require(features) if features is not None else None
    devices = nvidia_devices() if device != "cpu" else ()
    own = python == sys.executable
    beside = () if own else (str(_prefix(python)),)
    seen = bubblewrap.view((), (*beside, *(PCI if devices else ())), (), devices)
    roots = list(seen.import_roots if own else seen.import_roots[:1])
    setting = json.dumps([seen.scratch if mode else "", NOBODY if mode == "drop" else None, device])
    program = [python, "-s", "-P", "-B", "-c", _START.format(roots=roots), setting]
    outer = {**bubblewrap.ENVIRONMENT, **environment}
    nobody = mode == "nobody"
    nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)  # where bubblewrap tells what it has started
    try:
        if mode is not None and features is not None:
            own_view = bubblewrap.view((), (), (), devices)
            if mode != "user" and (closed := bubblewrap.unreadable(own_view)):
                raise SandboxError(
                    f"only their owner can read {', '.join(closed)}, but references started by root run as the user "
                    "nobody: make it readable (chmod -R o+rX), or run as the ordinary user who owns it."
                )
            program = bubblewrap.command(features.bwrap, mode, seen, environment, nowhere, program)
            outer = {}
        return subprocess.Popen(
            program,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            env=outer,
            cwd="/",
            pass_fds=(nowhere,),
            start_new_session=True,
            user=NOBODY if nobody else None,
            group=NOBODY if nobody else None,
            extra_groups=[] if nobody else None,
        )
    finally:
        os.close(nowhere)


def _prefix(python: str) -> Path:
    """What another interpreter needs to see: its virtual environment, or its folder."""
    folder = Path(python).absolute().parent
    return folder.parent if (folder.parent / "pyvenv.cfg").exists() else folder


def await_end(process: subprocess.Popen[bytes], seconds: float) -> None:
    """Wait for a process to end, without reaping it: until then its group keeps its number."""
    try:
        handle = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return
    try:
        select.select([handle], [], [], seconds)
    finally:
        os.close(handle)


def write(process: subprocess.Popen[bytes], data: bytes, deadline: float) -> None:
    """Write to a process's standard input. Raises TimeoutError where it does not take all in time."""
    assert process.stdin is not None, "standard input is a pipe"
    descriptor = process.stdin.fileno()
    os.set_blocking(descriptor, False)
    left = memoryview(data)
    while left:
        _, ready, _ = select.select([], [descriptor], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            raise TimeoutError
        left = left[os.write(descriptor, left) :]


def read(process: subprocess.Popen[bytes], size: int, deadline: float) -> bytes:
    """So many bytes of a process's standard output. Raises TimeoutError or EOFError where they do not come."""
    assert process.stdout is not None, "standard output is a pipe"
    descriptor = process.stdout.fileno()
    parts = []
    while size:
        ready, _, _ = select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            raise TimeoutError
        part = os.read(descriptor, min(size, _CHUNK))
        if not part:
            raise EOFError
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def drain(process: subprocess.Popen[bytes], kept: list[bytes]) -> None:
    """Take what a process writes to standard error, so that the pipe never fills; the beginning is kept."""
    if process.stderr is not None:
        with process.stderr as pipe:
            while part := pipe.read(_CHUNK):
                if len(kept) < _KEPT:
                    kept.append(part)
