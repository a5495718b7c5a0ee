"""Kernels graded on a GPU: do honest ones stay right there, and which attacks are rewarded there?

    python benchmarks/kernel_gpu.py [--attacks 100] [--seconds 600] [--data FILE] [FOLDER ...]

Honest are the controls, the unusual kernels and the solutions of published problems; attacks are a fixed sample over
all families, or what lies in the folders given. `worst` is the largest error of an honest kernel as a share of what is
allowed. An attack that is `ok` here is named: on a GPU accesses are not followed and programs not shuffled, so races
and reads outside of tensors pass. A pass over honest kernels ends after `--seconds`, as does one over attacks; what was
not graded by then is counted. The last line of output is a JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import chain, zip_longest
from pathlib import Path

from assay.kernels.config import GraderConfig
from assay.kernels.devices import gpu_models
from assay.kernels.grader import Grader
from assay.kernels.verdicts import Verdict
from common.catalogue import ATTACKS, HONEST, PUBLISHED, problems_of
from common.submissions import Submission, read_submissions

SEED = 13


def sample(submissions: Sequence[Submission], count: int) -> list[Submission]:
    """So many submissions, one of each family after the other."""
    families: dict[str, list[Submission]] = defaultdict(list)
    for submission in random.Random(SEED).sample(submissions, len(submissions)):
        families[submission.family].append(submission)
    return [found for found in chain(*zip_longest(*families.values())) if found is not None][:count]


async def graded(submissions: Sequence[Submission], data: Path, seconds: float) -> list[tuple[Submission, Verdict]]:
    """The verdicts of those that could be begun in the time."""
    problems, found, end = problems_of(submissions, data), [], time.monotonic() + seconds
    async with Grader(GraderConfig(device="cuda", cache=False, wall_s=120.0, cpu_s=60.0)) as grader:
        limit = asyncio.Semaphore(len(os.sched_getaffinity(0)))

        async def one(submission: Submission) -> None:
            async with limit:
                if submission.id in problems and time.monotonic() < end:
                    found.append((submission, await grader.grade(problems[submission.id], submission.code)))

        await asyncio.gather(*(one(submission) for submission in submissions))
    return found


def told(found: Sequence[tuple[Submission, Verdict]]) -> None:
    """Print verdicts, a line each."""
    for submission, verdict in found:
        said = " ".join(verdict.message.split())[-300:]
        print(f"{submission.id:40} {verdict.kind} {verdict.cheat} {verdict.stage} {said}", file=sys.stderr, flush=True)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", type=Path, help="attacks, in place of the sample")
    parser.add_argument("--attacks", type=int, default=100, help="attacks in the sample")
    parser.add_argument("--seconds", type=float, default=600.0, help="of each pass")
    parser.add_argument("--data", type=Path, default=PUBLISHED, help="the published problems, as JSON lines")
    options = parser.parse_args()
    honest = [found for folder in HONEST for found in read_submissions(folder)]
    random.Random(SEED).shuffle(honest)  # those that are graded in time are a sample
    attacks = [found for folder in options.folders for found in read_submissions(folder)]
    if not options.folders:
        every = [found for found in read_submissions(ATTACKS) if found.backend == "triton"]
        attacks = sample(every, options.attacks)
    begin = time.perf_counter()
    ours = await graded(honest, options.data, options.seconds)
    honest_s = time.perf_counter() - begin
    told([(submission, verdict) for submission, verdict in ours if not verdict.ok])
    theirs = await graded(attacks, options.data, options.seconds)
    told([(submission, verdict) for submission, verdict in theirs if options.folders or verdict.ok])
    errors = [float(worst) for _, verdict in ours if (worst := verdict.evidence.get("worst")) is not None]
    kinds = Counter(verdict.kind for _, verdict in theirs)
    result = {
        "gpus": list(gpu_models()),
        "honest": len(ours),
        "honest_ok": sum(verdict.ok for _, verdict in ours),
        "honest_not_graded": len(honest) - len(ours),
        "worst": max(errors, default=None),
        "worst_median": statistics.median(errors) if errors else None,
        "honest_per_s": round(len(ours) / honest_s, 2),
        "attacks": len(theirs),
        "attacks_ok": sorted(submission.id for submission, verdict in theirs if verdict.ok),
        "attacks_not_graded": len(attacks) - len(theirs),
        "attack_kinds": dict(kinds.most_common()),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    asyncio.run(main())
