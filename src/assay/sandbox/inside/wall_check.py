"""A child that attacks its own walls when a worker starts. A wall that was put up and does not hold ends the worker."""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import socket
from collections.abc import Callable
from typing import NoReturn

from assay.sandbox.inside.channel import STARTED
from assay.sandbox.inside.jail import FIRST_FREE_FD, NOBODY, UP_FD


def _fails(attempt: Callable[[], object], *codes: int) -> bool:
    """Whether an attempt fails, and with one of `codes` where any are given."""
    try:
        attempt()
    except OSError as error:
        return not codes or error.errno in codes
    return False


def _open_descriptors() -> list[int]:
    found = []
    for descriptor in range(FIRST_FREE_FD, 1024):
        try:
            os.fstat(descriptor)
        except OSError:
            continue
        found.append(descriptor)
    return found


def _standing_walls() -> dict[str, bool]:
    """What must hold in every child -> whether it does."""
    libc = ctypes.CDLL(None, use_errno=True)
    return {
        "it is the first process of its own process namespace": os.getpid() == 1 and os.getppid() == 0,
        "it is nobody": os.getresuid() == (NOBODY,) * 3 and os.getresgid() == (NOBODY,) * 3,
        "/proc is empty": os.listdir("/proc") == [],
        "the root folder cannot be written": _fails(lambda: os.mkdir("/assay-trial"), errno.EROFS, errno.EACCES),
        "its own folder is empty and can be written": os.listdir(".") == [] and not _fails(lambda: os.mkdir("x")),
        "no descriptor of the worker is open": _open_descriptors() == [],
        "sockets are refused": _fails(socket.socket, errno.EPERM),
        "processes are refused": _fails(_fork, errno.EPERM),
        "programs are refused": _fails(lambda: os.execv("/no-such-program", ["x"]), errno.EPERM),
        "namespaces are refused": libc.unshare(0x10000000) == -1 and ctypes.get_errno() == errno.EPERM,
        "limits cannot be raised": _raising_fails(),
        "times of device files cannot be set": _fails(lambda: os.utime("/dev/null"), errno.EPERM, errno.EROFS),
    }


def _fork() -> None:
    if os.fork() == 0:
        os._exit(0)


def _raising_fails() -> bool:
    try:
        resource.setrlimit(resource.RLIMIT_CORE, (1 << 20, 1 << 20))
    except (ValueError, OSError):
        return True
    return False


def main() -> NoReturn:
    """Try the walls and say over the child's pipe whether all stand; does not return."""
    fallen = [wall for wall, stands in _standing_walls().items() if not stands]
    if fallen:
        raise RuntimeError(f"in a trial job it did not hold that {'; '.join(fallen)}")
    os.write(UP_FD, STARTED)
    os._exit(0)
