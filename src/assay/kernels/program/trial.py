"""A submission put to the test at one size: recorded, held against the rules, replayed on secret inputs, compared.

    attempt = await record(sandbox, code, draw, limits, precision, policy)
    if isinstance(attempt, Attempt):
        outcome = await replay(sandbox, attempt, draw, calls, limits, max_programs, precision)

Everything is decided here, from a program and from bytes; the processes that made them decide nothing. Programs that
are not small are read and judged in threads.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from assay.kernels.arrays import HostTensor
from assay.kernels.base import Policy
from assay.kernels.job_reports import explain, fault_of, line_of, told
from assay.kernels.numerics.held_inputs import compare_left, held_in
from assay.kernels.numerics.secret_inputs import InputSet
from assay.kernels.numerics.shapes import Shapes
from assay.kernels.numerics.tolerance import Comparison, compare
from assay.kernels.program import rules
from assay.kernels.program.form import Program
from assay.kernels.program.jobs import (
    MOST_SHARE,
    NO_KERNEL,
    Measured,
    NotRecorded,
    Replay,
    examined_of,
    measured,
    record_job,
    recorded_bytes,
    recorded_for,
    replay_job,
    rounds_of,
    starts,
)
from assay.kernels.program.limits import Limits as ProgramLimits
from assay.kernels.program.noise import changed_beyond_noise
from assay.kernels.program.operations import reference_arithmetic
from assay.kernels.program.rules import Finding
from assay.kernels.program.weight_work import replaced_storages
from assay.kernels.text.examined import Examined
from assay.kernels.verdicts import plain_text
from assay.sandbox.base import JobResult, Limits, Sandbox
from assay.types import Json

EMPTY = Examined()

End = Literal[
    "ok", "wrong", "cheat", "host_read", "refused", "unsupported", "not_triton", "text", "crash", "timeout", "infra"
]
"""`text`: the text alone decides (`Outcome.examined`). `host_read`: host code reads a value. `refused`: the program is
larger than any that is taken, or forged. `not_triton`: a kernel is written in what Triton does not take, or refused by
its compiler."""

MOST_INEXACT = {"float64": 64.0, "float32": 64.0, "float16": 16.0, "bfloat16": 16.0}
"""How many times the tolerance an output may be off on a GPU, as far as error bounds tell, by the working precision.
They add up what hardly ever comes together: of a norm after a product they may be 50 tolerances, of most honest kernels
they are one. Narrow precisions have tolerances of a few last bits, so that fewer say as much."""
MOST_OF_LARGE = 256.0
"""The same of inputs so large that exponentials make much of a last bit."""
LOOP_BYTES = 1 << 18
"""Larger outputs are compared in a thread."""
LOOP_CHARACTERS = 1 << 12
"""Larger programs are read and judged in a thread. To wake one for a small program takes as long as to read it."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """A recorded submission that broke no rule so far."""

    program: Program
    text: str
    findings: tuple[Finding, ...]
    """What is told and does not decide."""
    host_share: float
    """Arithmetic that PyTorch does in forward as a share of what it does for the reference."""
    cpu_s: float
    examined: Examined = EMPTY
    """What the text shows."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a trial showed."""

    end: End
    message: str = ""
    line: int = 0
    findings: tuple[Finding, ...] = ()
    """Those that are told and do not decide, too; the one that decided is the first that is `refused`."""
    stage: Literal["parse", "record", "rules", "numerics"] = "numerics"
    passed: int = 0
    """Ordinary calls with the right outputs."""
    total: int = 0
    cpu_s: float = 0.0
    """Of all processes."""
    facts: Mapping[str, Json] = field(default_factory=dict)
    examined: Examined = EMPTY
    """What the text shows."""


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
    findings = tuple(rules.static_findings(found.program, reference, policy, slack))
    if (first := first_refused(findings)) is not None:
        return Outcome("cheat", first.message, first.line, findings, "rules", cpu_s=cpu_s, examined=examined)
    share = rules.arithmetic_share(found.program, reference)
    return Attempt(found.program, found.text, findings, share, cpu_s, examined)


def _end_of(found: NotRecorded) -> End:
    ends: dict[str, End] = {"host_read": "host_read", "unsupported": "unsupported", "refused": "refused"}
    ends["wrong_output"] = "wrong"
    return (ends | {"timeout": "timeout", "infra": "infra"}).get(found.kind, "crash")


