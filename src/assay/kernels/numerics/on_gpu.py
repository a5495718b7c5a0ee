"""The numerics stage on a GPU: the same calls as `calls` plans, put to a candidate on a device.

The job has a round more than one on the processor, its first: CUDA is started in it, before the candidate's code is
looked at. A job that did not come through it says nothing about the candidate, whatever it reports.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from assay.kernels.config import GraderConfig
from assay.kernels.job_reports import explain
from assay.kernels.numerics.stage import Answers
from assay.kernels.verdicts import Verdict
from assay.sandbox.base import Job, JobResult, Limits, Round

HARNESS = "assay.kernels.inside.numerics_gpu"
NATIVE = "extension"
"""What calls of an extension's functions are counted as (`inside.extensions`)."""
TMP_MB = 2048
"""Of compiled kernels and extensions; the objects of one extension take up to a hundred MiB."""
PROCESSES = 512
"""Of CUDA's own threads, and of compilers."""


def limits_of(config: GraderConfig) -> Limits:
    """The limits of a candidate on a GPU."""
    return Limits(
        wall_s=config.wall_s + config.setup_s,
        cpu_s=config.cpu_s + config.setup_s,
        memory_mb=config.device_memory_mb,
        tmp_mb=TMP_MB,
        processes=PROCESSES,
        open_files=1024,
    )


def on_device(job: Job, config: GraderConfig) -> Job:
    """A job of the numerics stage, for a GPU. Triton runs an assembler and `load_inline` a compiler, so both need
    processes."""
    return replace(
        job,
        harness=HARNESS,
        rounds=(Round(), *job.rounds),
        header={**job.header, "native": config.backend == "cuda"},
        limits=limits_of(config),
        profile="gpu-compile",
    )


def after_start(answers: Answers, number: int, outputs: tuple[bytes, ...]) -> bool:
    """`Answers.take`, for the rounds of a job on a GPU."""
    return number == 0 or answers.take(number - 1, outputs)


def without_start(result: JobResult) -> JobResult:
    """The result without the round in which CUDA was started."""
    return replace(result, outputs=result.outputs[1:], round_s=result.round_s[1:])


def not_started(result: JobResult) -> Verdict | None:
    """The verdict where CUDA did not start; None where it did, or where the sandbox says already what was wrong."""
    if result.outputs or result.end in ("infra", "timeout", "stopped"):
        return None
    message = (
        f"CUDA did not start, so the kernel was not run: {explain(result)}. Is there a GPU with its driver, a PyTorch "
        "that is built for it, and do the device files belong to everyone? docs/sandbox.md says where to look."
    )
    return Verdict("infra_error", "numerics", message, cpu_s=result.cpu_s)


def refused_by_compiler(result: JobResult) -> str | None:
    """The compiler's words, where it refused a kernel on the way to its launch."""
    report = result.report if isinstance(result.report, Mapping) else {}
    fault = report.get("fault")
    if not isinstance(fault, Mapping) or fault.get("kind") != "compile":
        return None
    line = fault.get("line")
    return f"{f'line {line}: ' if isinstance(line, int) else ''}{fault.get('message')}"
