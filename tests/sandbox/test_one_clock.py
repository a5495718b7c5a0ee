"""Jobs that share a wall-clock limit: what one takes the others do not have."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from assay.sandbox import Job, JobResult, Limits
from assay.sandbox.local import LocalConfig, LocalSandbox
from assay.sandbox.one_clock import OneClock
from support.sandboxes import FEATURES, needs_walls

PLAIN = "assay.sandbox.plain"


class Scripted:
    """A sandbox whose jobs take so many seconds each, up to their limits."""

    def __init__(self, seconds: Sequence[float]) -> None:
        self._seconds, self.limits = list(seconds), list[float]()

    async def run(self, job: Job, after_round: object = None) -> JobResult:
        limit, takes = job.limits.wall_s, self._seconds.pop(0)
        self.limits.append(limit)
        return JobResult("ok" if takes < limit else "timeout", "its own words", wall_s=min(takes, limit))

    async def close(self) -> None:
        raise AssertionError("it is not this one's to close")


def ends(clock: OneClock, count: int, wall_s: float = 10.0) -> list[tuple[str, str]]:
    async def run() -> list[tuple[str, str]]:
        results = [await clock.run(Job("", PLAIN, limits=Limits(wall_s=wall_s))) for _ in range(count)]
        await clock.close()
        return [(result.end, result.message) for result in results]

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("seconds", "limits", "last"),
    [
        ([4.0, 4.0, 4.0], [10.0, 6.0, 2.0], "timeout"),
        ([4.0, 6.0, 1.0], [10.0, 6.0], "timeout"),
        ([1.0, 1.0, 1.0], [10.0, 9.0, 8.0], "ok"),
    ],
)
def test_what_one_job_takes_the_next_does_not_have(seconds: list[float], limits: list[float], last: str) -> None:
    sandbox = Scripted(seconds)
    found = ends(OneClock(sandbox, 10.0), 3)
    assert sandbox.limits == limits and found[-1][0] == last
    assert last == "ok" or found[-1][1] == "killed at its wall limit of 10 s, over all of its runs"


def test_a_job_keeps_a_limit_of_its_own() -> None:
    sandbox = Scripted([5.0, 1.0])
    assert ends(OneClock(sandbox, 30.0), 2, wall_s=3.0) == [("timeout", "its own words"), ("ok", "its own words")]
    assert sandbox.limits == [3.0, 3.0]


@needs_walls
def test_a_job_that_ends_at_its_cpu_limit_says_so() -> None:
    async def run() -> list[JobResult]:
        sandbox = LocalSandbox(LocalConfig(workers=1), FEATURES)
        clock = OneClock(sandbox, 60.0)
        works = Job("while True: pass", PLAIN, limits=Limits(wall_s=60.0, cpu_s=1))
        try:
            return [await clock.run(works) for _ in range(2)]
        finally:
            await sandbox.close()

    results = asyncio.run(run())
    assert [(result.end, result.message) for result in results] == [("timeout", "killed at its CPU limit of 1 s")] * 2


@needs_walls
def test_sleeping_in_each_job_gains_nothing() -> None:
    async def run() -> list[JobResult]:
        sandbox = LocalSandbox(LocalConfig(workers=1), FEATURES)
        clock = OneClock(sandbox, 1.5)
        sleeps = Job("import time\ntime.sleep(1)", PLAIN, limits=Limits(wall_s=60.0))
        try:
            return [await clock.run(sleeps) for _ in range(3)]
        finally:
            await sandbox.close()

    results = asyncio.run(run())
    assert [result.end for result in results][1:] == ["timeout", "timeout"]
    assert sum(result.wall_s for result in results) < 4