def first_refused(findings: Sequence[Finding]) -> Finding | None:
    """The finding that decides."""
    return next((finding for finding in findings if finding.refused), None)


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


class Answers:
    """The outputs of each call, compared as they come. `exact`: the same call has the same bytes each time."""

    def __init__(self, draw: InputSet, calls: Sequence[Replay], precision: str, *, exact: bool = True) -> None:
        self.draw, self.calls, self.precision, self.exact = draw, calls, precision, exact
        self.rounds = rounds_of(draw, calls)
        self.outputs: dict[int, tuple[bytes, ...]] = {}
        self.comparisons: dict[int, Comparison] = {}

    async def after_round(self, number: int, outputs: tuple[bytes, ...]) -> bool:
        """Take the outputs of a round (0 is the construction); False if the other rounds need not be made."""
        if sum(map(len, outputs)) > LOOP_BYTES:
            return await asyncio.to_thread(self.take, number, outputs)
        return self.take(number, outputs)

    def take(self, number: int, outputs: tuple[bytes, ...]) -> bool:
        """The same, at once."""
        if number == 0:
            self.outputs.clear()
            self.comparisons.clear()
            return True
        each = len(self.draw.outputs) + len(self.draw.after)
        taken = [
            self._take_call(call, outputs[place * each : (place + 1) * each])
            for place, call in enumerate(self.rounds[number - 1])
        ]
        return all(taken)

    def _take_call(self, place: int, outputs: tuple[bytes, ...]) -> bool:
        call = self.calls[place]
        made, held = outputs[: len(self.draw.outputs)], outputs[len(self.draw.outputs) :]
        self.outputs[place] = (*made, *held_in(self.draw.after, call.case.after, held))
        if call.skip != NO_KERNEL:
            return True
        found = self.comparisons[place] = self._compare(call, outputs)
        return found.ok or bool(call.weights)

    def _compare(self, call: Replay, outputs: tuple[bytes, ...]) -> Comparison:
        worst = Comparison(True, 0.0, 0, 0)
        tolerances = call.case.tolerances(self.precision)
        for (dtype, shape), data, exact, allowed in zip(
            self.draw.outputs, outputs[: len(self.draw.outputs)], call.case.exact, tolerances, strict=True
        ):
            found = compare(HostTensor(dtype, shape, data).array(), exact, allowed)
            if not found.ok:
                return found
            worst = found if found.worst >= worst.worst else worst
        held = outputs[len(self.draw.outputs) :]
        left = compare_left(self.draw.after, call.case.after, call.case.inputs, held, self.precision)
        return worst if left.ok and left.worst < worst.worst else left

    @property
    def passed(self) -> int:
        """Ordinary calls that were answered rightly."""
        return sum(found.ok and not self.calls[place].weights for place, found in self.comparisons.items())

    @property
    def total(self) -> int:
        """Ordinary calls in the plan."""
        return sum(call.skip == NO_KERNEL and not call.weights for call in self.calls)

    def worst(self, seen: Sequence[Measured]) -> float:
        """The worst error of all calls that count, in units of what is allowed; finite, since JSON has no infinity."""
        found = max((each.worst for place, each in self.comparisons.items() if self.counts(place, seen)), default=0.0)
        return min(round(float(found), 6), 1e300) if found == found else 1e300

    def first_wrong(self, seen: Sequence[Measured]) -> int | None:
        """The first call that counts and was not answered rightly."""
        wrong = (place for place, found in self.comparisons.items() if not found.ok and self.counts(place, seen))
        return next(wrong, None)

    def counts(self, place: int, seen: Sequence[Measured]) -> bool:
        """Whether a call has to be right: not under weights that it could not be given."""
        return not self.calls[place].weights or _weights_set(seen, place)


