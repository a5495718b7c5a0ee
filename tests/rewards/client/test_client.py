"""The client in virtual time: who is asked how often, who waits for whom, who pays, and that nothing is left behind."""

from __future__ import annotations

import asyncio
import gc
import itertools
import logging
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from assay.errors import ConfigError
from assay.rewards import CallFailure, Client, EngineConfig, JudgeConfig, Reply, Usage
from assay.rewards.base import Outcome
from assay.transport.redaction import SHORTEST_SECRET
from support.scripted_judge import Asked, Said, ask, scripted_judge, settings
from support.scripted_pool import ScriptedPool, not_http, scripted_client, stale
from support.virtual_time import play

PRICED = JudgeConfig(
    base_url="http://judge.test/v1",
    api_key_env="",
    usd_per_million_prompt_tokens=1e4,
    usd_per_million_completion_tokens=1e5,
)
"""10 prompt and 2 completion tokens cost $0.30."""


def slow(delay_s: float, text: str = "1") -> Callable[[str, int], Said]:
    return lambda asked, nth: Said(text, delay_s=delay_s)


def clock() -> float:
    return asyncio.get_running_loop().time()


async def after(seconds: float, task: asyncio.Task[Any]) -> None:
    await asyncio.sleep(seconds)
    task.cancel()


def calling(client: Client, text: str, deadline_s: float | None = None, **changes: Any) -> asyncio.Task[Outcome]:
    deadline = None if deadline_s is None else clock() + deadline_s
    return asyncio.create_task(client.call(ask(text, **changes), deadline))


async def assert_at_rest(client: Client, pool: ScriptedPool) -> None:
    """Nothing is under way, reserved, waited for or watched."""
    for _ in range(5):
        await asyncio.sleep(0)
    assert (client._gate.in_flight, client._gate.waiting, pool.in_flight) == (0, 0, 0)
    assert not client._calls
    assert not client._tasks
    assert client._budget.idle
    assert client._budget.reserved_tokens == 0
    assert not client._watch._watched


def bill(*outcomes: Outcome) -> Usage:
    return sum((outcome.usage for outcome in outcomes), Usage())


def test_a_stored_reply_costs_nothing_and_a_forgotten_one_is_asked_again(tmp_path: Path) -> None:
    async def main() -> None:
        client, pool = scripted_client(lambda text, nth: str(nth), tmp_path)
        first, second = await client.call(ask("a")), await client.call(ask("a"))
        assert isinstance(first, Reply)
        assert isinstance(second, Reply)
        assert (first.text, first.cached, first.usage.calls) == ("0", False, 1)
        assert (second.text, second.cached, second.usage, second.model) == ("0", True, Usage(), "judge-2")
        await client.forget(ask("a"))
        third = await client.call(ask("a"))
        assert isinstance(third, Reply)
        assert (third.text, third.cached) == ("1", False)
        assert len(pool.asked) == 2
        assert (await client.counters())["cache_hits"] == 1
        await client.close()
        again, pool = scripted_client(lambda text, nth: "never", tmp_path)
        reply = await again.call(ask("a"), deadline=clock() - 1)
        assert isinstance(reply, Reply), "what is stored needs no time"
        assert reply.text == "1"
        assert not pool.asked
        await again.close()

    play(main())


def test_equal_calls_at_once_are_one_call_and_one_pays() -> None:
    async def main() -> None:
        client, pool = scripted_client(slow(1.0))
        outcomes = await asyncio.gather(*(client.call(ask("a")) for _ in range(10)))
        assert pool.asked == ["a"]
        assert {o.text for o in outcomes if isinstance(o, Reply)} == {"1"}
        assert bill(*outcomes) == Usage(1, 10, 2, 0.0)
        counters = await client.counters()
        assert (counters["calls"], counters["shared"], counters["attempts"], counters["answered"]) == (1, 9, 1, 1)
        await assert_at_rest(client, pool)

    play(main())


