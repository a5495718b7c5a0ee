"""The gate and the watch over late calls, in virtual time: who may start when, and that nobody waits in vain."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from assay.rewards.client.chat import Refusal
from assay.rewards.client.gate import Gate
from assay.rewards.client.hedging import HedgeWatch
from assay.rewards.client.limits import HedgePolicy, InFlightLimit
from support.virtual_time import play

REFUSED = Refusal("rate_limited", "busy", 429, overload=True)


def gate(holds: int = 2, requests: int | None = None, tokens: int | None = None) -> Gate:
    return Gate(InFlightLimit(holds, holds, adaptive=False), requests, tokens)


def about(seconds: Any) -> Any:
    """Equal but for the turns of the loop."""
    return pytest.approx(seconds, rel=0.01, abs=0.002)


def clock() -> float:
    return asyncio.get_running_loop().time()


def enter(at: Gate, tokens: int = 1, retry: bool = False) -> asyncio.Task[float]:
    """A task that enters, and returns when it was let in."""

    async def wait() -> float:
        await at.enter(tokens, retry)
        return clock()

    return asyncio.create_task(wait())


async def settle() -> None:
    for _ in range(4):
        await asyncio.sleep(0)


def admitted(tasks: list[asyncio.Task[float]]) -> list[int]:
    return [number for number, task in enumerate(tasks) if task.done()]


def refuse(at: Gate, refusal: Refusal = REFUSED, headers: dict[str, str] | None = None, draw: float = 0.0) -> None:
    """One call that is in flight is refused."""
    at.on_refusal(refusal, clock(), at.sent, headers or {}, draw)
    at.leave()


def answer(at: Gate, headers: dict[str, str] | None = None, surplus: int = 0, sent: int | None = None) -> None:
    """One call that is in flight is answered."""
    at.on_answer(clock(), at.sent if sent is None else sent, headers or {}, surplus)
    at.leave()


async def end(at: Gate, tasks: list[asyncio.Task[float]]) -> None:
    """Cancel and leave; the gate must be empty then."""
    for task in tasks:
        if task.done() and not task.cancelled():
            at.leave()
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await settle()
    assert (at.in_flight, at.waiting) == (0, 0)


def test_so_many_are_let_in_and_the_rest_in_their_order() -> None:
    async def main() -> None:
        at = gate(2)
        tasks = [enter(at) for _ in range(5)]
        await settle()
        assert admitted(tasks) == [0, 1]
        assert (at.in_flight, at.waiting) == (2, 3)
        at.leave()
        await settle()
        assert admitted(tasks) == [0, 1, 2]
        at.leave()
        at.leave()
        await settle()
        assert admitted(tasks) == [0, 1, 2, 3, 4]
        for _ in range(2):
            at.leave()
        assert (at.in_flight, at.waiting, at.sent) == (0, 0, 5)

    play(main())


def test_retries_go_first() -> None:
    async def main() -> None:
        at = gate(1)
        tasks = [enter(at), enter(at), enter(at, retry=True)]
        await settle()
        at.leave()
        await settle()
        assert admitted(tasks) == [0, 2]
        await end(at, [tasks[1], tasks[2]])

    play(main())


def test_waiters_cancelled_in_the_turn_in_which_a_place_comes_free_are_passed_over() -> None:
    async def main() -> None:
        at = gate(1)
        tasks = [enter(at) for _ in range(4)]
        await settle()
        tasks[1].cancel()
        tasks[2].cancel()
        at.leave()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert [isinstance(result, asyncio.CancelledError) for result in results] == [False, True, True, False]
        assert (at.in_flight, at.waiting) == (1, 0)
        at.leave()

    play(main())


def test_a_place_that_was_given_to_a_cancelled_waiter_goes_to_the_next() -> None:
    async def main() -> None:
        at = gate(1)
        tasks = [enter(at) for _ in range(3)]
        await settle()
        at.leave()  # gives the place to 1, which is cancelled before it knows
        tasks[1].cancel()
        await settle()
        assert tasks[1].cancelled()
        assert tasks[2].done()
        assert (at.in_flight, at.waiting) == (1, 0)
        at.leave()

    play(main())


def test_cancelling_the_one_that_all_wait_behind_lets_the_others_in() -> None:
    async def main() -> None:
        at = gate(10, tokens=600)  # 10 a second, 10 at once
        await at.enter(10, retry=False)
        large, small = enter(at, tokens=6000), enter(at, tokens=1)
        await settle()
        started = clock()
        large.cancel()
        assert await small - started < 0.2
        at.leave()
        at.leave()
        await settle()
        assert (at.in_flight, at.waiting) == (0, 0)

    play(main())


def test_a_large_request_is_not_starved_by_small_ones() -> None:
    async def main() -> None:
        at = gate(1000, tokens=600)
        await at.enter(10, retry=False)
        large = enter(at, tokens=500)
        small = [enter(at, tokens=5) for _ in range(20)]
        started = clock()
        assert await large - started == about(1.0)  # a full bucket
        assert not any(task.done() for task in small)
        assert await small[0] - started == about(1.0 + 49.5)  # its debt is waited off
        await asyncio.gather(*small)
        for _ in range(22):
            at.leave()

    play(main())


@pytest.mark.parametrize(("requests", "tokens", "each"), [(600, None, 1), (None, 6000, 10), (600, 6000, 5)])
def test_given_quotas_are_kept(requests: int | None, tokens: int | None, each: int) -> None:
    async def main() -> list[float]:
        at = gate(1000, requests, tokens)
        times = await asyncio.gather(*(enter(at, each) for _ in range(100)))
        for _ in range(100):
            at.leave()
        return times

    times = play(main())
    for second in range(10):
        assert sum(second <= time - 1000.0 < second + 1 for time in times) <= 11 + 10 * (second == 0)
    assert max(times) - 1000.0 == about(9.0)


def test_nothing_starts_after_a_refusal_until_an_answer_or_the_end_of_the_pause() -> None:
    async def main() -> None:
        at = gate(4)
        for _ in range(3):
            await at.enter(1, retry=False)
        refuse(at)
        waiting = enter(at)
        await asyncio.sleep(0.05)
        assert not waiting.done()
        answer(at)
        await settle()
        assert waiting.done(), "a place has come free"
        refuse(at)
        started = clock()
        assert await enter(at) - started == about(0.1)
        for _ in range(2):
            at.leave()

    play(main())


def test_refusals_together_are_one_and_again_and_again_are_many() -> None:
    async def main() -> None:
        at = gate(64)
        pauses = []
        for _ in range(9):
            for _ in range(5):
                await at.enter(1, retry=False)
            started = clock()
            for _ in range(5):
                refuse(at)
            await at.enter(1, retry=False)
            pauses.append(clock() - started)
            at.leave()
        assert pauses == about([0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 8.0, 8.0])
        await at.enter(1, retry=False)
        answer(at)
        await at.enter(1, retry=False)
        started = clock()
        refuse(at)
        await at.enter(1, retry=False)
        assert clock() - started == about(0.1), "an answer ends the row"
        at.leave()

    play(main())


def test_a_rate_that_is_used_up_is_waited_for_whatever_is_answered() -> None:
    async def main() -> None:
        at = gate(4)
        for _ in range(3):
            await at.enter(1, retry=False)
        refuse(at, Refusal("rate_limited", "too fast", 429, overload=True, too_fast=True, wait_s=2.0))
        started = clock()
        answer(at)
        assert await enter(at) - started == about(2.0)
        at.leave()
        at.leave()

    play(main())


def test_a_broken_connection_does_not_shorten_the_wait_for_a_rate() -> None:
    async def main() -> None:
        at = gate(3)
        for _ in range(3):
            await at.enter(1, retry=False)
        refuse(at, Refusal("rate_limited", "slow down", 429, overload=True, too_fast=True, wait_s=20.0))
        refuse(at, Refusal("connection", "reset"))
        answer(at)
        at.leave()
        began = clock()
        assert await enter(at) - began == about(20.0)

    play(main())


def test_what_the_provider_asks_to_wait_is_waited() -> None:
    async def main() -> None:
        at = gate(4)
        await at.enter(1, retry=False)
        refuse(at, Refusal("rate_limited", "busy", 429, overload=True, wait_s=7.0))
        started = clock()
        assert await enter(at) - started == about(7.0)
        at.leave()

    play(main())


@pytest.mark.parametrize("kind", ["malformed", "bad_request", "timeout"])
def test_other_failures_pause_nothing(kind: Any) -> None:
    async def main() -> None:
        at = gate(4)
        await at.enter(1, retry=False)
        refuse(at, Refusal(kind, "x"))
        started = clock()
        assert await enter(at) - started == about(0.0)
        at.leave()

    play(main())


def headers(limit: object, remaining: object, what: str = "requests") -> dict[str, str]:
    return {f"x-ratelimit-limit-{what}": str(limit), f"x-ratelimit-remaining-{what}": str(remaining)}


def test_headers_teach_a_quota() -> None:
    async def main() -> None:
        at = gate(100)
        await at.enter(1, retry=False)
        answer(at, headers(600, 3))
        started = clock()
        times = [await enter(at) - started for _ in range(6)]
        assert times == about([0, 0, 0, 0.1, 0.2, 0.3])
        for _ in range(6):
            at.leave()

    play(main())


def test_calls_sent_meanwhile_are_taken_off_what_headers_say_is_left() -> None:
    async def main() -> None:
        at = gate(100)
        for _ in range(3):
            await at.enter(1, retry=False)
        answer(at, headers(600, 3), sent=1)  # as of the first of three
        started = clock()
        assert [await enter(at) - started for _ in range(2)] == about([0, 0.1])
        for _ in range(4):
            at.leave()

    play(main())


@pytest.mark.parametrize("told", [{}, headers(0, 0), headers(-1, -1), headers("x", "y"), headers(5, 9)])
def test_headers_without_sense_teach_nothing(told: dict[str, str]) -> None:
    async def main() -> None:
        at = gate(100)
        await at.enter(1, retry=False)
        answer(at, told)
        started = clock()
        assert [await enter(at) - started for _ in range(50)] == about([0.0] * 50)
        for _ in range(50):
            at.leave()

    play(main())


def test_a_quota_from_the_settings_is_believed_before_headers() -> None:
    async def main() -> None:
        at = gate(100, requests=600)
        await at.enter(1, retry=False)
        answer(at, headers(60_000, 0))
        started = clock()
        times = [await enter(at) - started for _ in range(11)]
        assert times[:9] == about([0.0] * 9)
        assert times[-1] == about(0.2)
        for _ in range(11):
            at.leave()

    play(main())


def test_tokens_used_beyond_the_guess_are_waited_off() -> None:
    async def main() -> None:
        at = gate(100, tokens=6000)
        await at.enter(10, retry=False)
        answer(at, surplus=190)  # 200 in all: two seconds' worth, of which one was there
        started = clock()
        assert await enter(at, 1) - started == about(1.01)
        at.leave()

    play(main())


@pytest.mark.parametrize("seed", range(12))
def test_no_order_of_events_starves_or_leaks(seed: int) -> None:
    """Calls of all sizes enter, are cancelled, answered and refused at random; in the end nobody is left."""

    async def main() -> None:
        rng = random.Random(seed)
        limit = InFlightLimit(rng.randint(1, 8), 8, adaptive=rng.random() < 0.7)
        at = Gate(limit, rng.choice([None, 3000]), rng.choice([None, 60_000]))
        finished = 0

        async def call() -> None:
            nonlocal finished
            retry = False
            while True:
                await at.enter(rng.choice([1, 100, 5000]), retry)
                try:
                    assert at.in_flight <= 8
                    started, sent = clock(), at.sent
                    await asyncio.sleep(rng.choice([0.0, 0.01, 0.5]))
                    told = headers(3000, rng.randint(0, 3000)) if rng.random() < 0.1 else {}
                    if rng.random() < 0.7:
                        at.on_answer(started, sent, told, rng.randint(-50, 50))
                        finished += 1
                        return
                    rate = rng.random() < 0.3
                    refusal = Refusal("rate_limited", "x", 429, overload=True, too_fast=rate)
                    at.on_refusal(refusal, started, sent, told, rng.random())
                    retry = True
                finally:
                    at.leave()

        tasks = []
        for _ in range(120):
            tasks.append(asyncio.create_task(call()))
            if rng.random() < 0.3:
                await asyncio.sleep(rng.choice([0.0, 0.02]))
            for task in rng.sample(tasks, min(len(tasks), rng.choice([0, 0, 1, 5]))):
                task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(result is None or isinstance(result, asyncio.CancelledError) for result in results), results
        assert finished == results.count(None)
        await settle()
        assert (at.in_flight, at.waiting) == (0, 0)
        assert await enter(at) >= 0, "the gate still opens"
        at.leave()

    play(main())


def test_the_watch_calls_late_ones_once_and_asks_again_where_it_was_too_soon() -> None:
    async def main() -> None:
        policy = HedgePolicy(0.5)
        for _ in range(32):
            policy.on_latency(1.0)  # late after two seconds
        said: list[tuple[str, float]] = []

        def on_late(call: str) -> bool:
            said.append((call, clock() - 1000.0))
            return call != "later" or clock() > 1005.0

        watch = HedgeWatch(policy, on_late)
        watch.start("a")
        quick = watch.start("quick")
        watch.start("later")
        await asyncio.sleep(1.0)
        watch.stop(quick)
        watch.stop(watch.start("b"))
        watch.start("c")
        await asyncio.sleep(20.0)
        assert [call for call, _ in said] == ["a", "later", "c", "later", "later"]
        assert [at for _, at in said] == about([2.0, 2.0, 3.0, 4.0, 6.0])
        watch.start("after")
        watch.close()
        await asyncio.sleep(20.0)
        assert len(said) == 5

    play(main())


def test_the_watch_forgets_calls_that_are_over() -> None:
    async def main() -> None:
        for fraction in (0.0, 0.5):
            policy = HedgePolicy(fraction)
            for _ in range(32):
                policy.on_latency(1.0)
            watch = HedgeWatch(policy, lambda call: True)
            for _ in range(500):
                watch.stop(watch.start("x"))
                await asyncio.sleep(0.1)
            assert not watch._watched
            assert len(watch._order) < 50

    play(main())
