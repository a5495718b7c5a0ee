"""The grader: a candidate's text in, a typed verdict out.

    async with Grader(GraderConfig()) as grader:
        verdict = await grader.grade(problem, code)

Stages: examination of the text -> numerics -> compile check (-> timing, on a GPU). Numerics come before the compiler
because most candidates fail there and it costs less; `compile_check=all` asks the compiler first. On a GPU kernels are
compiled anyway, so there is no such check. A `Grader` belongs to one event loop. It draws secret inputs, runs
candidates in a sandbox, and decides everything itself.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from assay.errors import ReferenceModelError, SandboxError
from assay.kernels.compile.stage import TRITON_HARNESS, CompileReport, compile_cuda, compile_triton
from assay.kernels.config import GraderConfig
from assay.kernels.numerics import on_gpu
from assay.kernels.numerics.calls import HARNESS as NUMERICS
from assay.kernels.numerics.calls import Call, job_inputs, numerics_job, plan_calls
from assay.kernels.numerics.reference import ReferenceProcess, fit_problem, may_pass
from assay.kernels.numerics.secret_inputs import InputBank, InputSet
from assay.kernels.numerics.stage import Answers, verdict_of
from assay.kernels.prepared import Closed, Preparations, Prepared, shared
from assay.kernels.problems.scaling import ScaledProblem, unscaled
from assay.kernels.problems.sources import SHIPPED, Problem
from assay.kernels.sandboxes import sandbox_for
from assay.kernels.text.examined import Examined
from assay.kernels.text.examining import VERSION as TEXT_VERSION
from assay.kernels.text.job import examined, unread
from assay.kernels.timing.jobs import HARNESS as TIMED
from assay.kernels.timing.stage import Turns, stopwatch_for, timed, timed_problem
from assay.kernels.verdicts import Verdict
from assay.sandbox.base import JobResult, Limits, Sandbox
from assay.sandbox.local import LocalSandbox
from assay.sandbox.lockstep import RunsGroups
from assay.types import Json

log = logging.getLogger(__name__)

VERSION = f"2.{TEXT_VERSION}"
"""Raised with every change that may change a verdict."""

TF32_HINT = '. Note: tl.dot rounds float32 operands to TF32, here as on a GPU, unless given input_precision="ieee"'


class Grader:
    """Grades candidates, any number at a time; what runs at once is bounded by the sandbox.

    Raises:
        SandboxError: this machine cannot isolate untrusted code; the message says what to do.
    """

    def __init__(
        self,
        config: GraderConfig | None = None,
        *,
        sandbox: Sandbox | None = None,
        reference: ReferenceProcess | None = None,
        seed: int | None = None,
        static: bool = True,
    ) -> None:
        """Nothing is started before the first grade.

        Args:
            config: Settings.
            sandbox: Where candidates run; by default what `config.run_on` says. The caller closes one that it passes.
            reference: The process that runs references; likewise.
            seed: Makes inputs and the order of calls repeatable, for examining a verdict. Never for training.
            static: False lets a Triton candidate pass whatever its text says, so that it reaches the sandbox. For testing.
        """
        self.config = config or GraderConfig()
        self._own_sandbox = sandbox is None
        self._own_reference = reference is None
        self.sandbox: Sandbox = sandbox or sandbox_for(self.config)
        self._reference = reference or ReferenceProcess(device=self.config.reference_device, walls=self.config.sandbox)
        self._stopwatch = stopwatch_for(self.config, self.sandbox) if self.config.measure_performance else None
        self._turns = Turns(one_device=not isinstance(self.sandbox, RunsGroups))
        self._seed = seed
        self._random: random.Random = random.Random(seed) if seed is not None else secrets.SystemRandom()
        self._static = static
        self._preparations = Preparations()
        self._warming: dict[str, asyncio.Task[None]] = {}  # by harness: a job waits for no worker but its own
        self._closed = False

    @property
    def as_configured(self) -> bool:
        """Whether its verdicts are those that its settings promise: all checks, and inputs that cannot be known."""
        return self._static and self._seed is None

    async def __aenter__(self) -> Grader:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End all processes for good; grades in flight and later ones end as `infra_error`. Safe to call twice.

        A candidate that runs already in a sandbox of the caller's may still get its verdict.
        """
        self._closed = True
        tasks = [*self._preparations.tasks(), *self._warming.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._own_sandbox:
            await self.sandbox.close()
        if self._own_reference:
            await asyncio.to_thread(self._reference.close)

    async def grade(self, problem: Problem | ScaledProblem, code: str) -> Verdict:
        """The verdict on one candidate. Never raises for anything that a candidate is or does.

        Args:
            problem: A problem, graded at the sizes that `config.scale` says, or at sizes of the caller's choice.
            code: The candidate's module.

        Raises:
            SandboxError, MissingDependencyError: no candidate at all can be graded here.
        """
        report, early = await self._examined(problem, code)
        if early is not None:
            return early
        if self._closed:  # meanwhile
            return _closed(problem)
        if self.config.backend == "cuda" and self.config.device == "cpu":
            compiled = await compile_cuda(self.sandbox, report.extensions, arch=self.config.arch)
            return replace(_of_cuda(compiled, _suspicions(report)), problem=problem.hash)
        try:
            self._warm_up()
            prepared = await self._prepare(problem)
            draw = await prepared.bank.take() if prepared.bank is not None else None
            if draw is None:
                return Verdict("unsupported", "problem", _refusal(prepared), problem=prepared.scaled.hash)
            verdict = await self._try(prepared, draw, code, report)
        except Closed:
            return _closed(problem)
        except ReferenceModelError as error:
            return Verdict("infra_error", "problem", f"no inputs could be drawn: {error}", problem=problem.hash)
        return replace(verdict, problem=prepared.scaled.hash)

    async def _examined(self, problem: Problem | ScaledProblem, code: str) -> tuple[Examined, Verdict | None]:
        if self._closed:
            return Examined(), _closed(problem)
        found = await examined(self.sandbox, code, self.config.backend)
        if isinstance(found, JobResult):
            return Examined(), replace(unread(found), problem=problem.hash)
        if found.fault is not None:
            return found, Verdict("compile_error", "parse", found.fault, problem=problem.hash)
        if found.cheats and (self._static or self.config.backend == "cuda"):
            first = found.cheats[0]
            findings = {"findings": [finding.to_json() for finding in found.findings]}
            said = f"line {first.line}: {first.evidence}"
            return found, Verdict("cheat", "static", said, first.kind, findings, problem=problem.hash)
        return found, None

    def _warm_up(self) -> None:
        """Start the first workers side by side, and beside the first reference: each imports PyTorch for seconds."""
        if not isinstance(self.sandbox, LocalSandbox):
            return
        on_cuda = self.config.device == "cuda"
        wanted = {on_gpu.HARNESS if on_cuda else NUMERICS: 1}
        if self.config.compile_check != "off" and not on_cuda:
            wanted[TRITON_HARNESS] = 1
        if self._stopwatch is not None:
            wanted[TIMED] = 2
        for harness, each in wanted.items():
            if harness not in self._warming:
                self._warming[harness] = asyncio.create_task(self._warm(self.sandbox, harness, each))

    async def _warm(self, sandbox: LocalSandbox, harness: str, each: int) -> None:
        """Warm workers. A failure is the business of the first job, which boots a worker and reports it."""
        try:
            await sandbox.start([harness], each)
        except SandboxError as error:
            log.warning("no worker could be warmed, which is tried again with the next grade: %s", error)
            del self._warming[harness]

    async def _warmed(self, harness: str) -> None:
        """Wait for a worker that is being warmed. Raises `Closed` where the grader is closed meanwhile."""
        if (warming := self._warming.get(harness)) is not None:
            await shared(warming)

    async def _prepare(self, problem: Problem | ScaledProblem) -> Prepared:
        """The problem with its draws, made once for each problem and size."""
        key = problem.hash if isinstance(problem, ScaledProblem) else f"{self.config.scale}:{problem.hash}"
        return await shared(self._preparations.task(key, lambda: self._make_ready(problem)))

    async def _make_ready(self, problem: Problem | ScaledProblem) -> Prepared:
        config = self.config
        screening = None
        try:
            if isinstance(problem, ScaledProblem):
                scaled = problem
            elif config.scale == "none" or problem.source == SHIPPED:
                scaled = unscaled(problem)
            else:
                seed = self._random.getrandbits(48)
                fitted = await asyncio.to_thread(
                    fit_problem, problem, self._reference, input_seed=seed, precision=config.precision
                )
                scaled, screening = fitted.scaled, fitted.screening
            bank = InputBank(
                scaled,
                self._reference,
                config.precision,
                draws=config.draws,
                uses=config.uses_per_draw,
                seed=self._seed,
                screening=screening,
            )
            await bank.ready()
            return Prepared(scaled, bank)
        except ReferenceModelError as error:
            if error.kind == "crash":  # of the process, which says nothing about the problem
                raise
            source = problem if isinstance(problem, ScaledProblem) else unscaled(problem)
            refusal = f"the problem's own reference does not run here: {error}"
            return Prepared(source, None, refusal, lasting=not may_pass(error))

    async def _try(self, prepared: Prepared, draw: InputSet, code: str, report: Examined) -> Verdict:
        config = self.config
        calls = plan_calls(draw, config.num_correct_trials, self._random, _constant_families(prepared))
        evidence = _suspicions(report) | {"scaling": prepared.scaled.scaling.to_json()}
        verdict = await self._right(draw, calls, code, report, evidence)
        if verdict.ok and self._stopwatch is not None:
            bits = self._random.getrandbits
            problem = timed_problem(prepared.scaled, draw, config.precision, self._reference, bits)
            try:
                await self._warmed(TIMED)
                async with self._turns.alone():
                    verdict = await timed(verdict, code, problem, self._stopwatch, config)
            except ReferenceModelError as error:
                said = f"right, but no inputs could be drawn to time it with: {error}"
                return replace(verdict, kind="infra_error", stage="timing", message=said)
        return verdict

    async def _right(
        self, draw: InputSet, calls: tuple[Call, ...], code: str, report: Examined, evidence: dict[str, Json]
    ) -> Verdict:
        """The verdict of numerics and compiler."""
        config = self.config
        if config.device == "cuda":
            async with self._turns.shared():
                return await self._on_gpu(draw, calls, code, report, evidence)
        compiled: CompileReport | None = None
        if config.compile_check == "all":
            compiled = await self._compile(draw, calls, code)
            if (refused := _of_compiler(compiled, evidence)) is not None:
                return refused
        verdict = await self._numerics(draw, calls, code, report, evidence)
        if verdict.ok and config.compile_check == "right":
            compiled = await self._compile(draw, calls, code)
            if (refused := _of_compiler(compiled, evidence)) is not None:
                return replace(refused, tests_passed=verdict.tests_passed, tests_total=verdict.tests_total)
        if compiled is None:
            return verdict
        if verdict.ok and (missing := _not_compiled(verdict, compiled)):
            return _uncompiled(verdict, compiled, missing)
        cpu_s = verdict.cpu_s + compiled.cpu_s
        return replace(verdict, compiled=compiled.outcome == "ok", cpu_s=cpu_s, evidence=_with(verdict, compiled))

    async def _numerics(
        self, draw: InputSet, calls: tuple[Call, ...], code: str, report: Examined, evidence: dict[str, Json]
    ) -> Verdict:
        config = self.config
        limits = Limits(wall_s=config.wall_s, cpu_s=config.cpu_s, memory_mb=config.memory_mb)
        answers = Answers(draw, calls, config.precision)
        job = numerics_job(code, draw, calls, limits, config.max_programs, config.precision)
        await self._warmed(job.harness)
        result = await self.sandbox.run(job, answers.take)
        verdict = verdict_of(result, answers, (), config.policy, evidence)
        if verdict.kind == "wrong" and report.tf32_dot_possible and config.precision == "float32":
            return replace(verdict, message=f"{verdict.message}{TF32_HINT}")
        return verdict

    async def _on_gpu(
        self, draw: InputSet, calls: tuple[Call, ...], code: str, report: Examined, evidence: dict[str, Json]
    ) -> Verdict:
        config = self.config
        answers = Answers(draw, calls, config.precision, exact=False)
        plain = numerics_job(code, draw, calls, Limits(), config.max_programs, config.precision)
        await self._warmed(on_gpu.HARNESS)
        result = await self.sandbox.run(on_gpu.on_device(plain, config), partial(on_gpu.after_start, answers))
        if (lost := on_gpu.not_started(result)) is not None:
            return lost
        result = on_gpu.without_start(result)
        kernels = (on_gpu.NATIVE,) if config.backend == "cuda" else ()
        verdict = verdict_of(result, answers, kernels, config.policy, evidence)
        if verdict.kind == "crash" and (words := on_gpu.refused_by_compiler(result)) is not None:
            return replace(verdict, kind="compile_error", stage="compile", message=words, compiled=False)
        if verdict.kind == "wrong" and report.tf32_dot_possible and config.precision == "float32":
            return replace(verdict, message=f"{verdict.message}{TF32_HINT}")
        return replace(verdict, compiled=True) if verdict.ok else verdict

    async def _compile(self, draw: InputSet, calls: tuple[Call, ...], code: str) -> CompileReport:
        header, inputs = job_inputs(draw, calls[0].case)
        await self._warmed(TRITON_HARNESS)
        return await compile_triton(
            self.sandbox,
            code,
            header={**header, "precision": self.config.precision},
            inputs=inputs,
            arch=self.config.arch,
        )


def _closed(problem: Problem | ScaledProblem) -> Verdict:
    said = "the grader was closed before the candidate was graded: make another Grader"
    return Verdict("infra_error", "problem", said, problem=problem.hash)


def _refusal(prepared: Prepared) -> str:
    if prepared.refusal:
        return prepared.refusal
    assert prepared.bank is not None and prepared.bank.screening is not None, "a bank without draws was screened"
    screening = prepared.bank.screening
    return (
        f"the problem is not worth a reward at this size ({screening.reason}: {screening.detail}); a kernel that "
        "computes something else would pass. Leave it out, or grade it at larger sizes."
    )


def _constant_families(prepared: Prepared) -> tuple[str, ...]:
    bank = prepared.bank
    return bank.screening.constant_families if bank is not None and bank.screening is not None else ()


def _suspicions(report: Examined) -> dict[str, Json]:
    return {"suspects": [finding.to_json() for finding in report.hints]} if report.hints else {}


def _not_compiled(verdict: Verdict, compiled: CompileReport) -> list[str]:
    """Kernels whose results were found right, and that the compiler was never given."""
    launched = verdict.evidence.get("launches")
    return sorted(set(launched) - {k.name for k in compiled.kernels}) if isinstance(launched, dict) else []


def _uncompiled(verdict: Verdict, compiled: CompileReport, missing: Sequence[str]) -> Verdict:
    """A right candidate whose kernels did not all reach the compiler: whether a GPU would accept them is unknown."""
    names = ", ".join(missing)
    if compiled.outcome == "ok" and not (compiled.message and compiled.kernels):
        said = (
            f"{names} ran in the interpreter, but was not launched when it was to be compiled: forward must launch the "
            "same kernels wherever it runs"
        )
        return replace(verdict, kind="compile_error", stage="compile", message=said, compiled=False)
    said = f"{names} could not be given to the compiler, so it is not known to be legal: {compiled.message}"
    return replace(verdict, kind="unsupported", stage="compile", message=said, compiled=None)


def _with(verdict: Verdict, compiled: CompileReport) -> dict[str, Json]:
    kernels = [
        {"name": k.name, "shared_bytes": k.shared_bytes, "registers": k.registers, "spill_bytes": k.spill_bytes}
        for k in compiled.kernels
    ]
    said: dict[str, Json] = {"outcome": compiled.outcome, "kernels": kernels}
    if compiled.message:
        said["message"] = compiled.message
    return {**verdict.evidence, "compiler": said}


def _of_compiler(report: CompileReport, evidence: dict[str, Json]) -> Verdict | None:
    """The verdict of a compiler that refused; None where it did not, or does not know what it was given."""
    match report.outcome:
        case "rejected":
            return Verdict("compile_error", "compile", report.message, "", evidence, compiled=False, cpu_s=report.cpu_s)
        case "timeout":
            return Verdict("timeout", "compile", report.message, "", evidence, compiled=False, cpu_s=report.cpu_s)
        case "failed":
            return Verdict("infra_error", "compile", report.message, "", evidence, cpu_s=report.cpu_s)
        case "ok" | "unsupported":
            return None


def _of_cuda(report: CompileReport, evidence: dict[str, Json]) -> Verdict:
    refused = _of_compiler(report, evidence)
    if refused is not None:
        return refused
    if report.outcome == "unsupported":
        return Verdict("unsupported", "compile", report.message, "", evidence, cpu_s=report.cpu_s)
    said = "the sources compile; whether they are right is unknown, because there is no GPU here"
    return Verdict("compiled_not_run", "compile", said, "", evidence, compiled=True, cpu_s=report.cpu_s)
