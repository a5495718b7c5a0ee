"""A memory limit for whole jobs: one control group per worker, inside a group that the user has set aside.

`RLIMIT_AS` bounds each process by itself, which is all that a job of one process needs. Where a job may start several,
only a control group bounds their sum. Children volunteer to be killed first, so a job that runs out of memory costs
its worker nothing. Version 2 groups are told from version 1 by their file names.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

from assay.errors import SandboxError

SLACK_BYTES = 64 << 20
"""For what the worker itself and the kernel on its behalf use."""
REMOVAL_S = 5.0

_LIMITS = ("memory.max", "memory.limit_in_bytes")
_SWAP = {"memory.max": ("memory.swap.max", "0"), "memory.limit_in_bytes": ("memory.swappiness", "0")}


class WorkerGroup:
    """The group of one worker.

    Raises:
        SandboxError: the folder is not one in which groups with a memory limit can be made.
    """

    def __init__(self, home: str, name: str) -> None:
        self._folder = Path(home, name)
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

    def allow(self, size: int) -> None:
        """Bound the next job to so many bytes."""
        self._limit.write_text(str(size + SLACK_BYTES), encoding="ascii")

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
