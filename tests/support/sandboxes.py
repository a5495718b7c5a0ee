"""Sandboxes for tests: one that blocks, and whether this machine can have one at all."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import pytest

from assay.sandbox import AfterRound, Job, JobResult
from assay.sandbox.host.probe import Features, probe
from assay.sandbox.local import LocalConfig, LocalSandbox

FEATURES: Features | None = probe() if sys.platform.startswith("linux") else None

needs_walls = pytest.mark.skipif(
    FEATURES is None or bool(FEATURES.missing),
    reason=f"no walls here: {FEATURES.missing if FEATURES else sys.platform}",
)


def children(pid: int) -> set[int]:
    """The processes below one."""
    found: set[int] = set()
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            for child in task.read_text(encoding="ascii").split():
                found |= {int(child), *children(int(child))}
    return found


def running(workers: Sequence[int]) -> set[int]:
    """The processes below any of them."""
    return set().union(*map(children, workers))


class Box:
    """A sandbox with its own event loop, for tests that are not asynchronous."""

    def __init__(self, config: LocalConfig) -> None:
        self._runner = asyncio.Runner()
        self.sandbox = LocalSandbox(config, FEATURES if config.sandbox == "strict" else None)

    def run(self, job: Job, after_round: AfterRound | None = None) -> JobResult:
        return self._runner.run(self.sandbox.run(job, after_round))

    def __enter__(self) -> Box:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._runner.run(self.sandbox.close())
        self._runner.close()
