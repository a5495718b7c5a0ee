"""Times a candidate against a baseline: two sandboxed jobs in step, one round of one of them at a time.

    stopwatch = Stopwatch(sandbox, TimingConfig(device="cuda"))
    outcome = await stopwatch.time(source, problem, "eager")     # a Timing, or a Finding that says why there is none

The baseline is the reference in a child of its own, run by the same harness. It is timed alone first, then the
candidate joins, and both get the same fresh inputs sample by sample. Whoever is not at work is stopped. Every output of
every call, warm-up or not, is compared with the baseline's. One comparison runs at a time.
"""

from __future__ import annotations

import asyncio
import contextlib
import random

from assay.envs.kernelbench.timed_jobs import (
    ROUNDS,
    SampleSet,
    TimedProblem,
    bytes_of_call,
    death,
    device_of,
    explain,
    form_of,
    make_job,
    recheck,
    sample_set,
    samples_of,
)
from assay.envs.kernelbench.timing import Baseline, Finding, Measured, Timing, conclude, plan_calls, secret_order
from assay.envs.kernelbench.timing_config import TimingConfig
from assay.errors import ConfigError
from assay.sandbox import Job, JobResult, Sandbox

PILOT_SAMPLES = 5


class _EndedError(Exception):
    """A job ended before its time."""

    def __init__(self, lane: _Lane, result: JobResult) -> None:
        super().__init__(result.message)
        self.lane, self.result = lane, result


