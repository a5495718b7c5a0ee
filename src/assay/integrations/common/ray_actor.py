"""One Ray actor makes the calls of all workers: one limit, one table of calls under way, one cache, one budget.

    engine in worker 1 --+
    engine in worker 2 --+--> RayCaller --> named actor --> Client --> judge
    engine in worker N --+

The actor is found by a name that follows from the endpoint and its limits, so all workers with equal settings share it.
It outlives the worker that made it, and ends by itself after a while without calls. If it dies, it is started again and
every call without an answer is sent again; earlier answers are in its cache on disk. Ray's messages cost more than the
calls that they carry, so calls and answers of one moment travel together. The API key is read from the actor's own
environment and is never in a message.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import sys
import time
import uuid
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import chz

from assay.errors import AssayError, ConfigError, MissingDependencyError, RewardError
from assay.integrations.common.judge_actor import IDLE_S, JudgeActor
from assay.integrations.common.settings import HostConfig, shared_name
from assay.rewards.base import CallFailure, Outcome, Request, Usage
from assay.rewards.config import EngineConfig

logger = logging.getLogger(__name__)

NAMESPACE = "assay"
MOST_MESSAGES = 10_000
"""Messages that the actor handles at once; each worker has a few."""
TRIES = 8
"""Actors lost in a row after which waiting calls are given up."""
START_S = 300.0
"""Longest wait for an actor to begin: Ray places it as soon as it can, which may be never."""
GRACE_S = 5.0
"""How long beyond a call's deadline to wait for what the actor says about it."""
GATHER_S = 0.002
"""How long the first call of a message waits for others."""


def is_running() -> bool:
    """Whether this process is part of a Ray cluster."""
    ray = sys.modules.get("ray")
    return ray is not None and bool(ray.is_initialized())


@dataclass(frozen=True, slots=True)
class _Waiting:
    """A call without an answer."""

    request: Request
    deadline: float | None
    answer: asyncio.Future[Outcome]


def _with_absolute_cache(engine: EngineConfig) -> EngineConfig:
    """The settings for a process with another working folder."""
    return engine if engine.cache_path is None else chz.replace(engine, cache_path=engine.cache_path.absolute())


def actor_name(config: HostConfig) -> str:
    """The actor of these settings in this Ray job: the next job has an environment and a budget of its own."""
    import ray

    return f"{shared_name(config)}-{ray.get_runtime_context().get_job_id()}"


