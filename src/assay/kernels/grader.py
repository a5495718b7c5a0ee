"""The grader: a candidate's text in, a typed verdict out.

    async with Grader(GraderConfig()) as grader:
        verdict = await grader.grade(problem, code)

A Triton candidate is recorded, replayed and compiled (`assay.kernels.program.grading`); CUDA sources are compiled, and
run where there is a GPU. A `Grader` belongs to one event loop. It draws secret inputs, runs everything untrusted in a
sandbox, and decides everything itself.
"""

from __future__ import annotations

import asyncio
import logging
import random
import secrets
from dataclasses import replace
from functools import partial

from assay.errors import AssayError, ReferenceModelError, SandboxError
from assay.kernels.compile.stage import TRITON_HARNESS, compile_cuda
from assay.kernels.config import GraderConfig
from assay.kernels.numerics.calls import HARNESS as CUDA
from assay.kernels.numerics.reference import ReferenceProcess
from assay.kernels.numerics.stage import run_cuda
from assay.kernels.prepared import Closed, Preparations, Prepared, shared
from assay.kernels.problems.scaling import ScaledProblem
from assay.kernels.problems.sources import Problem
from assay.kernels.program.grading import Grading, of_compiler
from assay.kernels.program.jobs import RECORD, REPLAY
from assay.kernels.program.on_device import REPLAY as DEVICE_REPLAY
from assay.kernels.program.sizes.given import OtherSizes, Size
from assay.kernels.program.verdict import UNDECIDED
from assay.kernels.sandboxes import sandbox_for
from assay.kernels.source_text import MAX_SOURCE_CHARACTERS, without_mark
from assay.kernels.text.examining import VERSION as TEXT_VERSION
from assay.kernels.text.job import examined, of_text, unread
from assay.kernels.timing.jobs import HARNESS as TIMED
from assay.kernels.timing.jobs import Form
from assay.kernels.timing.stage import Turns, stopwatch_for, timed, timed_problem
from assay.kernels.verdicts import Verdict, VerdictKind
from assay.sandbox.base import JobResult, Sandbox
from assay.sandbox.local import LocalSandbox
from assay.sandbox.lockstep import RunsGroups

log = logging.getLogger(__name__)

_OF_PROBLEMS = ("weights", "noise")
"""Failures of a reference that say of a problem that nothing can be graded by it."""
MODULE: Form = "module"
PROGRAM: Form = "program"

