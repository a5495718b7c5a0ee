"""One warm sandbox, one process for references and one event loop, shared by all tests of kernels in a process.

A worker imports PyTorch and Triton, which takes seconds, so tests that need none of their own use these.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from assay.kernels.arrays import HostTensor, Value, host_tensor, size_in_bytes
from assay.kernels.config import GraderConfig
from assay.kernels.frames import Frame
from assay.kernels.grader import Grader
from assay.kernels.numerics.reference import ReferenceProcess
from assay.kernels.problems.sources import Problem
from assay.kernels.program.jobs import RECORD, REPLAY, Recorded, recorded
from assay.kernels.program.limits import Limits as ProgramLimits
from assay.kernels.sandboxes import HIDDEN, WORKER_ENVIRONMENT
from assay.kernels.verdicts import Verdict
from assay.sandbox import Job, JobResult, Limits, Round
from assay.sandbox.local import LocalConfig, LocalSandbox
from support.sandboxes import FEATURES

T = TypeVar("T")

LIMITS = Limits(wall_s=30, cpu_s=20, memory_mb=2048)
QUICK = GraderConfig(compile_check="off", cache=False, scale="none", draws=2, wall_s=30, cpu_s=20)
"""For tests of a few problems, all small as they are, in which no compiler is wanted."""

Outputs = Sequence[tuple[str, tuple[int, ...]]]


@dataclass(frozen=True)
class Ran:
    """What a candidate left behind that was run on given inputs."""

    result: JobResult
    arrays: tuple[Any, ...]
    """The outputs of the last call."""

    @property
    def fault(self) -> Mapping[str, Any]:
        return self.result.report.get("fault", {})

    @property
    def call(self) -> Mapping[str, Any]:
        """What is reported of the last call."""
        return self.result.report["calls"][-1]


class Bench:
    """Runs candidates and grades them, one at a time, for tests that are not asynchronous."""

    def __init__(self, reference: ReferenceProcess) -> None:
        self._runner = asyncio.Runner()
        config = LocalConfig(workers=1, environment=WORKER_ENVIRONMENT, hidden=HIDDEN)
        self.sandbox = LocalSandbox(config, FEATURES)
        self.reference = reference
        self._graders: dict[Any, Grader] = {}

    def wait(self, what: Awaitable[T]) -> T:
        """What a coroutine of this bench's loop returns."""

        async def main() -> T:
            return await what

        return self._runner.run(main())

    def run(
        self,
        code: str,
        *inputs: Any,
        outputs: Outputs,
        init: Sequence[Any] = (),
        controls: Sequence[Mapping[str, Any]] = ({},),
        max_programs: int = 4096,
    ) -> Ran:
        """Record a candidate outside any grade, and replay it: once for each of `controls`, with the same inputs. What
        could not be recorded is told by the result of the recording."""
        first, second = Frame({}), Frame({})
        shapes = {
            "init_inputs": [first.add(_value(value)) for value in init],
            "inputs": [second.add(_value(value)) for value in inputs],
        }
        room = ProgramLimits().json_bytes
        header = {**shapes, "precision": "float32", "program_bytes": room, "text_checks": False}
        done = self.wait(self.sandbox.run(Job(code, RECORD, (Round((), (room,)),), header, LIMITS)))
        found = recorded(done)
        if not isinstance(found, Recorded):
            return Ran(done, ())
        header = {
            **shapes,
            "weight_seed": 1,
            "outputs": [[dtype, list(shape)] for dtype, shape in outputs],
            "parameters": [],
            "max_programs": max_programs,
        }
        sizes = tuple(size_in_bytes(dtype, shape) for dtype, shape in outputs)
        blobs = len(second.blobs)
        first_said = {"weights": {}, "needed": True, "blobs": blobs}
        said = [json.dumps([{**first_said, **control}]).encode() for control in controls]
        rounds = (Round(tuple(first.blobs)), *(Round((*second.blobs, control), sizes) for control in said))
        result = self.wait(self.sandbox.run(Job(found.text, REPLAY, rounds, header, LIMITS)))
        last = result.outputs[-1] if len(result.outputs) > 1 else ()
        arrays = tuple(HostTensor(d, s, data).array() for (d, s), data in zip(outputs, last, strict=False))
        return Ran(result, arrays)

    def grader(self, config: GraderConfig = QUICK, *, text_checks: bool = True) -> Grader:
        """A grader on this bench; those of equal settings are one, so that problems are prepared once."""
        key = (repr(config), text_checks)
        if key not in self._graders:
            self._graders[key] = Grader(config, sandbox=self.sandbox, reference=self.reference, text_checks=text_checks)
        return self._graders[key]

    def grade(self, problem: Problem, code: str, config: GraderConfig = QUICK, *, text_checks: bool = True) -> Verdict:
        """The verdict on one candidate."""
        return self.wait(self.grader(config, text_checks=text_checks).grade(problem, code))

    def close(self) -> None:
        for grader in self._graders.values():
            self.wait(grader.close())
        self.wait(self.sandbox.close())
        self._runner.close()


def _value(value: Any) -> Value:
    return host_tensor(value, str(value.dtype)) if isinstance(value, np.ndarray) else value
