"""CUDA sources on a GPU: run behind the sandbox, and what their answers to their calls (`calls`) prove.

    verdict = await run_cuda(sandbox, code, draw, config, rng)

The child hands back bytes; all that is decided is decided here. Its report (calls of extensions, PyTorch's operators)
can only speak against it: it comes from a process in which the candidate's host code ran beside real values.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from assay.kernels.config import GraderConfig
from assay.kernels.job_reports import own_words
from assay.kernels.numerics.calls import Call, cuda_job, plan_calls
from assay.kernels.numerics.on_gpu import after_start, not_started, refused_by_compiler, without_start
from assay.kernels.numerics.screening import Case
from assay.kernels.numerics.secret_inputs import InputSet
from assay.kernels.numerics.tolerance import Comparison, compare_bytes
from assay.kernels.operators import Kind, is_heavy, kind_of
from assay.kernels.verdicts import Verdict, VerdictKind, plain_text
from assay.sandbox.base import JobResult, Sandbox
from assay.types import Json

MAX_SHARE_OF_WORK = 0.5
"""A candidate for which PyTorch does this much of the work that it does for the reference has written no kernel."""
MAX_SHARE_OF_EACH = 0.25
"""The same where it is this much of what each of the reference's operators does."""
MAX_HEAVY_SHARE = 0.1
"""The same for one heavy operator of a kind that the reference does without."""
NATIVE = "extension"
"""What calls of an extension's functions are counted as (`inside.extensions`)."""
_MATRIX: frozenset[Kind] = frozenset({"product", "convolution", "attention", "recurrent", "fft", "linalg"})
"""Kinds that stand in for each other: any of them can be made to multiply matrices."""

_MOST = 1 << 62
"""Counts that a child reports are cut here: it may write numbers of thousands of digits."""


@dataclass(slots=True)
class Answers:
    """The answers of one candidate to its calls, compared as they come."""

    draw: InputSet
    calls: Sequence[Call]
    precision: str
    comparisons: dict[int, Comparison] = field(default_factory=dict)
    outputs: dict[int, tuple[bytes, ...]] = field(default_factory=dict)

    async def after_round(self, number: int, outputs: tuple[bytes, ...]) -> bool:
        """`take`, in a thread: outputs on a GPU may be large."""
        return await asyncio.to_thread(self.take, number, outputs)

    def take(self, number: int, outputs: tuple[bytes, ...]) -> bool:
        """Compare the outputs of a round (0 is the construction); False if the other calls need not be made."""
        if number == 0:
            self.comparisons.clear()
            self.outputs.clear()
            return True
        place, call = number - 1, self.calls[number - 1]
        self.outputs[place] = outputs
        self.comparisons[place] = found = self._compare(call.case, outputs)
        return found.ok or call.moved

    def _compare(self, case: Case, outputs: tuple[bytes, ...]) -> Comparison:
        worst = Comparison(True, 0.0, 0, 0)
        tolerances = case.tolerances(self.precision)
        for index, (data, exact, tolerance) in enumerate(zip(outputs, case.exact, tolerances, strict=True)):
            dtype, shape = self.draw.outputs[index]
            found = compare_bytes(dtype, shape, data, exact, tolerance)
            if not found.ok:
                return found
            worst = found if found.worst >= worst.worst else worst
        return worst

    @property
    def passed(self) -> int:
        """Ordinary calls that were answered rightly."""
        return sum(self._ordinary(place) and found.ok for place, found in self.comparisons.items())

    @property
    def total(self) -> int:
        """Ordinary calls in the plan."""
        return sum(self._ordinary(place) for place in range(len(self.calls)))

    def _ordinary(self, place: int) -> bool:
        return not self.calls[place].moved


async def run_cuda(
    sandbox: Sandbox,
    code: str,
    draw: InputSet,
    config: GraderConfig,
    rng: random.Random,
    evidence: Mapping[str, Json] | None = None,
) -> Verdict:
    """The verdict on CUDA sources that are run on a GPU. Never raises for what a candidate does.

    Args:
        sandbox: Where they run, with a GPU in view.
        code: The candidate's module.
        draw: Secret inputs and expected outputs.
        config: Settings.
        rng: The parent's own.
        evidence: What is known already, to be kept in the verdict.

    Raises:
        SandboxError: no job at all can be run here.
    """
    answers = Answers(draw, plan_calls(draw, config.num_correct_trials, rng), config.precision)
    result = await sandbox.run(cuda_job(code, draw, answers.calls, config), after_start(answers.after_round))
    if (lost := not_started(result)) is not None:
        return Verdict("infra_error", "numerics", lost, "", dict(evidence or {}), cpu_s=result.cpu_s)
    result = without_start(result)
    verdict = await asyncio.to_thread(verdict_of, result, answers, config.policy, dict(evidence or {}))
    if verdict.kind == "crash" and (words := refused_by_compiler(result)) is not None:
        return replace(verdict, kind="compile_error", stage="compile", message=words, compiled=False)
    return replace(verdict, compiled=True) if verdict.ok else verdict


