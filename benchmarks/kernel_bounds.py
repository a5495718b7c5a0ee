"""Error bounds against a GPU: is what it computes within the bounds that the interpreter gives each output element?

    python benchmarks/kernel_bounds.py expect FILE [--megabytes 48] [FOLDER ...]     on any machine with a sandbox
    python benchmarks/kernel_bounds.py compare FILE                                  on a machine with a GPU

`expect` records submissions (honest ones and attacks, or those of the folders), plays each program in the interpreter
on inputs of two families, and keeps programs, inputs, outputs and bounds; each program in its first configuration.
`compare` plays the same programs on the same inputs on the GPU. An element whose bound is infinite says nothing and is
counted as `anything`; `outside` counts elements that are further off than their bound, `of` names their programs, and
`largest` is the largest error of the others as a share of its bound. The last line of output is a JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import os
import pickle
import signal
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

if "expect" in sys.argv[1:2]:
    os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is imported

import torch

from assay.kernels.config import GraderConfig
from assay.kernels.grader import Grader
from assay.kernels.inside.replay.calls import play
from assay.kernels.inside.replay.outputs import inexact
from assay.kernels.program import grading
from assay.kernels.program.form import Launch
from assay.kernels.program.jobs import NO_KERNEL, Replay, replay_job
from assay.kernels.program.judging.outcome import Attempt, Outcome
from assay.kernels.program.limits import ON_DEVICE
from assay.sandbox.base import Job, Limits
from common.catalogue import ATTACKS, HONEST, PUBLISHED, problems_of
from common.submissions import Submission, read_submissions

PROGRAMS = 4096
FAMILIES = 2
MOST_S = 20
"""Seconds of one program in the interpreter."""
MIB = 1 << 20
MOST = MIB
"""Bytes of one program with its inputs, outputs and bounds."""


@dataclass(frozen=True, slots=True)
class Expected:
    """A program's job, and what came of each call in the interpreter: bytes and bounds of each output."""

    name: str
    source: str
    header: Any
    rounds: tuple[tuple[bytes, ...], ...]
    forms: tuple[tuple[str, tuple[int, ...]], ...]
    outputs: tuple[tuple[bytes, ...], ...]
    bounds: tuple[tuple[torch.Tensor | None, ...], ...]


@dataclass(frozen=True, slots=True)
class Compared:
    """How far a GPU was from one program's outputs."""

    name: str
    fault: str = ""
    elements: int = 0
    anything: int = 0
    outside: int = 0
    largest: float = 0.0


def played(job: tuple[str, Any, Sequence[Sequence[bytes]]], machine: Any, limits: Any) -> tuple[Any, list[list[bytes]]]:
    """The report of a job played in this process, and the outputs of each of its rounds."""
    source, header, rounds = job
    left = iter([[memoryview(bytearray(blob)) for blob in blobs] for blobs in rounds])
    outputs: list[list[bytes]] = []
    report = play(
        source, header, lambda: next(left, None), lambda made: outputs.append(list(map(bytes, made))), machine, limits
    )
    return report, outputs[1:]


def chosen(attempt: Attempt, calls: Sequence[Replay]) -> list[Replay]:
    """Ordinary calls on inputs of different families, each in the first configuration."""
    launches = sum(isinstance(step, Launch) for step in attempt.program.steps)
    plain: dict[str, Replay] = {}
    for call in calls:
        if call.bounded and call.skip == NO_KERNEL and call.restored and not call.weights:
            plain.setdefault(call.case.family, replace(call, configurations=(0,) * launches, tuning=False))
    return list(plain.values())[:FAMILIES]


async def jobs_of(submissions: Sequence[Submission], data: Path) -> list[tuple[str, Job]]:
    """The replay of each submission that can be recorded and keeps the rules; nothing is judged."""
    problems, found = problems_of(submissions, data), []
    waiting: dict[Any, str] = {}

    async def kept(sandbox: Any, attempt: Attempt, draw: Any, calls: Sequence[Replay], *_: Any) -> Outcome:
        name = waiting[asyncio.current_task()]
        if picked := chosen(attempt, calls):
            rounds = [replay_job(attempt.text, draw, [call], Limits(), PROGRAMS) for call in picked]
            job = rounds[0]
            found.append((name, replace(job, rounds=(*job.rounds, *(other.rounds[1] for other in rounds[1:])))))
        return Outcome("wrong", "kept")

    async def one(grader: Grader, submission: Submission, limit: asyncio.Semaphore) -> None:
        async with limit:
            waiting[asyncio.current_task()] = submission.id
            await grader.grade(problems[submission.id], submission.code)

    grading.replay = kept  # type: ignore[assignment]
    async with Grader(GraderConfig(cache=False, wall_s=60.0), text_checks=False) as grader:
        limit = asyncio.Semaphore(len(os.sched_getaffinity(0)))
        there = [each for each in submissions if each.id in problems and each.backend == "triton"]
        await asyncio.gather(*(one(grader, submission, limit) for submission in there))
    return found


def too_long(*_: object) -> None:
    """What the alarm does."""
    raise TimeoutError(f"more than {MOST_S} seconds")