def test_what_determines_a_reply_parts_calls(tmp_path: Path) -> None:
    async def main() -> None:
        numbers = itertools.count()
        client, pool = scripted_client(lambda text, nth: Said(str(next(numbers)), delay_s=1.0), tmp_path)
        requests = [
            *(ask("a", replica=replica) for replica in range(4)),
            ask("a", version="2"),
            ask("a", model="judge-3"),
            ask("a", params={"temperature": 1.0}),
        ]
        for round_ in range(2):
            replies = await asyncio.gather(*(client.call(request) for request in requests))
            assert {r.text for r in replies if isinstance(r, Reply)} == {str(n) for n in range(7)}
            assert all(isinstance(r, Reply) and r.cached == bool(round_) for r in replies)
        assert len(pool.asked) == 7
        await client.close()

    play(main())


@pytest.mark.parametrize("leaves", [0, 1, 2])
def test_whoever_stops_waiting_leaves_the_call_to_the_others(leaves: int) -> None:
    async def main() -> None:
        client, pool = scripted_client(slow(1.0))
        tasks = [calling(client, "a") for _ in range(3)]
        await asyncio.sleep(0.5)
        tasks[leaves].cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert isinstance(results.pop(leaves), asyncio.CancelledError)
        assert all(isinstance(r, Reply) and r.text == "1" for r in results)
        assert bill(*results) == Usage(1, 10, 2, 0.0), "one of those who stayed pays"  # type: ignore[arg-type]
        assert pool.asked == ["a"]
        await assert_at_rest(client, pool)

    play(main())


