"""Jobs on a GPU: their limits, and a first round in which CUDA starts before anything of the candidate is looked at.

A job that did not come through that round says nothing about the candidate, whatever it reports.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from assay.kernels.config import GraderConfig
from assay.kernels.job_reports import explain
from assay.kernels.verdicts import plain_text
from assay.sandbox.base import AfterRound, Job, JobResult, Limits, Round

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


def started_first(job: Job, harness: str, config: GraderConfig) -> Job:
    """A job for a GPU, with the round in which CUDA starts. Triton runs an assembler and `load_inline` a compiler, so
    both need processes."""
    rounds = (Round(), *job.rounds)
    return replace(job, harness=harness, rounds=rounds, limits=limits_of(config), profile="gpu-compile")


def after_start(take: AfterRound) -> AfterRound:
    """What follows a round of such a job, from what follows the rounds of the job without its first."""
    return lambda number, outputs: True if number == 0 else take(number - 1, outputs)


def without_start(result: JobResult) -> JobResult:
    """The result without the round in which CUDA was started."""
    return replace(result, outputs=result.outputs[1:], round_s=result.round_s[1:])


def not_started(result: JobResult) -> str | None:
    """What is to be said where CUDA did not start, which is no fault of the candidate; None where it did, or where the
    sandbox says already what was wrong."""
    if result.outputs or result.end in ("infra", "timeout", "stopped"):
        return None
    return (
        f"CUDA did not start, so the kernel was not run: {explain(result)}. Is there a GPU with its driver, a PyTorch "
        "that is built for it, and do the device files belong to everyone? docs/sandbox.md says where to look."
    )


def refused_by_compiler(result: JobResult) -> str | None:
    """The compiler's words, where it refused a kernel on the way to its launch."""
    report = result.report if isinstance(result.report, Mapping) else {}
    fault = report.get("fault")
    if not isinstance(fault, Mapping) or fault.get("kind") != "compile":
        return None
    line = fault.get("line")
    return f"{f'line {line}: ' if isinstance(line, int) and line > 0 else ''}{plain_text(fault.get('message'))}"
