"""The timing stage: a candidate that is right, against its reference, and what that means for its verdict.

A draw becomes a `TimedProblem`: its model, and fresh arguments for each call, which are the given ones with their
elements in another secret order, or new draws from the reference where that order cannot be changed. A speedup that is
withheld leaves the verdict `ok` with `rewardable` null; a candidate that was caught forging one is a cheat.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace

import chz
import numpy as np

from assay.errors import ConfigError
from assay.kernels.arrays import Value, host_tensors, size_in_bytes
from assay.kernels.base import Precision
from assay.kernels.config import GraderConfig
from assay.kernels.numerics.families import vary
from assay.kernels.numerics.reference import ReferenceProcess
from assay.kernels.numerics.secret_inputs import InputSet
from assay.kernels.operators import is_heavy
from assay.kernels.problems.scaling import ScaledProblem
from assay.kernels.timing.jobs import Form, TimedProblem
from assay.kernels.timing.roofline import Work
from assay.kernels.timing.statistics import Finding, FindingKind
from assay.kernels.timing.stopwatch import Stopwatch
from assay.kernels.verdicts import Verdict, VerdictKind
from assay.sandbox.base import Sandbox
from assay.sandbox.lockstep import RunsGroups
from assay.types import Json

KINDS: dict[FindingKind, VerdictKind] = {
    "timer": "cheat",
    "deferred": "cheat",
    "wrong": "wrong",
    "crash": "crash",
    "memory": "crash",
    "timeout": "timeout",
    "infra": "infra_error",
}
"""What a finding makes of a verdict that was `ok`."""

MAX_REMOTE_MB = 1024
"""Of inputs and outputs that one comparison may send to a container elsewhere, in place of a larger `buffer_mb`."""

GetBits = Callable[[int], int]


class Turns:
    """Who may use a device: any number of jobs that only have to be right, or one that is timed. Everybody at once
    where each job has a device of its own."""

    def __init__(self, one_device: bool = True) -> None:
        self._one = one_device
        self._condition = asyncio.Condition()
        self._shared = 0
        self._alone = False
        self._waiting = 0

    @asynccontextmanager
    async def shared(self) -> AsyncIterator[None]:
        """Wait until no candidate is timed or waits to be."""
        if not self._one:
            yield
            return
        async with self._condition:
            await self._condition.wait_for(lambda: not self._alone and not self._waiting)
            self._shared += 1
        try:
            yield
        finally:
            async with self._condition:
                self._shared -= 1
                self._condition.notify_all()

    @asynccontextmanager
    async def alone(self) -> AsyncIterator[None]:
        """Wait until no other job uses the device."""
        if not self._one:
            yield
            return
        async with self._condition:
            self._waiting += 1
            try:
                await self._condition.wait_for(lambda: not self._alone and not self._shared)
            finally:
                self._waiting -= 1
                self._condition.notify_all()
            self._alone = True
        try:
            yield
        finally:
            async with self._condition:
                self._alone = False
                self._condition.notify_all()


def stopwatch_for(config: GraderConfig, sandbox: Sandbox) -> Stopwatch:
    """The stopwatch that times candidates in a sandbox."""
    timing = config.timing
    if isinstance(sandbox, RunsGroups):
        timing = chz.replace(timing, buffer_mb=min(timing.buffer_mb, MAX_REMOTE_MB))
    return Stopwatch(sandbox, timing)


def timed_problem(
    scaled: ScaledProblem, draw: InputSet, precision: Precision, reference: ReferenceProcess, bits: GetBits
) -> TimedProblem:
    """A problem as it is timed, with the model and the form of inputs of a draw.

    Args:
        scaled: The problem.
        draw: Its model, expected outputs and inputs.
        precision: Working precision.
        reference: Gives new inputs where those of the draw cannot be put into another order.
        bits: So many random bits, from a source that no candidate can guess.
    """
    given = draw.cases[0]
    permutable = any(case.family == "permuted" for case in draw.cases)

    def fresh() -> tuple[Value, ...]:
        if permutable and (other := vary(given.inputs, "permuted", np.random.default_rng(bits(64)))) is not None:
            return other
        found = reference.evaluate(
            scaled.code,
            input_seed=bits(48),
            weight_seed=draw.weight_seed,
            families=("given",),
            precision=precision,
        )
        return found.cases[0].inputs

    return TimedProblem(
        code=scaled.code,
        init_inputs=draw.init_inputs,
        draw=fresh,
        outputs=draw.outputs,
        tolerances=given.tolerances(precision),
        weight_seed=draw.weight_seed,
        precision=precision,
        work=work_of(draw, precision),
    )


def work_of(draw: InputSet, precision: str) -> Work:
    """What a call has to move (inputs, weights, outputs, once each) and to compute: two operations for each
    multiply-add of the reference's products and their like, nothing for anything lighter."""
    moved = sum(len(tensor.data) for tensor in host_tensors(draw.cases[0].inputs))
    moved += sum(size_in_bytes(precision, shape) for _, shape in draw.weights)
    moved += sum(size_in_bytes(dtype, shape) for dtype, shape in draw.outputs)
    heavy = sum(work for name, (_, work) in draw.work.items() if is_heavy(name))
    return Work(moved, 2.0 * heavy, precision)


async def timed(
    verdict: Verdict,
    source: str,
    problem: TimedProblem,
    stopwatch: Stopwatch,
    config: GraderConfig,
    form: Form = "program",
) -> Verdict:
    """The verdict on a right candidate once it was timed against every baseline asked for.

    Args:
        verdict: Of the stages before; `ok`.
        source: The text of its recorded program, or its module where `form` says so (CUDA sources).
        problem: What it solves.
        stopwatch: Times it.
        config: Settings.
        form: What `source` is.

    Raises:
        SandboxError: no job can be run here.
    """
    timings: dict[str, dict[str, Json]] = {}
    for baseline in config.baselines:
        try:
            found = await stopwatch.time(source, problem, baseline, form)
        except ConfigError as error:  # it does not fit into the buffers: a matter of this problem's size
            message = f"right, but it cannot be timed with these settings: {error}"
            return replace(verdict, kind="unsupported", stage="timing", message=message)
        if isinstance(found, Finding):
            return _of_finding(verdict, found, baseline)
        timings[baseline] = found.to_json()
    first, *others = config.baselines
    said = {**timings[first], **({"others": {name: timings[name] for name in others}} if others else {})}
    return replace(verdict, stage="timing", timing=said, message=_withheld(said))


def _of_finding(verdict: Verdict, found: Finding, baseline: str) -> Verdict:
    kind = KINDS[found.kind]
    evidence = {**verdict.evidence, "timing": {**found.to_json(), "baseline": baseline}}
    if kind == "infra_error":
        message = f"right, but it could not be timed: {found.evidence}"
    else:
        message = f"while it was timed: {found.evidence}"
    cheat = found.kind if kind == "cheat" else ""
    return replace(verdict, kind=kind, stage="timing", message=message, cheat=cheat, evidence=evidence)


def _withheld(timing: Mapping[str, Json]) -> str:
    return f"its speedup is withheld: {timing['quarantine']}" if timing["quarantine"] else ""
