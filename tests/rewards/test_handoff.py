"""Samples to one loop and scores back: every sample once, in bounded numbers, whoever is slow, fails or goes away."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from assay.errors import JudgeError, RewardError
from assay.rewards import Sample
from assay.rewards.handoff import CHUNK, Flow, Scoring
from assay.rewards.loop_thread import LoopThread
from assay.types import Score
from support.scripted_judge import samples
from support.virtual_time import play


async def at_once(sample: Sample, deadline: float | None) -> Score:
    return Score("scored", float(sample.response))


def flow_here(score: Scoring, window: int = 100, deadline_s: float | None = None) -> Flow:
    """A flow whose two ends are in one loop."""
    thread: Any = SimpleNamespace(loop=asyncio.get_running_loop())
    return Flow(thread, score, window, deadline_s)


async def collect(flow: Flow, given: Any) -> list[tuple[int, float | None]]:
    feeding = asyncio.create_task(flow.feed(given))
    try:
        return [(index, score.value) async for index, score in flow.results(feeding)]
    finally:
        feeding.cancel()
        flow.cancel()
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("count", [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 1000])
def test_every_sample_comes_back_once(count: int) -> None:
    async def main() -> None:
        for window in (1, 10, 10_000):
            found = await collect(flow_here(at_once, window), samples(range(count)))
            assert sorted(found) == [(n, float(n)) for n in range(count)]

    play(main())


@pytest.mark.parametrize("seed", range(8))
def test_no_pace_of_either_side_loses_a_sample_or_outgrows_the_window(seed: int) -> None:
    async def main() -> None:
        rng = random.Random(seed)
        drawn = under_way = most = 0

        async def score(sample: Sample, deadline: float | None) -> Score:
            nonlocal under_way, most
            under_way += 1
            most = max(most, under_way)
            await asyncio.sleep(rng.choice([0.0, 0.001, 0.002, 0.003, 0.5]))
            under_way -= 1
            return Score("scored", float(sample.response))

        def given() -> Iterator[Sample]:
            nonlocal drawn
            for number in range(700):
                drawn += 1
                yield Sample(str(number))

        async def given_slowly() -> AsyncIterator[Sample]:
            for sample in given():
                if rng.random() < 0.1:
                    await asyncio.sleep(rng.choice([0.0, 0.001, 0.2]))
                yield sample

        window = rng.choice([1, 20, 200])
        flow = flow_here(score, window)
        feeding = asyncio.create_task(flow.feed(given_slowly() if seed % 2 else given()))
        seen = []
        async for index, result in flow.results(feeding):
            assert result.value == index
            seen.append(index)
            assert drawn - len(seen) <= window + 2 * CHUNK
            if rng.random() < 0.05:
                await asyncio.sleep(rng.choice([0.0, 0.01, 1.0]))
        assert sorted(seen) == list(range(700))
        assert most < window + CHUNK
        flow.cancel()
        await asyncio.sleep(0.01)

    play(main())


@pytest.mark.parametrize("error", [JudgeError("the key is refused"), ZeroDivisionError("a bug")])
def test_what_is_no_score_is_raised_to_the_host(error: Exception) -> None:
    async def main() -> None:
        scored = 0

        async def score(sample: Sample, deadline: float | None) -> Score:
            nonlocal scored
            await asyncio.sleep(1.0 + float(sample.response))
            scored += 1
            if sample.response == "3":
                raise error
            return Score("scored", 1.0)

        with pytest.raises(type(error)) as caught:
            await collect(flow_here(score), samples(range(50)))
        assert caught.value is error
        await asyncio.sleep(100.0)
        assert scored == 4, "the others are cancelled"

    play(main())


def test_calls_cancelled_from_below_are_an_error_and_no_wait() -> None:
    async def main() -> None:
        async def score(sample: Sample, deadline: float | None) -> Score:
            raise asyncio.CancelledError

        with pytest.raises(RewardError, match="cancelled by their caller"):
            await collect(flow_here(score), samples(range(3)))

    play(main())


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_an_iterable_that_raises_does_so_after_what_it_gave_is_scored(kind: str) -> None:
    async def main() -> None:
        def given() -> Iterator[Sample]:
            yield from samples(range(100))
            raise OSError("the file has ended badly")

        async def given_async() -> AsyncIterator[Sample]:
            for sample in given():
                yield sample

        flow = flow_here(at_once)
        feeding = asyncio.create_task(flow.feed(given() if kind == "sync" else given_async()))
        seen = []
        with pytest.raises(OSError, match="ended badly"):
            async for index, _ in flow.results(feeding):
                seen.append(index)
        assert sorted(seen) == list(range(100 if kind == "async" else CHUNK))

    play(main())


def test_a_slow_iterable_is_not_waited_for_to_fill_a_chunk() -> None:
    async def main() -> None:
        scored = 0

        async def score(sample: Sample, deadline: float | None) -> Score:
            nonlocal scored
            scored += 1
            return Score("scored", 1.0)

        async def given() -> AsyncIterator[Sample]:
            for number in range(5):
                await asyncio.sleep(10.0)
                assert scored == number
                yield Sample("1")

        assert len(await collect(flow_here(score), given())) == 5

    play(main())


def test_the_deadline_counts_from_the_first_sample() -> None:
    async def main() -> None:
        deadlines = set()

        async def score(sample: Sample, deadline: float | None) -> Score:
            deadlines.add(deadline)
            await asyncio.sleep(5.0)
            return Score("scored", 1.0)

        started = asyncio.get_running_loop().time()
        await collect(flow_here(score, 10, deadline_s=30.0), samples(range(200)))
        (deadline,) = deadlines
        assert deadline == pytest.approx(started + 30.0, abs=0.01)

    play(main())


def test_an_end_from_outside_is_an_error_where_results_are_read() -> None:
    async def main() -> None:
        async def score(sample: Sample, deadline: float | None) -> Score:
            await asyncio.sleep(1000.0)
            return Score("scored", 1.0)

        flow = flow_here(score)
        asyncio.get_running_loop().call_later(1.0, flow.fail, RewardError("closed"))
        with pytest.raises(RewardError, match="closed"):
            await collect(flow, samples(range(10)))

    play(main())


def test_a_host_whose_loop_is_gone_is_worked_for_no_longer() -> None:
    thread = LoopThread("test")
    scored = []

    async def score(sample: Sample, deadline: float | None) -> Score:
        await asyncio.sleep(0.01 * int(sample.response))
        scored.append(sample.response)
        return Score("scored", 1.0)

    async def host() -> Flow:
        flow = Flow(thread, score, 1000, None)
        await flow.feed(samples([1, *[3000] * 99]))
        return flow

    async def tasks_of(flow: Flow) -> int:
        while flow._tasks:
            await asyncio.sleep(0.005)
        return len(scored)

    flow = asyncio.run(host())
    assert thread.submit(tasks_of(flow)).result(timeout=20) == 1
    flow.fail(RewardError("nobody reads this"))
    thread.close()
    flow.cancel()
