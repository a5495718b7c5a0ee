"""Thousands of mixed jobs on one sandbox while its workers are killed at random: is any lost, doubled or mixed up?

    python benchmarks/sandbox_soak.py [--jobs N] [--workers W] [--kills F] [--seed S]

Every job carries a number that an honest candidate must hand back. One job in ten or so is honest but large; others
crash, exit early with status 0, fault, loop, eat memory or flood their output. After a share F of the jobs a random
worker is killed with SIGKILL, with whatever it is doing. `infra` counts jobs that lost two workers in a row: their
outcome is unknown and said to be so. Growth is measured from the moment a tenth of the jobs is done. The last line is
one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import os
import platform
import random
import signal
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from assay.sandbox import Job, JobResult, Limits, Round
from assay.sandbox.local import LocalConfig, LocalSandbox
from common.processes import descendants, descriptors, resident_mb

LIMITS = Limits(wall_s=30, cpu_s=30, memory_mb=256, tmp_mb=8, processes=32, open_files=64)
LARGE = 4 << 20
SOURCES = {
    "honest": "def run(inputs, header):\n    return [inputs[0]]",
    "large": "def run(inputs, header):\n    return [inputs[0]]",
    "wrong": "def run(inputs, header):\n    return [bytes(8)]",
    "raises": "raise RuntimeError('no')",
    "leaves": "import os\nos._exit(0)",
    "faults": "import ctypes\nctypes.string_at(0)",
    "loops": "while True: pass",
    "eats": "x = []\nwhile True: x.append(bytes(1 << 24))",
    "floods": "def run(inputs, header):\n    for _ in range(5000): print('flood' * 20)\n    return [inputs[0]]",
    "forks": "import os\nwhile True: os.fork()",
}
WEIGHTS = {"honest": 10, "large": 2, "wrong": 4, "loops": 1}
ENDS = {"raises": "crash", "leaves": "crash", "faults": "crash", "loops": "timeout", "eats": "memory", "forks": "crash"}
HONEST = ("honest", "large", "floods")


@dataclass
class Tally:
    """What was seen."""

    answers: Counter[int] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)
    mixed_up: int = 0
    surprises: list[str] = field(default_factory=list)
    retried: int = 0
    kills: int = 0


def job(number: int, kind: str) -> Job:
    """A job of a kind that hands back its number, if it is honest."""
    tag = number.to_bytes(8, "big") * (LARGE // 8 if kind == "large" else 1)
    limits = LIMITS if kind != "loops" else Limits(wall_s=0.3, cpu_s=30, memory_mb=256)
    return Job(SOURCES[kind], "assay.sandbox.plain", (Round((tag,), (len(tag),)),), limits=limits, seed=number)


def note(tally: Tally, number: int, kind: str, asked: Job, result: JobResult) -> None:
    """Count one result, and whether it is the one that its kind must have."""
    tally.answers[number] += 1
    tally.ends[result.end] += 1
    tally.retried += result.retried
    if result.end == "infra":
        return
    if result.end != ENDS.get(kind, "ok"):
        tally.surprises.append(f"{kind}: {result.end}, {result.message}")
    if result.end == "ok":
        expected = bytes(asked.rounds[0].inputs[0]) if kind in HONEST else bytes(8)
        tally.mixed_up += result.outputs != ((expected,),)


async def soak(jobs: int, workers: int, share_of_kills: float, seed: int) -> dict[str, object]:
    """Run them all; returns the figures."""
    draw, tally = random.Random(seed), Tally()
    kinds = draw.choices(list(SOURCES), [WEIGHTS.get(kind, 2) for kind in SOURCES], k=jobs)
    sandbox = LocalSandbox(LocalConfig(workers=workers))
    marks: dict[str, float] = {}
    feed = iter(enumerate(kinds))

    async def client() -> None:
        for number, kind in feed:
            asked = job(number, kind)
            note(tally, number, kind, asked, await sandbox.run(asked))
            done = tally.answers.total()
            if done == jobs // 10:
                marks.update(fds=descriptors(), mb=resident_mb())
            if draw.random() < share_of_kills and (pids := sandbox.worker_pids()):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(draw.choice(pids), signal.SIGKILL)
                    tally.kills += 1

    started = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(2 * workers)))
    elapsed_s = time.perf_counter() - started
    grown = {"fd_growth": descriptors() - marks["fds"], "rss_growth_mb": round(resident_mb() - marks["mb"], 2)}
    deaths = sandbox.deaths
    await sandbox.close()
    return {
        "jobs": jobs,
        "lost": jobs - len(tally.answers),
        "doubled": sum(count > 1 for count in tally.answers.values()),
        "mixed_up": tally.mixed_up,
        "surprises": len(tally.surprises),
        "first_surprises": tally.surprises[:3],
        "ends": dict(tally.ends),
        "workers_killed": tally.kills,
        "workers_replaced": deaths,
        "retried": tally.retried,
        **grown,
        "processes_left": len(descendants()),
        "jobs_per_s": round(jobs / elapsed_s, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=2000)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--kills", type=float, default=0.02)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if options.jobs < 10 or options.workers < 1 or not 0 <= options.kills <= 1:
        parser.error("--jobs must be at least 10, --workers at least 1, and --kills a share between 0 and 1")
    logging.basicConfig(level=logging.ERROR)
    folders = set(Path("/tmp").glob("assay-*"))
    figures = asyncio.run(soak(options.jobs, options.workers, options.kills, options.seed))
    figures["folders_left"] = len(set(Path("/tmp").glob("assay-*")) - folders)
    figures["machine"] = {"cpus": os.cpu_count(), "processor": platform.machine(), "python": platform.python_version()}
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
