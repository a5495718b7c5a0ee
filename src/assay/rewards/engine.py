"""`RewardEngine`: scores samples by the thousand, in any order they can be, and says which could not be scored.

A reward turns a sample into calls and replies into a score (`base.py`); a caller answers calls (`client.py`). The
engine connects them: it keeps the caller busy with a bounded window of samples, asks again where a reply could not be
read, and makes every failure a typed score. It owns an event loop in a background thread, so that it is the same engine
for a host with a loop, without one, or with several.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import Any, Self, TypeVar

from assay.errors import DataError, JudgeError, RewardError
from assay.rewards.base import LEVELS, Caller, CallFailure, Sample, Usage
from assay.rewards.client.client import Client
from assay.rewards.client.offline import NobodyToAsk, OfflineCaller
from assay.rewards.client.resources import api_key, check_prices
from assay.rewards.combined import AnyReward, CombinedReward, asks_judge, is_direct
from assay.rewards.config import EngineConfig, JudgeConfig
from assay.rewards.failures import SMALL_BATCH, FailureWatch
from assay.rewards.handoff import Flow
from assay.rewards.loop_thread import LoopThread
from assay.rewards.progress import Progress
from assay.rewards.scoring import Scoring
from assay.transport.http import require_parser
from assay.types import Score

logger = logging.getLogger(__name__)

_T = TypeVar("_T")

WINDOW_PER_CALL = 4
"""Samples under way per call that may be in flight: enough that cached and shared ones leave no place empty."""
SMALLEST_WINDOW = 256
LAST_WORDS_S = 5.0
"""How long `close` waits for callers that block on the engine to be told."""

_left_behind: list[object] = []
"""Loops and callers that a forked child inherited. Not even the garbage collector may touch the parent's files."""


