"""Many rollouts that want completions, and one backend: each is answered, in calls that suit the backend.

The decisions are `cohorts.Cohorts`; this is the shell that owns the calls in flight and hands each completion to the
rollout that waits for it, as soon as the backend yields it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Protocol

from assay.backends.base import Capabilities, unanswered
from assay.errors import ModelError
from assay.rollouts.cohorts import Cohorts
from assay.rollouts.together import stop
from assay.types import Completion, SamplingParams

Witness = Callable[[Sequence[int], Completion], None]


class Policy(Protocol):
    """Answers one completion for a prompt and a seed."""

    def room(self, prompt: Sequence[int]) -> int:
        """Most tokens that a completion of this prompt may have; below 1 there is no room for it."""
        ...

    async def complete(self, prompt: Sequence[int], params: SamplingParams, seed: int, *, last: bool) -> Completion:
        """One completion; `last` says that this rollout will not ask again."""
        ...


class Sampler(Protocol):
    """What is asked for completions: of a `Backend`, the part that samples."""

    capabilities: Capabilities
    context_length: int

    def sample_stream(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams, seeds: Sequence[int]
    ) -> AsyncGenerator[tuple[int, Completion], None]:
        """See `Backend`."""
        ...


@dataclass(frozen=True)
class _Ask:
    prompt: Sequence[int]
    params: SamplingParams
    seed: int
    last: bool
    answer: asyncio.Future[Completion]


class Sampling:
    """The calls of `count` rollouts, which sit at places 0 to `count - 1`. An async context manager."""

    def __init__(
        self,
        backend: Sampler,
        count: int,
        max_tokens: int,
        sampled: Callable[[], None] | None = None,
        witness: Witness | None = None,
    ) -> None:
        """See above.

        Args:
            max_tokens: the limit of a turn, which decides how many rollouts a cohort has.
            sampled: called when no rollout will ask again and no call is in flight, so that the policy may change.
            witness: told of each prompt and its completion, before any verdict.
        """
        can = backend.capabilities
        size = max(1, can.cohort_tokens // max_tokens) if can.cohort_tokens else count
        self._sampled = sampled
        self._witness = witness
        self._backend = backend
        self._cohorts = Cohorts(count, None if can.batch_invariant else size)
        self._asks: dict[int, _Ask] = {}
        self._calls: set[asyncio.Task[None]] = set()
        self._looking = False
        self._closing = False
        self._failed: BaseException | None = None
        """The error of a call that had answered every prompt."""
        self._look_soon()

    @contextmanager
    def seat(self, place: int) -> Iterator[Policy]:
        """The policy of one rollout; leaving it says that this rollout will not ask again."""
        try:
            yield _Seat(self, place)
        finally:
            self._cohorts.leave(place)
            self._look_soon()

    async def ask(self, place: int, prompt: Sequence[int], params: SamplingParams, seed: int, last: bool) -> Completion:
        """See `Policy.complete`.

        Raises:
            AssayError: what the backend raised; every rollout of the call gets it.
        """
        if self._failed is not None:
            raise self._failed
        answer: asyncio.Future[Completion] = asyncio.get_running_loop().create_future()
        self._asks[place] = _Ask(prompt, params, seed, last, answer)
        self._cohorts.ask(place)
        self._look_soon()
        return await answer

    def room(self, prompt: Sequence[int]) -> int:
        """See `Policy`."""
        return self._backend.context_length - len(prompt)

    def _look_soon(self) -> None:
        """Look at the next turn of the event loop, so that simultaneous prompts become one call."""
        if not self._looking:
            self._looking = True
            asyncio.get_running_loop().call_soon(self._look)

    def _look(self) -> None:
        self._looking = False
        for places in self._cohorts.due():
            by_params: dict[SamplingParams, list[_Ask]] = {}
            for place in places:
                ask = self._asks.pop(place)
                by_params.setdefault(ask.params, []).append(ask)
                if ask.last:
                    self._cohorts.leave(place)
            for params, asks in by_params.items():
                call = asyncio.create_task(self._call(asks, params))
                self._calls.add(call)
                call.add_done_callback(partial(self._ended, asks))
        if self._sampled is not None and self._cohorts.over and not self._calls:
            self._sampled()
            self._sampled = None

    async def _call(self, asks: Sequence[_Ask], params: SamplingParams) -> None:
        stream = self._backend.sample_stream([ask.prompt for ask in asks], params, [ask.seed for ask in asks])
        async with aclosing(stream):
            async for place, completion in stream:
                if not 0 <= place < len(asks):
                    raise ModelError(
                        f"The backend answered prompt {place} of a call of {len(asks)} prompts: a bug of the backend."
                    )
                if self._witness is not None:
                    self._witness(asks[place].prompt, completion)
                if not asks[place].answer.done():
                    asks[place].answer.set_result(completion)

    def _ended(self, asks: Sequence[_Ask], call: asyncio.Task[None]) -> None:
        """Make sure that no rollout waits for a call that is over."""
        self._calls.discard(call)
        missing = [ask.answer for ask in asks if not ask.answer.done()]
        error = self._error_of(call) or (unanswered(len(missing), len(asks)) if missing else None)
        for answer in missing:
            if self._closing:
                answer.cancel()
            else:
                assert error is not None, "what is missing has a reason"
                answer.set_exception(error)
        if error is not None and not missing:
            self._failed = self._failed or error
        self._look_soon()

    def _error_of(self, call: asyncio.Task[None]) -> BaseException | None:
        """Why a call failed; None where it did not, or was ended from here."""
        if call.cancelled():
            return None if self._closing else ModelError("The backend cancelled a call by itself.")
        return call.exception()

    async def __aenter__(self) -> Sampling:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            # Every prompt is answered, but a call that fails at its very end is still a failure.
            await asyncio.wait(self._calls) if self._calls else None
        self._closing = True
        await stop(self._calls)
        if error is None and self._failed is not None:
            raise self._failed


@dataclass(frozen=True)
class _Seat:
    sampling: Sampling
    place: int

    def room(self, prompt: Sequence[int]) -> int:
        return self.sampling.room(prompt)

    async def complete(self, prompt: Sequence[int], params: SamplingParams, seed: int, *, last: bool) -> Completion:
        return await self.sampling.ask(self.place, prompt, params, seed, last)
