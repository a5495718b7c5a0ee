"""A submission put to the test: recorded, held against the rules, replayed on secret inputs, compared.

    outcome = await trial(sandbox, code, draw, limits, precision, max_programs)

Everything is decided here, from a program and from bytes; the processes that made them decide nothing.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from assay.kernels.arrays import HostTensor
from assay.kernels.job_reports import explain, fault_of
from assay.kernels.numerics.calls import shows_answer
from assay.kernels.numerics.secret_inputs import InputSet
from assay.kernels.numerics.tolerance import compare
from assay.kernels.program import rules
from assay.kernels.program.form import Program
from assay.kernels.program.jobs import (
    NO_KERNEL,
    Measured,
    NotRecorded,
    Replay,
    measured,
    record_job,
    recorded,
    replay_job,
)
from assay.kernels.program.operations import reference_arithmetic
from assay.kernels.program.rules import Finding
from assay.kernels.verdicts import plain_text
from assay.sandbox.base import JobResult, Limits, Sandbox

End = Literal["ok", "wrong", "cheat", "host_read", "refused", "unsupported", "crash", "timeout", "infra"]

POISONS = (0xFF, 0x46, 0x3E, 0x00, 0xC3)
"""Bytes of fresh memory: NaN, 12689, 0.186, 0 and -390 as float32."""
MAX_LEFT_OUT = 8
"""Kernels of a program that are left out once each; further ones are not tried."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a trial showed."""

    end: End
    message: str = ""
    line: int = 0
    findings: tuple[Finding, ...] = ()
    """Those that are told and do not decide, too."""
    program: Program | None = None
    cpu_s: float = 0.0
    """Of both processes."""
    facts: dict[str, object] = field(default_factory=dict)


def plan(program: Program, draw: InputSet, trials: int, rng: random.Random) -> list[Replay]:
    """The calls of a replay: `trials` on inputs of all families in turn, one of them once more, and again without each
    kernel, one under other weights. Each has another poison, and runs the programs of a launch in another order, but
    for the one that is repeated without kernels. Accesses are followed where memory was filled with another byte."""
    cases = [draw.cases[index % len(draw.cases)] for index in range(max(trials, 1))]
    telling = [place for place, case in enumerate(cases) if not shows_answer(case)] or list(range(len(cases)))
    chosen = rng.choice(telling)
    # Whole and without each kernel, all else equal: in another order sums of atomic operations have other bytes.
    whole = Replay(cases.pop(chosen), POISONS[0], seed=rng.getrandbits(32), in_order=True, follow=False)
    kernels = rules.launched_kernels(program)
    left_out = [replace(whole, skip=kernel) for kernel in rng.sample(kernels, min(len(kernels), MAX_LEFT_OUT))]
    rng.shuffle(cases)
    others = [Replay(case, rng.choice(POISONS), seed=rng.getrandbits(32), follow=False) for case in cases]
    again = Replay(whole.case, rng.choice(POISONS[1:]), seed=rng.getrandbits(32), follow=True)
    calls = [again, *others, whole, *left_out]
    if draw.moved is not None:
        calls.append(Replay(draw.moved, POISONS[0], weights=draw.moved_weights, seed=rng.getrandbits(32), follow=False))
    if draw.updated is not None:
        # Weights of another form than the reference's (fused, permuted) cannot be updated from outside, and need not.
        updated = Replay(draw.updated, POISONS[0], weights=draw.updated_weights, needed=False, follow=False)
        calls.append(replace(updated, seed=rng.getrandbits(32)))
    return calls


async def trial(
    sandbox: Sandbox,
    code: str,
    draw: InputSet,
    limits: Limits,
    precision: str = "float32",
    max_programs: int = 4096,
    trials: int = 5,
    rng: random.Random | None = None,
) -> Outcome:
    """Put a submission to the test on one draw. Never raises for what a candidate does.

    Raises:
        SandboxError: no job at all can be run here.
    """
    rng = rng or random.SystemRandom()
    recording = await sandbox.run(record_job(code, draw, limits, precision))
    found = recorded(recording)
    if isinstance(found, NotRecorded):
        return Outcome(_end_of(found), found.message, found.line, cpu_s=recording.cpu_s)
    program = found.program
    findings = rules.static_findings(program, reference_arithmetic(draw.work))
    if (first := _first_refused(findings)) is not None:
        return Outcome("cheat", first.message, first.line, tuple(findings), program, recording.cpu_s)
    calls = plan(program, draw, trials, rng)
    job = replay_job(found.text, draw, calls, limits, max_programs)
    done = await sandbox.run(job)
    cpu_s = recording.cpu_s + done.cpu_s
    end, message, late = judge(done, program, draw, calls, precision)
    facts: dict[str, object] = {"programs": [dict(call.launches) for call in measured(done)[:1]]}
    return Outcome(end, message, 0, (*findings, *late), program, cpu_s, facts)