class RewardEngine:
    """Scores samples with one reward and one judge.

    Args:
        reward: what a completion is worth.
        judge: the judge; its key is looked up here, so that a missing one is an error before anything is sampled. A
            reward that asks no judge (a function; `asks_judge = False`) needs none.
        config: limits, deadlines, cache, budget, failure policy.
        cache_dir: folder of the reply cache, where `config.cache_path` names no file.
        caller: answers the calls instead of a `Client` of the judge's (a hub shared by processes, say); the engine
            closes it.

    Raises:
        ConfigError: the judge's key is not set, or a budget in money has no prices.
        MissingDependencyError: the `rewards` extra is not installed.
    """

    def __init__(
        self,
        reward: AnyReward,
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
        if caller is None and asks_judge(reward) and not self.config.offline:
            require_parser()
            api_key(self.judge)
            check_prices(self.judge, self.config)
        self._watch = FailureWatch(self.config.max_failure_rate)
        self._counts: Counter[str] = Counter()
        self.usage_by_source: dict[str, Usage] = {}
        """What each `data_source` of the samples has cost since the start."""
        self._earlier: dict[str, float] = {}
        """Totals of callers that were closed."""
        self._pid = os.getpid()
        self._lock = threading.Lock()
        """Held while any of the following are changed."""
        self._thread: LoopThread | None = None
        self._ended: LoopThread | None = None
        self._caller: Caller | None = None
        self._scoring: Scoring | None = None
        self._flows: set[Flow] = set()
        self._blocked: set[Future[Any]] = set()

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
        async with aclosing(self._stream(samples, len(samples), deadline_s)) as results:
            async for index, score in results:
                scores[index] = score
                if score.status == "errored":
                    failed.append(score)
                    self._watch.check_batch(failed, len(samples))
                if len(samples) < SMALL_BATCH:
                    self._watch.check_one(score)
        assert all(score is not None for score in scores)
        return scores  # type: ignore[return-value]

    def score_many_sync(self, samples: Sequence[Sample], deadline_s: float | None = None) -> list[Score]:
        """`score_many` for callers without an event loop. It also works inside a running loop, which it blocks."""
        return self._blocking(lambda: self.score_many(samples, deadline_s))

    async def score(self, sample: Sample) -> Score:
        """The score of one sample. See `score_many` for what it raises."""
        return (await self.score_many([sample]))[0]

    async def stream(
        self, samples: Iterable[Sample] | AsyncIterable[Sample], deadline_s: float | None = None
    ) -> AsyncGenerator[tuple[int, Score], None]:
        """Scores as they come, each with the index of its sample; memory does not grow with their number.

        Samples are drawn as places come free. See `score_many` for what it raises; failures are counted over the last
        64 samples.
        """
        async with aclosing(self._stream(samples, None, deadline_s)) as results:
            async for index, score in results:
                self._watch.check_one(score)
                yield index, score

    def counters(self) -> dict[str, float]:
        """Totals since the start of the engine (its samples, its caller's calls) and the caller's present state.

        A closed engine still returns the totals.
        """
        ours = {name: float(self._counts[name]) for name in ("samples", "scored", "invalid", "errored", "reread")}
        if self._thread is None or self._pid != os.getpid():
            return {**self._earlier, **ours}
        now = self._blocking(lambda: self._caller_.counters())
        return {**self._with_earlier(now), **ours}

    def _with_earlier(self, now: Mapping[str, float]) -> dict[str, float]:
        """The caller's counters, with totals of those that were closed before it; one that was given keeps its own."""
        earlier = {} if self._given_caller is not None else self._earlier
        names = {*now, *earlier} - LEVELS
        totals = {name: earlier.get(name, 0.0) + now.get(name, 0.0) for name in names}
        return {**now, **totals}

    def close(self) -> None:
        """Stop: fail batches under way, write what waits, close connections and the cache. Safe to call twice.

        Raises:
            RewardError: called by the reward, in the very thread that is to end.
        """
        if self._pid != os.getpid():
            return  # a forked child's copy, never used there: what it holds is the parent's
        if self._thread is not None and self._thread.is_here:
            raise RewardError("a reward closed its own engine while it was scoring. Close it where it was made.")
        with self._lock:
            thread, caller, flows, blocked = self._thread, self._caller, list(self._flows), list(self._blocked)
            self._thread = self._caller = None
            self._ended = thread
        if thread is None or caller is None or not thread.alive:
            return
        for flow in flows:
            flow.fail(RewardError("the engine was closed before this batch was scored. What was answered is cached."))
        wait(blocked, LAST_WORDS_S)
        thread.submit(self._close_all(caller)).result()
        thread.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        """What a copy in another process needs; the copy starts its own loop and caller."""
        if self._given_caller is not None:
            raise TypeError("an engine with a caller of its own cannot be pickled: make the engine in each process")
        return {"args": (self.reward, self.judge, self.config), "cache_dir": self._cache_dir}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__init__(*state["args"], cache_dir=state["cache_dir"])  # type: ignore[misc]

    async def _stream(
        self, samples: Iterable[Sample] | AsyncIterable[Sample], total: int | None, deadline_s: float | None
    ) -> AsyncGenerator[tuple[int, Score], None]:
        deadline_s = self.config.batch_deadline_s if deadline_s is None else deadline_s
        window = max(SMALLEST_WINDOW, WINDOW_PER_CALL * self.config.max_in_flight)
        progress = Progress(self.reward.name, total)
        with self._started() as (thread, caller):
            flow = Flow(thread, self._score, window, deadline_s)
            self._flows.add(flow)
            reporting = None
            if total is None or total >= SMALL_BATCH:
                thread.submit(caller.counters()).add_done_callback(progress.on_start)
                reporting = asyncio.create_task(progress.report(lambda: thread.submit(caller.counters())))
        feeding = asyncio.create_task(flow.feed(samples))
        try:
            async with aclosing(flow.results(feeding)) as results:
                async for index, score in results:
                    progress.on_score(score.status != "errored")
                    yield index, score
        finally:
            if reporting is not None:
                reporting.cancel()
            feeding.cancel()
            flow.cancel()
            self._flows.discard(flow)

    def _blocking(self, make: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
        """What a coroutine of the engine's loop returns."""
        if self._thread is not None and self._thread.is_here:
            raise RewardError(
                "a reward called its own engine's blocking methods, which would wait for themselves forever. Return "
                "the calls from Reward.requests instead."
            )
        with self._started() as (thread, _):
            future = thread.submit(make())
            self._blocked.add(future)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # interrupted: no longer awaited
            raise
        finally:
            self._blocked.discard(future)

    @contextmanager
    def _started(self) -> Iterator[tuple[LoopThread, Caller]]:
        """The loop's thread and the caller, which `close` leaves alone meanwhile.

        They are made on first use, and again in a forked child.
        """
        if self._pid != os.getpid():
            self._start_anew()
        with self._lock:
            if self._ended is not None and self._ended.is_here:
                raise RewardError("the engine was closed before this batch was begun.")
            if self._thread is None or self._caller is None:
                thread = LoopThread("assay-rewards")
                try:
                    self._caller = thread.submit(self._make_caller()).result()
                    self._scoring = Scoring(self._caller, self.config, self._counts, self.usage_by_source)
                except BaseException:
                    thread.close()
                    raise
                self._thread = thread
            yield self._thread, self._caller

    def _start_anew(self) -> None:
        """In a forked child, forget what belongs to the parent."""
        if self._thread is not None and self._given_caller is not None:
            raise RewardError("this engine was forked with a caller of its own. Make the engine after the fork.")
        _left_behind.append((self._thread, self._caller, self._flows, self._blocked))
        self._pid, self._lock = os.getpid(), threading.Lock()
        self._thread = self._caller = None
        self._flows, self._blocked = set(), set()

    async def _make_caller(self) -> Caller:
        if self._given_caller is not None:
            return self._given_caller
        if not asks_judge(self.reward):
            return NobodyToAsk()
        make = OfflineCaller if self.config.offline else Client
        return make(self.judge, self.config, self._cache_dir)

    async def _close_all(self, caller: Caller) -> None:
        members = self.reward.members if isinstance(self.reward, CombinedReward) else [(self.reward, 1.0)]
        for member, _ in members:
            if is_direct(member) and (close := getattr(member, "close", None)) is not None:
                await close()
        try:
            totals = self._with_earlier(await caller.counters())
            self._earlier = {name: value for name, value in totals.items() if name not in LEVELS}
        except RewardError as error:  # another process has the judge, and is gone
            logger.debug("the caller is closed, so its counters are lost: %s", error)
        await caller.close()

    async def _score(self, sample: Sample, deadline: float | None) -> Score | JudgeError:
        """The score of one sample; an error where the judge refuses every call.

        Raises:
            DataError: it is not a sample.
        """
        if not isinstance(sample, Sample):
            raise DataError(
                f"An engine scores samples, not {type(sample).__name__} ({repr(sample)[:60]}): Sample(response, "
                "ground_truth=...) of assay.rewards."
            )
        assert self._scoring is not None
        result = await self._scoring.score(self.reward, sample, deadline)
        if isinstance(result, CallFailure):
            return self._stopped(result)
        self._counts["samples"] += 1
        self._counts[result.status] += 1
        return result

    @property
    def _caller_(self) -> Caller:
        assert self._caller is not None
        return self._caller

    def _stopped(self, failure: CallFailure) -> JudgeError:
        cures = {
            "auth": f"Check the key in {self.judge.api_key_env or 'judge.api_key_env'}.",
            "unknown_model": f"Check judge.model={self.judge.model}.",
            "not_a_judge": f"Check judge.base_url={self.judge.base_url}: /chat/completions is added, most end in /v1.",
            "unreachable": f"Check judge.base_url={self.judge.base_url}, whether a server runs there, and the network.",
            "quota": "Add credit to the account, or use another.",
            "budget": "Raise budget_usd or budget_tokens to go on.",
        }
        what = {"budget": "No further calls are made", "unreachable": "The judge cannot be reached"}.get(
            failure.kind, "The judge refuses every call"
        )
        kept = " What was answered is cached and will not be paid for again." if self.config.cache else ""
        return JudgeError(
            f"{what}, so no reward can be computed: {failure.message.rstrip('.')}. {cures[failure.kind]}{kept}"
        )
