"""The compile stage: is a candidate legal for the GPU it is meant for? Nothing is run on one.

    compile_program  launches of a recorded program, each compiled to a cubin with ptxas; Python does not run
    compile_cuda     sources of load_inline compiled with nvcc behind light PyTorch headers; Python does not run

A report refuses what no GPU would take. It grants nothing: `ok` means that the kernels compile, not that they compute
anything.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

from assay.errors import MissingDependencyError
from assay.kernels.base import shared_limit
from assay.kernels.compile import cuda_sources, messages
from assay.kernels.compile.toolkit import CudaToolkit, find_toolkit
from assay.kernels.job_reports import own_words
from assay.kernels.text.examined import Extension
from assay.kernels.verdicts import plain_text
from assay.sandbox.base import Job, JobResult, Limits, Sandbox
from assay.types import Json

Outcome = Literal["ok", "rejected", "raises", "unsupported", "timeout", "failed"]
"""Everything compiled; the compiler refuses it; it compiles, and its launch raises all the same; it uses what this
stage does not know, which says nothing about it; the compiler took too long; or a tool or the sandbox failed, which
says nothing about it either."""

TRITON_HARNESS = "assay.kernels.inside.compile_program"
TRITON_LIMITS = Limits(wall_s=30.0, cpu_s=20.0, memory_mb=4096, tmp_mb=64)
CUDA_HARNESS = "assay.kernels.inside.compile_cuda"
ENOUGH_S = 8.0
"""CPU seconds in which configurations are compiled beyond those that are in any case."""
CUDA_LIMITS = Limits(wall_s=60.0, cpu_s=30.0, memory_mb=4096, tmp_mb=64)
MESSAGE_CHARACTERS = 800

KERNELS_TOLD = BLOCKS_TOLD = 64
NAME_CHARACTERS = 256
NO_REPORT = "the compile job returned no report"
LAUNCHES_TOLD = 2048
"""Of a program's launches so many are held against what Triton reads: a report has no room for more."""
TOO_MANY = "too many launches have configurations that do not compile; give only configurations that do"
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


class Moved(NamedTuple):
    """What the accesses of a compiled kernel in one line move at once."""

    bytes: int
    line: int
    """Of the submission; 0 where it is not known."""


Widths = Mapping[tuple[int, int], Moved]
"""By the number of an access and of the helper's call around it (`language.flow.sites`); 0 for what is not known."""


class Block(NamedTuple):
    """A form of blocks in which a kernel touches a storage."""

    kernel: str
    shape: tuple[int, ...]
    bytes: int
    """Of an element."""
    storage: int


@dataclass(frozen=True, slots=True)
class CompileReport:
    """How far a candidate came."""

    outcome: Outcome
    message: str
    """For the model: the compiler's own words where it refused. Empty for a plain `ok`."""
    kernels: tuple[CompiledKernel, ...] = ()
    """Distinct kernels compiled before it ended. With `ok` and none, the candidate launched no kernel."""
    cpu_s: float = 0.0
    variants: Mapping[int, int] = field(default_factory=dict)
    """Number of a step of the program -> the numbers of its variants that were not refused, as bits; launches of which
    none was are left out. For `compiled_part`."""
    stored: int | None = None
    """Bytes that the launches of forward store at most, where they were only read and their texts say so."""
    texts: tuple[str, ...] = ()
    """Of each launch, as many as are compared, a digest of what Triton's front end reads in its variants; empty where
    that is not known of one."""
    uneven: frozenset[Block] | None = frozenset()
    """Blocks and storages that a kernel touches with its threads spread in several ways; None where that is not
    known."""
    widths: Mapping[tuple[int, int], Widths] | None = field(default_factory=dict)
    """How many bytes accesses move at once, by the number of a launch's step and of its variant, of those that were
    compiled; None where that is not known."""


