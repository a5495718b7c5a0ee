"""The jobs of a timed comparison and what their bytes say: pure functions beside `assay.kernels.timing.stopwatch`.

A job has a round in which the model is built, three for each sample (prepare, run, fetch), and an empty one at its end,
so that the fetch of the last sample is like every other.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from assay.kernels.arrays import HostTensor, Value, size_in_bytes
from assay.kernels.base import TimedAgainst
from assay.kernels.frames import Frame
from assay.kernels.job_reports import explain, fault_of
from assay.kernels.numerics.tolerance import Tolerance, compare
from assay.kernels.timing.config import TimingConfig
from assay.kernels.timing.masking import WORD, digest, mask, padded
from assay.kernels.timing.roofline import Work
from assay.kernels.timing.statistics import Finding, FindingKind, Sample
from assay.sandbox import Job, JobResult, Limits, Profile, Round
from assay.types import Json

HARNESS = "assay.kernels.inside.timing.harness"
Form = Literal["module", "program"]
"""What a candidate comes as: its module, whose host code is then run, or its recorded program."""
ROUNDS = 3
"""Of one sample."""
SLACK = 2.0
"""Candidate and baseline may each be off by the tolerance, in opposite directions."""


@dataclass(frozen=True, slots=True)
class TimedProblem:
    """A problem at the sizes at which it is timed."""

    code: str
    """The reference's module."""
    init_inputs: tuple[Value, ...]
    draw: Callable[[], tuple[Value, ...]]
    """Fresh arguments of `forward` at each call, from a source that no child can guess; always of the same form."""
    outputs: tuple[tuple[str, tuple[int, ...]], ...]
    """Dtype and shape of each output."""
    tolerances: tuple[Tolerance, ...]
    """Of each output, for inputs like those that `draw` gives."""
    weight_seed: int = 0
    precision: str = "float32"
    work: Work | None = None
    """What a call has to move and to compute, where a roofline is wanted."""

    @property
    def output_sizes(self) -> tuple[int, ...]:
        """Bytes of each output."""
        return tuple(size_in_bytes(dtype, shape) for dtype, shape in self.outputs)


@dataclass(frozen=True, slots=True)
class SampleSet:
    """The inputs of the calls of one sample under a mask, and the key of it."""

    key: tuple[int, int]
    blobs: tuple[bytes, ...]


def sample_set(problem: TimedProblem, calls: int, draw: random.Random) -> SampleSet:
    """Fresh inputs under a fresh mask."""
    key = (draw.getrandbits(64), draw.getrandbits(64))
    plain = [data for _ in range(calls) for data in form_of(problem.draw()).blobs]
    return SampleSet(key, tuple(mask(data, key, number) for number, data in enumerate(plain)))


def form_of(values: Sequence[Value]) -> Frame:
    """The entries of some arguments (under `entries`) and the bytes of their tensors."""
    frame = Frame({})
    frame.header["entries"] = [frame.add(value) for value in values]
    return frame


def bytes_of_call(problem: TimedProblem, form: Frame) -> int:
    """Bytes of inputs and outputs of one call."""
    return sum(padded(len(blob)) for blob in form.blobs) + sum(problem.output_sizes)


def make_job(
    source: str,
    problem: TimedProblem,
    baseline: TimedAgainst | None,
    calls: int,
    sets: Sequence[SampleSet],
    config: TimingConfig,
    form: Form = "module",
) -> Job:
    """The job of a baseline, or of a candidate (None) that comes in some form."""
    init, call = form_of(problem.init_inputs), form_of(problem.draw())
    header: dict[str, Json] = {
        "device": config.device,
        "entry": "Model" if baseline is not None else "ModelNew" if form == "module" else "program",
        "baseline": baseline,
        "init_inputs": init.header["entries"],
        "weight_seed": problem.weight_seed,
        "precision": problem.precision,
        "tf32": config.tf32,
        "calls": calls,
        "samples": len(sets),
        "inputs": call.header["entries"],
        "sizes": [len(blob) for blob in call.blobs],
        "outputs": [[dtype, list(shape)] for dtype, shape in problem.outputs],
    }
    rounds = [Round(tuple(init.blobs))]
    for item in sets:
        rounds.append(Round(item.blobs))
        rounds.append(Round((struct.pack("<QQ", *item.key),), (WORD * calls * (1 + len(problem.outputs)),)))
        rounds.append(Round((), problem.output_sizes * calls))
    limits = Limits(config.wall_s, config.wall_s, config.memory_mb, config.tmp_mb, processes=256, open_files=1024)
    profile = _profile(config.device, baseline)
    return Job(source, HARNESS, (*rounds, Round()), header, limits, profile, pause=True)


def _profile(device: str, baseline: TimedAgainst | None) -> Profile:
    """Triton and `torch.compile` run an assembler and a C compiler, so jobs on a GPU may start processes."""
    if device == "cuda":
        return "gpu-compile"
    return "compile" if baseline == "compile" else "numerics"


def samples_of(outputs: Sequence[tuple[bytes, ...]], round_s: Sequence[float], calls: int) -> tuple[Sample, ...]:
    """The samples of a job, from the outputs and the durations of all its rounds."""
    found = []
    for run in range(2, len(outputs), ROUNDS):
        found.append(Sample(struct.unpack_from(f"<{calls}d", outputs[run][0]), round_s[run]))
    return tuple(found)


def recheck(
    problem: TimedProblem,
    calls: int,
    candidate: Sequence[tuple[bytes, ...]],
    baseline: Sequence[tuple[bytes, ...]],
) -> Finding | None:
    """What is wrong with the outputs of timed calls; None when nothing is.

    Args:
        problem: What was called.
        calls: Calls in a sample.
        candidate: Outputs of its rounds from the first sample on.
        baseline: Outputs of the rounds in which the baseline had the same inputs.
    """
    doubled = [Tolerance(SLACK * t.absolute, SLACK * t.relative) for t in problem.tolerances]
    width = len(problem.outputs)
    for at in range(0, len(candidate), ROUNDS):
        digests = struct.unpack_from(f"<{calls * width}Q", candidate[at + 1][0], WORD * calls)
        pairs = zip(candidate[at + 2], baseline[at + 2], strict=True)
        for place, (given, expected) in enumerate(pairs):
            where = f"in call {place // width + 1} of sample {at // ROUNDS + 1}"
            if digest(given) != digests[place]:
                return Finding("deferred", f"{where} the output changed between the end of the call and its fetch")
            dtype, shape = problem.outputs[place % width]
            wanted = HostTensor(dtype, shape, expected).array()
            found = compare(HostTensor(dtype, shape, given).array(), wanted, doubled[place % width])
            if not found.ok:
                return Finding("wrong", f"{where} {found.message}")
    return None


def death(result: JobResult) -> Finding:
    """What the early end of a candidate's job means."""
    kinds: dict[str, FindingKind] = {"crash": "crash", "timeout": "timeout", "memory": "memory"}
    fault = fault_of(result)
    kind: FindingKind = "wrong" if fault.get("kind") == "wrong_output" else kinds.get(result.end, "infra")
    return Finding(kind, explain(result))


def device_of(result: JobResult) -> str:
    """The device that a baseline's job named."""
    return str(result.report["device"]) if isinstance(result.report, dict) and "device" in result.report else "unknown"


def launched_of(result: JobResult) -> str:
    """How a job says that its kernels were launched; it is believed of programs only, whose process is ours."""
    said = result.report.get("launched") if isinstance(result.report, dict) else None
    return said if said in ("host code", "one by one", "cuda graph") else "unknown"
