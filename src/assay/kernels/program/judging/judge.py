"""What a replay proves: answers, faults, error bounds and rules, in the order in which they decide."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from assay.kernels.base import Policy
from assay.kernels.job_reports import fault_of, line_of, told
from assay.kernels.program import rules
from assay.kernels.program.form import Program
from assay.kernels.program.jobs import NO_KERNEL, Measured, Replay, measured, narrow, starts
from assay.kernels.program.judging import lasting
from assay.kernels.program.judging.answers import Answers, weights_set
from assay.kernels.program.judging.arithmetic import beside_kernels, kernel_share
from assay.kernels.program.judging.findings import Finding, Rule
from assay.kernels.program.judging.inexact import inexact
from assay.kernels.program.judging.outcome import NARROW, Attempt, End, Outcome, first_refused
from assay.kernels.program.noise import changed_beyond_noise
from assay.kernels.program.operations import reference_arithmetic
from assay.kernels.program.weight_work import replaced_storages
from assay.kernels.verdicts import plain_text
from assay.sandbox.base import JobResult
from assay.types import Json


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
    if lanes := {each[:4]: each for account in seen for each in account.same_lanes}:
        facts["same_lanes"] = [each._asdict() | {"shape": list(each.shape)} for each in lanes.values()]
    facts[NARROW] = narrow(result)
    if policy == "partial":
        done = _kernels_arithmetic(answers.calls, seen)
        measured_share = 1.0 if done is None else kernel_share(attempt.program, done)
        facts["kernel_share"] = round(min(max(0.0, 1.0 - attempt.host_share), measured_share), 6)
    found = (*attempt.findings, *findings)
    cpu_s = attempt.cpu_s + result.cpu_s
    return Outcome(end, message, line, found, "numerics", answers.passed, answers.total, cpu_s, facts, attempt.examined)


_WRONG: frozenset[Rule] = frozenset({"races", "state"})
"""Rules whose findings make a submission wrong rather than a cheat."""

Decision = tuple[End, str, int, Sequence[Finding]]


def _decide(
    result: JobResult, program: Program, answers: Answers, seen: Sequence[Measured], policy: Policy
) -> Decision:
    calls = answers.calls
    plain = [place for place, found in answers.comparisons.items() if found.ok and not calls[place].tuning]
    if (place := answers.first_wrong(seen)) is not None:
        where = calls[place].circumstances(program, {calls[each].configurations for each in plain})
        return "wrong", f"{where}, {answers.comparisons[place].message}{_noted(seen)}", 0, ()
    if result.end == "infra":
        return "infra", f"the sandbox failed: {result.message}", 0, ()
    if fault := fault_of(result):
        return (*_faulted(fault), ())
    if result.end != "ok":
        if result.end == "timeout":
            return "timeout", f"the kernel was {result.message}", 0, ()
        return "crash", f"the process of the kernel {result.message}", 0, ()  # what it wrote may quote inputs
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
    findings = _findings(program, answers, seen, policy, starts(result))
    refused = first_refused(findings)
    if refused is not None and refused.rule not in _WRONG:
        return "cheat", refused.message, refused.line, findings
    said, by_chance = inexact(answers, seen, program)
    if said:  # after the rules: those do not change with the inputs drawn
        return "undecided" if by_chance else "wrong", said, 0, findings
    return ("ok", "", 0, findings) if refused is None else ("wrong", refused.message, refused.line, findings)


def _faulted(fault: Mapping[str, Json]) -> tuple[End, str, int]:
    kinds: dict[str, End] = {
        "unsupported": "unsupported",
        "wrong_output": "wrong",
        "undecided": "undecided",
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


def _weights_moved(answers: Answers, seen: Sequence[Measured]) -> bool | None:
    """Whether weights were changed whose start gives something away; None where the problem has none."""
    moved = [place for place, call in enumerate(answers.calls) if call.weights and call.needed]
    return all(weights_set(seen, place) for place in moved) if moved else None


def _findings(
    program: Program, answers: Answers, seen: Sequence[Measured], policy: Policy, begun: Sequence[str]
) -> list[Finding]:
    calls = answers.calls
    followed = [account.unwritten for call, account in zip(calls, seen, strict=True) if call.follow]
    unwritten = [max(counts) for counts in zip(*followed, strict=True)] or [0] * len(program.outputs)
    changed = _changed(answers)
    draw, updated = answers.draw, [place for place, call in enumerate(calls) if call.weights and not call.needed]
    follows = any(weights_set(seen, place) for place in updated)
    replaced = replaced_storages(program, draw.weights, draw.initial, begun) if follows else frozenset()
    reference = reference_arithmetic(draw.work)
    whole = [(call, account) for call, account in zip(calls, seen, strict=True) if call.skip == NO_KERNEL]
    inputs = {number for call, account in whole for number in _changed_beside(call, account)}
    params = {name for _, account in whole for name in account.params_changed}
    done = _kernels_arithmetic(calls, seen)
    return [
        *lasting.kept_by_first_call(program),
        *lasting.tensors_left_alone(inputs, params),
        *lasting.trained(program, draw.weights),
        *(beside_kernels(program, done, policy) if done is not None else ()),
        *lasting.left_as_found([found for account in seen for found in account.left]),
        *(rules.outputs_written(program, unwritten) if policy == "strict" else ()),
        *rules.kernels_matter(program, changed),
        *rules.constructor(program, reference, draw.init_work, replaced, refused=policy == "strict", draws=draw.draws),
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