async def compile_program(
    sandbox: Sandbox,
    program_text: str,
    *,
    arch: str = "sm_90",
    limits: Limits = TRITON_LIMITS,
    read_only: bool = False,
    enough_s: float = ENOUGH_S,
) -> CompileReport:
    """Compile exactly the launches of a recorded program, with the types, constants, alignments and options that they
    have there. No Python of whoever submitted it runs.

    Autotuned launches are compiled in each configuration, 16 compilations in all, and more as long as they took less
    than `enough_s`; every launch in one at least. As when a GPU tunes, configurations that do not compile are passed
    over as long as one does.

    Args:
        sandbox: Runs the job, in the profile `compile`.
        program_text: The program as JSON, as it was recorded.
        arch: The architecture to compile for.
        limits: Of the whole job.
        read_only: Let Triton read the kernels and lay them out, and not compile them: types, sizes of blocks and shared
            memory are checked in little of the time. The program may be one that nobody could allocate.
        enough_s: CPU seconds of the compiler after which it goes on to no further configuration.

    Returns: `unsupported` where the text is no program, its kernels are not in the kernel language though they may be
    Triton, or the compiler makes something of them that the replay does not compute; `rejected` where they are no
    Triton either.

    Raises:
        SandboxError: no job can be run here.
        ConfigError: an architecture that is not known.
    """
    target: dict[str, Json] = {"capability": int(arch.removeprefix("sm_")), "shared_limit": shared_limit(arch)}
    target |= {"read_only": read_only, "enough_s": enough_s}
    job = Job(program_text, TRITON_HARNESS, header=target, limits=limits, profile="compile")
    return program_report(await sandbox.run(job), limits, arch)


def program_report(result: JobResult, limits: Limits, arch: str = "sm_90") -> CompileReport:
    """What the end of such a job means."""
    cpu_s = result.cpu_s
    if result.end == "crash" and not result.signal:
        # A worker compiles a program of ours before it takes any: what ends its child comes of this one.
        said = shortened(f"{NO_REPORT} ({result.message})\n{own_words(result)}")
        return CompileReport("unsupported", said, (), cpu_s)
    if (early := ended_early(result, limits)) is not None:
        return early
    report = result.report if isinstance(result.report, dict) else {}
    if isinstance(unreadable := report.get("unreadable"), str):
        known = report.get("in_triton") is not False
        return CompileReport("unsupported" if known else "rejected", shortened(unreadable), (), cpu_s)
    kernels, refused, lacking = report.get("kernels"), report.get("refused"), report.get("lacking")
    if not (isinstance(kernels, list) and isinstance(refused, list) and isinstance(lacking, list)):
        return CompileReport("failed", NO_REPORT, (), cpu_s)
    compiled = tuple(_kernel(entry) for entry in kernels[:KERNELS_TOLD] if isinstance(entry, dict))
    words = [_refusal(entry) for entry in refused[:1] if isinstance(entry, dict)]
    if report.get("lost") is not False:
        said = words[0] if words else NO_REPORT
        return CompileReport("rejected" if words else "failed", shortened(said), compiled, cpu_s)
    if report.get("too_many") is not False:
        return CompileReport("unsupported", TOO_MANY, compiled, cpu_s)
    unknown = report.get("unknown")
    if isinstance(unknown, list) and unknown and isinstance(unknown[0], dict):
        return CompileReport("unsupported", shortened(_refusal(unknown[0])), compiled, cpu_s)
    raises = report.get("raises")
    if isinstance(raises, list) and raises and isinstance(raises[0], dict):
        return CompileReport("raises", shortened(_refusal(raises[0])), compiled, cpu_s)
    if not compiled:
        return CompileReport("ok", "forward launched no Triton kernel, so there was nothing to compile", (), cpu_s)
    passed_over, left_out = _count(report.get("refusals")), _count(report.get("left_out"))
    total = _count(report.get("compiled")) + passed_over + left_out
    parts = []
    if passed_over and words:
        parts.append(f"{passed_over} of {total} configurations do not compile for {arch}, as {words[0]}")
    if left_out:
        parts.append(f"{left_out} of {total} configurations were not compiled, to save time")
    left = {entry[0]: entry[1] for entry in lacking if _is_step(entry)}
    stored = report.get("stored")
    stored = stored if type(stored) is int and 0 <= stored < 1 << 62 else None
    texts = texts_of(report.get("texts"))
    uneven = _blocks(report.get("uneven"))
    widths = _widths(report.get("widths"))
    return CompileReport("ok", shortened("\n".join(parts)), compiled, cpu_s, left, stored, texts, uneven, widths)


def _widths(found: Json) -> Mapping[tuple[int, int], Widths] | None:
    """How many bytes accesses move at once, as a child reports it; None of anything else."""
    if not isinstance(found, dict):
        return None
    try:
        tables = [
            {(site, caller): Moved(moved, line) for site, caller, moved, line in table} for table in found["tables"]
        ]
        widths = {
            (step, variant): tables[number]
            for step, numbers in found["launches"]
            for variant, number in enumerate(numbers)
            if number != -1
        }
    except (TypeError, ValueError, LookupError):
        return None
    told = [number for table in tables for key, moved in table.items() for number in (*key, *moved)]
    return widths if all(type(each) is int and 0 <= each < 1 << 32 for each in told) else None