class _Lane:
    """One of the jobs in step: it moves when it is told to, and is stopped otherwise."""

    def __init__(self, sandbox: Sandbox, job: Job) -> None:
        self.outputs: list[tuple[bytes, ...]] = []
        self._arrivals: asyncio.Queue[None] = asyncio.Queue()
        self._permits: asyncio.Queue[bool] = asyncio.Queue()
        self._task = asyncio.create_task(sandbox.run(job, self._after_round))

    async def _after_round(self, index: int, outputs: tuple[bytes, ...]) -> bool:
        if index != len(self.outputs):
            return False  # a second attempt, after its worker died: the other job has gone on meanwhile
        self.outputs.append(outputs)
        self._arrivals.put_nowait(None)
        return await self._permits.get()

    async def arrive(self) -> None:
        """Wait until the round under way is done. Raises _EndedError where the job is."""
        arrival = asyncio.ensure_future(self._arrivals.get())
        try:
            await asyncio.wait({arrival, self._task}, return_when=asyncio.FIRST_COMPLETED)
            if not arrival.done():
                raise _EndedError(self, self._task.result())
        finally:
            arrival.cancel()

    async def step(self) -> None:
        """Let it do one round."""
        self._permits.put_nowait(True)
        await self.arrive()

    async def finish(self) -> JobResult:
        """Let it do its last round. Raises _EndedError where that does not end it well."""
        self._permits.put_nowait(True)
        result = await self._task
        if result.end != "ok":
            raise _EndedError(self, result)
        return result

    async def stop(self) -> None:
        """End it, wherever it is."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task


class Stopwatch:
    """Times candidates on one device, one at a time. Needs a sandbox that runs two jobs at once."""

    def __init__(self, sandbox: Sandbox, config: TimingConfig, draw: random.Random | None = None) -> None:
        """`draw` is where secrets come from (order, keys, number of warm-ups); the system's generator when None."""
        if getattr(sandbox, "width", 2) < 2:
            raise ConfigError(
                "the sandbox runs one job at a time, and timing takes two in step: give LocalConfig.workers=2 or more."
            )
        self.config = config
        self._sandbox = sandbox
        self._draw = draw or random.SystemRandom()
        self._turn = asyncio.Lock()
        self._call_s: dict[tuple[str, str, Baseline], float] = {}

    async def time(self, source: str, problem: TimedProblem, baseline: Baseline = "eager") -> Timing | Finding:
        """The speedup of a candidate over a baseline.

        Raises:
            ConfigError: its inputs and outputs do not fit into `buffer_mb` even with one call a sample.
            SandboxError: no job can be run here.
        """
        async with self._turn:
            try:
                calls = await self._calls(problem, baseline)
                return await self._compare(source, problem, baseline, calls)
            except _EndedError as error:
                return Finding("infra", f"the baseline failed: {explain(error.result)}")

    async def _calls(self, problem: TimedProblem, baseline: Baseline) -> int:
        """Calls in a sample, from a first look at how long the baseline takes; the look is remembered."""
        config = self.config
        form = form_of(problem.draw())
        key = (problem.code, repr(form.header), baseline)
        if key not in self._call_s:
            self._call_s[key] = await self._pilot(problem, baseline)
        held = 2 * (config.alone + 2 * config.warm_ups + config.samples) * bytes_of_call(problem, form)
        calls = plan_calls(
            self._call_s[key], config.round_ms / 1000, config.max_calls, held, budget=config.buffer_mb << 20
        )
        if not calls:
            raise ConfigError(
                f"one call a sample holds {held >> 20} MiB of inputs and outputs, above timing.buffer_mb="
                f"{config.buffer_mb}: raise that, or lower timing.samples."
            )
        return calls

    async def _pilot(self, problem: TimedProblem, baseline: Baseline) -> float:
        """Seconds of the shortest of a few calls of the baseline."""
        sets = self._sets(problem, 1, PILOT_SAMPLES)
        lane = _Lane(self._sandbox, make_job(problem.code, problem, baseline, 1, sets, self.config))
        try:
            await lane.arrive()
            for _ in range(ROUNDS * len(sets)):
                await lane.step()
            result = await lane.finish()
        finally:
            await lane.stop()
        return min(sample.claimed_s[0] for sample in samples_of(lane.outputs, result.round_s, 1))

    async def _compare(self, source: str, problem: TimedProblem, baseline: Baseline, calls: int) -> Timing | Finding:
        config = self.config
        warm_ups = config.warm_ups + self._draw.randrange(config.warm_ups + 1)
        alone = self._sets(problem, calls, config.alone)
        shared = self._sets(problem, calls, warm_ups + config.samples)
        reference = _Lane(self._sandbox, make_job(problem.code, problem, baseline, calls, [*alone, *shared], config))
        lanes = [reference]
        try:
            await reference.arrive()
            for _ in range(ROUNDS * len(alone)):
                await reference.step()
            candidate = _Lane(self._sandbox, make_job(source, problem, None, calls, shared, config))
            lanes.append(candidate)
            await candidate.arrive()
            for leads in secret_order(len(shared), self._draw):
                await _one_sample(reference, candidate, leads)
            candidate_result, reference_result = await candidate.finish(), await reference.finish()
        except _EndedError as error:
            if error.lane is reference:
                raise
            return death(error.result)
        finally:
            await asyncio.gather(*(lane.stop() for lane in lanes))
        theirs = reference.outputs[1 + ROUNDS * len(alone) :]
        fault = await asyncio.to_thread(recheck, problem, calls, candidate.outputs[1:], theirs)
        if fault is not None:
            return fault
        samples = samples_of(reference.outputs, reference_result.round_s, calls)
        return conclude(
            Measured(
                baseline=baseline,
                device=device_of(reference_result),
                alone=samples[len(alone) // 4 : len(alone)],  # the first of them warm it up
                baseline_samples=samples[len(alone) + warm_ups :],
                candidate_samples=samples_of(candidate.outputs, candidate_result.round_s, calls)[warm_ups:],
                work=problem.work,
            ),
            config.rules,
        )

    def _sets(self, problem: TimedProblem, calls: int, count: int) -> list[SampleSet]:
        return [sample_set(problem, calls, self._draw) for _ in range(count)]


async def _one_sample(reference: _Lane, candidate: _Lane, candidate_leads: bool) -> None:
    """One sample of each, step by step, so that the two timed rounds follow on each other."""
    order = (candidate, reference) if candidate_leads else (reference, candidate)
    for _ in range(ROUNDS):
        for lane in order:
            await lane.step()