@pytest.mark.parametrize("at", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("holds", [1, 10])
def test_a_call_that_nobody_waits_for_is_cancelled(at: float, holds: int) -> None:
    async def main() -> None:
        client, pool = scripted_client(slow(1.0), start_in_flight=holds)
        tasks = [calling(client, text) for text in ("a", "a", "b", "b", "c")]
        await asyncio.sleep(at)
        for task in tasks:
            task.cancel()
        again = calling(client, "a")
        assert isinstance(await again, Reply)
        await asyncio.gather(*tasks, return_exceptions=True)
        assert pool.asked.count("a") <= 2
        await assert_at_rest(client, pool)

    play(main())


def test_a_deadline_ends_the_waiting_of_one_and_not_the_call_of_others() -> None:
    async def main() -> None:
        client, pool = scripted_client(slow(1.0))
        hasty, patient = calling(client, "a", deadline_s=0.5), calling(client, "a")
        outcome = await hasty
        assert isinstance(outcome, CallFailure)
        assert (outcome.kind, outcome.usage) == ("deadline", Usage())
        assert bill(await patient).calls == 1
        assert isinstance(await client.call(ask("b"), clock() + 0.5), CallFailure)
        assert isinstance(await client.call(ask("c"), clock()), CallFailure)
        assert pool.asked == ["a", "b"]
        await assert_at_rest(client, pool)

    play(main())


@pytest.mark.parametrize(
    "trouble",
    [429, 500, 502, 503, 408, Said(end="reset"), Said(raw=b"<html>"), Said(end="hang"), not_http()],
    ids=["429", "500", "502", "503", "408", "reset", "html", "hang", "no http"],
)
def test_what_may_pass_is_asked_again(trouble: Any) -> None:
    async def main() -> None:
        client, pool = scripted_client(lambda text, nth: "1" if nth == 3 else trouble, attempt_timeout_s=5.0)
        reply = await client.call(ask("a"))
        assert isinstance(reply, Reply)
        assert (reply.attempts, reply.usage.calls, len(pool.asked)) == (4, 1, 4)
        assert reply.latency_s > 0.2
        await assert_at_rest(client, pool)

    play(main())


@pytest.mark.parametrize(
    ("refusal", "kind"),
    [
        (Said("bad", 400), "bad_request"),
        (Said("none", 404, code="model_not_found"), "unknown_model"),
        (Said("who", 401), "auth"),
        (Said("quota", 429, code="insufficient_quota"), "quota"),
    ],
)
def test_what_will_not_pass_is_asked_once(refusal: Said, kind: str) -> None:
    async def main() -> None:
        client, pool = scripted_client(lambda text, nth: refusal)
        outcomes = await asyncio.gather(*(client.call(ask("a")) for _ in range(3)))
        assert [o.kind for o in outcomes if isinstance(o, CallFailure)] == [kind] * 3
        assert refusal.text in outcomes[0].message  # type: ignore[union-attr]
        assert len(pool.asked) == 1
        assert (await client.counters())["failures"] == 1
        await assert_at_rest(client, pool)

    play(main())


def test_failures_are_never_stored(tmp_path: Path) -> None:
    async def main() -> None:
        client, pool = scripted_client(lambda text, nth: "1" if nth else 400, tmp_path)
        assert isinstance(await client.call(ask("a")), CallFailure)
        assert isinstance(await client.call(ask("a")), Reply)
        assert len(pool.asked) == 2
        await client.close()

    play(main())


def test_a_stale_connection_costs_no_attempt() -> None:
    async def main() -> None:
        client, pool = scripted_client(lambda text, nth: "1" if nth else stale())
        reply = await client.call(ask("a"))
        assert isinstance(reply, Reply)
        assert (reply.attempts, len(pool.asked)) == (1, 2)
        client, pool = scripted_client(lambda text, nth: stale() if nth < 4 else "1")
        reply = await client.call(ask("a"))
        assert isinstance(reply, Reply)
        assert (reply.attempts, len(pool.asked)) == (3, 5)

    play(main())


def test_a_key_that_has_worked_is_doubted_only_after_several_refusals() -> None:
    async def main() -> None:
        client, pool = scripted_client(lambda text, nth: 401 if text == "a" and nth < 2 else "1")
        await client.call(ask("first"))
        assert isinstance(await client.call(ask("a")), Reply)
        pool.script = lambda text, nth: 401
        outcome = await client.call(ask("b"))
        assert isinstance(outcome, CallFailure)
        assert (outcome.kind, outcome.attempts) == ("auth", 3)

    play(main())


def test_a_filter_that_refuses_one_prompt_is_no_wrong_key() -> None:
    """A gateway's 403 for what a prompt contains must not end the batch as a refused key does."""

    async def main() -> None:
        client, _ = scripted_client(lambda text, nth: 403 if text == "../../etc" else Said(delay_s=0.05))
        await client.call(ask("first"))
        outcomes = await asyncio.gather(*(client.call(ask(t)) for t in ("a", "../../etc", *map(str, range(60)))))
        assert [o.kind for o in outcomes if isinstance(o, CallFailure)] == ["bad_request"]

    play(main())


def test_a_call_is_given_up_after_its_deadline() -> None:
    async def main() -> None:
        client, pool = scripted_client(lambda text, nth: 500, call_deadline_s=60.0)
        started = clock()
        outcome = await client.call(ask("a"))
        assert isinstance(outcome, CallFailure)
        assert outcome.kind == "server"
        assert "call_deadline_s=60 s" in outcome.message
        assert "out of order" in outcome.message
        assert 45 < clock() - started <= 60
        assert outcome.attempts == len(pool.asked) > 8
        await assert_at_rest(client, pool)

    play(main())


def test_waiting_for_a_turn_is_no_reason_to_give_up() -> None:
    """At one request a second, and every first one refused, the last of 40 calls is sent after its deadline."""

    async def main() -> None:
        client, pool = scripted_client(
            lambda text, nth: Said(delay_s=0.1) if nth else 500, requests_per_minute=60, call_deadline_s=20.0
        )
        outcomes = await asyncio.gather(*(client.call(ask(str(n))) for n in range(40)))
        assert all(isinstance(o, Reply) for o in outcomes)
        assert len(pool.asked) == 80

    play(main())


def test_an_outage_ends_all_calls_soon_after_their_deadline() -> None:
    async def main() -> None:
        client, _ = scripted_client(lambda text, nth: Said(end="reset"), start_in_flight=4, call_deadline_s=60.0)
        started = clock()
        outcomes = await asyncio.gather(*(client.call(ask(str(n))) for n in range(40)))
        assert all(isinstance(o, CallFailure) and o.kind == "connection" for o in outcomes)
        assert clock() - started < 60 + 40 / 4 * 8 + 10

    play(main())


def test_a_request_that_is_no_json_is_refused_before_it_is_sent() -> None:
    async def main() -> None:
        client, pool = scripted_client(lambda text, nth: "1")
        loop: list[Any] = []
        loop.append(loop)
        for bad in ({"x": {1}}, {"x": loop}, {"x": b"1"}):
            outcome = await client.call(ask("a", params=bad))
            assert isinstance(outcome, CallFailure)
            assert outcome.kind == "bad_request"
        assert not pool.asked

    play(main())


def test_a_fault_of_our_own_reaches_everybody_who_waits() -> None:
    async def main() -> None:
        client, pool = scripted_client(lambda text, nth: ZeroDivisionError("a bug"))
        results = await asyncio.gather(*(client.call(ask("a")) for _ in range(3)), return_exceptions=True)
        assert [type(r) for r in results] == [ZeroDivisionError] * 3
        await assert_at_rest(client, pool)

    play(main())


def test_closing_ends_everything_under_way(tmp_path: Path) -> None:
    async def main() -> None:
        client, pool = scripted_client(warm(Said(end="hang")), tmp_path, start_in_flight=4)
        await warmed(client)
        tasks = [calling(client, text) for text in "aabcdefg"]
        await asyncio.sleep(5.0)  # some hang, some of them with a hedge, some wait for their turn
        await client.close()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(r, asyncio.CancelledError) for r in results)
        await assert_at_rest(client, pool)
        assert pool.closed
        await client.close()

    play(main())


