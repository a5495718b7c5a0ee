"""The stages of a Triton submission, one after the other: recorded, held against the rules, replayed, compiled, and
once more at another size. Where a problem was made smaller, it is recorded at its published size too.

    grading = Grading(config, sandbox, random, warmed)
    verdict, attempt = await grading.grade(code, size, other, published)
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, replace

from assay.kernels.compile.stage import TRITON_HARNESS, CompileReport, compile_program, compiled_part
from assay.kernels.config import GraderConfig
from assay.kernels.numerics.families import FAMILIES
from assay.kernels.numerics.secret_inputs import InputSet
from assay.kernels.numerics.shapes import Shapes
from assay.kernels.problems.other_sizes import any_smaller
from assay.kernels.problems.scaling import ScaledProblem
from assay.kernels.program.form import Launch, Program
from assay.kernels.program.jobs import NO_KERNEL, RECORD, REPLAY, Replay
from assay.kernels.program.judging.compiled import as_compiled, without_narrow
from assay.kernels.program.judging.outcome import Attempt, Outcome
from assay.kernels.program.limits import ON_DEVICE, UNALLOCATED
from assay.kernels.program.limits import Limits as ProgramLimits
from assay.kernels.program.on_device import REPLAY as DEVICE_REPLAY
from assay.kernels.program.on_device import replay_on_device
from assay.kernels.program.own_text import own_text
from assay.kernels.program.planning import plan
from assay.kernels.program.published import at_published_size
from assay.kernels.program.reading import Refusal, read
from assay.kernels.program.sizes.given import LONG_TRIALS, OtherSizes, Size
from assay.kernels.program.sizes.stretching import Deeper, where_loops_turn
from assay.kernels.program.sizes.turns import Turns, turns_in, turns_job
from assay.kernels.program.trial import record, replay
from assay.kernels.program.verdict import at_another_size, verdict_of, with_calls
from assay.kernels.verdicts import Verdict
from assay.sandbox.base import Limits, Sandbox
from assay.sandbox.one_clock import OneClock
from assay.types import Json

TF32_HINT = (
    '. Note: tl.dot rounds float32 operands to TF32, here as on a GPU, unless given input_precision="ieee". So does '
    "tl.sum(a[:, :, None] * b[None, :, :], 1), of which Triton makes a tl.dot; of b[None, :, :] * a[:, :, None] it "
    "makes none"
)
OTHER_TRIALS = len(FAMILIES)
"""Ordinary calls at the other size, and where loops turn more often."""
OTHER_SLACK = 2.0
"""Times the share of arithmetic that PyTorch may do at the other size, which may be the smaller one."""
OTHER_PROGRAMS = 4
"""Times as many programs of a kernel may run at the other size, which may be the larger one."""
STRETCHED_PROGRAMS = 16
"""The same where one size alone is larger."""
_OF_BLOCKS = frozenset({"wrong", "crash", "compile_error"})
"""Verdicts that blocks may have which are larger than a size."""


@dataclass(frozen=True, slots=True)
class Grading:
    """What all submissions of a grader have in common."""

    config: GraderConfig
    sandbox: Sandbox
    random: random.Random
    warmed: Callable[[str], Awaitable[None]]
    """Waits for a worker that is being started for a harness."""
    text_checks: bool = True
    """Whether the text may decide before anything runs."""
    clocked: Sandbox | None = None
    """Where what belongs to one candidate runs, on its clock."""

    async def grade(self, code: str, size: Size, sizes: OtherSizes) -> tuple[Verdict, Attempt | None]:
        """The verdict, and what was recorded at the first size, where that may be replayed.

        Raises:
            SandboxError: no job at all can be run here.
        """
        own = replace(self, clocked=OneClock(self.sandbox, self.config.wall_s))
        return await own._grade(code, size, sizes)

    async def _grade(self, code: str, size: Size, sizes: OtherSizes) -> tuple[Verdict, Attempt | None]:
        evidence: dict[str, Json] = {"scaling": size.scaled.scaling.to_json()}
        whole = await self._record(code, size.draw)
        if isinstance(whole, Outcome):
            return verdict_of(whole, evidence), None
        # Only configurations that compile may run, so an autotuned kernel is compiled before.
        check = self.config.compile_check if self._compiles else "off"
        first = check == "all" or (check == "right" and _is_tuned(whole))
        attempt, compiled = whole, None
        if first:
            compiled = await self._compile(whole)
            if (refused := of_compiler(compiled, evidence)) is not None:
                return replace(refused, cpu_s=refused.cpu_s + whole.cpu_s), None
            part = await asyncio.to_thread(compilable, whole, compiled)
            if isinstance(part, Outcome):
                return verdict_of(part, evidence), None
            attempt = part
        trials = size.draw.trials(self.config.num_correct_trials)
        verdict = await self._replay(attempt, size, evidence, trials, 1, self._on_gpu)
        graded = [(attempt.text, size.scaled)]
        if verdict.ok:
            verdict, *other = await self._at_another_size(verdict, code, size, sizes, whole, compiled)
            graded += other
        if verdict.ok:
            verdict = await self._at_published_size(verdict, code, size, sizes, whole.program, graded)
        if verdict.ok and check == "right" and not first:
            compiled = await self._compile(attempt)
            if (refused := of_compiler(compiled, evidence)) is not None:
                cpu_s = verdict.cpu_s + refused.cpu_s
                passed, total = verdict.tests_passed, verdict.tests_total
                return replace(refused, cpu_s=cpu_s, tests_passed=passed, tests_total=total), None
        if compiled is not None:
            verdict = as_compiled(verdict, compiled, compiled.variants if first else {})
        if verdict.ok and compiled is not None:
            verdict = await self._as_triton_reads(verdict, code, size, whole, compiled)
        verdict = without_narrow(verdict)
        if compiled is None:
            return (replace(verdict, compiled=True) if verdict.ok and self._on_gpu else verdict), attempt
        cpu_s = verdict.cpu_s + compiled.cpu_s
        return replace(verdict, compiled=True, cpu_s=cpu_s, evidence=_with(verdict, compiled)), attempt

    async def _record(
        self, code: str, draw: InputSet | Shapes, slack: float = 1.0, sizes: ProgramLimits | None = None
    ) -> Attempt | Outcome:
        config = self.config
        await self.warmed(RECORD)
        return await record(
            self._of_candidate,
            code,
            draw,
            self._limits(),
            config.precision,
            config.policy,
            self.text_checks,
            slack,
            sizes or (ON_DEVICE if self._on_gpu else None),
        )

    async def _replay(
        self,
        attempt: Attempt,
        size: Size,
        evidence: dict[str, Json],
        trials: int,
        times: int,
        on_gpu: bool,
        kept: Callable[[Sequence[Replay]], list[Replay]] = list,
    ) -> Verdict:
        """The verdict on a replay. A kernel that changes nothing is left out once more: on some inputs one that matters
        may change nothing (a mean before `relu`). `kept`: which of the calls are made, and how."""
        config = self.config
        await self.warmed(DEVICE_REPLAY if on_gpu else REPLAY)

        async def once() -> Verdict:
            calls = kept(plan(attempt.program, size.draw, trials, self.random, size.constant_families))
            if on_gpu:
                outcome = await replay_on_device(self.sandbox, attempt, size.draw, calls, config)
            else:
                limits, programs = self._limits(), config.max_programs * times
                outcome = await replay(
                    self._of_candidate, attempt, size.draw, calls, limits, programs, config.precision, config.policy
                )
            return verdict_of(outcome, evidence)

        verdict = await once()
        if verdict.cheat == "kernels":
            verdict, first = await once(), verdict
            verdict = replace(verdict, cpu_s=first.cpu_s + verdict.cpu_s)
        if verdict.kind == "wrong" and config.precision == "float32" and attempt.examined.tf32_dot_possible:
            return replace(verdict, message=f"{verdict.message}{TF32_HINT}")
        return verdict

    async def _at_another_size(
        self,
        verdict: Verdict,
        code: str,
        graded: Size,
        sizes: OtherSizes,
        first: Attempt,
        compiled: CompileReport | None,
    ) -> tuple[Verdict, tuple[str, ScaledProblem]] | tuple[Verdict]:
        """The verdict once the submission was graded at another size too, where there is one, and its program there."""
        size = await sizes.other()
        if size is None:
            return (replace(verdict, evidence={**verdict.evidence, "sizes": 1}),)
        again, text = await self._at(size, code, graded, first, compiled)
        of_blocks = again.kind in _OF_BLOCKS and any_smaller(size.scaled, graded.scaled)
        if of_blocks and (grown := await sizes.grown()) is not None:
            larger, text_there = await self._at(grown, code, graded, first, compiled)
            if larger.ok:
                size, again, text = grown, replace(larger, cpu_s=larger.cpu_s + again.cpu_s), text_there
        if not again.ok:
            where = f"right at the first size, but not at another one ({size.scaled.scaling})"
            return (at_another_size(again, verdict, where),)
        told = {"sizes": 2, "other_scaling": size.scaled.scaling.to_json()}
        return with_calls(verdict, again, told), (text, size.scaled)

    async def _at(
        self, size: Size, code: str, graded: Size, first: Attempt, compiled: CompileReport | None
    ) -> tuple[Verdict, str]:
        """The verdict of a submission recorded and replayed at another size, and compiled there where it is larger or
        launches other kernels, and its program. What did not compile at the first size is left out again."""
        attempt = await self._record(code, size.draw, OTHER_SLACK)
        if isinstance(attempt, Attempt) and compiled is not None and _alike(attempt.program, first.program):
            attempt = await asyncio.to_thread(compilable, attempt, compiled)
        if isinstance(attempt, Outcome):
            return verdict_of(attempt, {}), ""
        larger = size.work > graded.work
        again = await self._replay(attempt, size, {}, OTHER_TRIALS, OTHER_PROGRAMS, self._on_gpu)
        # Blocks of smaller sizes may be too small for a GPU's products, which says nothing about larger ones.
        if again.kind == "compile_error" and self._on_gpu and not larger:
            again = await self._replay(attempt, size, {}, OTHER_TRIALS, OTHER_PROGRAMS, on_gpu=False)
        if again.ok and self._compiles and (larger or _kernels(attempt.program) - _kernels(first.program)):
            report = await self._compile(attempt)
            refused = of_compiler(report, {})
            again = as_compiled(again, report) if refused is None else refused
            if again.ok:
                again = await self._as_triton_reads(again, code, size, attempt, report)
        return again, attempt.text

    async def _at_published_size(
        self,
        verdict: Verdict,
        code: str,
        size: Size,
        sizes: OtherSizes,
        first: Program,
        graded: Sequence[tuple[str, ScaledProblem]],
    ) -> Verdict:
        """The verdict once the submission was recorded at the published size too, where the problem was made smaller.
        Nothing is replayed there; where loops turn more often than in the programs graded so far, the submission is
        graded at a size at which they do, and where sizes are larger, each as large as it can be."""
        shapes = await sizes.published()
        if shapes is None:
            return verdict
        if isinstance(shapes, str):
            return replace(verdict, evidence={**verdict.evidence, "published": f"not looked at: {shapes}"})
        shapes = replace(shapes, rearranged=size.draw.rearranged, moved_outputs=size.draw.moved_outputs)
        found = await self._record(code, shapes, OTHER_SLACK, UNALLOCATED)
        again = await self._of_published(found, first, verdict.evidence.get("partly", []))
        evidence = again.evidence
        if not again.ok:
            where = "right at the sizes it was graded at, but at the published one"
            return at_another_size(again, verdict, where)
        told = [*verdict.evidence.get("findings", []), *evidence.get("findings", [])]
        more = {**evidence, "findings": told} if told else evidence
        verdict = replace(verdict, cpu_s=verdict.cpu_s + again.cpu_s, evidence={**verdict.evidence, **more})
        if not isinstance(found, Attempt):
            return verdict

        # Larger sizes take longer, and on a clock of their own no time of what comes after them.
        own = replace(self, clocked=OneClock(self.sandbox, self.config.wall_s))
        deeper = own._deeper(code, shapes)
        return await where_loops_turn(verdict, size.scaled, sizes, found.text, graded, deeper)

    def _deeper(self, code: str, published: Shapes) -> Deeper:
        async def recorded(there: Shapes) -> Attempt | Outcome:
            there = replace(there, rearranged=published.rearranged, moved_outputs=published.moved_outputs)
            return await self._record(code, there, OTHER_SLACK, UNALLOCATED)

        async def turns(texts: Sequence[str]) -> list[Turns]:
            return turns_in(await self._of_candidate.run(turns_job(texts, self._limits())), len(texts))

        async def graded(there: Size, long: bool) -> Verdict:
            attempt = await self._record(code, there.draw, OTHER_SLACK)
            if isinstance(attempt, Outcome):
                return verdict_of(attempt, {})
            trials, kept = (LONG_TRIALS, _one_of_each_case) if long else (OTHER_TRIALS, _whole)
            return await self._replay(attempt, there, {}, trials, STRETCHED_PROGRAMS, self._on_gpu, kept)

        return Deeper(recorded, turns, graded)

    async def _of_published(self, found: Attempt | Outcome, first: Program, partly: Collection[int]) -> Verdict:
        """The verdict on what was recorded at the published size, its launches read by Triton where that compiles."""
        refused: dict[str, Json] = {"published": "refused"}
        report = None
        if isinstance(found, Attempt) and self._compiles:
            report = await self._compile(found, read_only=True)
            if (early := of_compiler(report, refused)) is not None:
                return replace(early, cpu_s=early.cpu_s + found.cpu_s)
        if isinstance(found, Attempt):
            stored = report.stored if report is not None else None
            found = at_published_size(first, found, stored, self.config.policy == "strict", partly)
        verdict = verdict_of(found, {"published": "recorded"} if found.end == "ok" else refused)
        return replace(verdict, cpu_s=verdict.cpu_s + (report.cpu_s if report is not None else 0.0))

    async def _as_triton_reads(
        self, verdict: Verdict, code: str, size: Size, whole: Attempt, compiled: CompileReport
    ) -> Verdict:
        """The verdict once Triton has read the submission's own kernels, and not the grader's of their text."""
        config, (program, texts) = self.config, (whole.program, compiled.texts)
        limits, precision = self._limits(), config.precision
        found = await own_text(self._of_candidate, code, size.draw, limits, precision, config.arch, program, texts)
        return verdict if found is None else at_another_size(verdict_of(found, {}), verdict, "right, but")

    async def _compile(self, attempt: Attempt, read_only: bool = False) -> CompileReport:
        await self.warmed(TRITON_HARNESS)
        return await compile_program(self.sandbox, attempt.text, arch=self.config.arch, read_only=read_only)

    @property
    def _of_candidate(self) -> Sandbox:
        return self.clocked or self.sandbox

    @property
    def _on_gpu(self) -> bool:
        return self.config.device == "cuda"

    @property
    def _compiles(self) -> bool:
        """Whether launches are compiled ahead; a GPU is only given what compiles."""
        return self.config.compile_check != "off" and not self._on_gpu

    def _limits(self) -> Limits:
        config = self.config
        return Limits(wall_s=config.wall_s, cpu_s=config.cpu_s, memory_mb=config.memory_mb)


def compilable(attempt: Attempt, report: CompileReport) -> Attempt | Outcome:
    """An attempt without the configurations that do not compile: no GPU runs them. Those that were not compiled, to
    save time, stay, and have to be right."""
    if not report.variants:
        return attempt
    text = compiled_part(attempt.text, report)
    program = read(text.encode())
    if isinstance(program, Refusal):  # a number that JSON writes at greater length than whoever forged the text
        return Outcome("refused", program.reason, stage="record", cpu_s=attempt.cpu_s)
    return replace(attempt, program=program, text=text)


def _is_tuned(attempt: Attempt) -> bool:
    """Whether a launch may be made in several ways."""
    program = attempt.program
    return any(isinstance(step, Launch) and len(step.variants) > 1 for step in program.steps)


def _kernels(program: Program) -> set[tuple[str, str, int]]:
    """The kernels that a program launches: their names, texts and lines."""
    found = [program.kernels[step.kernel] for step in program.steps if isinstance(step, Launch)]
    return {(kernel.name, kernel.source, kernel.line) for kernel in found}


def _alike(one: Program, other: Program) -> bool:
    """Whether two programs have the same launches in the same places, with as many configurations."""
    first, second = (
        [(step.kernel, len(step.variants)) if isinstance(step, Launch) else None for step in program.steps]
        for program in (one, other)
    )
    return first == second


def _with(verdict: Verdict, compiled: CompileReport) -> dict[str, Json]:
    kernels = [
        {"name": k.name, "shared_bytes": k.shared_bytes, "registers": k.registers, "spill_bytes": k.spill_bytes}
        for k in compiled.kernels
    ]
    said: dict[str, Json] = {"outcome": compiled.outcome, "kernels": kernels}
    if compiled.message:
        said["message"] = compiled.message
    return {**verdict.evidence, "compiler": said}


def _whole(calls: Sequence[Replay]) -> list[Replay]:
    """The calls without a kernel left out: that each matters was seen at the first size. They have no bounds, which add
    up what hardly ever comes together, and more of it here than where they were held."""
    return [replace(call, bounded=False) for call in calls if call.skip == NO_KERNEL]


def _one_of_each_case(calls: Sequence[Replay]) -> list[Replay]:
    """The first such call on each of the inputs, under the weights of the start."""
    found: dict[int, Replay] = {}
    for call in _whole(calls):
        if not call.weights:
            found.setdefault(id(call.case), call)
    return list(found.values())


def of_compiler(report: CompileReport, evidence: dict[str, Json]) -> Verdict | None:
    """The verdict of a compiler that refused; None where it did not."""
    match report.outcome:
        case "rejected":
            return Verdict("compile_error", "compile", report.message, "", evidence, compiled=False, cpu_s=report.cpu_s)
        case "raises":
            return Verdict("crash", "compile", report.message, "", evidence, compiled=True, cpu_s=report.cpu_s)
        case "unsupported":
            return Verdict("unsupported", "compile", report.message, "", evidence, cpu_s=report.cpu_s)
        case "timeout":
            return Verdict("timeout", "compile", report.message, "", evidence, compiled=False, cpu_s=report.cpu_s)
        case "failed":
            return Verdict("infra_error", "compile", report.message, "", evidence, cpu_s=report.cpu_s)
        case "ok":
            return None
