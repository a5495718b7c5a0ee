"""What the end of a child means: a pure function from what was measured outside the child to a `JobResult`.

`infra` is never within a candidate's reach: it needs a worker that died, or walls that did not stand before the
candidate began.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass

from assay.sandbox.base import End, Job, JobResult
from assay.sandbox.host.buffers import Buffers
from assay.sandbox.inside.channel import EXIT_MEMORY, Cause


@dataclass(frozen=True, slots=True)
class Ended:
    """What a worker says of a dead child."""

    cause: Cause
    status: int
    """As from `os.wait4`."""
    wall_s: float
    cpu_s: float
    text: str
    """Which wall could not be put up."""
    stopped: bool
    """Whether the caller had the job stopped."""
    overdone: bool = False
    """Whether it was killed because it asked for another round after its last: each costs its parent time."""


def result(
    job: Job, buffers: Buffers, ended: Ended, outputs: Sequence[tuple[bytes, ...]], turns: Sequence[float]
) -> JobResult:
    """The result of a job whose child is dead.

    Args:
        outputs: what was taken, per acknowledged round.
        turns: seconds the child took before each of its requests; the first is its setup.
    """
    code = os.waitstatus_to_exitcode(ended.status)
    end, message = end_of(job, ended, code, len(turns) > len(job.rounds))
    return JobResult(
        end=end,
        message=message,
        outputs=tuple(outputs),
        exit_code=code if code >= 0 else None,
        signal=-code if code < 0 else None,
        stderr=buffers.stderr(),
        report=buffers.report(),
        wall_s=ended.wall_s,
        cpu_s=ended.cpu_s,
        setup_s=turns[0] if turns else 0.0,
        round_s=tuple(turns[1 : len(outputs) + 1]),
    )


def end_of(job: Job, ended: Ended, code: int, complete: bool) -> tuple[End, str]:
    """How a job ended, and that in words. `code` is an exit status, or minus a signal; `complete`: it acknowledged all
    rounds."""
    limits = job.limits
    if ended.cause == Cause.WALLS:
        return "infra", f"its walls could not be put up: {ended.text}"
    if ended.cause == Cause.TIMEOUT:
        return "timeout", f"killed at its wall limit of {limits.wall_s:g} s"
    if ended.cause == Cause.MEMORY:
        return "memory", f"its processes together ran out of its memory of {limits.memory_mb} MiB, or were too many"
    if ended.stopped:
        return "stopped", "its caller stopped it"
    if ended.overdone:
        return "crash", "asked for another round after its last one"
    if ended.cause == Cause.KILLED:
        return "infra", "its caller went away"
    if -code in (signal.SIGXCPU, signal.SIGKILL) and ended.cpu_s >= limits.cpu_s * 0.9:
        return "timeout", f"killed at its CPU limit of {limits.cpu_s:g} s"
    if -code == signal.SIGKILL or code == EXIT_MEMORY:
        return "memory", f"ran out of its memory of {limits.memory_mb} MiB"
    if code < 0:
        return "crash", f"died of signal {-code} ({signal.Signals(-code).name})"
    if code > 0:
        return "crash", f"exited with status {code}"
    if not complete:
        return "crash", "left before its last round was done"
    return "ok", "every round was done"
