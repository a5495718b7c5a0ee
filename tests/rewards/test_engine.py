"""The engine as hosts use it: from loops and threads, in batches and streams, through failures, forks and its end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import pickle
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from assay.errors import ConfigError, JudgeError, RewardError, UnreadableReplyError
from assay.rewards import (
    CallFailure,
    EngineConfig,
    JudgeConfig,
    Reply,
    Request,
    RewardEngine,
    Sample,
    Usage,
    rewards_of,
)
from assay.rewards import engine as engine_module
from assay.rewards import progress as progress_module
from assay.rewards.base import Outcome
from assay.types import Score
from support.scripted_judge import Asked, Marks, Said, ScriptedJudge, after, ask, samples, scripted_judge, settings

SOON_S = 20.0
"""Longest that a test waits for what must happen; nothing depends on how long it takes."""


def same(asked: Asked) -> str:
    """Answers with the question."""
    return asked.text


@contextlib.contextmanager
def engine_of(judge: ScriptedJudge, reward: Any = None, **config: Any) -> Iterator[RewardEngine]:
    with RewardEngine(reward or Marks(), judge.config(), settings(**config)) as engine:
        yield engine


def values(scores: Sequence[Score]) -> list[float | None]:
    return [score.value for score in scores]


def failures(scores: Sequence[Score]) -> list[Any]:
    return [score.evidence["failure"] for score in scores if score.status == "errored"]


def eventually(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + SOON_S
    while not condition():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.002)


def comes_to_rest(engine: RewardEngine, judge: ScriptedJudge) -> None:
    """Nothing is under way at either end, and nothing waits."""
    eventually(lambda: engine.counters()["in_flight"] == engine.counters()["waiting"] == judge.in_flight == 0)


def in_threads(*calls: Callable[[], Any]) -> list[Any]:
    """What the calls return or raise, all at once in threads of their own."""
    results: list[Any] = [None] * len(calls)

    def run(number: int, call: Callable[[], Any]) -> None:
        try:
            results[number] = call()
        except (AssertionError, RewardError, OSError) as error:
            results[number] = error

    threads = [threading.Thread(target=run, args=item, daemon=True) for item in enumerate(calls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SOON_S)
        assert not thread.is_alive(), "a call hangs"
    return results


def test_scores_come_in_the_order_of_the_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "SMALLEST_WINDOW", 16)

    def answer(asked: Asked) -> Said:
        return Said(asked.text, delay_s=0.0005 * (int(asked.text) * 7 % 13))

    with scripted_judge(answer) as judge, engine_of(judge, max_in_flight=4, start_in_flight=4) as engine:
        for count in (0, 1, 5, 200):
            assert values(asyncio.run(engine.score_many(samples(range(count))))) == [float(n) for n in range(count)]
        assert values(engine.score_many_sync(samples(range(100)))) == [float(n) for n in range(100)]
        assert judge.max_in_flight <= 4
        score = asyncio.run(engine.score(Sample("7")))
        assert (score.status, score.value, score.fingerprint, score.cached) == ("scored", 7.0, "marks:1", False)
        assert score.usage == {"calls": 1, "prompt_tokens": 10, "completion_tokens": 2, "usd": 0.0}


def test_equal_samples_are_one_call_and_cost_one(tmp_path: Path) -> None:
    with scripted_judge(after(0.02, same)) as judge:
        config = settings(cache=True)
        with RewardEngine(Marks(), judge.config(), config, cache_dir=tmp_path) as engine:
            scores = engine.score_many_sync(samples([1, 2, 3] * 10))
            assert len(judge.asked) == 3
            assert sum(score.usage["calls"] for score in scores) == 3
            again = engine.score_many_sync(samples([1, 2, 3]))
            assert all(score.cached and score.usage["calls"] == 0 for score in again)
        with RewardEngine(Marks(votes=3), judge.config(), config, cache_dir=tmp_path) as engine:
            (score,) = engine.score_many_sync(samples([1]))
            assert not score.cached
            assert len(judge.asked) == 5, "two more votes of the one that is stored"


def test_blocking_works_in_a_running_loop() -> None:
    async def main(engine: RewardEngine) -> list[float | None]:
        ticking = asyncio.create_task(asyncio.sleep(0.001))
        scores = engine.score_many_sync(samples(range(5)))
        await ticking
        return values(scores) + values(await engine.score_many(samples(range(5))))

    with scripted_judge(same) as judge, engine_of(judge) as engine:
        assert asyncio.run(main(engine)) == [0.0, 1.0, 2.0, 3.0, 4.0] * 2


def test_many_threads_and_loops_share_one_engine() -> None:
    """Also the first use, which starts it: there must be one loop, and so one limit."""

    def blocking(engine: RewardEngine, first: int) -> Callable[[], Any]:
        return lambda: values(engine.score_many_sync(samples(range(first, first + 20))))

    def looping(engine: RewardEngine, first: int) -> Callable[[], Any]:
        async def main() -> list[float | None]:
            batches = await asyncio.gather(*(engine.score_many(samples(range(n, n + 10))) for n in (first, first + 10)))
            return values(batches[0] + batches[1])

        return lambda: asyncio.run(main())

    with scripted_judge(after(0.01, same)) as judge:
        before = threading.active_count()
        with engine_of(judge, max_in_flight=8, start_in_flight=8) as engine:
            calls = [(blocking if n % 2 else looping)(engine, 15 * n) for n in range(8)]
            for n, result in enumerate(in_threads(*calls)):
                assert result == [float(v) for v in range(15 * n, 15 * n + 20)]
            assert threading.active_count() == before + 1
            assert judge.max_in_flight <= 8
        assert threading.active_count() == before


def test_a_stream_gives_scores_as_they_come(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "SMALLEST_WINDOW", 32)
    drawn = 0

    def given() -> Iterator[Sample]:
        nonlocal drawn
        for number in range(250):
            drawn += 1
            yield Sample(str(number))

    async def given_async() -> AsyncIterator[Sample]:
        for sample in given():
            yield sample

    async def main(engine: RewardEngine) -> None:
        nonlocal drawn
        for stream in (given(), given_async()):
            drawn, seen = 0, []
            async for index, score in engine.stream(stream):
                assert score.value == index
                seen.append(index)
                assert drawn - len(seen) <= 32 + 2 * 64
            assert sorted(seen) == list(range(250))

    with scripted_judge(same) as judge, engine_of(judge, max_in_flight=8, start_in_flight=8) as engine:
        asyncio.run(main(engine))


def test_a_slow_iterable_does_not_hold_up_what_it_has_given() -> None:
    async def main(engine: RewardEngine) -> None:
        first = asyncio.Event()

        async def given() -> AsyncIterator[Sample]:
            yield Sample("0")
            await asyncio.wait_for(first.wait(), SOON_S)
            yield Sample("1")

        async for index, _ in engine.stream(given()):
            first.set()
            last = index
        assert last == 1

        seen: list[int] = []
        seen_at_the_end: list[int] = []

        def blocking() -> Iterator[Sample]:
            for number in range(20):
                time.sleep(0.012)
                yield Sample(str(number))
            seen_at_the_end.extend(seen)

        async for index, _ in engine.stream(blocking()):
            seen.append(index)
        assert seen_at_the_end, "some were scored before the last was drawn"

    with scripted_judge(same) as judge, engine_of(judge) as engine:
        asyncio.run(main(engine))


def test_an_abandoned_stream_stops_its_calls() -> None:
    async def main(engine: RewardEngine, judge: ScriptedJudge) -> None:
        closed = False

        async def endless() -> AsyncIterator[Sample]:
            nonlocal closed
            try:
                for number in range(10**9):
                    yield Sample(str(number))
                    await asyncio.sleep(0)
            finally:
                closed = True

        async for _ in engine.stream(endless()):
            break
        await asyncio.sleep(0.05)
        assert closed
        count = len(judge.asked)
        assert values(await engine.score_many(samples([5]))) == [5.0]
        assert len(judge.asked) == count + 1

    with scripted_judge(after(0.01, same)) as judge, engine_of(judge, start_in_flight=4) as engine:
        asyncio.run(main(engine, judge))
        comes_to_rest(engine, judge)


def test_a_batch_that_is_cancelled_stops_its_calls() -> None:
    async def main(engine: RewardEngine, judge: ScriptedJudge) -> None:
        batch = asyncio.create_task(engine.score_many(samples(range(100))))
        while len(judge.asked) < 20:
            await asyncio.sleep(0.002)
        batch.cancel()
        with pytest.raises(asyncio.CancelledError):
            await batch

    with scripted_judge(after(0.02, same)) as judge, engine_of(judge, start_in_flight=8, adaptive=False) as engine:
        asyncio.run(main(engine, judge))
        comes_to_rest(engine, judge)
        assert len(judge.asked) < 60


def test_a_failed_sample_is_errored_and_never_zero() -> None:
    def answer(asked: Asked) -> str | int:
        return 400 if int(asked.text) % 3 == 0 else asked.text

    with scripted_judge(answer) as judge, engine_of(judge, max_failure_rate=0.5) as engine:
        scores = engine.score_many_sync(samples(range(30)))
        assert values(scores) == [None if n % 3 == 0 else float(n) for n in range(30)]
        assert all(s.status == ("errored" if n % 3 == 0 else "scored") for n, s in enumerate(scores))
        assert scores[0].evidence["failure"] == "bad_request"
        assert "status 400: out of order" in scores[0].evidence["message"]
        assert rewards_of(scores, engine.config)[:4] == [None, 1.0, 2.0, None]
        assert engine.counters()["errored"] == 10


def test_an_unreadable_reply_is_asked_again_and_not_kept(tmp_path: Path) -> None:
    def answer(asked: Asked) -> str:
        return "hm" if asked.nth < 2 else asked.text

    with scripted_judge(answer) as judge:
        config = settings(cache=True)
        with RewardEngine(Marks(), judge.config(), config, cache_dir=tmp_path) as engine:
            (score,) = engine.score_many_sync(samples([5]))
            assert (score.value, score.usage["calls"], len(judge.asked)) == (5.0, 3, 3)
            assert engine.counters()["reread"] == 2
        with RewardEngine(Marks(), judge.config(), config, cache_dir=tmp_path) as engine:
            assert engine.score_many_sync(samples([5]))[0].cached, "the readable one was kept"
        judge.answer = lambda asked: "hm"
        with RewardEngine(Marks(), judge.config(), config, cache_dir=tmp_path) as engine:
            (score,) = engine.score_many_sync(samples([6]))
            assert (failures([score]), score.usage["calls"]) == (["unreadable"], 3)
            assert "no number in 'hm'" in score.evidence["message"]
            engine.score_many_sync(samples([6]))
            assert judge.asked.count("6") == 6, "what could not be read was not kept"


def test_of_several_votes_only_the_unreadable_is_asked_again() -> None:
    def answer(asked: Asked) -> str:
        return "hm" if asked.nth == 1 else "4"

    with scripted_judge(answer) as judge, engine_of(judge, Marks(votes=3)) as engine:
        (score,) = engine.score_many_sync(samples([5]))
        assert (score.value, len(judge.asked), score.usage["calls"]) == (4.0, 4, 4)


@dataclass(frozen=True)
class Broken(Marks):
    """A reward with a fault of its own in every sample but `good`."""

    how: str = "requests raises"

    def requests(self, sample: Sample) -> Sequence[Request]:
        if sample.response != "1":
            if self.how == "requests raises":
                raise KeyError("no such column")
            if self.how == "no requests":
                return ["ask this"]  # type: ignore[list-item]
            if self.how == "no json":
                return [ask("x", params={"stop": {"a"}})]
        return super().requests(sample)

    def score(self, sample: Sample, replies: Sequence[Reply]) -> Score:
        if sample.response != "1":
            if self.how == "score raises":
                raise ZeroDivisionError("by nothing")
            if self.how == "no score":
                return 1.0  # type: ignore[return-value]
            if self.how == "not finite":
                return Score("scored", float("nan"))
            if self.how == "no such place":
                raise UnreadableReplyError("cannot read it", (7, 7))
        return super().score(sample, replies)


@pytest.mark.parametrize(
    ("how", "kind", "said"),
    [
        ("requests raises", "reward", "no such column"),
        ("no requests", "reward", "not all Requests"),
        ("no json", "bad_request", "cannot be written as JSON"),
        ("score raises", "reward", "by nothing"),
        ("no score", "reward", "which is not a Score"),
        ("not finite", "reward", "finite"),
        ("no such place", "unreadable", "cannot read it"),
    ],
)
def test_a_fault_of_the_reward_errors_its_sample_and_no_other(how: str, kind: str, said: str) -> None:
    with scripted_judge(same) as judge, engine_of(judge, Broken(how=how)) as engine:
        bad, good = engine.score_many_sync(samples([0, 1]))
        assert good.value == 1.0
        assert failures([bad]) == [kind]
        assert said in bad.evidence["message"]


@dataclass(frozen=True)
class Unasked:
    """A reward that needs no judge."""

    name: str = "unasked"
    fingerprint: str = "unasked:1"

    def requests(self, sample: Sample) -> Sequence[Request]:
        return ()

    def score(self, sample: Sample, replies: Sequence[Reply]) -> Score:
        return Score("invalid", float(len(sample.response)))


def test_a_reward_without_calls_needs_nobody() -> None:
    judge = JudgeConfig(base_url="http://127.0.0.1:9/v1", api_key_env="")
    with RewardEngine(Unasked(), judge, settings()) as engine:
        scores = engine.score_many_sync(samples(["a", "bb"]))
        assert values(scores) == [1.0, 2.0]
        assert [score.cached for score in scores] == [False, False]
        assert engine.counters()["invalid"] == 2


class Reentrant(Marks):
    """Uses its own engine where it must not."""

    engine: RewardEngine | None = None
    how = "score"

    def score(self, sample: Sample, replies: Sequence[Reply]) -> Score:
        assert Reentrant.engine is not None
        if Reentrant.how == "score":
            return Reentrant.engine.score_many_sync([sample])[0]
        Reentrant.engine.close()
        return Score("scored", 1.0)


@pytest.mark.parametrize("how", ["score", "close"])
def test_a_reward_cannot_wait_for_its_own_engine(how: str) -> None:
    with scripted_judge(same) as judge, engine_of(judge, Reentrant()) as engine:
        Reentrant.engine, Reentrant.how = engine, how
        (result,) = in_threads(lambda: engine.score_many_sync(samples([1])))
        assert failures(result) == ["reward"]
        assert "its own engine" in result[0].evidence["message"]
        Reentrant.engine = None


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (Said("who", 401), "Check the key in judge.api_key_env"),
        (Said("what", 404, code="model_not_found"), "Check judge.model=judge-1"),
        (Said("quota", 429, code="insufficient_quota"), "Add credit"),
    ],
)
def test_a_judge_that_refuses_every_call_ends_the_batch(said: Said, words: str) -> None:
    with scripted_judge(lambda asked: said) as judge, engine_of(judge, start_in_flight=8) as engine:
        with pytest.raises(JudgeError, match=re.escape(words)) as caught:
            engine.score_many_sync(samples(range(100)))
        assert said.text in str(caught.value)
        comes_to_rest(engine, judge)
        assert len(judge.asked) < 60
        judge.answer = same
        assert values(engine.score_many_sync(samples(range(20)))) == [float(n) for n in range(20)]


def test_a_spent_budget_ends_the_batch_and_keeps_what_was_answered(tmp_path: Path) -> None:
    with scripted_judge(same) as judge:
        config = settings(cache=True, budget_tokens=600, start_in_flight=4)
        with RewardEngine(Marks(), judge.config(), config, cache_dir=tmp_path) as engine:
            with pytest.raises(JudgeError, match=r"of 600 tokens.*Raise budget_usd or budget_tokens"):
                engine.score_many_sync(samples(range(100)))
            paid = len(judge.asked)
            assert 40 <= paid <= 50
        config = settings(cache=True, budget_tokens=1300, start_in_flight=4)
        with RewardEngine(Marks(), judge.config(), config, cache_dir=tmp_path) as engine:
            assert values(engine.score_many_sync(samples(range(100)))) == [float(n) for n in range(100)]
        assert len(judge.asked) == 100, "nothing is paid for twice"


def test_an_outage_raises_and_stops_the_rest() -> None:
    """Also while the error is still held: what it refers to must not keep the batch going."""

    def answer(asked: Asked) -> Said:
        return Said("no", 400) if int(asked.text) < 40 else Said(delay_s=0.02)

    with scripted_judge(answer) as judge, engine_of(judge, max_failure_rate=0.1, start_in_flight=4) as engine:
        with pytest.raises(RewardError, match=r"21 of 200 samples .*21 bad_request.*max_failure_rate=0\.1") as caught:
            engine.score_many_sync(samples(range(200)))
        comes_to_rest(engine, judge)
        assert len(judge.asked) < 150
        assert caught.value is not None


def test_single_samples_that_fail_add_up() -> None:
    with scripted_judge(lambda asked: 400) as judge, engine_of(judge, max_failure_rate=0.25) as engine:
        for number in range(31):
            assert failures(engine.score_many_sync(samples([number]))) == ["bad_request"]
        with pytest.raises(RewardError, match="32 of 32 samples"):
            engine.score_many_sync(samples([31]))


def test_a_batch_that_runs_out_of_time_returns_what_it_has() -> None:
    def answer(asked: Asked) -> Said:
        return Said(asked.text, end="hang" if int(asked.text) % 2 else "keep")

    with scripted_judge(answer) as judge, engine_of(judge, batch_deadline_s=0.3) as engine:
        scores = engine.score_many_sync(samples(range(10)))
        assert values(scores)[::2] == [0.0, 2.0, 4.0, 6.0, 8.0]
        assert failures(scores) == ["deadline"] * 5
        comes_to_rest(engine, judge)
        time.sleep(0.4)  # an engine that has rested must not take the time of its rest for its batch's
        assert failures(asyncio.run(engine.score_many(samples([0, 2]), deadline_s=0.3))) == []


def test_a_copy_in_another_process_is_an_engine_of_its_own() -> None:
    with scripted_judge(after(0.01, same)) as judge, engine_of(judge) as engine:
        engine.score_many_sync(samples([1]))
        copy = pickle.loads(pickle.dumps(engine))
        assert values(copy.score_many_sync(samples([2]))) == [2.0]
        assert (copy.reward, copy.config, copy.judge) == (engine.reward, engine.config, engine.judge)
        copy.close()
        assert values(engine.score_many_sync(samples([3]))) == [3.0]
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(RewardEngine(Marks(), caller=Answering()))


def forked(child: Callable[[], bool]) -> bool:
    """Whether `child` returned true in a forked process."""
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            status = 0 if child() else 2
        finally:
            os._exit(status)
    return os.waitpid(pid, 0)[1] == 0


@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_a_forked_child_has_an_engine_of_its_own_and_the_parent_keeps_its(tmp_path: Path) -> None:
    with scripted_judge(after(0.01, same)) as judge:
        config = settings(cache=True)
        with RewardEngine(Marks(), judge.config(), config, cache_dir=tmp_path) as engine:
            engine.score_many_sync(samples([1]))

            def child() -> bool:
                scores = engine.score_many_sync(samples([1, 2]))
                engine.close()
                return values(scores) == [1.0, 2.0] and scores[0].cached

            def idle_child() -> bool:
                engine.close()
                return engine.counters()["samples"] == 1

            assert forked(child)
            assert forked(idle_child)
            assert values(engine.score_many_sync(samples([1, 2, 3]))) == [1.0, 2.0, 3.0]
            assert sorted(judge.asked) == ["1", "2", "3"], "parent and child share the cache file"
    given = RewardEngine(Marks(), caller=Answering())
    given.score_many_sync(samples([1]))

    def child_with_caller() -> bool:
        try:
            given.score_many_sync(samples([1]))
        except RewardError as error:
            return "after the fork" in str(error)
        return False

    assert forked(child_with_caller)
    given.close()


class Answering:
    """A caller that answers by a function, in a task of its own if it sleeps."""

    def __init__(self, answer: Callable[[Request], Outcome] | None = None, delay_s: float = 0.0) -> None:
        self.answer = answer or (lambda request: Reply(request.messages[-1].content))
        self.delay_s = delay_s
        self.closed = 0
        self.deadlines: list[float | None] = []

    async def call(self, request: Request, deadline: float | None = None) -> Outcome:
        self.deadlines.append(deadline)
        await asyncio.sleep(self.delay_s)
        return self.answer(request)

    async def forget(self, request: Request) -> None:
        return None

    async def counters(self) -> dict[str, float]:
        return {"calls": 7.0}

    async def close(self) -> None:
        self.closed += 1


def test_another_caller_takes_the_place_of_the_client() -> None:
    caller = Answering()
    with RewardEngine(Marks(), caller=caller) as engine:
        assert values(engine.score_many_sync(samples([1, 2]))) == [1.0, 2.0]
        assert engine.counters()["calls"] == 7.0
    assert caller.closed == 1


def test_a_fault_of_the_caller_reaches_the_host() -> None:
    def fail(request: Request) -> Outcome:
        raise ConnectionResetError("the hub is gone")

    def cancel(request: Request) -> Outcome:
        raise asyncio.CancelledError

    for answer, error in ((fail, ConnectionResetError), (cancel, RewardError)):
        with RewardEngine(Marks(), caller=Answering(answer)) as engine:
            (result,) = in_threads(lambda engine=engine: engine.score_many_sync(samples(range(5))))
            assert isinstance(result, error)


def test_the_outcomes_of_a_caller_are_billed_to_their_source() -> None:
    def answer(request: Request) -> Outcome:
        usage = Usage(1, 10, 2, 0.5)
        bad = request.messages[-1].content == "9"
        return CallFailure("server", "x", 3, usage) if bad else Reply("1", usage=usage)

    given = [Sample(str(n), data_source="even" if n % 2 == 0 else "") for n in range(10)]
    with RewardEngine(Marks(votes=2), config=settings(), caller=Answering(answer)) as engine:
        scores = engine.score_many_sync(given)
        assert engine.usage_by_source == {"even": Usage(10, 100, 20, 5.0), "marks": Usage(10, 100, 20, 5.0)}
        assert failures(scores) == ["server"]
        assert [score.usage["usd"] for score in scores] == [1.0] * 10


@pytest.mark.parametrize("host", ["blocking", "loop"])
def test_closing_ends_batches_under_way_with_an_error(host: str) -> None:
    with scripted_judge(lambda asked: Said(end="hang")) as judge:
        engine = RewardEngine(Marks(), judge.config(), settings())

        def batch() -> Any:
            if host == "blocking":
                return engine.score_many_sync(samples(range(50)))
            return asyncio.run(engine.score_many(samples(range(50))))

        def close() -> None:
            eventually(lambda: judge.in_flight >= 50)
            engine.close()

        first, second, _ = in_threads(batch, batch, close)
        for result in (first, second):
            assert isinstance(result, RewardError)
            assert "closed" in str(result)
        eventually(lambda: judge.in_flight == 0 and judge.open == 0)
        engine.close()
        judge.answer = same
        assert values(engine.score_many_sync(samples([3]))) == [3.0], "used again, it begins anew"
        engine.close()


def engine_threads() -> set[threading.Thread]:
    """The loops of this process's engines, those that other tests have left open among them."""
    return {thread for thread in threading.enumerate() if thread.name == "assay-rewards"}