MOST_AGAIN = 2
"""Further draws on which a submission is graded that hangs on last bits. Two experts that score alike within last bits
come by chance in any draw; a kernel that hangs on last bits does so in each."""
VERSION = f"49.{TEXT_VERSION}"
"""Raised with every change that may change a verdict."""


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
        turns: Turns | None = None,
        seed: int | None = None,
        text_checks: bool = True,
    ) -> None:
        """Nothing is started before the first grade.

        Args:
            config: Settings.
            sandbox: Where candidates run; by default what `config.run_on` says. The caller closes one that it passes.
            reference: The process that runs references; likewise.
            turns: Who may use the device, where several graders share one.
            seed: Makes inputs and the order of calls repeatable, for examining a verdict. Never for training.
            text_checks: False leaves out what the text alone decides, so that everything is run. For testing it.
        """
        self.config = config or GraderConfig()
        self._own_sandbox = sandbox is None
        self._own_reference = reference is None
        self.sandbox: Sandbox = sandbox or sandbox_for(self.config)
        self._reference = reference or ReferenceProcess(device=self.config.reference_device, walls=self.config.sandbox)
        self._stopwatch = stopwatch_for(self.config, self.sandbox) if self.config.measure_performance else None
        self._turns = turns or turns_for(self.sandbox)
        self._seed = seed
        self._random: random.Random = random.Random(seed) if seed is not None else secrets.SystemRandom()
        self._text_checks = text_checks
        self._preparations = Preparations(self.config, self._reference, self._random, seed)
        self._grading = Grading(self.config, self.sandbox, self._random, self._warmed, text_checks)
        self._warming: dict[str, asyncio.Task[None]] = {}  # by harness: a job waits for no worker but its own
        self._closed = False

    @property
    def as_configured(self) -> bool:
        """Whether its verdicts are those that its settings promise: all checks, and inputs that cannot be known."""
        return self._text_checks and self._seed is None

    @property
    def width(self) -> int:
        """Candidates that can be at work at a time."""
        return int(getattr(self.sandbox, "width", 8))

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
        if self._closed:
            return _closed(problem)
        if len(code) > MAX_SOURCE_CHARACTERS:  # of which nothing is copied or sent
            said = f"the source has {len(code)} characters; at most {MAX_SOURCE_CHARACTERS} are read"
            return Verdict("compile_error", "parse", said, problem=problem.hash)
        code = without_mark(code)
        if self.config.backend == "cuda" and self.config.device == "cpu":
            return replace(await self._cuda_text(code), problem=problem.hash)
        try:
            self._warm_up()
            prepared = await self._preparations.ready(problem)
            size = await prepared.size()
            if size is None:
                return Verdict("unsupported", "problem", prepared.why_not, problem=prepared.scaled.hash)
            verdict = await self._try(prepared, size, code)
            draws = [size.draw]
            while verdict.evidence.get(UNDECIDED) and len(draws) <= MOST_AGAIN:
                if (other := await prepared.size(but=draws)) is None:
                    break
                draws.append(other.draw)
                again = await self._try(prepared, other, code)
                verdict = replace(again, cpu_s=verdict.cpu_s + again.cpu_s)
        except Closed:
            return _closed(problem)
        except ReferenceModelError as error:
            kind: VerdictKind = "unsupported" if error.kind in _OF_PROBLEMS else "infra_error"
            return Verdict(kind, "problem", f"no inputs could be drawn: {error}", problem=problem.hash)
        except AssayError:
            raise
        except Exception as error:
            # A fault of ours that a candidate found must not end a training run, and earns it nothing.
            log.exception("a grade failed, which is a fault of Assay's")
            said = f"the grader itself failed, please report it: {type(error).__name__}: {str(error)[:500]}"
            return Verdict("infra_error", "numerics", said, problem=problem.hash)
        return replace(verdict, problem=prepared.scaled.hash)

    async def prepare(self, problem: Problem | ScaledProblem) -> None:
        """Make a problem ready for grades to come: its reference is run, and its sizes and secret inputs are found.

        Never raises for anything that a problem is; what is wrong with one is said by its grades.

        Raises:
            SandboxError, MissingDependencyError: no candidate at all can be graded here.
        """
        if self._closed or (self.config.backend == "cuda" and self.config.device == "cpu"):
            return
        self._warm_up()
        await self._preparations.begin(problem)

    async def _cuda_text(self, code: str) -> Verdict:
        """The verdict on CUDA sources where there is no GPU: they are read and compiled, and not run."""
        found = await examined(self.sandbox, code, "cuda")
        if isinstance(found, JobResult):
            return unread(found)
        if (told := of_text(found)) is not None:
            return told
        report = await compile_cuda(self.sandbox, found.extensions, arch=self.config.arch)
        if (refused := of_compiler(report, {})) is not None:
            return replace(refused, message=found.told(refused.message))
        said = "the sources compile; whether they are right is unknown, because there is no GPU here"
        return Verdict("compiled_not_run", "compile", said, "", {}, compiled=True, cpu_s=report.cpu_s)

    def _warm_up(self) -> None:
        """Start the first workers side by side, and beside the first reference: each imports PyTorch for seconds."""
        if not isinstance(self.sandbox, LocalSandbox):
            return
        on_gpu = self.config.device == "cuda"
        wanted = {CUDA: 1} if self.config.backend == "cuda" else {RECORD: 1, DEVICE_REPLAY if on_gpu else REPLAY: 1}
        if self.config.compile_check != "off" and not on_gpu:
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

    async def _try(self, prepared: Prepared, size: Size, code: str) -> Verdict:
        async with self._turns.shared():
            if self.config.backend == "cuda":
                verdict, source, form = await self._cuda_run(size, code), code, MODULE
            else:
                sizes = OtherSizes(
                    other=partial(self._preparations.other_size, prepared, size),
                    grown=partial(self._preparations.grown_size, prepared),
                    published=partial(self._preparations.published, prepared),
                    shapes=self._preparations.shapes_at,
                    fits=self._preparations.fits,
                    stretched=self._preparations.stretched_size,
                    long=partial(self._preparations.long_size, prepared),
                )
                verdict, attempt = await self._grading.grade(code, size, sizes)
                source, form = attempt.text if attempt is not None else "", PROGRAM
        if not verdict.ok or self._stopwatch is None:
            return verdict
        bits = self._random.getrandbits
        problem = timed_problem(size.scaled, size.draw, self.config.precision, self._reference, bits)
        try:
            await self._warmed(TIMED)
            async with self._turns.alone():
                return await timed(verdict, source, problem, self._stopwatch, self.config, form)
        except ReferenceModelError as error:
            said = f"right, but no inputs could be drawn to time it with: {error}"
            return replace(verdict, kind="infra_error", stage="timing", message=said)

    async def _cuda_run(self, size: Size, code: str) -> Verdict:
        """The verdict on CUDA sources where there is a GPU."""
        found = await examined(self.sandbox, code, "cuda")
        if isinstance(found, JobResult):
            return unread(found)
        if self._text_checks and (told := of_text(found)) is not None:
            return told
        await self._warmed(CUDA)
        evidence = {"scaling": size.scaled.scaling.to_json()}
        return await run_cuda(self.sandbox, code, size.draw, self.config, self._random, evidence)


def turns_for(sandbox: Sandbox) -> Turns:
    """Who may use the device of a sandbox; at Modal each job has one of its own."""
    return Turns(one_device=not isinstance(sandbox, RunsGroups))


def _closed(problem: Problem | ScaledProblem) -> Verdict:
    said = "the grader was closed before the candidate was graded: make another Grader"
    return Verdict("infra_error", "problem", said, problem=problem.hash)
