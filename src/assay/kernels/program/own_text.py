"""Whether Triton reads in a submission's own kernels what the grader read in their text (`inside.record.own_text`).

    outcome = await own_text(sandbox, code, draw, limits, precision, arch, program, texts)        None where it does

A submission is recorded once more, and this time Triton's front end reads the kernels that are launched. What it makes
of them is compared with what it made of the texts that were compiled. The answer comes from the submission's process,
so it speaks for honest code: what it misreads, what Triton refuses, which launches its caches mix up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from assay.kernels.compile.stage import LAUNCHES_TOLD, texts_of
from assay.kernels.job_reports import explain, line_of
from assay.kernels.numerics.secret_inputs import InputSet
from assay.kernels.program.form import Launch, Program
from assay.kernels.program.jobs import record_job
from assay.kernels.program.judging.outcome import End, Outcome
from assay.kernels.verdicts import plain_text
from assay.sandbox.base import JobResult, Limits, Sandbox
from assay.types import Json

_UNLIKE = (
    "Triton reads another kernel in {0} than its text says to the grader: a default, a global, a helper, an "
    "annotation, an argument of a decorator or the name of a module stands for something else there. Write them out "
    "where the kernel is defined"
)
_CHARACTERS, _NAME_CHARACTERS = 1000, 100
_LONG = "Triton was reading the kernels, in as many variants as are launched, and was"
_LARGE = "Triton was reading the kernels, in as many variants as are launched, and had no room for that"
_TOO_MANY = (
    "{0} launches: Triton reads the kernels of {1} at most, to see that they are what their text says. Make fewer, "
    "with larger grids or loops in the kernels"
)
_NOT_TOLD = "the submission was recorded a second time, and did something else than at first"


async def own_text(
    sandbox: Sandbox,
    code: str,
    draw: InputSet,
    limits: Limits,
    precision: str,
    arch: str,
    program: Program,
    texts: Sequence[str],
) -> Outcome | None:
    """What is wrong with the kernels as Triton reads them; None for nothing.

    `program`: what was compiled for `arch`. `texts`: of its launches, as the compiler reports them.

    Raises:
        SandboxError: no job at all can be run here.
    """
    capability = int(arch.removeprefix("sm_"))
    result = await sandbox.run(record_job(code, draw, limits, precision, text_checks=False, reads=capability))
    return outcome_of(result, program, texts)


def outcome_of(result: JobResult, program: Program, texts: Sequence[str]) -> Outcome | None:
    """What such a recording shows."""
    report = result.report.get("own") if isinstance(result.report, Mapping) else None
    own: Mapping[str, Json] = report if isinstance(report, Mapping) else {}
    if isinstance(said := own.get("refused"), Mapping):
        return _against("not_triton", said, result)
    if isinstance(said := own.get("merged"), Mapping):
        return _against("wrong", said, result)
    if result.end == "infra":
        return Outcome("infra", f"the sandbox failed: {result.message}", stage="record", cpu_s=result.cpu_s)
    if result.end == "timeout":
        return Outcome("timeout", f"{_LONG} {explain(result)}", stage="record", cpu_s=result.cpu_s)
    if result.end == "memory":
        return Outcome("unsupported", f"{_LARGE} ({explain(result)})", stage="record", cpu_s=result.cpu_s)
    found = texts_of(own.get("texts"))
    launches = [step for step in program.steps if isinstance(step, Launch)]
    if len(launches) > LAUNCHES_TOLD:
        said = _TOO_MANY.format(len(launches), LAUNCHES_TOLD)
        return Outcome("unsupported", said, launches[LAUNCHES_TOLD].line, stage="record", cpu_s=result.cpu_s)
    if len(found) != len(texts):
        return Outcome("unsupported", _NOT_TOLD, stage="record", cpu_s=result.cpu_s)
    for launch, mine, theirs in zip(launches, texts, found, strict=False):
        if mine and mine != theirs:
            name = program.kernels[launch.kernel].name
            said = _UNLIKE.format(f"{name} (launched in line {launch.line})")
            return Outcome("unsupported", said, launch.line, stage="record", cpu_s=result.cpu_s)
    return None


def _against(end: End, said: Mapping[str, Json], result: JobResult) -> Outcome:
    """What Triton has against a launch."""
    line, kernel = line_of(said), plain_text(said.get("kernel"))[:_NAME_CHARACTERS]
    text = f"kernel {kernel}{f', line {line}' if line else ''}: {plain_text(said.get('text'))[:_CHARACTERS]}"
    return Outcome(end, text, line, stage="record", cpu_s=result.cpu_s)
