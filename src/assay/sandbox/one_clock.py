"""Jobs of one candidate that share a wall-clock limit: none of them begins anew what another one has used up."""

from __future__ import annotations

from dataclasses import replace

from assay.sandbox.base import AfterRound, Job, JobResult, Sandbox

LEAST_S = 0.01
"""With less left no job begins."""


class OneClock:
    """A sandbox for one candidate, on the same machine as another sandbox. Closing it closes nothing."""

    def __init__(self, sandbox: Sandbox, wall_s: float) -> None:
        """`wall_s`: seconds that all jobs together may take, besides the limit of each."""
        self._sandbox, self._wall_s, self._left_s = sandbox, wall_s, wall_s

    async def run(self, job: Job, after_round: AfterRound | None = None) -> JobResult:
        """The result of one job; a timeout where the others have left it no time. Jobs run one after another.

        Raises:
            SandboxError: no job at all can be run here.
        """
        if self._left_s < LEAST_S:
            return JobResult("timeout", self._said())
        own = job.limits.wall_s <= self._left_s
        limits = job.limits if own else replace(job.limits, wall_s=self._left_s)
        result = await self._sandbox.run(replace(job, limits=limits), after_round)
        self._left_s -= result.wall_s
        over = not own and result.end == "timeout" and result.wall_s >= limits.wall_s  # else by its CPU limit
        return replace(result, message=self._said()) if over else result

    async def close(self) -> None:
        """Nothing: it is the other sandbox's to close."""

    def _said(self) -> str:
        return f"killed at its wall limit of {self._wall_s:g} s, over all of its runs"
