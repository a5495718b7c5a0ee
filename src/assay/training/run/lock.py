"""The lock of a run directory: one process at a time, released by the system however that process ends."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

from assay.errors import RunDirectoryError

LEFT_LOCK_S = 5.0
"""Longest wait for the lock of a process that is gone."""


def take_lock(path: Path) -> int:
    """Lock a run directory; the descriptor returned holds the lock until it is closed or the process ends.

    Raises:
        RunDirectoryError: another process holds it.
    """
    fd = os.open(path / "run.lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        _take(fd)
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    except BlockingIOError:
        holder = _holder(fd) or "unknown"
        os.close(fd)
        raise RunDirectoryError(
            f"{path} is in use by process {holder}, and two processes would corrupt each other's run. "
            "Wait for it or stop it, or set log_path to another directory."
        ) from None
    except OSError:
        os.close(fd)
        raise
    return fd


def _take(fd: int) -> None:
    """Take the lock, or raise BlockingIOError.

    A process that is killed while it starts another (`git`, for the run's provenance) leaves the lock to that one for
    the moment until it runs its own program, so the lock of a process that is gone is waited for.
    """
    given_up = time.monotonic() + LEFT_LOCK_S
    while True:
        try:
            return fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if _is_alive(_holder(fd)) or time.monotonic() > given_up:
                raise
        time.sleep(0.01)


def _holder(fd: int) -> str:
    """The process that last took the lock, as it wrote itself down; empty while it has not yet."""
    return os.pread(fd, 32, 0).decode(errors="replace").strip()


def _is_alive(holder: str) -> bool:
    """Whether a process of this machine runs; one that cannot be looked for is taken to."""
    try:
        os.kill(int(holder), 0)
    except ProcessLookupError:
        return False
    except (ValueError, OverflowError, OSError):
        return True
    return True