def test_closing_over_and_over_under_use_hangs_nobody() -> None:
    before = engine_threads()
    with scripted_judge(after(0.002, same)) as judge:
        engine = RewardEngine(Marks(), judge.config(), settings())
        stop = threading.Event()
        outcomes: list[str] = []

        def use(blocking: bool) -> None:
            while not stop.is_set():
                try:
                    given = samples(range(5))
                    scores = engine.score_many_sync(given) if blocking else asyncio.run(engine.score_many(given))
                    assert values(scores) == [0.0, 1.0, 2.0, 3.0, 4.0]
                    outcomes.append("scored")
                except RewardError:
                    outcomes.append("closed")

        def close() -> None:
            for _ in range(15):
                time.sleep(0.01)
                engine.close()
            stop.set()

        results = in_threads(lambda: use(True), lambda: use(False), lambda: use(True), close)
        assert results == [None] * 4
        assert "scored" in outcomes
        engine.close()
        assert not engine_threads() - before


def test_an_interrupt_stops_the_calls_it_interrupts() -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with scripted_judge(lambda asked: Said(end="hang")) as judge, engine_of(judge) as engine:
        before = signal.signal(signal.SIGUSR1, interrupt)
        try:
            alarm = threading.Thread(
                target=lambda: (eventually(lambda: judge.in_flight >= 5), os.kill(os.getpid(), signal.SIGUSR1))
            )
            alarm.start()
            with pytest.raises(KeyboardInterrupt):
                engine.score_many_sync(samples(range(5)))
            alarm.join()
        finally:
            signal.signal(signal.SIGUSR1, before)
        comes_to_rest(engine, judge)