WARM = 64


def warm(late: Said | Callable[[str, int], Any]) -> Callable[[str, int], Any]:
    """A script whose first calls take a second each, so that later ones are late after two."""

    def script(text: str, nth: int) -> Any:
        if text.startswith("warm"):
            return Said(delay_s=1.0)
        return late(text, nth) if callable(late) else late

    return script


async def warmed(client: Client) -> None:
    await asyncio.gather(*(client.call(ask(f"warm {n}")) for n in range(WARM)))
    assert client._watch.policy.delay_s == pytest.approx(2.0, rel=0.01)


def hedged(first: Any, second: Any, **config: Any) -> tuple[Outcome, dict[str, float], list[str]]:
    """The outcome of a call whose first and second attempt go as told, what it added to the counters, and the asked."""

    async def main() -> tuple[Outcome, dict[str, float], list[str]]:
        client, pool = scripted_client(warm(lambda text, nth: (first, second, "third")[min(nth, 2)]), **config)
        await warmed(client)
        before, spent = await client.counters(), client._budget.spent_tokens
        outcome = await client.call(ask("late"))
        await assert_at_rest(client, pool)
        counters = {name: value - before[name] for name, value in (await client.counters()).items()}
        assert pool.asked.count("late") == counters["attempts"]
        billed = counters["prompt_tokens"] + counters["completion_tokens"]
        assert client._budget.spent_tokens - spent >= billed, "what was given up counts too"
        assert counters["prompt_tokens"] == outcome.usage.prompt_tokens
        return outcome, counters, pool.asked[WARM:]

    return play(main())


def test_a_late_call_is_sent_again_and_the_first_answer_taken() -> None:
    outcome, counters, asked = hedged(Said("slow", delay_s=50.0), Said("quick", delay_s=1.0))
    assert isinstance(outcome, Reply)
    assert (outcome.text, outcome.attempts, outcome.usage.calls) == ("quick", 2, 1)
    assert outcome.latency_s == pytest.approx(3.0, rel=0.05)
    assert (counters["hedges"], counters["hedges_won"], counters["answered"], counters["calls"]) == (1, 1, 1, 1)
    assert asked == ["late", "late"]


def test_a_call_that_is_answered_after_all_ends_its_hedge() -> None:
    outcome, counters, _ = hedged(Said("slow", delay_s=2.5), Said("quick", delay_s=50.0))
    assert isinstance(outcome, Reply)
    assert (outcome.text, outcome.attempts, outcome.usage.calls) == ("slow", 2, 1)
    assert (counters["hedges"], counters["hedges_won"], counters["answered"]) == (1, 0, 1)