def judge(result: JobResult, attempt: Attempt, answers: Answers, policy: Policy = "strict") -> Outcome:
    """What the answers of a replay prove; pure but for the outputs of the last round, which `answers` takes."""
    if result.end == "ok" and len(result.outputs) == len(answers.rounds) + 1:
        answers.take(len(answers.rounds), result.outputs[-1])
    seen = measured(result)
    end, message, line, findings = _decide(result, attempt.program, answers, seen, policy)
    facts: dict[str, Json] = {
        "weights_moved": _weights_moved(answers, seen),
        "launches": dict(seen[0].launches) if seen else {},
        "families": sorted({call.case.family for call in answers.calls}),
        "worst": answers.worst(seen),
        "host_share": round(min(attempt.host_share, 1e9), 6),
    }
    if partly := sorted({place for account in seen for place in account.partly}):
        facts["partly"] = list(partly)
    if policy == "partial":
        done = _kernels_arithmetic(answers.calls, seen)
        measured_share = 1.0 if done is None else rules.kernel_share(attempt.program, done)
        facts["kernel_share"] = round(min(max(0.0, 1.0 - attempt.host_share), measured_share), 6)
    found = (*attempt.findings, *findings)
    cpu_s = attempt.cpu_s + result.cpu_s
    return Outcome(end, message, line, found, "numerics", answers.passed, answers.total, cpu_s, facts, attempt.examined)


Decision = tuple[End, str, int, Sequence[Finding]]


def _decide(
    result: JobResult, program: Program, answers: Answers, seen: Sequence[Measured], policy: Policy
) -> Decision:
    calls = answers.calls
    plain = [place for place, found in answers.comparisons.items() if found.ok and not calls[place].tuning]
    if (place := answers.first_wrong(seen)) is not None:
        where = calls[place].circumstances({calls[each].configurations for each in plain})
        return "wrong", f"{where}, {answers.comparisons[place].message}{_noted(seen)}", 0, ()
    if result.end == "infra":
        return "infra", f"the sandbox failed: {result.message}", 0, ()
    if fault := fault_of(result):
        return (*_faulted(fault), ())
    if result.end != "ok":
        if result.end == "timeout":
            return "timeout", f"the kernel was {explain(result)}", 0, ()
        return "crash", f"the process of the kernel {explain(result)}", 0, ()
    outputs = len(program.outputs)
    if len(answers.outputs) != len(calls) or [len(account.unwritten) for account in seen] != [outputs] * len(calls):
        return "crash", "the replay did not answer every call", 0, ()
    if any(call.weights and call.needed and not seen[place].weights_set for place, call in enumerate(calls)):
        names = ", ".join(list(answers.draw.moved_weights)[:4])
        said = (
            f"the model has no parameters or buffers for the reference's {names}, whose values also change during "
            "grading: keep all of the reference's parameters and buffers, under their names (or parameters in order)"
        )
        return "wrong", said, 0, ()
    if said := _inexact(answers, seen):
        return "wrong", said, 0, ()
    findings = _findings(program, answers, seen, policy, starts(result))
    if (refused := first_refused(findings)) is None:
        return "ok", "", 0, findings
    return ("wrong" if refused.rule in ("races", "state") else "cheat"), refused.message, refused.line, findings


def _inexact(answers: Answers, seen: Sequence[Measured]) -> str:
    """Which output may be another one on a GPU, as far as its error bounds tell; empty for none."""
    for place, (call, account) in enumerate(zip(answers.calls, seen, strict=True)):
        if not account.inexact or not answers.counts(place, seen):
            continue
        allowed = _allowed(call, answers)
        if len(account.inexact) != len(answers.draw.outputs) + len(answers.draw.after):
            return "the replay did not say how far each output may be off"
        for output, (found, most) in enumerate(zip(account.inexact, allowed, strict=False)):
            if found > most:
                return _said_of_inexact(call, output, found, most, account.undecided)
    return ""


def _allowed(call: Replay, answers: Answers) -> list[float]:
    """How far each output may be off on a GPU, as a part of its size."""
    most = MOST_OF_LARGE if call.case.family == "large" else MOST_INEXACT[answers.precision]
    sides = zip(call.case.exact, call.case.tolerances(answers.precision), strict=True)
    found = [most * tolerance.share_of(exact) for exact, tolerance in sides]
    left = {each.place: each for each in call.case.after}
    for place, *_ in answers.draw.after:
        each = left.get(place)
        share = math.inf if each is None else each.tolerance(answers.precision).share_of(each.exact.array())
        found.append(most * share)
    return found


def _said_of_inexact(call: Replay, output: int, found: float, most: float, lines: Sequence[int]) -> str:
    off = "anything" if found >= MOST_SHARE else f"off by {found:.2g} of its size, where {most:.2g} is allowed"
    compared = f". Numbers that GPUs have in either order are compared in line {', '.join(map(str, lines))}"
    return (
        f"{call.circumstances()}, output {output} is right in the interpreter and may be {off}, on a GPU: it makes "
        "much of the last bits of inexact results (divisions, functions, sums), and each GPU has others"
        f"{compared if lines else ''}"
    )


