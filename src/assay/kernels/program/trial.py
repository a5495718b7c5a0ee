"""A submission put to the test at one size: recorded, held against the rules, replayed on secret inputs, compared.

    attempt = await record(sandbox, code, draw, limits, precision, policy)
    if isinstance(attempt, Attempt):
        outcome = await replay(sandbox, attempt, draw, calls, limits, max_programs, precision)

Everything is decided here and in `judging`, from a program and from bytes; the processes that made them decide nothing.
Programs that are not small are read and judged in threads.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence

from assay.kernels.base import Policy
from assay.kernels.numerics.secret_inputs import InputSet
from assay.kernels.numerics.shapes import Shapes
from assay.kernels.program import rules
from assay.kernels.program.jobs import (
    NotRecorded,
    Replay,
    examined_of,
    record_job,
    recorded_bytes,
    recorded_for,
    replay_job,
)
from assay.kernels.program.judging.answers import LOOP_BYTES, Answers
from assay.kernels.program.judging.arithmetic import arithmetic_share
from assay.kernels.program.judging.judge import judge
from assay.kernels.program.judging.outcome import Attempt, End, Outcome, first_refused
from assay.kernels.program.limits import Limits as ProgramLimits
from assay.kernels.program.operations import base_name, reference_arithmetic
from assay.sandbox.base import JobResult, Limits, Sandbox

LOOP_CHARACTERS = 1 << 12
"""Larger programs are read and judged in a thread. To wake one for a small program takes as long as to read it."""


_NOT_RUN = (
    "the constructor (or the module) uses PyTorch's {}, which no replay runs. Compute "
    "it by others: pointwise ones, sums, products, sorts, indexing"
)


async def record(
    sandbox: Sandbox,
    code: str,
    draw: InputSet | Shapes,
    limits: Limits,
    precision: str,
    policy: Policy = "strict",
    text_checks: bool = True,
    slack: float = 1.0,
    sizes: ProgramLimits | None = None,
) -> Attempt | Outcome:
    """Record a submission for the shapes of a draw, and hold its program against the rules that need no replay.

    `draw`: inputs, or their shapes alone. `slack`: times the share of arithmetic that PyTorch may do
    (`rules.static_findings`). `sizes`: how large the program may be (`program.limits.ON_DEVICE` where it is replayed
    on a GPU).

    Raises:
        SandboxError: no job at all can be run here.
    """
    result = await sandbox.run(record_job(code, draw, limits, precision, text_checks))
    if recorded_bytes(result) <= LOOP_CHARACTERS:
        return _attempt(result, draw, policy, slack, sizes)
    return await asyncio.to_thread(_attempt, result, draw, policy, slack, sizes)


def _attempt(
    result: JobResult, draw: InputSet | Shapes, policy: Policy, slack: float, sizes: ProgramLimits | None
) -> Attempt | Outcome:
    examined, cpu_s = examined_of(result), result.cpu_s
    if examined.fault is not None or examined.cheats:
        return Outcome("text", stage="parse", cpu_s=cpu_s, examined=examined)
    found = recorded_for(draw, result, sizes)
    if isinstance(found, NotRecorded):
        return Outcome(_end_of(found), found.message, found.line, stage="record", cpu_s=cpu_s, examined=examined)
    reference = reference_arithmetic(draw.work)
    weights = sum(math.prod(shape) for _, shape in draw.weights) if isinstance(draw, InputSet) else None
    findings = tuple(
        rules.static_findings(
            found.program,
            reference,
            policy,
            slack,
            rearranged=draw.rearranged,
            moved_outputs=draw.moved_outputs,
            weights=weights,
        )
    )
    if (first := first_refused(findings)) is not None:
        return Outcome("cheat", first.message, first.line, findings, "rules", cpu_s=cpu_s, examined=examined)
    if (operation := rules.not_run(found.program)) is not None:
        said = _NOT_RUN.format(base_name(operation))
        return Outcome("unsupported", said, operation.line, findings, "rules", cpu_s=cpu_s, examined=examined)
    share = arithmetic_share(found.program, reference)
    return Attempt(found.program, found.text, findings, share, cpu_s, examined)


def _end_of(found: NotRecorded) -> End:
    ends: dict[str, End] = {"host_read": "host_read", "unsupported": "unsupported", "refused": "refused"}
    ends["wrong_output"] = "wrong"
    return (ends | {"timeout": "timeout", "infra": "infra"}).get(found.kind, "crash")


async def replay(
    sandbox: Sandbox,
    attempt: Attempt,
    draw: InputSet,
    calls: Sequence[Replay],
    limits: Limits,
    max_programs: int,
    precision: str,
    policy: Policy = "strict",
) -> Outcome:
    """Replay a recorded submission on a draw. Never raises for what a candidate does.

    Raises:
        SandboxError: no job at all can be run here.
    """
    answers = Answers(draw, calls, precision)
    result = await sandbox.run(replay_job(attempt.text, draw, calls, limits, max_programs), answers.after_round)
    last = sum(map(len, result.outputs[-1])) if result.outputs else 0
    if len(attempt.text) <= LOOP_CHARACTERS and last <= LOOP_BYTES:
        return judge(result, attempt, answers, policy)
    return await asyncio.to_thread(judge, result, attempt, answers, policy)