@pytest.mark.parametrize("trouble", [500, 429, 400, 401, Said(end="reset"), Said(raw=b"?")])
def test_a_hedge_saves_a_call_that_fails(trouble: Any) -> None:
    trouble = replace(trouble if isinstance(trouble, Said) else Said("no", trouble), delay_s=2.5)
    outcome, counters, _ = hedged(trouble, Said("quick", delay_s=1.0))
    assert isinstance(outcome, Reply)
    assert (outcome.text, outcome.attempts, outcome.usage.calls) == ("quick", 2, 1)
    assert counters["hedges_won"] == 1


def test_where_both_fail_the_call_goes_on_as_ever() -> None:
    outcome, counters, _ = hedged(Said("no", 500, delay_s=2.5), Said("no", 400, delay_s=1.0))
    assert isinstance(outcome, Reply)
    assert (outcome.text, outcome.attempts) == ("third", 3)
    assert (counters["hedges"], counters["hedges_won"]) == (1, 0)


def test_answers_at_the_same_time_are_both_billed() -> None:
    for delay_s in (0.99, 1.0, 1.01):
        outcome, counters, _ = hedged(Said("slow", delay_s=3.0), Said("quick", delay_s=delay_s))
        assert isinstance(outcome, Reply)
        assert outcome.usage.calls == counters["answered"] in (1, 2)


@pytest.mark.parametrize("stored", [False, True])
def test_a_hedged_call_can_be_cancelled_at_any_moment(stored: bool, tmp_path: Path) -> None:
    """The moments are those around each event: the hedge starts at 2, both answers come at about 3."""

    async def main() -> None:
        client, pool = scripted_client(
            warm(lambda text, nth: Said(delay_s=1.0 if nth else 3.0)), tmp_path if stored else None, hedge_fraction=0.5
        )
        await warmed(client)
        moments = [2.0, 3.0, *(3.0 + n * 5e-7 for n in range(-20, 20)), *(2.0 + n * 5e-7 for n in range(-10, 20))]
        for number, moment in enumerate(moments):
            before = await client.counters()
            task = calling(client, f"late {number}")
            await after(moment, task)
            (result,) = await asyncio.gather(task, return_exceptions=True)
            assert isinstance(result, Reply | asyncio.CancelledError)
            await assert_at_rest(client, pool)
            if isinstance(result, Reply):
                assert result.usage.calls == (await client.counters())["answered"] - before["answered"]
        assert client._usage.calls == sum(pool.answered.values())
        await client.close()

    play(main())


def test_hedges_stay_within_their_share() -> None:
    async def main() -> None:
        client, pool = scripted_client(warm(Said("late", delay_s=30.0)), hedge_fraction=0.02, start_in_flight=200)
        await warmed(client)
        await asyncio.gather(*(client.call(ask(f"late {n}")) for n in range(100)))
        counters = await client.counters()
        assert 1 <= counters["hedges"] <= 0.02 * counters["attempts"]
        assert counters["attempts"] == len(pool.asked) == WARM + 100 + counters["hedges"]
        await assert_at_rest(client, pool)

    play(main())


@pytest.mark.parametrize("why", ["fraction", "short of room", "budget"])
def test_no_hedge_is_sent_where_there_is_no_room_for_one(why: str) -> None:
    async def main() -> None:
        settings = {"hedge_fraction": 0.0} if why == "fraction" else {}
        client, pool = scripted_client(warm(Said(delay_s=10.0)), **settings)
        await asyncio.gather(*(client.call(ask(f"warm {n}")) for n in range(WARM)))
        if why == "short of room":
            client._gate.limit.on_refusal(clock(), clock())
            client._gate.limit.round_trip_s = 100.0
        if why == "budget":  # enough for the call, and not for a second one beside it
            late = client._new_call(ask("late"), ask("late").body(), "")
            client._budget.tokens = client._budget.spent_tokens + late.tokens * 3 // 2
        assert isinstance(await client.call(ask("late")), Reply)
        assert pool.asked[WARM:] == ["late"]
        await assert_at_rest(client, pool)

    play(main())


