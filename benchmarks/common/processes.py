"""What this process holds: memory, descriptors, processes below it."""

from __future__ import annotations

import contextlib
import os
import resource
from pathlib import Path


def resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize() / 2**20


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def descendants() -> list[int]:
    """Living processes that this one started, at any depth."""
    found, todo = [], [os.getpid()]
    while todo:
        for task in Path(f"/proc/{todo.pop()}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                children = [int(pid) for pid in task.read_text(encoding="ascii").split()]
                found += children
                todo += children
    return found
