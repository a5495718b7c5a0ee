"""Where requests meet graders: one sandbox, one process for references, and a pool for each set of settings asked for.

The pools share the device, and take turns where kernels are timed on it. What runs at once is bounded by the sandbox,
whose workers (or containers at Modal) are the queue's; how much may wait is the service's to bound.
"""

from __future__ import annotations

import asyncio
import functools
import json
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import chz

from assay.config.schema import settings
from assay.errors import ConfigError
from assay.kernels.config import GraderConfig
from assay.kernels.grader import Grader, turns_for
from assay.kernels.numerics.reference import ReferenceProcess
from assay.kernels.pool import GradingPool
from assay.kernels.problems.sources import SHIPPED, Problem, read_shipped, shipped_levels
from assay.kernels.sandboxes import sandbox_for
from assay.kernels.service.wire import RequestError, asked_of
from assay.kernels.timing.config import TimingConfig
from assay.kernels.verdicts import Verdict
from assay.types import Json


@dataclass(slots=True, eq=False)
class _Counter:
    """A grader with its pool, and how many requests use them."""

    grader: Grader
    pool: GradingPool
    users: int = 0


class Desk:
    """The graders of one service. Belongs to one event loop.

    Raises:
        SandboxError: this machine cannot isolate untrusted code.
        MissingDependencyError: a package is not installed.  CacheError: the cache of verdicts cannot be opened.
    """

    def __init__(self, config: GraderConfig, max_settings: int) -> None:
        """Opens what the service's own settings need, so that a machine on which nothing can be graded serves none."""
        self._config, self._max_settings = config, max_settings
        self._sandbox = sandbox_for(config)
        self._reference = ReferenceProcess(device=config.reference_device, walls=config.sandbox)
        self._turns = turns_for(self._sandbox)
        self._counters: OrderedDict[str, _Counter] = OrderedDict()
        self._open(config)

    def agreed(self, asked: Mapping[str, Json]) -> GraderConfig:
        """The settings to grade with.

        Raises:
            RequestError: the service does not grade with those that were asked for.
        """
        own = self._config
        for name in ("backend", "device"):
            if name in asked and asked[name] != getattr(own, name):
                raise RequestError(
                    422,
                    "settings",
                    f"{name}={asked[name]} was asked for, and this service has {name}={getattr(own, name)}. Set the "
                    "same, or ask another service.",
                )
        if asked.get("measure_performance") and not own.measure_performance:
            raise RequestError(
                422,
                "settings",
                "measure_performance=true was asked for, and this service does not time kernels. Start it with "
                "measure_performance=true on a machine with a GPU, or set measure_performance=false.",
            )
        chosen: dict[str, Any] = dict(asked)
        if asked.get("measure_performance") is False:
            chosen["timing"] = TimingConfig()  # nothing reads the service's own, and what nothing reads is refused
        try:
            return chz.replace(own, **chosen)
        except ConfigError as error:
            raise RequestError(422, "settings", str(error)) from error

    async def grade(self, config: GraderConfig, problem: Problem, code: str) -> Verdict:
        """The verdict on one candidate; equal candidates are graded once. Cancelling it cancels a grade that nobody
        else waits for.

        Raises:
            RequestError: the problem is not what it says, or too many different settings are in use.
            SandboxError, MissingDependencyError: no candidate at all can be graded here.
        """
        _refuse_feigned(problem)
        async with self._used(config) as counter:
            return await counter.pool.grade(problem, code)

    async def prepare(self, config: GraderConfig, problem: Problem) -> None:
        """Make a problem ready, once for all who ask.

        Raises:
            RequestError, SandboxError, MissingDependencyError: see `grade`.
        """
        _refuse_feigned(problem)
        async with self._used(config) as counter:
            await counter.grader.prepare(problem)

    async def close(self) -> None:
        """End everything; grades in flight are cancelled. Safe to call twice."""
        for counter in list(self._counters.values()):
            await counter.pool.close()
        await self._sandbox.close()
        await asyncio.to_thread(self._reference.close)

    @asynccontextmanager
    async def _used(self, config: GraderConfig) -> AsyncIterator[_Counter]:
        key = json.dumps(asked_of(config))
        counter = self._counters.get(key)
        if counter is None:
            await self._make_room()
            counter = self._counters.get(key) or self._open(config)
        self._counters.move_to_end(key)
        counter.users += 1
        try:
            yield counter
        finally:
            counter.users -= 1

    def _open(self, config: GraderConfig) -> _Counter:
        own = {name: getattr(config, name) for name in settings(GraderConfig)}
        plain = GraderConfig(**own)
        grader = Grader(plain, sandbox=self._sandbox, reference=self._reference, turns=self._turns)
        counter = self._counters[json.dumps(asked_of(config))] = _Counter(grader, GradingPool(plain, grader))
        return counter

    async def _make_room(self) -> None:
        """Close the pool that was used least recently, where there are as many as may be.

        Raises:
            RequestError: all are in use.
        """
        while len(self._counters) >= self._max_settings:
            idle = next((key for key, counter in self._counters.items() if not counter.users), None)
            if idle is None:
                raise RequestError(
                    503, "busy", f"clients use {len(self._counters)} different settings already: come again later"
                )
            await self._counters.pop(idle).pool.close()


@functools.cache
def _shipped() -> frozenset[str]:
    return frozenset(problem.hash for problem in read_shipped(shipped_levels()))


def _refuse_feigned(problem: Problem) -> None:
    """Only problems that do come with Assay keep their sizes as they are."""
    if problem.source == SHIPPED and problem.hash not in _shipped():
        raise RequestError(422, "problem", f"problem {problem.key} is not one that comes with this version of Assay")