@pytest.mark.parametrize("tokens", [(10, 2), None], ids=["told", "not told"])
def test_a_budget_of_tokens_is_used_and_not_overshot(tokens: tuple[int, int] | None) -> None:
    async def main() -> None:
        client, pool = scripted_client(lambda text, nth: Said(tokens=tokens, delay_s=1.0), budget_tokens=1000)
        outcomes = await asyncio.gather(*(client.call(ask(f"{n:04}")) for n in range(200)))
        failed = [o for o in outcomes if isinstance(o, CallFailure)]
        assert {o.kind for o in failed} == {"budget"}
        assert "of 1000 tokens" in failed[0].message
        assert 900 <= client._budget.spent_tokens <= 1000
        assert len(pool.asked) == 200 - len(failed)
        await assert_at_rest(client, pool)

    play(main())


def test_a_budget_of_money_is_used_and_not_overshot() -> None:
    async def main() -> None:
        client, pool = scripted_client(slow(1.0), judge=PRICED, budget_usd=10.0)
        outcomes = await asyncio.gather(*(client.call(ask(f"{n:04}")) for n in range(60)))
        assert 9.0 <= client._budget.spent_usd <= 10.0
        assert bill(*outcomes).usd == pytest.approx(client._budget.spent_usd)
        assert any(isinstance(o, CallFailure) and "$" in o.message and "of $10.0000" in o.message for o in outcomes)
        await assert_at_rest(client, pool)

    play(main())


def test_a_reply_without_a_bound_is_taken_to_be_as_long_as_the_settings_say() -> None:
    async def main() -> None:
        judge = JudgeConfig(base_url="http://judge.test/v1", api_key_env="", max_tokens=500)
        client, _ = scripted_client(lambda text, nth: "1", judge=judge, budget_tokens=500)
        assert isinstance(await client.call(ask("a", params={"max_tokens": 10})), Reply)
        assert isinstance(await client.call(ask("b", params={})), CallFailure)
        assert isinstance(await client.call(ask("c", params={"max_tokens": 10})), CallFailure), "spent is spent"

    play(main())


def test_attempts_that_are_given_up_count_with_their_estimate() -> None:
    async def main() -> None:
        client, pool = scripted_client(slow(100.0), attempt_timeout_s=10.0, call_deadline_s=35.0, budget_tokens=10_000)
        assert isinstance(await client.call(ask("a")), CallFailure)
        timed_out = client._budget.spent_tokens
        assert len(pool.asked) > 1 and timed_out > 0
        await asyncio.gather(calling(client, "b", deadline_s=1.0))
        await assert_at_rest(client, pool)
        assert client._budget.spent_tokens == pytest.approx(timed_out * (1 + 1 / (len(pool.asked) - 1)), rel=0.01)

    play(main())


def test_refused_attempts_cost_nothing() -> None:
    async def main() -> None:
        refusals = lambda text, nth: Said(status=429) if nth < 3 else "1"  # noqa: E731
        client, _ = scripted_client(refusals, budget_tokens=10_000)
        assert isinstance(await client.call(ask("a")), Reply)
        assert client._budget.spent_tokens == 12

    play(main())


def test_an_endpoint_that_only_ever_talks_nonsense_is_no_judge() -> None:
    async def main() -> None:
        client, pool = scripted_client(lambda text, nth: Said(body="<html>hello</html>"))
        outcomes = await asyncio.gather(*(client.call(ask(f"{n}")) for n in range(30)))
        assert {o.kind for o in outcomes if isinstance(o, CallFailure)} == {"not_a_judge"}
        assert len(pool.asked) <= 60
        await assert_at_rest(client, pool)

    play(main())


def test_a_judge_that_talks_nonsense_now_and_then_is_asked_again() -> None:
    async def main() -> None:
        client, _ = scripted_client(lambda text, nth: "1" if text == "0" or nth > 3 else Said(body="<html>"))
        outcomes = await asyncio.gather(*(client.call(ask(f"{n}")) for n in range(30)))
        assert all(isinstance(o, Reply) for o in outcomes)

    play(main())