def test_an_engine_that_cannot_start_says_why_every_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", "sk-0123456789abcdef")
    before = engine_threads()
    engine = RewardEngine(Marks(), JudgeConfig(api_key_env="SOME_KEY"), settings())
    monkeypatch.delenv("SOME_KEY")
    for _ in range(2):
        with pytest.raises(ConfigError, match="SOME_KEY is not set"):
            engine.score_many_sync(samples([1]))
    assert not engine_threads() - before
    engine.close()


def test_what_cannot_work_is_refused_before_anything_is_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SOME_KEY", raising=False)
    with pytest.raises(ConfigError, match="SOME_KEY is not set"):
        RewardEngine(Marks(), JudgeConfig(api_key_env="SOME_KEY"))
    with pytest.raises(ConfigError, match="budget_usd=1 cannot be enforced"):
        RewardEngine(Marks(), JudgeConfig(api_key_env=""), EngineConfig(budget_usd=1.0))
    RewardEngine(Marks(), JudgeConfig(api_key_env="SOME_KEY"), caller=Answering())
    RewardEngine(Marks(), JudgeConfig(api_key_env="SOME_KEY"), EngineConfig(offline=True))


def test_counters_add_up() -> None:
    def answer(asked: Asked) -> Said:
        return Said(asked.text, 503 if asked.nth == 0 and asked.text == "3" else 200, delay_s=0.01)

    with scripted_judge(answer) as judge, engine_of(judge) as engine:
        assert engine.counters() == {"samples": 0, "scored": 0, "invalid": 0, "errored": 0, "reread": 0}
        engine.score_many_sync(samples([1, 2, 3, 1]))
        counters = engine.counters()
        expected = {"samples": 4, "scored": 4, "calls": 3, "attempts": 4, "answered": 3, "shared": 1, "refusals": 1}
        assert {name: counters[name] for name in expected} == expected
        assert (counters["prompt_tokens"], counters["completion_tokens"], counters["in_flight"]) == (30, 6, 0)
        assert len(judge.asked) == 4
        assert all(isinstance(value, float) for value in counters.values())