def verdict_of(result: JobResult, answers: Answers, policy: str = "strict", evidence: Json = None) -> Verdict:
    """The verdict of the numerics stage; pure.

    Args:
        result: What the job left behind; its last outputs are compared here.
        answers: The answers taken on the way.
        policy: `strict` refuses heavy operators of PyTorch that the reference uses; `partial` lets them stand beside
            kernels that matter.
        evidence: What is known already, to be kept in the verdict.
    """
    report = result.report if isinstance(result.report, Mapping) else {}
    if result.end == "ok" and len(result.outputs) == len(answers.calls) + 1:
        answers.take(len(answers.calls), result.outputs[-1])
    kind, message, cheat, found = _decide(result, report, answers, policy)
    return Verdict(
        kind,
        "numerics",
        message,
        cheat,
        {**(evidence or {}), **found},
        tests_passed=answers.passed,
        tests_total=answers.total,
        cpu_s=result.cpu_s,
    )


Decision = tuple[VerdictKind, str, str, dict[str, Json]]


def _decide(result: JobResult, report: Mapping[str, Json], answers: Answers, policy: str) -> Decision:
    if result.end == "infra":
        return "infra_error", f"the sandbox failed: {result.message}", "", {}
    rounds = report.get("rounds")
    traces = [entry if isinstance(entry, Mapping) else {} for entry in rounds] if isinstance(rounds, list) else []
    wrong = _wrong_answer(answers, traces)
    if wrong is not None:
        return wrong
    fault = report.get("fault")
    if isinstance(fault, Mapping):
        return _faulted(fault)
    if result.end == "timeout":
        return "timeout", f"the kernel was {result.message}", "", {}
    if result.end != "ok":
        text = _last_lines(own_words(result))
        return "crash", f"the process of the kernel {result.message}{': ' + text if text else ''}", "", {}
    if len(traces) != len(answers.calls):
        return (
            "unsupported",
            "what its kernels did is not known: the report of the harness is missing or too long",
            "",
            {},
        )
    if _weights_moved(answers, traces) is False:
        names = ", ".join(list(answers.draw.moved_weights)[:4])
        said = (
            f"the model has no parameters or buffers for the reference's {names}, whose values also change during "
            "grading: keep all of the reference's parameters and buffers, under their names (or parameters in order)"
        )
        return "wrong", said, "", {"weights_moved": False}
    return _cheated(answers, traces, policy) or ("ok", "", "", _summary(answers, traces))


def _wrong_answer(answers: Answers, traces: Sequence[Mapping[str, Json]]) -> Decision | None:
    for place, found in answers.comparisons.items():
        call = answers.calls[place]
        if found.ok or (call.moved and not _weights_set(traces, place)):
            continue
        seen: dict[str, Json] = {"family": call.case.family, "call": place, "worst": _finite(found.worst)}
        if call.moved:
            names = ", ".join(list(answers.draw.moved_weights)[:4])
            said = f"the output is wrong once the weights {names} have other values than at the start"
            return "wrong", f"{said}: {found.message}", "", seen
        said = f"on inputs of the family {call.case.family!r}, {found.message}"
        return "wrong", said, "", seen
    return None


def _weights_set(traces: Sequence[Mapping[str, Json]], place: int) -> bool:
    """Whether the candidate has the reference's weights under any name; where it has not, they were not moved."""
    return place < len(traces) and traces[place].get("weights") is True


def _faulted(fault: Mapping[str, Json]) -> Decision:
    """What the harness saw go wrong. Untrusted, but no candidate gains by any of it."""
    message = plain_text(fault.get("message"))
    line = fault.get("line") if isinstance(fault.get("line"), int) and 0 < fault["line"] < _MOST else None
    where = f" (line {line})" if line is not None else ""
    named: dict[str, Json] = {
        "fault": {key: plain_text(fault.get(key)) for key in ("stage", "kind", "type")} | {"line": line}
    }
    if fault.get("kind") == "unsupported":
        return "unsupported", message, "", named
    if fault.get("kind") == "wrong_output":
        return "wrong", message, "", named
    doing = "constructing ModelNew" if fault.get("stage") == "construct" else "forward"
    return "crash", f"{plain_text(fault.get('type')) or 'an error'} while {doing}{where}: {message}", "", named