def test_spending_elsewhere_counts() -> None:
    async def main() -> None:
        client, _ = scripted_client(lambda text, nth: "1", budget_tokens=1000)
        client.add_spent(Usage(5, 900, 90, 1.0))
        outcome = await client.call(ask("a"))
        assert isinstance(outcome, CallFailure)
        assert outcome.kind == "budget"

    play(main())


def test_a_budget_of_money_needs_prices() -> None:
    with pytest.raises(ConfigError, match="usd_per_million_prompt_tokens"):
        scripted_client(lambda text, nth: "1", budget_usd=1.0)


def test_a_cache_that_raises_keeps_nobody_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        client, _ = scripted_client(slow(1.0), tmp_path)
        assert client._cache is not None
        monkeypatch.setattr(client._cache._store, "put", lambda rows: 1 / 0)
        told: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(context))
        replies = await asyncio.gather(*(client.call(ask(text)) for text in "abc"))
        assert all(isinstance(r, Reply) for r in replies)
        assert [type(context["exception"]) for context in told] == [ZeroDivisionError]

    play(main())


@pytest.mark.parametrize("seed", range(8))
def test_no_order_of_faults_and_cancellations_leaves_anything_behind(seed: int, tmp_path: Path) -> None:
    """Hundreds of calls under random faults, latencies, limits, cancellations, deadlines and hedges."""
    rng = random.Random(seed)
    faulty = rng.choice([0.0, 0.1, 0.4])

    def script(text: str, nth: int) -> Any:
        if rng.random() < faulty:
            trouble = rng.choice(
                [429, 429, 500, 503, 400, Said(end="reset"), Said(raw=b"?"), Said(end="hang"), stale()]
            )
            trouble = Said("x", trouble) if isinstance(trouble, int) else trouble
            return replace(trouble, delay_s=rng.choice([0.0, 0.1, 3.0])) if isinstance(trouble, Said) else trouble
        told = {"x-ratelimit-limit-requests": "9000", "x-ratelimit-remaining-requests": str(rng.randint(0, 9000))}
        return Said(delay_s=rng.choice([0.0, 0.2, 0.2, 0.2, 9.0]), headers=told if rng.random() < 0.1 else {})

    async def main() -> None:
        client, pool = scripted_client(
            script,
            tmp_path if rng.random() < 0.5 else None,
            start_in_flight=rng.choice([1, 8, 60]),
            max_in_flight=60,
            hedge_fraction=rng.choice([0.0, 0.2]),
            attempt_timeout_s=5.0,
            call_deadline_s=60.0,
            budget_tokens=rng.choice([None, 100_000, 3000]),
            tokens_per_minute=rng.choice([None, 60_000]),
        )
        tasks: list[asyncio.Task[Outcome]] = []
        for _ in range(200):
            deadline_s = rng.choice([None, None, None, 0.1, 2.0])
            tasks.append(calling(client, str(rng.randint(0, 200)), deadline_s, replica=rng.randint(0, 1)))
            if rng.random() < 0.2:
                await asyncio.sleep(rng.choice([0.0, 0.0, 0.1, 1.0]))
            for task in rng.sample(tasks, min(len(tasks), rng.choice([0, 0, 0, 1, 8]))):
                task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(r, Reply | CallFailure | asyncio.CancelledError) for r in results), results
        await assert_at_rest(client, pool)
        counters = await client.counters()
        outcomes = [r for r in results if isinstance(r, Reply | CallFailure)]
        assert client._usage.calls == counters["answered"] <= sum(pool.answered.values())
        assert bill(*outcomes).calls <= counters["answered"]
        assert counters["hedges"] <= client._config.hedge_fraction * counters["attempts"]
        assert counters["attempts"] <= len(pool.asked)
        assert pool.most_in_flight <= 60
        if client._budget.tokens is not None:
            assert client._budget.spent_tokens <= client._budget.tokens
        await client.close()

    play(main())


