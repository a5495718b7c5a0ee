"""Thousands of candidates of all kinds on one grader while its workers are killed at random.

    python benchmarks/kernel_soak.py [--jobs 2000] [--kills 0.02] [--seed 0]

Every candidate is a text of its own (no verdict is shared or cached) of a kind whose verdict is known: right, wrong,
crashing, leaving, looping, eating memory, forking, printing without end, reaching out of bounds. After a share of the
verdicts a random worker is killed with SIGKILL, whatever it is doing. A candidate that lost two workers in a row is an
`infra_error`, which is counted apart and is never a reward. Growth is measured from the moment a tenth is done. The
last line is one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import os
import random
import signal
import time
from collections import Counter

from assay.kernels.config import GraderConfig
from assay.kernels.grader import Grader
from assay.kernels.pool import GradingPool
from assay.kernels.problems.scaling import unscaled
from assay.kernels.problems.sources import make_problem
from assay.sandbox.local import LocalSandbox
from common.processes import descendants, descriptors, resident_mb
from kernel_grading import ADDITION, KERNEL

FORWARD = "        out = torch.empty_like(x)\n"


def variant(extra: str, before: str = "") -> str:
    """The right kernel, with lines put into the module and into forward."""
    return before + KERNEL.replace(FORWARD, FORWARD + extra)


KINDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "right": (KERNEL, ("ok",)),
    "wrong": (KERNEL.replace("+ tl.load(y_ptr", "- tl.load(y_ptr"), ("wrong",)),
    "raises": (variant("        raise RuntimeError('no')\n"), ("crash",)),
    "leaves": (variant("        os._exit(0)\n", "import os\n"), ("crash",)),
    "faults": (variant("        ctypes.string_at(0)\n", "import ctypes\n"), ("crash",)),
    "loops": (variant("        while True: pass\n"), ("timeout",)),
    "eats": (variant("        kept = [bytearray(b'x') * (1 << 24) for _ in range(10000)]\n"), ("crash",)),
    "forks": (variant("        while True: os.fork()\n", "import os\n"), ("crash",)),
    "floods": (variant("        for _ in range(2000): print('flood' * 20)\n"), ("ok",)),
    "outside": (KERNEL.replace("tl.store(out_ptr + i,", "tl.store(out_ptr + i + 7,"), ("crash",)),
    "replays": (variant("        print(x.sum())\n") + "import pickle\npickle.loads(b'')\n", ("crash",)),
}
WEIGHTS = {"right": 10, "wrong": 5, "loops": 1}


async def soak(jobs: int, share_of_kills: float, seed: int) -> dict[str, object]:
    """Grade them all; returns the figures."""
    draw = random.Random(seed)
    kinds = draw.choices(list(KINDS), [WEIGHTS.get(kind, 2) for kind in KINDS], k=jobs)
    problem = unscaled(make_problem(1, 1, "Addition", ADDITION, "benchmark"))
    config = GraderConfig(cache=False, compile_check="off", wall_s=4.0, cpu_s=2.0, memory_mb=512)
    # Without what the text decides, so that all of it reaches the sandbox.
    grader = Grader(config, text_checks=False)
    sandbox = grader.sandbox
    assert isinstance(sandbox, LocalSandbox)
    answers: Counter[int] = Counter()
    verdicts: Counter[str] = Counter()
    surprises: list[str] = []
    kills = 0
    marks: dict[str, float] = {}
    begin = time.perf_counter()
    async with GradingPool(grader=grader) as pool:
        candidates = ((problem, f"{KINDS[kind][0]}# candidate {number}\n") for number, kind in enumerate(kinds))
        async with contextlib.aclosing(pool.stream(candidates)) as stream:
            async for number, verdict in stream:
                answers[number] += 1
                verdicts[verdict.kind] += 1
                if verdict.kind not in (*KINDS[kinds[number]][1], "infra_error"):
                    surprises.append(f"{kinds[number]}: {verdict.kind}, {verdict.message[:200]}")
                if answers.total() == jobs // 10:
                    marks.update(fds=descriptors(), mb=resident_mb())
                if draw.random() < share_of_kills and (pids := sandbox.worker_pids()):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(draw.choice(pids), signal.SIGKILL)
                        kills += 1
        elapsed_s = time.perf_counter() - begin
        grown = {"fd_growth": descriptors() - marks["fds"], "rss_growth_mb": round(resident_mb() - marks["mb"], 2)}
    return {
        "jobs": jobs,
        "lost": jobs - len(answers),
        "doubled": sum(count > 1 for count in answers.values()),
        "surprises": len(surprises),
        "first_surprises": surprises[:3],
        "verdicts": dict(verdicts),
        "workers_killed": kills,
        "workers_replaced": sandbox.deaths,
        **grown,
        "processes_left": len(descendants()),
        "jobs_per_s": round(jobs / elapsed_s, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=2000)
    parser.add_argument("--kills", type=float, default=0.02)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    if options.jobs < 10 or not 0 <= options.kills <= 1:
        parser.error("--jobs must be at least 10, and --kills a share between 0 and 1")
    logging.basicConfig(level=logging.ERROR)
    print(json.dumps(asyncio.run(soak(options.jobs, options.kills, options.seed))))


if __name__ == "__main__":
    main()
