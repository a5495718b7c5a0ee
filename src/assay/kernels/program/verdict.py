"""What a trial showed, as a verdict: messages are for whoever wrote the kernel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from assay.kernels.program.judging.findings import Finding
from assay.kernels.program.judging.outcome import End, Outcome, first_refused
from assay.kernels.text.job import of_text
from assay.kernels.verdicts import Verdict, VerdictKind
from assay.types import Json

KINDS: Mapping[End, VerdictKind] = {
    "ok": "ok",
    "wrong": "wrong",
    "undecided": "wrong",
    "cheat": "cheat",
    "host_read": "cheat",
    "refused": "unsupported",
    "unsupported": "unsupported",
    "not_triton": "compile_error",
    "text": "compile_error",
    "crash": "crash",
    "timeout": "timeout",
    "infra": "infra_error",
}
UNDECIDED = "undecided"
"""In the evidence of a verdict that another draw of inputs may not give."""
MOST_FINDINGS = 16
"""Findings that a verdict keeps, those that are refused first."""


def verdict_of(outcome: Outcome, evidence: dict[str, Json]) -> Verdict:
    """The verdict on a submission that was put to the test at one size.

    Args:
        outcome: What the trial showed.
        evidence: What is known already, to be kept in the verdict.
    """
    if (early := of_text(outcome.examined)) is not None:
        return replace(early, cpu_s=outcome.cpu_s)
    decided = first_refused(outcome.findings)
    cheat = "host_read" if outcome.end == "host_read" else decided.rule if decided and outcome.end == "cheat" else ""
    found: dict[str, Json] = {**evidence, **outcome.facts}
    if outcome.end == "undecided":
        found[UNDECIDED] = True
    if outcome.findings:
        kept = sorted(outcome.findings, key=lambda finding: not finding.refused)[:MOST_FINDINGS]
        found["findings"] = [told(finding) for finding in kept]
    return Verdict(
        KINDS[outcome.end],
        outcome.stage,
        "" if outcome.end == "ok" else outcome.examined.told(_message(outcome)),
        cheat,
        found,
        tests_passed=outcome.passed,
        tests_total=outcome.total,
        cpu_s=outcome.cpu_s,
    )


def _message(outcome: Outcome) -> str:
    where = f"line {outcome.line}: " if outcome.line and f"line {outcome.line}:" not in outcome.message else ""
    return f"{where}{outcome.message}"


def told(finding: Finding) -> dict[str, Json]:
    """What a verdict says of a finding."""
    return {"rule": finding.rule, "message": finding.message, "line": finding.line, "decided": finding.refused}


def with_findings(verdict: Verdict, findings: Sequence[Finding]) -> Verdict:
    """A verdict with what more rules have to say."""
    if not findings:
        return verdict
    known = verdict.evidence.get("findings", [])
    both = [*known, *map(told, findings)][: max(MOST_FINDINGS, len(known))]
    return replace(verdict, evidence={**verdict.evidence, "findings": both})


def with_calls(verdict: Verdict, again: Verdict, evidence: Mapping[str, Json]) -> Verdict:
    """A verdict with the calls of another one that is `ok` too, and with more evidence."""
    return replace(
        verdict,
        tests_passed=verdict.tests_passed + again.tests_passed,
        tests_total=verdict.tests_total + again.tests_total,
        cpu_s=verdict.cpu_s + again.cpu_s,
        evidence={**verdict.evidence, **evidence},
    )


def at_another_size(verdict: Verdict, first: Verdict, where: str) -> Verdict:
    """The verdict of a further size, where it is not `ok`: with what was right before; `where` says so in words."""
    return replace(
        verdict,
        message=f"{where}: {verdict.message}",
        tests_passed=first.tests_passed,
        tests_total=first.tests_total + verdict.tests_total,
        cpu_s=first.cpu_s + verdict.cpu_s,
    )
