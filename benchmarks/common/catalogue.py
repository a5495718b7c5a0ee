"""The whole catalogue through the grader: attacks, honest controls, unusual honest kernels, and solutions."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

from assay.kernels.config import GraderConfig
from assay.kernels.grader import Grader
from assay.kernels.problems.scaling import ScaledProblem
from assay.kernels.problems.sources import Problem, load_problems, read_jsonl
from assay.kernels.verdicts import Verdict
from common.loop_watch import LoopWatch
from common.submissions import WALLS, Submission, read_submissions

ROOT = Path(__file__).parents[2]
ATTACKS = ROOT / "exploits" / "attacks"
HONEST = (ROOT / "exploits" / "honest", ROOT / "exploits" / "unusual", ROOT / "benchmarks" / "kernel_solutions")
PUBLISHED = ROOT.parent / "shared" / "data" / "kernelbench.jsonl"
SECRET = "sk-not-for-candidates"
CONTROL = "honest/snake"


@dataclass(slots=True)
class Pass:
    """What one pass over submissions showed. `None` stands for a grade that raised."""

    verdicts: list[Verdict | None] = field(default_factory=list)
    raised: list[str] = field(default_factory=list)
    limits_met: int = 0
    """Grades that ended at a limit where their file accepts no `timeout`; their verdicts are those under `patient`."""
    disturbed: int = 0
    """Controls, graded after attacks on the walls, that were not `ok`."""
    deaths: int = 0
    """Workers of the sandbox that died."""
    late_ms: float = 0.0
    callback_ms: float = 0.0
    callback: str = ""
    wall_s: float = 0.0

    @property
    def rewarded(self) -> int:
        return sum(verdict is not None and verdict.ok for verdict in self.verdicts)

    @property
    def leaks(self) -> int:
        """Verdicts that tell of the secret in this process's environment."""
        return sum(verdict is not None and SECRET in json.dumps(verdict.to_json()) for verdict in self.verdicts)


def problems_of(submissions: Sequence[Submission], data: Path) -> Mapping[str, Problem | ScaledProblem]:
    """The problem of each submission by its id, as far as it is there."""
    known = {problem.key: problem for problem in load_problems("shipped", (1, 2, 3))}
    if data.exists():
        known |= {f"kernelbench {problem.key}": problem for problem in read_jsonl(data)}
    found: dict[str, Problem | ScaledProblem] = {}
    for submission in submissions:
        if (problem := known.get(submission.problem)) is not None:
            found[submission.id] = problem
    return found


async def grade_all(
    config: GraderConfig,
    submissions: Sequence[Submission],
    *,
    text_checks: bool,
    data: Path,
    control: str = "",
    patient: GraderConfig | None = None,
) -> Pass:
    """Grade submissions, as many at a time as there are cores; after each attack on a wall a control as well. What
    meets a limit is graded again under those of `patient`: how much a slow machine does in a second is not its fault.
    """
    problems = dict(problems_of(submissions, data))
    if control:
        problems[CONTROL] = problems_of([_control()], data)[CONTROL]
    done = Pass()
    begin = time.perf_counter()
    async with AsyncExitStack() as stack:
        graders = {}
        for backend in sorted({submission.backend for submission in submissions}):
            # CUDA sources are compiled only, so that limits of runs would be settings without an effect.
            settings = config if backend == config.backend else GraderConfig(backend=backend, cache=config.cache)
            grader = Grader(settings, text_checks=text_checks)
            graders[backend] = await stack.enter_async_context(grader)
        watch = await stack.enter_async_context(LoopWatch())
        limit = asyncio.Semaphore(len(os.sched_getaffinity(0)))

        async def one(submission: Submission) -> Verdict | None:
            async with limit:
                try:
                    verdict = await graders[submission.backend].grade(problems[submission.id], submission.code)
                except Exception as error:  # noqa: BLE001 - what a grade raises is what is counted here
                    done.raised.append(f"{submission.id}: {error!r}"[:500])
                    return None
                if control and submission.family in WALLS and submission.backend == "triton":
                    after = await graders["triton"].grade(problems[CONTROL], control)
                    done.disturbed += not after.ok
                    if not after.ok:
                        print(f"after {submission.id}: {after.kind} {after.message}", file=sys.stderr)
                return verdict

        done.verdicts = list(await asyncio.gather(*(one(submission) for submission in submissions)))
        done.deaths = sum(grader.sandbox.deaths for grader in graders.values())
    done.late_ms, done.callback_ms, done.callback = watch.late_ms, watch.callback_ms, watch.callback
    slow = [place for place, each in enumerate(submissions) if _met_limits(each, done.verdicts[place])]
    if patient is not None and slow:
        again = await grade_all(patient, [submissions[place] for place in slow], text_checks=text_checks, data=data)
        for place, verdict in zip(slow, again.verdicts, strict=True):
            done.verdicts[place] = verdict
        done.limits_met = len(slow)
        done.raised += again.raised
        done.deaths += again.deaths
        done.late_ms = max(done.late_ms, again.late_ms)
        if again.callback_ms > done.callback_ms:
            done.callback_ms, done.callback = again.callback_ms, again.callback
    done.wall_s = time.perf_counter() - begin
    return done


def _met_limits(submission: Submission, verdict: Verdict | None) -> bool:
    return verdict is not None and verdict.kind == "timeout" and "timeout" not in submission.expect


def _control() -> Submission:
    return next(found for found in read_submissions(HONEST[0]) if found.id == CONTROL)


def control_code() -> str:
    """A kernel that must be right whatever was graded before."""
    return _control().code


async def idle_lateness_ms(config: GraderConfig, seconds: float) -> float:
    """How late the loop is beside a grader that grades nothing: the noise of this machine."""
    async with Grader(config), LoopWatch() as watch:
        await asyncio.sleep(seconds)
    return watch.late_ms


def report(submissions: Sequence[Submission], done: Pass, verbose: bool) -> list[bool]:
    """Whether each verdict is one that the file accepts; those that are not are printed, and how many there are."""
    good = []
    for submission, verdict in zip(submissions, done.verdicts, strict=True):
        accepted = submission.expect or ("ok",)
        good.append(verdict is not None and verdict.kind in accepted)
        if verbose or not good[-1]:
            mark = "" if good[-1] else f"  <-- NOT AS EXPECTED {accepted}"
            said = f"{verdict.kind} {verdict.cheat} {verdict.stage} {verdict.message[:160]!r}" if verdict else "RAISED"
            print(f"{submission.id:36} {said}{mark}", file=sys.stderr, flush=True)
    counted = f"{sum(good)} of {len(good)} as expected, {done.rewarded} ok, {done.limits_met} met a limit at first"
    print(f"{counted}; {done.wall_s:.0f} s", file=sys.stderr, flush=True)
    return good
