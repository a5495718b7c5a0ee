"""`FunctionReward`: a plain function, synchronous or asynchronous, as a reward of the engine's.

Where the function runs is decided once: in a thread with an event loop of its own (plain functions one after another,
asynchronous ones side by side), or in worker processes that can be killed, if `timeout_s` or `processes` ask for it.
Neither blocks the engine's loop.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from assay.errors import RewardError
from assay.plugins import digest
from assay.rewards.base import Sample
from assay.rewards.functions.arguments import arguments_of, parameters_of
from assay.rewards.functions.options import FunctionOptions, options_of
from assay.rewards.functions.processes import Failure, Processes
from assay.rewards.functions.returned import errored, score_of, scores_of
from assay.rewards.loop_thread import LoopThread
from assay.types import Json, Score

GATHER_S = 0.005
"""A batch function is called when no further sample has arrived for this long."""
MOST_AT_ONCE = 1024
"""Samples of one call of a batch function."""

_Waiting = list[tuple[Sample, "asyncio.Future[Score]"]]


class Place(Protocol):
    """Where a function runs."""

    async def call(self, arguments: Mapping[str, Any]) -> Any:
        """What the function returns, or the `Failure` that kept it from returning; its exceptions pass."""
        ...

    def close(self) -> None:
        """End what was started; safe to call twice; a later call starts it again."""
        ...


class FunctionReward:
    """See the module. A `DirectReward` (`assay.rewards.base`)."""

    asks_judge = False

    def __init__(
        self,
        function: Callable[..., Any],
        fixed: Mapping[str, Json] | None = None,
        *,
        options: FunctionOptions | None = None,
    ) -> None:
        """Make a reward from a function.

        Args:
            function: gets what its parameters name (`assay.rewards.functions.arguments`), returns a float, int, bool,
                None (could not be scored) or `Score`; a batch function returns a list of them.
            fixed: keyword arguments that are the same for every sample.
            options: by default what `@assay.reward` says.

        Raises:
            ConfigError: it takes no completion, or must run in worker processes and cannot be imported there.
        """
        options = options if options is not None else options_of(function)
        self.function, self.fixed = function, dict(fixed or {})
        self.said = describe(function)
        self.name = options.name or _name(function)
        self.parts = options.parts
        self._parameters = parameters_of(function, self.fixed, self.said)
        self._on_timeout = options.on_timeout
        decided_by = [self.fixed, options.version, options.on_timeout]
        self.fingerprint = f"{self.name}:{_digest(function, decided_by)}"
        self._place = self._place_for(options)
        self._gathered: dict[asyncio.AbstractEventLoop, _Waiting] = {}
        self._calls: set[asyncio.Task[None]] = set()

    async def evaluate(self, sample: Sample) -> Score:
        """See `DirectReward`."""
        if self._parameters.batch:
            return await self._with_others(sample)
        arguments = arguments_of(self._parameters, [sample], self.said)
        returned = await self._place.call({**arguments, **self.fixed})
        return self._failed(returned) if isinstance(returned, Failure) else score_of(returned, self.said)

    def _failed(self, failure: Failure) -> Score:
        """The score of a sample for which the function returned nothing."""
        if failure.busy and self._on_timeout is not None:
            return Score("invalid", self._on_timeout, evidence={"failure": failure.kind, "message": failure.message})
        return errored(failure.kind, failure.message)

    async def close(self) -> None:
        """End the function's thread or processes."""
        await asyncio.to_thread(self._place.close)

    def _place_for(self, options: FunctionOptions) -> Place:
        asynchronous = _is_async(self.function)
        if options.processes is None and (asynchronous or options.timeout_s is None):
            return OwnThread(self.function, self.said, options.timeout_s)
        return Processes(self.function, self.said, options.timeout_s, options.processes)

    async def _with_others(self, sample: Sample) -> Score:
        """The score of a sample, judged together with the samples that arrive at about the same time."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Score] = loop.create_future()
        if loop not in self._gathered:
            self._gathered[loop] = []
            task = loop.create_task(self._gather(loop))
            self._calls.add(task)
            task.add_done_callback(self._calls.discard)
        self._gathered[loop].append((sample, future))
        return await future

    async def _gather(self, loop: asyncio.AbstractEventLoop) -> None:
        waiting, seen = self._gathered[loop], -1
        while seen < len(waiting) < MOST_AT_ONCE:
            seen = len(waiting)
            await asyncio.sleep(GATHER_S)
        del self._gathered[loop]
        call = loop.create_task(self._judge_all([sample for sample, _ in waiting]))
        await asyncio.wait([call])
        for place, (_, future) in enumerate(waiting):
            if future.done():
                continue
            if call.cancelled():
                future.cancel()
            elif (error := call.exception()) is not None:
                future.set_exception(error)
            else:
                future.set_result(call.result()[place])

    async def _judge_all(self, samples: list[Sample]) -> list[Score]:
        arguments = arguments_of(self._parameters, samples, self.said)
        returned = await self._place.call({**arguments, **self.fixed})
        if isinstance(returned, Failure):
            return [errored(returned.kind, returned.message) for _ in samples]
        return scores_of(returned, len(samples), self.said)


class OwnThread:
    """Runs a function in a thread with an event loop of its own, which starts with the first call."""

    def __init__(self, function: Callable[..., Any], said: str, timeout_s: float | None) -> None:
        self._function, self._said, self._timeout_s = function, said, timeout_s
        self._thread: LoopThread | None = None

    async def call(self, arguments: Mapping[str, Any]) -> Any:
        """See `Place`."""
        if self._thread is None or not self._thread.alive:  # also in a forked child
            self._thread = LoopThread("assay-reward-function")
        return await asyncio.wrap_future(self._thread.submit(self._call(arguments)))

    def close(self) -> None:
        """See `Place`. A function that hangs keeps its thread, which does not keep the process."""
        thread, self._thread = self._thread, None
        if thread is not None and thread.alive:
            thread.close(wait_s=1.0)

    async def _call(self, arguments: Mapping[str, Any]) -> Any:
        try:
            returned = self._function(**arguments)
            if not inspect.isawaitable(returned):
                return returned
            async with asyncio.timeout(self._timeout_s) as limit:
                return await returned
        except TimeoutError:
            if not limit.expired():
                raise
            return Failure("timeout", f"{self._said} took longer than timeout_s={self._timeout_s:g}")
        except SystemExit as error:  # would end the loop that runs it
            raise RewardError(f"{self._said} called sys.exit({error.code!r}) instead of returning a reward.") from error


def describe(function: object) -> str:
    """A function in words, for messages: `correct (rewards.py)`."""
    file = _file(function)
    return f"{_name(function)} ({file.name})" if file is not None else _name(function)


def _name(function: Any) -> str:
    return str(getattr(function, "__name__", None) or type(function).__name__)


def _is_async(function: Any) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)


def _file(function: Any) -> Path | None:
    """The file that a function, or the class of an object that is called, stands in."""
    code = getattr(inspect.unwrap(function), "__code__", None) or getattr(type(function).__call__, "__code__", None)
    file = Path(code.co_filename) if code is not None else None
    return file if file is not None and file.is_file() else None


def _digest(function: Any, more: Json) -> str:
    """A hash (hex, 16 characters) of the file that a function stands in, of its name and of `more`.

    Code typed into an interpreter has no file: its bytecode is hashed instead.
    """
    file = _file(function)
    code = getattr(inspect.unwrap(function), "__code__", None)
    typed = repr((code.co_code, code.co_consts) if code is not None else function)
    source = digest(file) if file is not None else typed
    content = json.dumps([source, getattr(function, "__qualname__", ""), more], sort_keys=True, default=repr)
    return hashlib.sha256(content.encode()).hexdigest()[:16]