def expected(name: str, job: Job) -> Expected | str:
    """What the interpreter makes of a job; why there is nothing to compare, where there is not."""
    from assay.kernels.inside.replay.interpreted import Interpreted

    seen: list[tuple[torch.Tensor | None, ...]] = []
    forms: list[tuple[str, tuple[int, ...]]] = []
    told = inexact.told

    def keeping(memory: Any, windows: Sequence[Any]) -> Any:
        limits = [inexact.bounds_of(memory, window) for window in windows]
        seen.append(tuple(None if limit is None else torch.tensor(limit, dtype=torch.float64) for limit in limits))
        forms[:] = [(window.dtype, tuple(window.size)) for window in windows]
        return told(memory, windows)

    inexact.told = keeping
    blobs = tuple(tuple(map(bytes, part.inputs)) for part in job.rounds)
    signal.signal(signal.SIGALRM, too_long)
    signal.alarm(MOST_S)
    try:
        report, outputs = played((job.source, job.header, blobs), Interpreted(PROGRAMS), None)
    except TimeoutError as error:
        return str(error)
    finally:
        signal.alarm(0)
        inexact.told = told
    if "fault" in report:
        return str(report["fault"].get("message"))
    made = Expected(name, job.source, job.header, blobs, tuple(forms), tuple(map(tuple, outputs)), tuple(seen))
    size = len(pickle.dumps(made))
    return made if size <= MOST else f"{size} bytes"


def expect(options: argparse.Namespace) -> dict[str, object]:
    """Write what the interpreter makes of each submission."""
    from assay.kernels.inside.triton import interpreter

    folders = options.folders or [*HONEST, ATTACKS]
    submissions = [found for folder in folders for found in read_submissions(folder)]
    jobs = asyncio.run(jobs_of(submissions, options.data))
    interpreter.install()
    kept, without, size = [], 0, 0
    for name, job in jobs:
        found = expected(name, job)
        if isinstance(found, str):
            without += 1
            print(f"{name}: {found}"[:300], file=sys.stderr)
        elif (size := size + len(pickle.dumps(found))) <= options.megabytes * MIB:
            kept.append(found)
    options.file.write_bytes(pickle.dumps(kept))
    return {"submissions": len(submissions), "replayed": len(jobs), "kept": len(kept), "without": without}


def compared(one: Expected) -> Compared:
    """The same program on the GPU, beside its bounds."""
    from assay.kernels.inside.replay.on_device import OnDevice

    rounds = [one.rounds[0]]
    for *blobs, control in one.rounds[1:]:
        calls = [{**call, "follow": False, "bounded": False} for call in json.loads(control)]
        rounds.append((*blobs, json.dumps(calls).encode()))
    with contextlib.redirect_stderr(None):
        report, outputs = played((one.source, one.header, rounds), OnDevice(), ON_DEVICE)
    if "fault" in report:
        return Compared(one.name, str(report["fault"].get("message")))
    counts, largest = [0, 0, 0], 0.0
    for theirs, ours, limits in zip(outputs, one.outputs, one.bounds, strict=True):
        for (dtype, _), left, right, limit in zip(one.forms, theirs, ours, limits, strict=True):
            share, known = shares(dtype, left, right, limit)
            counts[0] += share.numel()
            counts[1] += int((~known).sum())
            counts[2] += int((share[known] > 1).sum())
            largest = max(largest, float(share[known].max()) if bool(known.any()) else 0.0)
    return Compared(one.name, "", *counts, largest)


def shares(dtype: str, left: bytes, right: bytes, limit: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """The error of each element as a share of its bound, and which elements have one."""
    gpu, cpu = (
        torch.frombuffer(bytearray(data), dtype=getattr(torch, dtype)).to(torch.float64) for data in (left, right)
    )
    bound = torch.zeros_like(cpu) if limit is None else limit.flatten()
    same = (gpu == cpu) | (gpu.isnan() & cpu.isnan())
    share = torch.where(same, 0.0, (gpu - cpu).abs() / bound)
    return share.nan_to_num(nan=torch.inf), bound.isfinite()


def tried(one: Expected) -> Compared:
    """`compared`, whatever goes wrong."""
    try:
        return compared(one)
    except Exception as error:  # noqa: BLE001 - one program's fault is not the others'
        return Compared(one.name, f"{type(error).__name__}: {error}")


def compare(options: argparse.Namespace) -> dict[str, object]:
    """Play everything on the GPU."""
    programs = pickle.loads(options.file.read_bytes())
    context = multiprocessing.get_context("fork")  # before CUDA is started, which each does for itself
    with context.Pool(options.processes, maxtasksperchild=8) as pool:
        found = list(pool.imap_unordered(tried, programs))
    for one in found:
        if one.fault or one.outside:
            said = (
                one.fault.replace("\n", " ")[-200:]
                or f"{one.outside} of {one.elements} outside, up to {one.largest:.3g} bounds"
            )
            print(f"{one.name}: {said}", file=sys.stderr)
    good = [one for one in found if not one.fault]
    inside = [one.largest for one in good if not one.outside and one.anything < one.elements]
    return {
        "gpu": torch.cuda.get_device_name(0),
        "programs": len(good),
        "faults": len(found) - len(good),
        "elements": sum(one.elements for one in good),
        "anything": sum(one.anything for one in good),
        "outside": sum(one.outside for one in good),
        "of": sorted(one.name for one in good if one.outside),
        "largest": max(inside, default=0.0),
        "largest_median": statistics.median(inside) if inside else None,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=("expect", "compare"))
    parser.add_argument("file", type=Path)
    parser.add_argument("folders", nargs="*", type=Path, help="submissions, in place of the whole catalogue")
    parser.add_argument("--megabytes", type=int, default=48, help="of the file")
    parser.add_argument("--processes", type=int, default=12, help="that use the GPU at a time")
    parser.add_argument("--data", type=Path, default=PUBLISHED, help="the published problems, as JSON lines")
    options = parser.parse_args()
    print(json.dumps(expect(options) if options.step == "expect" else compare(options)))


if __name__ == "__main__":
    main()
