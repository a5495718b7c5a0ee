"""Jobs that take turns: one round of one of them at a time, in an order given beforehand.

    results = await run_in_step(sandbox, Group((reference, candidate), (0, 0, 1, 0, 1, ...)))

Each entry of the order lets that job do its next round; its first one starts it. With `Job.pause` a job that is not at
work is stopped. Where one job ends early, the others are stopped there. A sandbox that cannot be told round by round
what to do (`ModalSandbox`) takes the whole group to one place and has it run in step there.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

from assay.errors import ConfigError
from assay.sandbox.base import Job, JobResult, Sandbox


@dataclass(frozen=True, slots=True)
class Group:
    """Jobs of one harness, and whose turn it is."""

    jobs: tuple[Job, ...]
    order: tuple[int, ...]

    def __post_init__(self) -> None:
        turns = [self.order.count(place) for place in range(len(self.jobs))]
        if not self.jobs or turns != [len(job.rounds) for job in self.jobs] or sum(turns) != len(self.order):
            raise ConfigError("the order of jobs in step names each job once for each of its rounds, and no other.")
        if len({job.harness for job in self.jobs}) > 1:
            raise ConfigError("jobs in step have the same harness.")

    @property
    def harness(self) -> str:
        """The harness of all jobs."""
        return self.jobs[0].harness


@runtime_checkable
class RunsGroups(Protocol):
    """A sandbox that runs groups by itself."""

    async def run_in_step(self, group: Group) -> tuple[JobResult, ...]:
        """One result for each job; see `run_in_step`."""
        ...


async def run_in_step(sandbox: Sandbox, group: Group) -> tuple[JobResult, ...]:
    """One result for each job. `stopped` is one that was well when another ended early.

    Raises:
        SandboxError: no job can be run here.
    """
    if isinstance(sandbox, RunsGroups):
        return await sandbox.run_in_step(group)
    lanes: dict[int, _Lane] = {}
    left = [len(job.rounds) for job in group.jobs]
    ended: dict[int, JobResult] = {}
    try:
        for place in group.order:
            left[place] -= 1
            lane = lanes.get(place)
            if lane is None:
                lane = lanes[place] = _Lane(sandbox, group.jobs[place])
                done = await (lane.arrive() if left[place] else lane.end())
            else:
                done = await (lane.step() if left[place] else lane.finish())
            if done is not None:
                ended[place] = done
                if done.end != "ok":
                    break
    finally:
        await asyncio.gather(*(lane.stop() for lane in lanes.values()))
    halted = JobResult("stopped", "stopped because the other job ended")
    return tuple(ended.get(place, halted) for place in range(len(group.jobs)))


class _Lane:
    """One of the jobs in step: it moves when it is told to, and is stopped otherwise."""

    def __init__(self, sandbox: Sandbox, job: Job) -> None:
        self._seen = 0
        self._arrivals: asyncio.Queue[None] = asyncio.Queue()
        self._permits: asyncio.Queue[bool] = asyncio.Queue()
        self._task = asyncio.create_task(sandbox.run(job, self._after_round))

    async def _after_round(self, index: int, outputs: tuple[bytes, ...]) -> bool:
        if index != self._seen:
            return False  # a second attempt, after its worker died: the other job has gone on meanwhile
        self._seen += 1
        self._arrivals.put_nowait(None)
        return await self._permits.get()

    async def arrive(self) -> JobResult | None:
        """Wait until the round under way is done; the result where the job is."""
        arrival = asyncio.ensure_future(self._arrivals.get())
        try:
            await asyncio.wait({arrival, self._task}, return_when=asyncio.FIRST_COMPLETED)
            return None if arrival.done() else await self.end()
        finally:
            arrival.cancel()

    async def step(self) -> JobResult | None:
        """Let it do one round."""
        self._permits.put_nowait(True)
        return await self.arrive()

    async def finish(self) -> JobResult:
        """Let it do its last round."""
        self._permits.put_nowait(True)
        return await self.end()

    async def end(self) -> JobResult:
        """Its result, when it is over."""
        result = await self._task
        if result.end == "stopped":
            return replace(result, end="infra", message="its worker died, and the job beside it had gone on")
        return result

    async def stop(self) -> None:
        """End it, wherever it is."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task
