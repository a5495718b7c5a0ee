"""The compile stage: is a candidate legal for the GPU it is meant for? Nothing is run on one.

    compile_triton   model called on CPU tensors in a sandbox, each launch compiled to a cubin with ptxas
    compile_cuda     sources of load_inline compiled with nvcc behind light PyTorch headers; Python does not run

A report refuses what no GPU would take. It grants nothing: `ok` of Triton is the child's own word, and `ok` of CUDA
means that the text compiles, not that it computes anything.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from assay.errors import ConfigError, MissingDependencyError
from assay.kernels.base import shared_limit
from assay.kernels.compile import cuda_sources, messages
from assay.kernels.compile.toolkit import CudaToolkit, find_toolkit
from assay.kernels.static.native import Extension, extract_extensions
from assay.kernels.verdicts import plain_text
from assay.sandbox.base import Buffer, Job, JobResult, Limits, Round, Sandbox
from assay.types import Json

Outcome = Literal["ok", "rejected", "unsupported", "timeout", "failed"]
"""Everything compiled; the compiler refuses it; it uses what this stage does not know, which says nothing about it; the
compiler took too long; or a tool or the sandbox failed, which says nothing about it either."""

TRITON_HARNESS = "assay.kernels.inside.compile_triton"
TRITON_LIMITS = Limits(wall_s=30.0, cpu_s=20.0, memory_mb=4096, tmp_mb=64)
CUDA_HARNESS = "assay.kernels.inside.compile_cuda"
CUDA_LIMITS = Limits(wall_s=60.0, cpu_s=30.0, memory_mb=4096, tmp_mb=64)
MESSAGE_CHARACTERS = 800

CRASHED = "a native part of the compiler crashed"


@dataclass(frozen=True, slots=True)
class CompiledKernel:
    """What a compiled kernel needs of the GPU, as the assembler says; None where it did not say."""

    name: str
    shared_bytes: int | None = None
    registers: int | None = None
    """Per thread."""
    spill_bytes: int | None = None
    """Per thread, stores."""
    threads: int | None = None
    """Per block."""


@dataclass(frozen=True, slots=True)
class CompileReport:
    """How far a candidate came."""

    outcome: Outcome
    message: str
    """For the model: the compiler's own words where it refused. Empty for a plain `ok`."""
    kernels: tuple[CompiledKernel, ...] = ()
    """Distinct kernels compiled before it ended. With `ok` and none, the candidate launched no kernel."""
    cpu_s: float = 0.0


async def compile_triton(
    sandbox: Sandbox,
    code: str,
    *,
    header: Mapping[str, Json],
    inputs: Sequence[Sequence[Buffer]],
    arch: str = "sm_90",
    limits: Limits = TRITON_LIMITS,
) -> CompileReport:
    """Compile every kernel that `ModelNew(*init_inputs)(*inputs)` launches.

    Args:
        sandbox: Runs the job, in the profile `compile`.
        code: The candidate's module.
        header: `weight_seed`, `init_inputs` and `inputs`; an entry is `{"dtype", "shape", "blob"}` for a tensor that is
            buffer `blob` of its round, a list for a tuple, or a value as itself. `precision` converts the weights.
        inputs: The buffers of two rounds: of `init_inputs`, and of `inputs`.
        arch: The architecture to compile for.
        limits: Of the whole job.

    Raises:
        SandboxError: no job can be run here.
    """
    if len(inputs) != 2:
        raise ConfigError(f"compile_triton takes the buffers of 2 rounds (initial inputs, inputs), got {len(inputs)}.")
    target = {"capability": int(arch.removeprefix("sm_")), "shared_limit": shared_limit(arch)}
    result = await sandbox.run(
        Job(
            source=code,
            harness=TRITON_HARNESS,
            rounds=tuple(Round(inputs=tuple(buffers)) for buffers in inputs),
            header={**header, **target},
            limits=limits,
            profile="compile",
        )
    )
    return triton_report(result, limits)


def triton_report(result: JobResult, limits: Limits) -> CompileReport:
    """What the end of a Triton job means."""
    if (early := ended_early(result, limits)) is not None:
        return early
    if not isinstance(result.report, dict) or not isinstance(result.report.get("kernels"), list):
        return CompileReport(
            "rejected", "the candidate ended its process before its kernels compiled", (), result.cpu_s
        )
    kernels = tuple(_kernel(entry) for entry in result.report["kernels"] if isinstance(entry, dict))
    failure = result.report.get("failure")
    if not isinstance(failure, dict):
        message = "" if kernels else "forward launched no Triton kernel, so there was nothing to compile"
        return CompileReport("ok", message, kernels, result.cpu_s)
    outcome, message = _failure(failure)
    return CompileReport(outcome, shortened(message), kernels, result.cpu_s)


def ended_early(result: JobResult, limits: Limits) -> CompileReport | None:
    """The report of a job that did not come to its end; None for one that did."""
    match result.end:
        case "ok" | "stopped":
            return None
        case "infra":
            return CompileReport("failed", result.message, (), result.cpu_s)
        case "timeout":
            message = (
                f"compiling took more than its limit ({limits.wall_s:g} s, {limits.cpu_s:g} s of CPU); make blocks "
            )
            return CompileReport("timeout", message + "smaller or unroll less", (), result.cpu_s)
        case "memory":
            message = f"compiling took more than {limits.memory_mb} MiB of memory; make blocks smaller or unroll less"
            return CompileReport("rejected", message, (), result.cpu_s)
        case "crash":
            head = f"{CRASHED} ({result.message})" if result.signal else f"the candidate ended early ({result.message})"
            return CompileReport("rejected", shortened(f"{head}\n{result.stderr}"), (), result.cpu_s)


