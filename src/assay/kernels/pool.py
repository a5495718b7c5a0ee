"""Many candidates at a time: the grader with a cache, single-flight, backpressure and progress.

    verdicts = grade_many([(problem, code), ...])            anywhere, without a loop
    async with GradingPool(GraderConfig()) as pool:          inside one
        verdict = await pool.grade(problem, code)
        async for index, verdict in pool.stream(tasks): ...

A candidate that is being graded already, or was, is not graded again. What goes in is read only as fast as verdicts
come out, so a generator of a million candidates takes no more memory than a few.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from assay.errors import AssayError, ConfigError
from assay.kernels.config import GraderConfig
from assay.kernels.grader import VERSION, Grader
from assay.kernels.problems.scaling import ScaledProblem, task_key
from assay.kernels.problems.sources import Problem
from assay.kernels.sandboxes import require_packages
from assay.kernels.service.client import RemoteGrader, check_service
from assay.kernels.verdict_cache import cache_key, open_cache
from assay.kernels.verdicts import Verdict

logger = logging.getLogger(__name__)

Candidate = tuple[Problem | ScaledProblem, str]
"""A problem and the source of one candidate for it."""
Progress = Callable[["GradingProgress"], None]

AHEAD = 4
"""Candidates under way for each worker: enough that none waits for the parent."""
LOG_INTERVAL_S = 10.0


class Grades(Protocol):
    """What gives verdicts: a `Grader` of this process, or a `RemoteGrader` that asks a grading service."""

    @property
    def width(self) -> int:
        """Candidates that it can have at work at a time."""

    async def grade(self, problem: Problem | ScaledProblem, code: str) -> Verdict:
        """See `Grader.grade`."""

    async def prepare(self, problem: Problem | ScaledProblem) -> None:
        """See `Grader.prepare`."""

    async def close(self) -> None:
        """See `Grader.close`."""


@dataclass(slots=True, eq=False)
class _Flight:
    """A grade under way, and how many wait for it."""

    task: asyncio.Task[Verdict]
    waiters: int = 0


class GradingProgress:
    """How far a batch has come. Seconds are those of the monotonic clock."""

    def __init__(self) -> None:
        self.done = 0
        self.cached = 0
        self.kinds: Counter[str] = Counter()
        self._started = time.monotonic()

    def add(self, verdict: Verdict) -> None:
        """Take in a verdict."""
        self.done += 1
        self.cached += verdict.cached
        self.kinds[verdict.kind] += 1

    @property
    def per_s(self) -> float:
        """Verdicts a second since the start."""
        return self.done / max(time.monotonic() - self._started, 1e-9)

    def __str__(self) -> str:
        kinds = ", ".join(f"{kind} {count}" for kind, count in self.kinds.most_common())
        return f"{self.done} graded ({self.per_s:.1f} a second, {self.cached} from the cache): {kinds}"


class GradingPool:
    """Grades candidates for one event loop. Close it, or use it as an async context manager.

    Raises:
        SandboxError: this machine cannot isolate untrusted code.  CacheError: the cache cannot be opened.
        ConfigError: the key of the grading service at `config.url` cannot be one.
    """

    def __init__(self, config: GraderConfig | None = None, grader: Grader | None = None) -> None:
        """`grader` replaces the one that `config` would make; the pool closes it all the same."""
        self.config = config or (grader.config if grader is not None else GraderConfig())
        # A grader that leaves checks out, or whose inputs can be known, must not speak for one that does not.
        # A grading service has a cache of its own, and knows which packages its verdicts rest on.
        own = self.config.url is None and (grader is None or grader.as_configured)
        self._cache = open_cache(self.config) if own else None
        self._grader: Grades = grader or (Grader(self.config) if self.config.url is None else RemoteGrader(self.config))
        self._flights: dict[str, _Flight] = {}
        self._abandoned: set[asyncio.Task[Verdict]] = set()
        self._ahead: set[asyncio.Task[None]] = set()
        self._counts: Counter[str] = Counter()

    async def __aenter__(self) -> GradingPool:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End everything; grades in flight are cancelled. Safe to call twice."""
        flights = [*(flight.task for flight in self._flights.values()), *self._abandoned, *self._ahead]
        for flight in flights:
            flight.cancel()
        await asyncio.gather(*flights, return_exceptions=True)
        await self._grader.close()
        if self._cache is not None:
            self._cache.close()

    def prepare(self, problems: Iterable[Problem | ScaledProblem], took: Callable[[float], None] | None = None) -> None:
        """Begin to make problems ready whose candidates will come; returns at once. See `Grader.prepare`.

        Args:
            took: called with the seconds that it took, once for each problem.
        """
        for problem in problems:
            task = asyncio.create_task(self._grader.prepare(problem))
            self._ahead.add(task)
            task.add_done_callback(self._prepared)
            if took is not None:
                task.add_done_callback(partial(_tell_time, took, time.monotonic()))

    def _prepared(self, task: asyncio.Task[None]) -> None:
        self._ahead.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.warning("a problem could not be made ready ahead, which is tried again with its grade: %s", error)

    def counters(self) -> dict[str, float]:
        """Totals so far: `graded`, `cached`, `shared` (waited for the grade of another), and each kind of verdict."""
        return {name: float(count) for name, count in self._counts.items()}

    async def grade(self, problem: Problem | ScaledProblem, code: str) -> Verdict:
        """The verdict on one candidate, from the cache, from a grade under way, or graded now. See `Grader.grade`."""
        key = cache_key(task_key(problem, self.config.scale), code, self.config, VERSION)
        kept = self._cache.get(key) if self._cache is not None else None
        if kept is not None:
            self._counts["cached"] += 1
            return self._counted(kept)
        flight = self._flights.get(key)
        if flight is None:
            flight = self._flights[key] = _Flight(asyncio.create_task(self._grade(key, problem, code)))
            flight.task.add_done_callback(partial(self._landed, key, flight))
        else:
            self._counts["shared"] += 1
        flight.waiters += 1
        try:
            # One waiter that is cancelled must not take the verdict from the others.
            return self._counted(await asyncio.shield(flight.task))
        finally:
            flight.waiters -= 1
            if not flight.waiters and not flight.task.done():  # nobody is left who wants to know
                self._landed(key, flight, flight.task)
                self._abandoned.add(flight.task)
                flight.task.add_done_callback(self._abandoned.discard)
                flight.task.cancel()

    async def stream(
        self, candidates: Iterable[Candidate], ahead: int | None = None
    ) -> AsyncGenerator[tuple[int, Verdict], None]:
        """Verdicts as they come, each with the place of its candidate; at most `ahead` are under way.

        Raises:
            ConfigError: a candidate is no pair of a problem and a text.
        """
        limit = ahead or AHEAD * max(self._grader.width, 1)
        waiting: set[asyncio.Task[tuple[int, Verdict]]] = set()
        source = enumerate(candidates)
        more = True
        try:
            while waiting or more:
                while more and len(waiting) < limit:
                    entry = next(source, None)
                    if entry is None:
                        more = False
                        break
                    waiting.add(asyncio.create_task(self._placed(entry[0], *_pair(*entry))))
                if not waiting:
                    return
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    yield task.result()
        finally:
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    async def grade_many(self, candidates: Iterable[Candidate], on_progress: Progress | None = None) -> list[Verdict]:
        """Verdicts in the order of the candidates. `on_progress` is called after each; without it, a line is logged."""
        verdicts: dict[int, Verdict] = {}
        progress, said = GradingProgress(), time.monotonic()
        async with contextlib.aclosing(self.stream(candidates)) as stream:
            async for place, verdict in stream:
                verdicts[place] = verdict
                progress.add(verdict)
                if on_progress is not None:
                    on_progress(progress)
                elif time.monotonic() - said > LOG_INTERVAL_S:
                    said = time.monotonic()
                    logger.info("kernels: %s", progress)
        return [verdicts[place] for place in range(len(verdicts))]

    async def _placed(self, place: int, problem: Problem | ScaledProblem, code: str) -> tuple[int, Verdict]:
        return place, await self.grade(problem, code)

    async def _grade(self, key: str, problem: Problem | ScaledProblem, code: str) -> Verdict:
        verdict = await self._grader.grade(problem, code)
        self._counts["graded"] += 1
        if self._cache is not None:
            self._cache.put(key, verdict)
        return verdict

    def _landed(self, key: str, flight: _Flight, _: asyncio.Task[Verdict]) -> None:
        """Forget a flight, so that the next to ask for its candidate begins another."""
        if self._flights.get(key) is flight:
            del self._flights[key]

    def _counted(self, verdict: Verdict) -> Verdict:
        self._counts[verdict.kind] += 1
        return verdict