def test_progress_is_told_of_this_batch_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def answer(asked: Asked) -> Said:
        return Said("no", 400) if asked.text == "57" else Said(asked.text, delay_s=0.02)

    with scripted_judge(answer) as judge:
        priced = judge.config(usd_per_million_prompt_tokens=1e5)
        with RewardEngine(Marks(), priced, settings(start_in_flight=8, adaptive=False)) as engine:
            engine.score_many_sync(samples(range(40)))
            caplog.set_level(logging.INFO, logger="assay.rewards.progress")
            monkeypatch.setattr(progress_module, "EVERY_S", 0.01)
            engine.score_many_sync(samples(range(50, 90)))
    lines = [record.getMessage() for record in caplog.records]
    assert lines
    assert re.fullmatch(
        r"marks: \d+/40 scored, [\d.]+/s, \d in flight \(limit 8\), 1 failed, \$\d\d\.00, about \d+ s left", lines[-1]
    )
    assert all(f"${dollars}.00" not in " ".join(lines) for dollars in range(41, 99)), "the batch before is left out"


def test_a_quick_batch_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    with scripted_judge(same) as judge, engine_of(judge) as engine:
        engine.score_many_sync(samples(range(20)))
    assert not caplog.records


def test_what_is_not_installed_is_said_where_it_is_needed_and_not_before() -> None:
    code = """
import sys
sys.modules["httptools"] = None
import assay.cli.main
from assay.errors import MissingDependencyError
from assay.rewards import EngineConfig, JudgeConfig, RewardEngine
from support.scripted_judge import Marks
RewardEngine(Marks(), JudgeConfig(api_key_env=""), EngineConfig(offline=True))
try:
    RewardEngine(Marks(), JudgeConfig(api_key_env=""))
except MissingDependencyError as error:
    print(error)
"""
    path = os.pathsep.join([str(Path(__file__).parents[1]), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True
    )
    assert "pip install '.[rewards]'" in done.stdout, done.stderr