def _failure(failure: Mapping[str, Json]) -> tuple[Outcome, str]:
    """The outcome and the message of a failure that the child reports."""
    text = str(failure.get("text"))
    match failure.get("kind"):
        case "kernel":
            return "rejected", f"kernel {str(failure.get('kernel'))[:100]}: {text}"
        case "late":
            return (
                "ok",
                f"not every kernel may have been compiled: host code failed on results that no kernel wrote: {text}",
            )
        case "device":
            return "unsupported", f"host code needs a CUDA device, which this stage only simulates: {text}"
        case _:
            return "rejected", f"host code failed before any kernel was launched: {text}"


def _kernel(entry: Mapping[str, Json]) -> CompiledKernel:
    """A kernel as the child reports it; anything that is not a count is dropped."""
    counts = {
        name: value if isinstance(value := entry.get(name), int) else None
        for name in ("shared_bytes", "registers", "spill_bytes", "threads")
    }
    return CompiledKernel(plain_text(entry.get("name"))[:200], **counts)


def shortened(text: str, most: int = MESSAGE_CHARACTERS) -> str:
    """A message cut in its middle, fit to be printed: compilers say where at the beginning and what at the end."""
    text = text.strip()
    if len(text) > most:
        head = most // 3
        text = f"{text[:head].rstrip()}\n...\n{text[len(text) - (most - head - 5) :].lstrip()}"
    return plain_text(text)


async def compile_cuda(
    sandbox: Sandbox,
    code: str,
    *,
    arch: str = "sm_90",
    limits: Limits = CUDA_LIMITS,
    toolkit: CudaToolkit | None = None,
) -> CompileReport:
    """Compile the CUDA sources that a candidate gives to `load_inline`, and check the C++ around them.

    Args:
        sandbox: Runs the job, in the profile `compile`; it must see the toolkit (`CudaToolkit.readable`).
        code: The candidate's module. Sources are read from its text; it is not run.
        arch: The architecture to compile for.
        limits: Of the whole job.
        toolkit: The compiler; by default the one that `find_toolkit` finds. Without any the outcome is `failed`.

    Raises:
        SandboxError: no job can be run here.
    """
    shared_limit(arch)
    try:
        extensions = extract_extensions(code)
        toolkit = toolkit or find_toolkit()
    except SyntaxError as error:
        return CompileReport("rejected", f"the Python around the CUDA sources does not parse: {error}")
    except MissingDependencyError as error:
        return CompileReport("failed", str(error))
    if unread := [part for extension in extensions for part in extension.unread]:
        told = f"native sources can be checked only where they are literal text; these are not: {', '.join(unread)}"
        return CompileReport("unsupported", told)
    if not any(extension.cuda or extension.cpp for extension in extensions):
        return CompileReport("rejected", "no CUDA source is given to load_inline, so there is nothing to compile")
    tools = cuda_sources.Tools(toolkit.nvcc, toolkit.host, toolkit.include, arch)
    result = await _compile_texts(sandbox, extensions, tools, limits, fold=True)
    report = cuda_report(result, extensions, limits)
    if report.outcome != "ok" and "default argument" in report.message:
        again = await _compile_texts(sandbox, extensions, tools, limits, fold=False)
        report = cuda_report(again, extensions, limits)
    return report


async def _compile_texts(
    sandbox: Sandbox, extensions: Sequence[Extension], tools: cuda_sources.Tools, limits: Limits, fold: bool
) -> JobResult:
    steps = [step for extension in extensions for step in cuda_sources.steps(extension, tools, fold)]
    return await sandbox.run(Job("", CUDA_HARNESS, header={"steps": steps}, limits=limits, profile="compile"))


def cuda_report(result: JobResult, extensions: Sequence[Extension], limits: Limits) -> CompileReport:
    """What the end of a CUDA job means."""
    if (early := ended_early(result, limits)) is not None:
        return early
    steps = result.report.get("steps") if isinstance(result.report, dict) else None
    if not isinstance(steps, list) or not steps:
        return CompileReport("failed", "the compile job returned no report", (), result.cpu_s)
    kernels = tuple(
        CompiledKernel(usage.name, usage.shared_bytes, usage.registers, usage.spill_bytes)
        for step in steps
        for usage in messages.usages(step["said"])
    )
    if steps[-1]["status"] == 0:
        return CompileReport("ok", "", kernels, result.cpu_s)
    sources = "\n".join(extension.cuda + extension.cpp for extension in extensions)
    fault, words = messages.fault_of(steps[-1]["said"], sources, known_macros())
    outcome, head = _CUDA_FAULTS[fault]
    return CompileReport(outcome, shortened(f"{head}{words}"), kernels, result.cpu_s)


_CUDA_FAULTS: dict[messages.Fault, tuple[Outcome, str]] = {
    "candidate": ("rejected", ""),
    "unknown_api": ("unsupported", "uses a part of PyTorch's C++ interface or a library that cannot be checked here: "),
    "tool": ("failed", "the CUDA compiler itself failed: "),
    "time": ("timeout", "compiling took more than its limit: "),
    "crash": ("rejected", f"{CRASHED}: "),
}


@functools.cache
def known_macros() -> frozenset[str]:
    """Macros that the light headers define."""
    folder = Path(__file__).parents[1] / "inside" / "light_torch"
    texts = [path.read_text(encoding="utf-8") for path in folder.glob("*.h")]
    return frozenset(name for text in texts for name in re.findall(r"#define (\w+)", text)) | {"TORCH_EXTENSION_NAME"}


async def compile_program(sandbox: Sandbox, text: str, *, arch: str) -> CompileReport:
    """To come."""
    return CompileReport("ok", "")
