"""One Ray actor makes the calls of all workers: one limit, one table of calls under way, one cache, one budget.

    engine in worker 1 --+
    engine in worker 2 --+--> RayCaller --> named actor --> Client --> judge
    engine in worker N --+

The actor is found by a name that follows from the endpoint and its limits, so whoever has equal settings shares it. It
outlives the worker that made it, and ends by itself when nobody has called for a while. If it dies, the next call makes
it anew and every call without an answer is sent again; answers that it had are in its cache on disk. The API key is
read from the actor's own environment and is in no message.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from assay.errors import AssayError, ConfigError, MissingDependencyError, RewardError
from assay.integrations.settings import HostConfig, shared_name
from assay.rewards import Client, EngineConfig, JudgeConfig, Usage
from assay.rewards.base import CallFailure, Outcome, Request

logger = logging.getLogger(__name__)

NAMESPACE = "assay"
IDLE_S = 1800.0
"""How long an actor lives after the last call."""
MOST_CALLS = 100_000
"""Calls that the actor takes at once: they wait in its client, where equal ones find each other, and not in Ray."""
START_S = 300.0
"""Longest wait for an actor to begin: Ray places it as soon as it can, which may be never."""
GRACE_S = 5.0
"""How long beyond a call's deadline to wait for what the actor says about it."""
TRIES = 8
"""Actors that may be lost in a row while one call waits."""


def is_running() -> bool:
    """Whether this process is part of a Ray cluster."""
    ray = sys.modules.get("ray")
    return ray is not None and bool(ray.is_initialized())


class JudgeActor:
    """What runs in the actor: a `Client`, made on the first call in the actor's own event loop."""

    def __init__(self, judge: JudgeConfig, engine: EngineConfig, idle_s: float = IDLE_S) -> None:
        self._judge, self._engine, self._idle_s = judge, engine, idle_s
        self._client: Client | None = None
        self._greeted: set[str] = set()
        self._busy = 0
        self._used = time.monotonic()
        self._watch: asyncio.Task[None] | None = None

    async def greet(self, caller: str, paid: Usage) -> AssayError | None:
        """Take up a caller, and what it has paid through actors before this one; returns what is in the way."""
        try:
            client = self._made()
        except AssayError as error:
            return error
        if caller not in self._greeted:
            self._greeted.add(caller)
            client.add_spent(paid)
        return None

    async def call(self, request: Request, remaining_s: float | None) -> Outcome:
        """See `Caller.call`; the time that is left, because clocks differ between processes."""
        self._busy += 1
        try:
            deadline = None if remaining_s is None else asyncio.get_running_loop().time() + remaining_s
            return await self._made().call(request, deadline)
        finally:
            self._busy -= 1
            self._used = time.monotonic()

    async def forget(self, request: Request) -> None:
        """See `Caller.forget`."""
        await self._made().forget(request)

    async def counters(self) -> dict[str, float]:
        """See `Caller.counters`."""
        return await self._made().counters()

    def _made(self) -> Client:
        if self._client is None:
            self._client = Client(self._judge, self._engine)
            self._watch = asyncio.get_running_loop().create_task(self._end_when_idle())
        return self._client

    async def _end_when_idle(self) -> None:
        import ray

        while self._busy or time.monotonic() - self._used < self._idle_s:
            await asyncio.sleep(min(60.0, self._idle_s / 4))
        if self._client is not None:
            await self._client.close()
        ray.actor.exit_actor()


class _ActorLostError(RewardError):
    """No actor would stay alive."""


