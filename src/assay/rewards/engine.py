"""`RewardEngine`: scores samples by the thousand, in any order they can be, and says which could not be scored.

A reward turns a sample into calls and replies into a score (`base.py`); a caller answers calls (`client.py`). The
engine is what lies between: it keeps the caller busy with a bounded window of samples, asks again where a reply could
not be read, and makes every failure a typed score. It owns an event loop in a background thread, so that it is the same
engine for a host with a loop, without one, or with several.
"""

from __future__ import annotations

import asyncio
import logging
import os
import traceback
from collections import Counter, deque
from collections.abc import AsyncIterable, AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Self, TypeVar

from assay.errors import JudgeError, RewardError, UnreadableReplyError
from assay.rewards.base import FATAL, Caller, CallFailure, Outcome, Reply, Request, Reward, Sample, Usage
from assay.rewards.client import Client
from assay.rewards.config import EngineConfig, JudgeConfig
from assay.rewards.loop_thread import LoopThread
from assay.rewards.offline import OfflineCaller
from assay.rewards.policy import SMALL_BATCH, FailureWatch
from assay.rewards.progress import Progress
from assay.rewards.resources import api_key
from assay.types import Score

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

CHUNK = 64
"""Samples handed to the engine's loop at once."""
NEWS_EVERY_S = 0.002
"""Waking another thread costs as much as scoring a sample, so it is done for many at once."""
STEP = 16
"""Samples whose calls are prepared before the loop may send them."""
WINDOW_PER_CALL = 4
"""Samples under way per call that may be in flight: enough that cached and shared ones leave no place empty."""