def _pair(place: int, candidate: object) -> Candidate:
    """A candidate as it must be given."""
    match candidate:
        case (Problem() | ScaledProblem() as problem, str() as code):
            return problem, code
    raise ConfigError(
        f"candidate {place} ({type(candidate).__name__}) is no pair of a problem and its code, so it cannot be graded. "
        "Pass (problem, code): a problem of load_problems and a str."
    )


def _tell_time(took: Callable[[float], None], began: float, _: asyncio.Task[None]) -> None:
    took(time.monotonic() - began)


def require_grader(config: GraderConfig) -> None:
    """Make sure that candidates can be graded: that the packages are there, or that the grading service answers and
    takes the settings. Costs nothing, and is asked before anything is spent.

    Raises:
        MissingDependencyError: a package is not installed.  ConfigError: the service refuses the key.
        GradingServiceError: it cannot be reached, is of another version, or refuses the settings.
    """
    if config.url is None:
        require_packages(config)
    else:
        check_service(config)


def grade_many(
    candidates: Iterable[Candidate], config: GraderConfig | None = None, on_progress: Progress | None = None
) -> list[Verdict]:
    """Grade candidates and wait for all of them; for code without an event loop.

    Raises:
        SandboxError: this machine cannot isolate untrusted code.  ConfigError: a candidate is no pair of a problem and
            a text.  AssayError: called inside a running event loop, where `GradingPool.grade_many` is to be awaited.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(_grade_many(candidates, config, on_progress))
    raise AssayError(
        "grade_many was called inside a running event loop, which it would block. Await GradingPool.grade_many."
    )


async def _grade_many(
    candidates: Iterable[Candidate], config: GraderConfig | None, on_progress: Progress | None
) -> list[Verdict]:
    async with GradingPool(config) as pool:
        return await pool.grade_many(candidates, on_progress)