class RayCaller:
    """A `Caller` (`assay.rewards.base`) that forwards to the actor of its settings, and makes it where there is none.

    Raises:
        MissingDependencyError: Ray is not installed.
        ConfigError: Ray is not running in this process, or the actor has no API key in its environment.
        CacheError: the actor cannot open the cache.
    """

    def __init__(self, config: HostConfig, idle_s: float = IDLE_S) -> None:
        try:
            import ray
        except ImportError as error:
            raise MissingDependencyError("share=ray needs Ray, which verl brings along: pip install ray.") from error
        if not ray.is_initialized():
            raise ConfigError(
                "share=ray, but this process is in no Ray cluster, so there is nobody to share with. Call ray.init() "
                "before, or set share=process."
            )
        self._ray: Any = ray
        self._config, self._idle_s = config, idle_s
        self._name = shared_name(config)
        self._id = uuid.uuid4().hex
        self._paid = Usage()
        self._connecting = asyncio.Lock()
        with ThreadPoolExecutor(1) as elsewhere:  # Ray warns of blocking calls in the thread of an event loop
            self._actor: Any = elsewhere.submit(self._connect).result()

    async def call(self, request: Request, deadline: float | None = None) -> Outcome:
        """See `Caller.call`. Sent again where the actor dies without an answer."""
        try:
            async with asyncio.timeout_at(None if deadline is None else deadline + GRACE_S):
                outcome: Outcome = await self._ask("call", request, deadline=deadline)
        except TimeoutError:
            return CallFailure("deadline", f"the Ray actor {self._name} did not answer before the deadline")
        except AssayError as error:
            return CallFailure("connection", str(error), TRIES)
        self._paid += outcome.usage
        return outcome

    async def forget(self, request: Request) -> None:
        """See `Caller.forget`."""
        await self._ask("forget", request)

    async def counters(self) -> dict[str, float]:
        """The actor's counters: those of all who share it."""
        counters: dict[str, float] = await self._ask("counters")
        return counters

    async def close(self) -> None:
        """Let go of the actor, which others may use."""
        self._actor = None

    async def _ask(self, method: str, *arguments: Any, deadline: float | None = None) -> Any:
        loop = asyncio.get_running_loop()
        for attempt in range(TRIES):
            timing = () if method != "call" else (None if deadline is None else deadline - loop.time(),)
            actor = None
            try:
                actor = await self._connected()
                return await self._answer(getattr(actor, method).remote(*arguments, *timing))
            except self._ray.exceptions.ActorUnavailableError:
                await asyncio.sleep(0.1 * 2**attempt)
            except self._ray.exceptions.RayActorError as error:
                if self._actor is actor:
                    logger.warning("The Ray actor %s is gone (%s); making it anew.", self._name, type(error).__name__)
                    self._actor = None
                await asyncio.sleep(0.1 * 2**attempt)
        raise _ActorLostError(f"the Ray actor {self._name} was lost {TRIES} times in a row")

    async def _answer(self, reference: Any) -> Any:
        """Wait for the actor; who stops waiting takes the call back."""
        try:
            return await reference
        except asyncio.CancelledError:
            self._ray.cancel(reference)
            raise

    async def _connected(self) -> Any:
        if self._actor is None:
            async with self._connecting:
                if self._actor is None:
                    self._actor = await asyncio.to_thread(self._connect)
        return self._actor

    def _connect(self) -> Any:
        made = self._ray.remote(JudgeActor).options(
            name=self._name,
            namespace=NAMESPACE,
            get_if_exists=True,
            lifetime="detached",
            num_cpus=0,
            max_concurrency=MOST_CALLS,
        )
        actor = made.remote(self._config.judge, self._config.engine, self._idle_s)
        try:
            problem: AssayError | None = self._ray.get(actor.greet.remote(self._id, self._paid), timeout=START_S)
        except self._ray.exceptions.GetTimeoutError as error:
            raise RewardError(
                f"The Ray actor {self._name}, which makes the calls of all workers, did not begin within {START_S:g} "
                "s, so nothing was judged. Look at it with `ray list actors`; share=process does without it."
            ) from error
        if isinstance(problem, ConfigError):
            raise ConfigError(
                f"The Ray actor {self._name}, which makes the calls of all workers, cannot begin: {problem} The actor "
                "has the environment that Ray was started with: set the variable before that, or in "
                "ray.init(runtime_env=...)."
            )
        if problem is not None:
            raise problem
        return actor