KEY = 'sk-proj-A1/b2+C3"d4-e5_f6'
"""Has what JSON escapes, too."""
assert len(KEY) >= SHORTEST_SECRET


def echo(asked: Asked) -> Said:
    """Says the key wherever a server can."""
    key = asked.head.partition("Authorization: Bearer ")[2].split("\r\n")[0]
    if asked.text == "reply":
        return Said(f"your key is {key}")
    if asked.text == "model":
        return Said(body={"choices": [{"message": {"content": "1"}, "finish_reason": key}], "model": key})
    if asked.text == "malformed":
        return Said(body={"nothing": key})
    if asked.text == "plain":
        head = f"HTTP/1.1 500 No\r\nX-Key: {key}\r\nContent-Length: {len(key)}\r\n\r\n"
        return Said(status=500, raw=f"{head}{key}".encode())
    if asked.text == "no http":
        return Said(raw=key.encode() + b"\r\n\r\n", end="close")
    padding = int(asked.text)
    return Said("p" * padding + key, 500)


def test_the_key_gets_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("SOME_KEY", KEY)
    caplog.set_level(logging.DEBUG)
    texts = ["reply", "model", "malformed", "plain", "no http", *(str(n) for n in range(270, 305, 3))]

    async def main() -> list[Any]:
        with scripted_judge(echo) as judge:
            config = settings(cache=True, call_deadline_s=0.05)
            client = Client(judge.config(api_key_env="SOME_KEY"), config, tmp_path)
            outcomes = await asyncio.gather(*(client.call(ask(text)) for text in texts))
            shown = [*outcomes, client, client._pool._route, await client.counters(), vars(client._gate)]
            await client.close()
            return shown

    shown = asyncio.run(main(), debug=True)
    assert isinstance(shown[0], Reply)
    assert shown[0].text == "your key is [API key]"
    assert sum(isinstance(outcome, CallFailure) for outcome in shown) == len(texts) - 2
    everything = [repr(part) for part in shown]
    everything += [record.getMessage() + str(record.exc_info) for record in caplog.records]
    everything += [path.read_bytes().decode("latin-1") for path in tmp_path.iterdir()]
    assert len(everything) > 20
    for text in everything:
        for start in range(len(KEY) - 8):
            assert KEY[start : start + 8] not in text
    gc.collect()


def test_a_placeholder_for_a_key_is_left_in_replies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", "EMPTY")

    async def main() -> None:
        judge = JudgeConfig(base_url="http://judge.test/v1", api_key_env="SOME_KEY")
        client, _ = scripted_client(lambda text, nth: "the room is EMPTY", judge=judge)
        reply = await client.call(ask("a"))
        assert isinstance(reply, Reply)
        assert reply.text == "the room is EMPTY"

    play(main())


@pytest.mark.parametrize(
    ("value", "message"),
    [(None, "SOME_KEY is not set"), ("  ", "SOME_KEY is not set"), ("a\nb", "cannot be in an API key")],
)
def test_a_key_that_cannot_be_one_is_refused(value: str | None, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SOME_KEY", raising=False)
    if value is not None:
        monkeypatch.setenv("SOME_KEY", value)
    with pytest.raises(ConfigError, match=message) as caught:
        Client(JudgeConfig(base_url="http://judge.test/v1", api_key_env="SOME_KEY"), EngineConfig(cache=False))
    assert value is None or not value.strip() or value not in str(caught.value)


def test_credentials_in_the_url_are_refused() -> None:
    with pytest.raises(ConfigError, match="base_url holds") as caught:
        JudgeConfig(base_url="https://me:pass-word@judge.test/v1")
    assert "pass-word" not in str(caught.value)


def test_a_limit_of_open_files_below_the_start_is_the_limit(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("assay.rewards.client.resources.allow_open_files", lambda wanted: 74)

    async def main() -> None:
        client, pool = scripted_client(slow(1.0), start_in_flight=60)
        await asyncio.gather(*(client.call(ask(str(n))) for n in range(100)))
        assert pool.most_in_flight == 10

    play(main())
    assert "Using 10" in caplog.text
