"""Times a candidate against a baseline: two sandboxed jobs in step, one round of one of them at a time.

    stopwatch = Stopwatch(sandbox, TimingConfig(device="cuda"))
    outcome = await stopwatch.time(text, problem, "eager", "program")     # a Timing, or a Finding that says why not

The baseline is the reference in a child of its own, run by the same harness. It is timed alone first, then the
candidate joins, and both get the same fresh inputs sample by sample. The one whose turn it is not is stopped. Every
output of every call, warm-up or not, is compared with the baseline's. One comparison runs at a time, unless the sandbox
takes each to a device of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Sequence
from dataclasses import replace

from assay.errors import ConfigError
from assay.kernels.base import TimedAgainst
from assay.kernels.job_reports import explain
from assay.kernels.timing.config import TimingConfig
from assay.kernels.timing.jobs import (
    ROUNDS,
    Form,
    SampleSet,
    TimedProblem,
    bytes_of_call,
    death,
    device_of,
    form_of,
    launched_of,
    make_job,
    recheck,
    sample_set,
    samples_of,
)
from assay.kernels.timing.statistics import Finding, Measured, Timing, conclude, plan_calls, secret_order
from assay.sandbox import JobResult, Sandbox
from assay.sandbox.lockstep import Group, RunsGroups, run_in_step

PILOT_SAMPLES = 5


class _BaselineError(Exception):
    """The baseline's job did not come to its end."""

    def __init__(self, result: JobResult) -> None:
        super().__init__(result.message)
        self.result = result


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
        # Each comparison at Modal has a container, with a GPU, of its own.
        self._turn = contextlib.nullcontext() if isinstance(sandbox, RunsGroups) else asyncio.Lock()
        self._call_s: dict[tuple[str, str, TimedAgainst], float] = {}

    async def time(
        self, source: str, problem: TimedProblem, baseline: TimedAgainst = "eager", form: Form = "module"
    ) -> Timing | Finding:
        """The speedup of a candidate over a baseline.

        Args:
            source: The candidate: its module, or the JSON of its recorded program.
            problem: What it solves.
            baseline: How the reference is run.
            form: What `source` is.

        Raises:
            ConfigError: its inputs and outputs do not fit into `buffer_mb` even with one call a sample.
            SandboxError: no job can be run here.
        """
        async with self._turn:
            try:
                calls = await self._calls(problem, baseline)
                return await self._compare(source, problem, baseline, form, calls)
            except _BaselineError as error:
                return Finding("infra", f"the baseline failed: {explain(error.result)}")

    async def _calls(self, problem: TimedProblem, baseline: TimedAgainst) -> int:
        """Calls in a sample, from a first look at how long the baseline takes; the look is remembered."""
        config = self.config
        form = form_of(await asyncio.to_thread(problem.draw))
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

    async def _pilot(self, problem: TimedProblem, baseline: TimedAgainst) -> float:
        """Seconds of the shortest of a few calls of the baseline."""
        sets = await asyncio.to_thread(self._sets, problem, 1, PILOT_SAMPLES)
        job = await asyncio.to_thread(make_job, problem.code, problem, baseline, 1, sets, self.config)
        (result,) = await run_in_step(self._sandbox, Group((job,), (0,) * len(job.rounds)))
        if result.end != "ok":
            raise _BaselineError(result)
        return min(sample.claimed_s[0] for sample in samples_of(result.outputs, result.round_s, 1))

    async def _compare(
        self, source: str, problem: TimedProblem, baseline: TimedAgainst, form: Form, calls: int
    ) -> Timing | Finding:
        config = self.config
        warm_ups = config.warm_ups + self._draw.randrange(config.warm_ups + 1)
        alone = await asyncio.to_thread(self._sets, problem, calls, config.alone)
        shared = await asyncio.to_thread(self._sets, problem, calls, warm_ups + config.samples)
        jobs = (
            await asyncio.to_thread(make_job, problem.code, problem, baseline, calls, [*alone, *shared], config),
            await asyncio.to_thread(make_job, source, problem, None, calls, shared, config, form),
        )
        order = turns(len(alone), secret_order(len(shared), self._draw))
        reference, candidate = await run_in_step(self._sandbox, Group(jobs, order))
        if candidate.end not in ("ok", "stopped"):
            return death(candidate)
        if reference.end != "ok" or candidate.end != "ok":
            raise _BaselineError(reference)
        theirs = reference.outputs[1 + ROUNDS * len(alone) : -1]
        fault = await asyncio.to_thread(recheck, problem, calls, candidate.outputs[1:-1], theirs)
        if fault is not None:
            return fault
        samples = samples_of(reference.outputs, reference.round_s, calls)
        found = conclude(
            Measured(
                baseline=baseline,
                device=device_of(reference),
                alone=samples[len(alone) // 4 : len(alone)],  # the first of them warm it up
                baseline_samples=samples[len(alone) + warm_ups :],
                candidate_samples=samples_of(candidate.outputs, candidate.round_s, calls)[warm_ups:],
                work=problem.work,
                is_program=form == "program",
            ),
            config.rules,
        )
        return replace(found, launched=launched_of(candidate)) if isinstance(found, Timing) else found

    def _sets(self, problem: TimedProblem, calls: int, count: int) -> list[SampleSet]:
        return [sample_set(problem, calls, self._draw) for _ in range(count)]


def turns(alone: int, candidate_leads: Sequence[bool]) -> tuple[int, ...]:
    """Whose turn it is, the baseline's (0) or the candidate's (1), round by round.

    The baseline is built and does `alone` samples, then the candidate is built. Then both do one sample at a time, step
    by step, so that the two timed rounds follow on each other; who leads differs by sample. Their ends come last.
    """
    order = [0, *([0] * (ROUNDS * alone)), 1]
    for leads in candidate_leads:
        order += ROUNDS * ([1, 0] if leads else [0, 1])
    return (*order, 1, 0)