def _blocks(found: Json) -> frozenset[Block] | None:
    """Forms of blocks, as a child reports them; None of anything else, and of more than are told."""
    entries = found if isinstance(found, list) and len(found) <= BLOCKS_TOLD else [None]
    blocks = [_block(entry) for entry in entries]
    return None if None in blocks else frozenset(block for block in blocks if block is not None)


def _block(entry: Json) -> Block | None:
    if not (isinstance(entry, list) and len(entry) == 4 and isinstance(entry[1], list)):
        return None
    name, shape, size, storage = entry
    if not isinstance(name, str) or not all(type(each) is int and 0 <= each < 1 << 32 for each in (*shape, *entry[2:])):
        return None
    return Block(plain_text(name)[:NAME_CHARACTERS], tuple(shape), size, storage)


def texts_of(found: Json) -> tuple[str, ...]:
    """Digests of what Triton's front end read in some launches, as a child reports them."""
    return tuple(text if isinstance(text, str) else "" for text in found) if isinstance(found, list) else ()


def compiled_part(program_text: str, report: CompileReport) -> str:
    """A program without the variants that the compiler refused, which no GPU would run. Those that were not compiled,
    to save time, stay: a GPU may choose any of them."""
    if not report.variants:
        return program_text
    program = json.loads(program_text)
    steps = [step for phase in ("module", "init", "forward") for step in program[phase]]
    for place, bits in report.variants.items():
        if place < len(steps) and "variants" in steps[place]:
            every = steps[place]["variants"]
            steps[place]["variants"] = [each for number, each in enumerate(every) if bits >> number & 1]
    return json.dumps(program, ensure_ascii=False, separators=(",", ":"))


def _is_step(entry: Json) -> bool:
    """Whether something is the number of a step with the bits of its variants, one at least."""
    if not (isinstance(entry, list) and len(entry) == 2 and all(type(part) is int for part in entry)):
        return False
    place, bits = entry
    return bool(0 <= place < 1 << 24 and 0 < bits < 1 << 64)


def _refusal(entry: Mapping[str, Json]) -> str:
    line = entry.get("line")
    where = f"line {line}: " if type(line) is int and 0 < line < 1 << 24 else ""
    return f"kernel {plain_text(entry.get('kernel'))[:100]}: {where}{plain_text(entry.get('text'))}"


def _count(value: Json) -> int:
    return value if type(value) is int and 0 <= value < 1 << 24 else 0


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
            return CompileReport("rejected", shortened(f"{head}\n{own_words(result)}"), (), result.cpu_s)


def _kernel(entry: Mapping[str, Json]) -> CompiledKernel:
    """A kernel as the child reports it; anything that is not a count is dropped."""
    counts = {
        name: value if type(value := entry.get(name)) is int and 0 <= value < 1 << 32 else None
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
    extensions: Sequence[Extension],
    *,
    arch: str = "sm_90",
    limits: Limits = CUDA_LIMITS,
    toolkit: CudaToolkit | None = None,
) -> CompileReport:
    """Compile the CUDA sources that a candidate gives to `load_inline`, and check the C++ around them.

    Args:
        sandbox: Runs the job, in the profile `compile`; it must see the toolkit (`CudaToolkit.readable`).
        extensions: The sources, as `assay.kernels.text.job.examined` read them from the candidate's text.
        arch: The architecture to compile for.
        limits: Of the whole job.
        toolkit: The compiler; by default the one that `find_toolkit` finds. Without any the outcome is `failed`.

    Raises:
        SandboxError: no job can be run here.
    """
    shared_limit(arch)
    try:
        toolkit = toolkit or find_toolkit()
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
    steps = _steps(result.report)
    if not steps:
        return CompileReport("failed", "the compile job returned no report", (), result.cpu_s)
    kernels = tuple(
        CompiledKernel(usage.name, usage.shared_bytes, usage.registers, usage.spill_bytes)
        for _, said in steps
        for usage in messages.usages(said)
    )
    status, said = steps[-1]
    if status == 0:
        return CompileReport("ok", "", kernels, result.cpu_s)
    sources = "\n".join(extension.cuda + extension.cpp for extension in extensions)
    fault, words = messages.fault_of(said, sources, known_macros())
    outcome, head = _CUDA_FAULTS[fault]
    return CompileReport(outcome, shortened(f"{head}{words}"), kernels, result.cpu_s)


def _steps(report: Json) -> list[tuple[int, str]]:
    """Status and words of each step; none where the report is not one."""
    found = report.get("steps") if isinstance(report, dict) else None
    steps = [step if isinstance(step, dict) else {} for step in found] if isinstance(found, list) else []
    known = [(step.get("status"), step.get("said")) for step in steps]
    return [(status, said) for status, said in known if type(status) is int and isinstance(said, str)]


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
