"""The replay of a program on a GPU.

    outcome = await replay_on_device(sandbox, attempt, draw, plan(attempt.program, draw, trials, rng), config)

The job's first round, in which CUDA starts, is that of `assay.kernels.numerics.on_gpu`. Answers need not have the same
bytes twice (`noise`). Accesses are not followed: races and who wrote an output last are not known.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from assay.kernels.config import GraderConfig
from assay.kernels.numerics import on_gpu
from assay.kernels.numerics.secret_inputs import InputSet
from assay.kernels.program.jobs import NO_KERNEL, Replay, replay_job
from assay.kernels.program.judging.answers import Answers
from assay.kernels.program.judging.judge import judge
from assay.kernels.program.judging.outcome import Attempt, Outcome
from assay.sandbox.base import Job, JobResult, Sandbox

REPLAY = "assay.kernels.inside.replay.device_harness"


def in_device_order(calls: Sequence[Replay]) -> list[Replay]:
    """The calls of a plan as a GPU is given them: without following accesses, and those without a kernel last. What
    such a call leaves unwritten may be taken for an address by the next kernel, and no call comes after a fault."""
    plain = [replace(call, follow=False) for call in calls]
    return sorted(plain, key=lambda call: call.skip != NO_KERNEL)


def device_job(text: str, draw: InputSet, calls: Sequence[Replay], config: GraderConfig) -> Job:
    """The job that replays a program on a GPU."""
    job = replay_job(text, draw, calls, on_gpu.limits_of(config), config.max_programs)
    return on_gpu.started_first(job, REPLAY, config)


async def replay_on_device(
    sandbox: Sandbox, attempt: Attempt, draw: InputSet, calls: Sequence[Replay], config: GraderConfig
) -> Outcome:
    """Replay a recorded submission on a GPU. Never raises for what a candidate does.

    Raises:
        SandboxError: no job at all can be run here.
    """
    ordered = in_device_order(calls)
    answers = Answers(draw, ordered, config.precision, exact=False)
    job = device_job(attempt.text, draw, ordered, config)
    result = await sandbox.run(job, on_gpu.after_start(answers.after_round))
    return await asyncio.to_thread(judge_on_device, result, attempt, answers, config)


def judge_on_device(result: JobResult, attempt: Attempt, answers: Answers, config: GraderConfig) -> Outcome:
    """What the answers of a replay on a GPU prove."""
    if (lost := on_gpu.not_started(result)) is not None:
        return Outcome("infra", lost, cpu_s=attempt.cpu_s + result.cpu_s)
    return judge(on_gpu.without_start(result), attempt, answers, config.policy)
