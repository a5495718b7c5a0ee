"""A memory limit for whole jobs: one control group per worker, inside a group that this process may divide.

`RLIMIT_AS` bounds each process by itself, which is all that a job of one process needs. Where a job may start several,
only a control group bounds their sum. Children volunteer to be killed first, so a job that runs out of memory costs
its worker nothing. Version 2 groups are told from version 1 by their file names.
"""

from __future__ import annotations

import contextlib
import functools
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from assay.errors import SandboxError

SLACK_BYTES = 64 << 20
"""For what the worker itself and the kernel on its behalf use."""
REMOVAL_S = 5.0
TRIAL_S = 10.0
MOUNT = Path("/sys/fs/cgroup")
PREFIX = "assay"

_LIMITS = ("memory.max", "memory.limit_in_bytes")
_SWAP = {"memory.max": ("memory.swap.max", "0"), "memory.limit_in_bytes": ("memory.swappiness", "0")}


class WorkerGroup:
    """The group of one worker.

    Raises:
        SandboxError: the folder is not one in which groups with a memory limit can be made.
    """

    def __init__(self, home: str, name: str) -> None:
        self._folder = Path(home, name)
        self._own = self._allowed = 0
        try:
            self._folder.mkdir()
            self._limit = next(self._folder / file for file in _LIMITS if (self._folder / file).exists())
            swap, value = _SWAP[self._limit.name]
            with contextlib.suppress(OSError):  # not every kernel accounts swap
                (self._folder / swap).write_text(value, encoding="ascii")
        except (OSError, StopIteration) as error:
            with contextlib.suppress(OSError):
                self._folder.rmdir()
            what = f"{error}" if isinstance(error, OSError) else f"{home} has no memory controller"
            raise SandboxError(
                f"No control group with a memory limit can be made in cgroup={home!r} ({what}). Give a cgroup folder "
                "that this user may write to and whose memory controller is on for its children (version 2: '+memory' "
                "in its cgroup.subtree_control and no process in it), or leave the setting out."
            ) from error

    def add(self, pid: int) -> None:
        """Move a worker into the group; what it has allocated before stays accounted where it was."""
        (self._folder / "cgroup.procs").write_text(str(pid), encoding="ascii")
        self._own = _private_bytes(pid)

    def allow(self, size: int) -> None:
        """Bound the next job to so many bytes, beside those of the worker, which may move to the group's account: it
        rewrites its memory into huge pages once."""
        allowed = size + SLACK_BYTES + self._own
        if allowed != self._allowed:
            self._limit.write_text(str(allowed), encoding="ascii")
            self._allowed = allowed

    def close(self) -> None:
        """Remove the group, once its last process is gone."""
        deadline = time.monotonic() + REMOVAL_S
        while True:
            try:
                os.rmdir(self._folder)
            except FileNotFoundError:
                return
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.005)


@functools.cache
def find_home() -> str:
    """A group of this machine in which workers can have groups of their own, found out by trying it; empty if none."""
    try:
        told = Path("/proc/self/cgroup").read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return ""
    for folder in candidates(told):
        try:
            _try_group(folder)
        except (OSError, SandboxError):
            continue
        _sweep(folder)
        return str(folder)
    return ""


def _try_group(home: Path) -> None:
    """Make a group, move a process into it and limit it.

    Raises:
        OSError, SandboxError: one of these cannot be done.
    """
    group = WorkerGroup(str(home), f"{PREFIX}-{os.getpid()}-trial")
    try:
        waiting = [sys.executable, "-I", "-S", "-c", f"import time; time.sleep({TRIAL_S})"]
        with subprocess.Popen(waiting, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as trial:
            try:
                group.add(trial.pid)
                group.allow(SLACK_BYTES)
            finally:
                trial.kill()
    finally:
        group.close()


def candidates(told: str, mount: Path = MOUNT) -> Iterator[Path]:
    """Groups that may be divided, by what `/proc/self/cgroup` says: this process's own, and for version 2, where one
    with processes cannot be divided, those above it. None above one with a limit, which its workers would escape."""
    for line in told.splitlines():
        number, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            yield mount / "memory" / path.lstrip("/")
        elif number == "0":
            folder = mount / path.lstrip("/")
            while mount == folder or mount in folder.parents:
                yield folder
                if _is_limited(folder):
                    break
                folder = folder.parent


def _is_limited(folder: Path) -> bool:
    try:
        return (folder / "memory.max").read_text(encoding="ascii").strip() != "max"
    except FileNotFoundError:  # the root has none, and groups without the memory controller
        return False
    except OSError:
        return True


def _sweep(home: Path) -> None:
    """Remove the empty groups of processes that were killed before they could."""
    for folder in home.glob(f"{PREFIX}-*-*"):
        owner = folder.name.split("-")[1]
        if owner.isdigit() and not Path("/proc", owner).exists():
            with contextlib.suppress(OSError):
                folder.rmdir()


def _private_bytes(pid: int) -> int:
    try:
        _, resident, shared, *_ = Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return 0
    return max(0, int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")