def _faulted(fault: Mapping[str, Json]) -> tuple[End, str, int]:
    kinds: dict[str, End] = {
        "unsupported": "unsupported",
        "wrong_output": "wrong",
        "forged": "refused",
        "refused": "refused",
        "language": "unsupported",
        "not_triton": "not_triton",
        "compile": "not_triton",
    }
    end = kinds.get(plain_text(fault.get("kind")), "crash")
    return end, told(fault, crashed=end == "crash"), line_of(fault)


def _noted(seen: Sequence[Measured]) -> str:
    """What may explain a wrong result."""
    notes = dict.fromkeys(note for account in seen for note in account.notes)
    return f". Note: {'; '.join(notes)}" if notes else ""


def _weights_set(seen: Sequence[Measured], place: int) -> bool:
    return place < len(seen) and seen[place].weights_set


def _weights_moved(answers: Answers, seen: Sequence[Measured]) -> bool | None:
    """Whether weights were changed whose start gives something away; None where the problem has none."""
    moved = [place for place, call in enumerate(answers.calls) if call.weights and call.needed]
    return all(_weights_set(seen, place) for place in moved) if moved else None


def _findings(
    program: Program, answers: Answers, seen: Sequence[Measured], policy: Policy, begun: Sequence[str]
) -> list[Finding]:
    calls = answers.calls
    followed = [account.unwritten for call, account in zip(calls, seen, strict=True) if call.follow]
    unwritten = [max(counts) for counts in zip(*followed, strict=True)] or [0] * len(program.outputs)
    changed = _changed(answers)
    draw, updated = answers.draw, [place for place, call in enumerate(calls) if call.weights and not call.needed]
    follows = any(_weights_set(seen, place) for place in updated)
    replaced = replaced_storages(program, draw.weights, draw.initial, begun) if follows else frozenset()
    folded = policy == "strict" and bool(draw.weights)
    reference = reference_arithmetic(draw.work)
    whole = [(call, account) for call, account in zip(calls, seen, strict=True) if call.skip == NO_KERNEL]
    inputs = {number for call, account in whole for number in _changed_beside(call, account)}
    params = {name for _, account in whole for name in account.params_changed}
    done = _kernels_arithmetic(calls, seen)
    return [
        *rules.kept_by_first_call(program),
        *rules.tensors_left_alone(inputs, params),
        *(rules.beside_kernels(program, done, policy) if done is not None else ()),
        *rules.left_as_found([found for account in seen for found in account.left]),
        *(rules.outputs_written(program, unwritten) if policy == "strict" else ()),
        *rules.kernels_matter(program, changed),
        *rules.constructor(program, reference, draw.init_work, replaced, refused=folded),
        *rules.races([race for account in seen for race in account.races]),
    ]


def _changed_beside(call: Replay, account: Measured) -> set[int]:
    """Inputs that a call changed and the reference does not on the same inputs and weights."""
    same = account.weights_set or not call.weights
    return set(account.inputs_changed) - {left.place for left in call.case.after} if same else set()


def _kernels_arithmetic(calls: Sequence[Replay], seen: Sequence[Measured]) -> int | None:
    """Operations that the kernels did in the call in which they did least; None where they were not counted."""
    done = [account.arithmetic for call, account in zip(calls, seen, strict=False) if call.skip == NO_KERNEL]
    return min((count for count in done if count is not None), default=None)


def _changed(answers: Answers) -> dict[int, bool]:
    """Kernel -> whether the output was another one without it."""
    calls, outputs = answers.calls, answers.outputs
    if not answers.exact:
        return changed_beyond_noise(calls, outputs, answers.draw, answers.precision)
    return {
        call.skip: outputs[place] != outputs[_whole(calls, call)]
        for place, call in enumerate(calls)
        if call.skip != NO_KERNEL
    }


def _whole(calls: Sequence[Replay], left_out: Replay) -> int:
    """The call that differs from one in nothing but that it leaves out no kernel."""
    return next(
        place
        for place, call in enumerate(calls)
        if call.case is left_out.case and call.seed == left_out.seed and call.in_order and call.skip == NO_KERNEL
    )