class RayCaller:
    """A `Caller` (`assay.rewards.base`) that forwards to the actor of its settings, and makes it if there is none.

    Belongs to the event loop of its first call.

    Raises:
        MissingDependencyError: Ray is not installed.
        ConfigError: Ray is not running in this process, or the actor has no API key in its environment.
        CacheError: the actor cannot open the cache.
    """

    def __init__(self, config: HostConfig, idle_s: float = IDLE_S) -> None:
        try:
            import ray
        except ImportError as error:
            raise MissingDependencyError("share=ray needs Ray, which verl installs: pip install ray.") from error
        if not ray.is_initialized():
            raise ConfigError(
                "share=ray, but this process is not in a Ray cluster, so it has nothing to share. Call ray.init() "
                "first, or set share=hub or share=process."
            )
        self._ray: Any = ray
        self._config, self._idle_s = config, idle_s
        self._name = actor_name(config)
        self._id = uuid.uuid4().hex
        self._paid = Usage()
        self._numbers = itertools.count()
        self._calls: dict[int, _Waiting] = {}
        self._unsent: list[int] = []
        self._withdrawn: list[int] = []
        self._received: list[int] = []
        self._sender: asyncio.Task[None] | None = None
        self._collector: asyncio.Task[None] | None = None
        self._losses = 0
        self._connecting = asyncio.Lock()
        with ThreadPoolExecutor(1) as elsewhere:  # Ray warns of blocking calls in the thread of an event loop
            self._actor: Any = elsewhere.submit(self._connect).result()

    async def call(self, request: Request, deadline: float | None = None) -> Outcome:
        """See `Caller.call`. Sent again where the actor dies without an answer."""
        number = next(self._numbers)
        answer: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._calls[number] = _Waiting(request, deadline, answer)
        self._unsent.append(number)
        self._keep_going()
        try:
            async with asyncio.timeout_at(None if deadline is None else deadline + GRACE_S):
                return await answer
        except TimeoutError:
            return CallFailure("deadline", f"the Ray actor {self._name} did not answer before the deadline")
        finally:
            if self._calls.pop(number, None) is not None:  # cancelled: no longer awaited
                self._withdrawn.append(number)
                self._keep_going()

    async def forget(self, request: Request) -> None:
        """See `Caller.forget`."""
        await self._ask("forget", request)

    async def counters(self) -> dict[str, float]:
        """The actor's counters: those of all who share it."""
        counters: dict[str, float] = await self._ask("counters")
        return counters

    async def close(self) -> None:
        """Release the actor, which others may still use."""
        tasks = [task for task in (self._sender, self._collector) if task is not None and not task.done()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._actor is not None and self._calls:
            self._actor.withdraw.remote(self._id, list(self._calls))
        self._calls.clear()
        self._actor = None

    def _keep_going(self) -> None:
        """Make sure that waiting calls are sent and their answers collected."""
        loop = asyncio.get_running_loop()
        if (self._unsent or self._withdrawn) and (self._sender is None or self._sender.done()):
            self._sender = loop.create_task(self._send())
        if self._calls and (self._collector is None or self._collector.done()):
            self._collector = loop.create_task(self._collect())

    async def _send(self) -> None:
        """Send what is to be sent, all that has come together at a time."""
        await asyncio.sleep(GATHER_S)
        now = asyncio.get_running_loop().time
        while self._unsent or self._withdrawn:
            unsent, self._unsent = self._unsent, []
            withdrawn, self._withdrawn = self._withdrawn, []
            calls = [
                (number, call.request, None if call.deadline is None else call.deadline - now())
                for number in unsent
                if (call := self._calls.get(number)) is not None
            ]
            actor = self._actor
            try:
                actor = await self._connected()
                await actor.submit.remote(self._id, calls, withdrawn)
            except (self._ray.exceptions.RayActorError, AssayError) as error:
                await self._lost(actor, error)

    async def _collect(self) -> None:
        """Hand out answers as long as calls wait for them."""
        while self._calls:
            actor = self._actor
            try:
                actor = await self._connected()
                outcomes: Mapping[int, Outcome] = await actor.collect.remote(self._id, self._received)
            except (self._ray.exceptions.RayActorError, AssayError) as error:
                await self._lost(actor, error)
                continue
            self._losses = 0
            self._received = list(outcomes)
            self._hand_out(outcomes)

    def _hand_out(self, outcomes: Mapping[int, Outcome]) -> None:
        for number, outcome in outcomes.items():
            call = self._calls.pop(number, None)
            if call is not None and not call.answer.done():
                self._paid += outcome.usage
                call.answer.set_result(outcome)

    async def _lost(self, actor: Any, error: Exception) -> None:
        """The actor did not answer: all calls that wait are sent again, to the same one or the next."""
        self._losses += 1
        if self._losses > TRIES:
            message = f"the Ray actor {self._name} was lost {TRIES} times in a row: {error}"
            self._hand_out(dict.fromkeys(self._calls, CallFailure("connection", message)))
            self._losses = 0
            return
        unavailable = isinstance(error, self._ray.exceptions.ActorUnavailableError)
        if self._actor is actor and not unavailable:
            logger.warning("The Ray actor %s died (%s); starting a new one.", self._name, type(error).__name__)
            self._actor = None
        await asyncio.sleep(0.1 * 2**self._losses)
        self._unsent = list(self._calls)
        self._keep_going()

    async def _ask(self, method: str, *arguments: Any) -> Any:
        for attempt in range(TRIES):
            actor = self._actor
            try:
                actor = await self._connected()
                return await getattr(actor, method).remote(*arguments)
            except self._ray.exceptions.RayActorError as error:
                if self._actor is actor and not isinstance(error, self._ray.exceptions.ActorUnavailableError):
                    self._actor = None
                await asyncio.sleep(0.1 * 2**attempt)
        raise RewardError(f"The Ray actor {self._name}, which makes the calls of all workers, keeps dying.")

    async def _connected(self) -> Any:
        if self._actor is None:
            async with self._connecting:
                if self._actor is None:
                    self._actor = await asyncio.to_thread(self._connect)
        return self._actor

    def _connect(self) -> Any:
        actor, problem = self._greeted()
        if isinstance(problem, ConfigError):
            raise ConfigError(
                f"The Ray actor {self._name}, which makes the calls of all workers, cannot start: {problem} The actor "
                "has the environment that Ray was started with: set the variable before that, or in "
                "ray.init(runtime_env=...)."
            )
        if problem is not None:
            raise problem
        return actor

    def _greeted(self) -> tuple[Any, AssayError | None]:
        """The actor, and why it cannot work, if so. One that was about to end when it was found is replaced."""
        made = self._ray.remote(JudgeActor).options(
            name=self._name,
            namespace=NAMESPACE,
            get_if_exists=True,
            lifetime="detached",
            num_cpus=0,
            max_concurrency=MOST_MESSAGES,
        )
        for attempt in range(TRIES):
            try:
                actor = made.remote(self._config.judge, _with_absolute_cache(self._config.engine), self._idle_s)
                return actor, self._ray.get(actor.greet.remote(self._id, self._paid), timeout=START_S)
            except self._ray.exceptions.GetTimeoutError as error:
                raise RewardError(
                    f"The Ray actor {self._name}, which makes the calls of all workers, did not start within "
                    f"{START_S:g} s, so nothing was judged. Look at it with `ray list actors`; share=process does not "
                    "need it."
                ) from error
            except self._ray.exceptions.RayActorError as error:
                logger.info("The Ray actor %s ended before it could be greeted: %s", self._name, error)
                time.sleep(0.1 * 2**attempt)
        raise RewardError(
            f"The Ray actor {self._name}, which makes the calls of all workers, died {TRIES} times before it could be "
            "used, so nothing was judged. Look at it with `ray logs`; share=process does not need it."
        )