def _end_of(found: NotRecorded) -> End:
    ends: dict[str, End] = {"host_read": "host_read", "unsupported": "unsupported", "refused": "refused"}
    return (ends | {"timeout": "timeout", "infra": "infra"}).get(found.kind, "crash")


def _first_refused(findings: Sequence[Finding]) -> Finding | None:
    return next((finding for finding in findings if finding.refused), None)


def judge(
    result: JobResult, program: Program, draw: InputSet, calls: Sequence[Replay], precision: str
) -> tuple[End, str, list[Finding]]:
    """What the answers of a replay prove; pure."""
    seen = measured(result)
    answers = dict(enumerate(result.outputs[1 : len(calls) + 1]))
    for place, call in enumerate(calls):
        if call.skip == NO_KERNEL and place in answers and not (call.weights and not _weights_set(seen, place)):
            wrong = _wrong(answers[place], draw, call, precision)
            if wrong:
                return "wrong", wrong, []
    if result.end == "infra":
        return "infra", result.message, []
    if fault := fault_of(result):
        kinds: dict[str, End] = {"unsupported": "unsupported", "wrong_output": "wrong", "forged": "refused"}
        said = f"{plain_text(fault.get('type'))}: {plain_text(fault.get('message'))}"
        return kinds.get(plain_text(fault.get("kind")), "crash"), said, []
    if result.end != "ok":
        return ("timeout" if result.end == "timeout" else "crash"), explain(result), []
    outputs = len(program.outputs)
    if len(answers) != len(calls) or [len(account.unwritten) for account in seen] != [outputs] * len(calls):
        return "crash", "the replay did not answer every call", []
    if any(call.weights and call.needed and not seen[place].weights_set for place, call in enumerate(calls)):
        return "wrong", "the model lacks parameters of the reference whose values change during grading", []
    findings = _findings(program, calls, seen, answers)
    refused = _first_refused(findings)
    return ("cheat", refused.message, findings) if refused else ("ok", "", findings)


def _weights_set(seen: Sequence[Measured], place: int) -> bool:
    return place < len(seen) and seen[place].weights_set


def _wrong(outputs: Sequence[bytes], draw: InputSet, call: Replay, precision: str) -> str:
    """What is wrong with the outputs of a call; empty where nothing is."""
    tolerances = call.case.tolerances(precision)
    for (dtype, shape), data, exact, tolerance in zip(draw.outputs, outputs, call.case.exact, tolerances, strict=True):
        found = compare(HostTensor(dtype, shape, data).array(), exact, tolerance)
        if not found.ok:
            moved = ", once the weights have other values than at the start" if call.weights else ""
            return f"on inputs of the family {call.case.family!r}{moved}, {found.message}"
    return ""


def _findings(
    program: Program, calls: Sequence[Replay], seen: Sequence[Measured], answers: dict[int, tuple[bytes, ...]]
) -> list[Finding]:
    followed = [account.unwritten for call, account in zip(calls, seen, strict=True) if call.follow]
    unwritten = [max(counts) for counts in zip(*followed, strict=True)]
    changed = {
        call.skip: answers[place] != answers[_whole(calls, call)]
        for place, call in enumerate(calls)
        if call.skip != NO_KERNEL
    }
    races = {str(race["kernel"]): race for account in seen for race in account.races}
    return [
        *rules.outputs_written(program, unwritten),
        *rules.kernels_matter(program, changed),
        *rules.races(list(races.values())),
    ]


def _whole(calls: Sequence[Replay], left_out: Replay) -> int:
    """The call that differs from one in nothing but that it leaves out no kernel."""
    return next(
        place
        for place, call in enumerate(calls)
        if call.case is left_out.case and call.seed == left_out.seed and call.in_order and call.skip == NO_KERNEL
    )