def _cheated(answers: Answers, traces: Sequence[Mapping[str, Json]], policy: str) -> Decision | None:
    """Right answers that its own sources did not give, as far as its process says so."""
    for place, call in enumerate(answers.calls):
        if NATIVE not in _launches(traces, place):
            said = "no function of an extension of its own was called in a call that gave the right output"
            return "cheat", said, "no_launch", {"call": place, "family": call.case.family}
    return _library_work(answers.draw.work, traces, policy)


def _count(traces: Sequence[Mapping[str, Json]], place: int, name: str) -> int:
    found = traces[place].get(name) if place < len(traces) else None
    return found if isinstance(found, int) else 0


def _launches(traces: Sequence[Mapping[str, Json]], place: int) -> dict[str, int]:
    found = traces[place].get("launches") if place < len(traces) else None
    return _counts(found) if isinstance(found, dict) else {}


def _library_work(
    reference: Mapping[str, tuple[int, int]], traces: Sequence[Mapping[str, Json]], policy: str
) -> Decision | None:
    """Whether PyTorch did the candidate's work."""
    needed = sum(work for _, work in reference.values())
    theirs = {name for name, (_, work) in reference.items() if work}
    only_moves = all(kind_of(name) == "index" for name in theirs)
    for place, trace in enumerate(traces):
        done = _work(trace)
        if only_moves and (moved := _count(traces, place, "moved")):
            done["moves"] = moved
        share = sum(done.values()) / needed if needed else 0.0
        heavy = sorted(
            name
            for name, work in done.items()
            if is_heavy(name) and (_same_kind(name, theirs) or work > MAX_HEAVY_SHARE * needed)
        )
        seen: dict[str, Json] = {"operators": dict(sorted(done.items())), "share": round(share, 4)}
        all_of_it = theirs and all(done.get(name, 0) >= MAX_SHARE_OF_EACH * reference[name][1] for name in theirs)
        if share >= MAX_SHARE_OF_WORK or all_of_it:
            said = f"PyTorch did the work ({', '.join(sorted(done))}), and the kernels did only the rest"
            return "cheat", said, "library_work", seen
        if heavy and policy == "strict":
            said = f"PyTorch's {', '.join(heavy)} did work that a kernel has to do"
            return "cheat", said, "library_work", seen
    return None


def _same_kind(name: str, others: set[str]) -> bool:
    kind, kinds = kind_of(name), {kind_of(other) for other in others}
    return kind in kinds or (kind in _MATRIX and bool(kinds & _MATRIX))


def _work(trace: Mapping[str, Json]) -> dict[str, int]:
    """Operator -> work, of those that did any."""
    found = trace.get("work")
    if not isinstance(found, dict):
        return {}
    return _counts({name: pair[1] for name, pair in found.items() if isinstance(pair, list) and len(pair) == 2})


def _counts(found: Mapping[str, Json]) -> dict[str, int]:
    """Name -> count, of whatever is one; the largest number stands for larger ones."""
    return {plain_text(name): min(n, _MOST) for name, n in found.items() if isinstance(n, int) and n > 0}


def _weights_moved(answers: Answers, traces: Sequence[Mapping[str, Json]]) -> bool | None:
    """Whether weights were changed whose start gives something away; None where the problem has none."""
    moved = [place for place, call in enumerate(answers.calls) if call.moved]
    return all(_weights_set(traces, place) for place in moved) if moved else None


def _summary(answers: Answers, traces: Sequence[Mapping[str, Json]]) -> dict[str, Json]:
    return {
        "worst": _finite(max((found.worst for found in answers.comparisons.values()), default=0.0)),
        "families": sorted({call.case.family for call in answers.calls}),
        "launches": _launches(traces, 0),
        "operators": _work(traces[0]) if traces else {},
        "weights_moved": _weights_moved(answers, traces),
    }


def _finite(value: float) -> float:
    """JSON has no infinity; the largest number says as much."""
    return min(round(float(value), 6), 1e300) if value == value else 1e300


def _last_lines(text: str, lines: int = 6, characters: int = 800) -> str:
    kept = [line for line in plain_text(text).strip().splitlines() if line.strip()]
    return "\n".join(kept[-lines:])[-characters:]