class RewardEngine:
    """Scores samples with one reward and one judge.

    Args:
        reward: what a completion is worth.
        judge: whom to ask; its key is looked up here, so that a missing one is an error before anything is sampled.
        config: limits, deadlines, cache, budget, failure policy.
        cache_dir: folder of the reply cache, where `config.cache_path` names no file.
        caller: answers the calls instead of a `Client` of the judge's (a hub shared by processes, say); the engine
            closes it.

    Raises:
        ConfigError: the judge's key is not set.
    """

    def __init__(
        self,
        reward: Reward,
        judge: JudgeConfig | None = None,
        config: EngineConfig | None = None,
        *,
        cache_dir: Path | None = None,
        caller: Caller | None = None,
    ) -> None:
        self.reward = reward
        self.judge = judge or JudgeConfig()
        self.config = config or EngineConfig()
        self._cache_dir = cache_dir
        self._given_caller = caller
        if caller is None and not self.config.offline:
            api_key(self.judge)
        self._watch = FailureWatch(self.config.max_failure_rate)
        self._counts: Counter[str] = Counter()
        self.usage_by_source: dict[str, Usage] = {}
        """What each `data_source` of the samples has cost since the start."""
        self._pid = 0
        self._thread: LoopThread | None = None
        self._caller: Caller | None = None

    async def score_many(self, samples: Sequence[Sample], deadline_s: float | None = None) -> list[Score]:
        """One score per sample, in order.

        Args:
            deadline_s: longest this batch may take; samples without a score by then are errored. Defaults to
                `config.batch_deadline_s`.

        Raises:
            JudgeError: the judge refuses every call (key, model, quota, budget).
            RewardError: more samples failed than `config.max_failure_rate` allows.
        """
        scores: list[Score | None] = [None] * len(samples)
        failed: list[Score] = []
        async for index, score in self._stream(samples, len(samples), deadline_s):
            scores[index] = score
            if score.status == "errored":
                failed.append(score)
                self._watch.check_batch(failed, len(samples))
            if len(samples) < SMALL_BATCH:
                self._watch.check_one(score)
        assert all(score is not None for score in scores)
        return scores  # type: ignore[return-value]

    def score_many_sync(self, samples: Sequence[Sample], deadline_s: float | None = None) -> list[Score]:
        """`score_many` for callers without an event loop. Inside a running loop it blocks that loop, and works."""
        return self._blocking(lambda: self.score_many(samples, deadline_s))

    async def score(self, sample: Sample) -> Score:
        """The score of one sample. See `score_many` for what it raises."""
        return (await self.score_many([sample]))[0]

    async def stream(
        self, samples: Iterable[Sample] | AsyncIterable[Sample], deadline_s: float | None = None
    ) -> AsyncIterator[tuple[int, Score]]:
        """Scores as they come, each with the index of its sample; memory does not grow with their number.

        Samples are drawn as places come free. See `score_many` for what it raises; failures are counted over the last
        64 samples.
        """
        async for index, score in self._stream(samples, None, deadline_s):
            self._watch.check_one(score)
            yield index, score

    def counters(self) -> dict[str, float]:
        """Totals since the start of the engine (its samples, its caller's calls) and the caller's present state."""
        ours = {name: float(self._counts[name]) for name in ("samples", "scored", "invalid", "errored", "reread")}
        if self._caller is None:
            return ours
        return {**self._blocking(self._caller.counters), **ours}

    def close(self) -> None:
        """Stop: cancel what is under way, write what waits, close connections and the cache. Safe to call twice."""
        thread, caller = self._thread, self._caller
        self._thread = self._caller = None
        if thread is not None and thread.alive and self._pid == os.getpid():
            if caller is not None:
                thread.submit(caller.close()).result()
            thread.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        """What a copy in another process needs; it starts a loop and a caller of its own."""
        if self._given_caller is not None:
            raise TypeError("an engine with a caller of its own cannot be pickled: make the engine in each process")
        return {"args": (self.reward, self.judge, self.config), "cache_dir": self._cache_dir}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__init__(*state["args"], cache_dir=state["cache_dir"])  # type: ignore[misc]

    async def _stream(
        self, samples: Iterable[Sample] | AsyncIterable[Sample], total: int | None, deadline_s: float | None
    ) -> AsyncIterator[tuple[int, Score]]:
        thread = self._started()
        deadline_s = self.config.batch_deadline_s if deadline_s is None else deadline_s
        flow = _Flow(self, thread, thread.loop.time() + deadline_s if deadline_s is not None else None)
        progress = Progress(self.reward.name, total, {})
        feeding = asyncio.create_task(flow.feed(samples))
        try:
            async for index, score in flow.results(feeding):
                if progress.on_score(score.status != "errored"):
                    progress.say(await self._counters_from_anywhere(thread))
                yield index, score
        finally:
            feeding.cancel()
            flow.cancel()

    async def _counters_from_anywhere(self, thread: LoopThread) -> Mapping[str, float]:
        assert self._caller is not None
        return await asyncio.wrap_future(thread.submit(self._caller.counters()))

    def _blocking(self, make: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        thread = self._started()
        if thread.is_here:
            raise RewardError(
                "a reward called its own engine's blocking methods, which would wait for itself for ever. Return the "
                "calls from Reward.requests instead."
            )
        return thread.submit(make()).result()

    def _started(self) -> LoopThread:
        """The loop's thread; started on first use, and anew in a forked child."""
        if self._thread is None or self._pid != os.getpid():
            if self._thread is not None and self._given_caller is not None:
                raise RewardError("this engine was forked with a caller of its own. Make the engine after the fork.")
            self._pid = os.getpid()
            self._thread = LoopThread("assay-rewards")
            self._caller = self._thread.submit(self._make_caller()).result()
        return self._thread

    async def _make_caller(self) -> Caller:
        if self._given_caller is not None:
            return self._given_caller
        make = OfflineCaller if self.config.offline else Client
        return make(self.judge, self.config, self._cache_dir)

    async def _score(self, sample: Sample, deadline: float | None) -> Score | JudgeError:
        """The score of one sample; an error where the judge refuses every call."""
        result = await self._judge(sample, deadline)
        if isinstance(result, Score):
            self._counts["samples"] += 1
            self._counts[result.status] += 1
        return result

    async def _judge(self, sample: Sample, deadline: float | None) -> Score | JudgeError:
        usage = Usage()
        replies: dict[int, Reply] = {}
        try:
            requests = list(self.reward.requests(sample))
        except Exception as error:
            logger.debug("A reward's requests() raised.", exc_info=True)
            return self._errored(_own_fault(error), usage)
        for _ in range(self.config.reread_limit + 1):
            missing = [place for place in range(len(requests)) if place not in replies]
            outcomes = await self._call([requests[place] for place in missing], deadline)
            usage = sum((outcome.usage for outcome in outcomes), usage)
            self._bill(sample, outcomes)
            for place, outcome in zip(missing, outcomes, strict=True):
                if isinstance(outcome, CallFailure):
                    return self._stopped(outcome) if outcome.kind in FATAL else self._errored(outcome, usage)
                replies[place] = outcome
            try:
                score = self.reward.score(sample, [replies[place] for place in range(len(requests))])
            except UnreadableReplyError as error:
                unreadable = CallFailure("unreadable", str(error))
                for place in error.places or range(len(requests)):
                    self._counts["reread"] += 1
                    del replies[place]
                    await self._caller_.forget(requests[place])
                continue
            except Exception as error:
                logger.debug("A reward's score() raised.", exc_info=True)
                return self._errored(_own_fault(error), usage)
            cached = bool(requests) and all(reply.cached for reply in replies.values())
            return Score(
                score.status,
                score.value,
                score.parts,
                score.evidence,
                _plain(usage),
                cached,
                self.reward.fingerprint,
            )
        return self._errored(unreadable, usage)

    @property
    def _caller_(self) -> Caller:
        assert self._caller is not None
        return self._caller

    async def _call(self, requests: Sequence[Request], deadline: float | None) -> list[Outcome]:
        if len(requests) == 1:
            return [await self._caller_.call(requests[0], deadline)]
        return list(await asyncio.gather(*(self._caller_.call(request, deadline) for request in requests)))

    def _bill(self, sample: Sample, outcomes: Sequence[Outcome]) -> None:
        source = sample.data_source or self.reward.name
        self.usage_by_source[source] = sum((o.usage for o in outcomes), self.usage_by_source.get(source, Usage()))

    def _errored(self, failure: CallFailure, usage: Usage) -> Score:
        evidence = {"failure": failure.kind, "message": failure.message, "attempts": failure.attempts}
        return Score("errored", None, evidence=evidence, usage=_plain(usage), fingerprint=self.reward.fingerprint)

    def _stopped(self, failure: CallFailure) -> JudgeError:
        cures = {
            "auth": f"Check the key in {self.judge.api_key_env or 'judge.api_key_env'}.",
            "unknown_model": f"Check judge.model={self.judge.model}.",
            "quota": "Add credit to the account, or use another.",
            "budget": "Raise budget_usd or budget_tokens to go on.",
        }
        return JudgeError(
            f"The judge refuses every call, so no reward can be computed: {failure.message}. {cures[failure.kind]} "
            "What was answered is cached and will not be paid for again."
        )


class _Flow:
    """Samples going from a host's loop to the engine's, and scores coming back."""

    def __init__(self, engine: RewardEngine, thread: LoopThread, deadline: float | None) -> None:
        self._engine, self._thread, self._deadline = engine, thread, deadline
        self._window = max(4 * CHUNK, WINDOW_PER_CALL * engine.config.max_in_flight)
        self._host = asyncio.get_running_loop()
        self._under_way = 0
        self._room = asyncio.Event()
        self._done: deque[tuple[int, Score | JudgeError]] = deque()
        self._news = asyncio.Event()
        self._telling = False
        self._waiting: deque[tuple[int, Sample]] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._cancelled = False

    async def feed(self, samples: Iterable[Sample] | AsyncIterable[Sample]) -> None:
        """Hand over all samples, as far ahead as the window allows. Runs in the host's loop."""
        indexed = _chunks(samples)
        index = 0
        async for chunk in indexed:
            while self._under_way >= self._window:
                self._room.clear()
                await self._room.wait()
            self._under_way += len(chunk)
            numbered = list(enumerate(chunk, index))
            index += len(chunk)
            self._thread.loop.call_soon_threadsafe(self._start, numbered)

    async def results(self, feeding: asyncio.Task[None]) -> AsyncIterator[tuple[int, Score]]:
        """Scores in the order of completion, until all samples were handed over and scored.

        Raises:
            JudgeError: the judge refuses every call.
        """
        feeding.add_done_callback(lambda _: self._news.set())
        while self._done or self._under_way or not feeding.done():
            while self._done:
                index, result = self._done.popleft()
                self._under_way -= 1
                self._room.set()
                if isinstance(result, JudgeError):
                    raise result
                yield index, result
            if self._under_way or not feeding.done():
                await self._news.wait()
                self._news.clear()
        feeding.result()

    def cancel(self) -> None:
        """Stop scoring whatever is still under way."""
        if not self._cancelled and self._thread.alive:
            self._thread.loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        self._cancelled = True
        for task in self._tasks:
            task.cancel()

    def _start(self, samples: Sequence[tuple[int, Sample]]) -> None:
        """Begin to score some samples. Runs in the engine's loop."""
        if not self._waiting:
            self._thread.loop.call_soon(self._start_some)
        self._waiting.extend(samples)

    def _start_some(self) -> None:
        """Start a few and let the loop send what they ask, before preparing the next few."""
        for _ in range(min(STEP, len(self._waiting)) if not self._cancelled else 0):
            index, sample = self._waiting.popleft()
            task = self._thread.loop.create_task(self._one(index, sample))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        if self._waiting and not self._cancelled:
            self._thread.loop.call_soon(self._start_some)

    async def _one(self, index: int, sample: Sample) -> None:
        result = await self._engine._score(sample, self._deadline)
        self._done.append((index, result))
        if len(self._tasks) == 1 and not self._waiting:
            self._tell()
        elif not self._telling:
            self._telling = True
            self._thread.loop.call_later(NEWS_EVERY_S, self._tell)

    def _tell(self) -> None:
        """Wake the host, which takes whatever is done by then."""
        self._telling = False
        try:
            self._host.call_soon_threadsafe(self._news.set)
        except RuntimeError:  # the host's loop was closed under its own batch: nobody waits any more
            self._cancel()


async def _chunks(samples: Iterable[Sample] | AsyncIterable[Sample]) -> AsyncIterator[list[Sample]]:
    """Samples in lists of at most `CHUNK`; one by one where they arrive over time."""
    if isinstance(samples, AsyncIterable):
        async for sample in samples:
            yield [sample]
        return
    iterator = iter(samples)
    while chunk := list(islice(iterator, CHUNK)):
        yield chunk


def _plain(usage: Usage) -> dict[str, float]:
    return {
        "calls": usage.calls,
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "usd": usage.usd,
    }


def _own_fault(error: Exception) -> CallFailure:
    """The failure of a reward's own code; call it where the error is caught."""
    return CallFailure("reward", f"{error!r} in the reward's own code: {traceback.format_exc(limit=-3)}")
