"""The limits as pure state machines, on a clock that the test turns: convergence, rates, budgets, hedges."""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.rewards.client.limits import (
    DEEPEST_CUT,
    ENOUGH_LATENCIES,
    REFRESH,
    SHORTEST_HEDGE_S,
    Bucket,
    Budget,
    HedgePolicy,
    InFlightLimit,
    per_minute,
    quantile,
)
from assay.transport.waits import MAX_BACKOFF_S, backoff_s

Limit = Callable[[float], int]
"""Time -> calls that the judge holds."""


@dataclass
class Simulation:
    """A client that always has calls to make, and a judge that holds so many at once; both in simulated time.

    As the gate does, nothing starts after a refusal until a call is answered or a pause is over.
    """

    limit: InFlightLimit
    holds: Limit
    latency: Callable[[random.Random], float]
    refusal_s: float = 0.0
    fails: float = 0.0
    """Share of accepted calls that end in a failure that says nothing of the load."""
    now: float = 0.0
    in_flight: int = 0
    held: int = 0
    answered: int = 0
    refused: int = 0
    paused_until: float = 0.0
    area: float = 0.0
    """Integral of the limit over time."""
    rng: random.Random = field(default_factory=lambda: random.Random(0))
    ends: list[tuple[float, int, float, str]] = field(default_factory=list)
    numbers: itertools.count[int] = field(default_factory=itertools.count)

    def run(self, until: float) -> Simulation:
        self.start()
        while self.ends[0][0] < until if self.ends else self.paused_until < until:
            if self.ends and (self.ends[0][0] <= self.paused_until or self.paused_until <= self.now):
                self.advance(self.ends[0][0])
                _, _, started, how = heapq.heappop(self.ends)
                self.end(started, how)
            else:
                self.advance(self.paused_until)
            self.start()
        return self

    def advance(self, to: float) -> None:
        self.area += self.limit.limit * (to - self.now)
        self.now = to

    def start(self) -> None:
        while self.now >= self.paused_until and self.limit.admits(self.in_flight):
            self.in_flight += 1
            if self.held >= self.holds(self.now):
                end, how = self.now + self.refusal_s, "refused"
            else:
                self.held += 1
                end, how = self.now + self.latency(self.rng), "failed" if self.rng.random() < self.fails else "answered"
            heapq.heappush(self.ends, (end, next(self.numbers), self.now, how))
            if how == "refused" and not self.refusal_s:
                return  # its refusal comes before anything else is sent

    def end(self, started: float, how: str) -> None:
        if how == "answered":
            self.limit.on_success(self.now, started, self.in_flight)
            self.answered += 1
            self.paused_until = 0.0
        elif how == "failed":
            self.limit.on_failure(self.now, started)
        else:
            self.refused += 1
            self.limit.on_refusal(self.now, started)
            self.paused_until = self.now + 0.1
        self.held -= how != "refused"
        self.in_flight -= 1

    def mean_over(self, seconds: float) -> tuple[float, float]:
        """Mean limit, and answers a second, over the next `seconds`."""
        area, answered, start = self.area, self.answered, self.now
        self.run(self.now + seconds)
        return (self.area - area) / (self.now - start), (self.answered - answered) / (self.now - start)


def steady(seconds: float) -> Callable[[random.Random], float]:
    return lambda rng: seconds * rng.uniform(0.9, 1.1)


def long_tailed(seconds: float) -> Callable[[random.Random], float]:
    return lambda rng: seconds * rng.lognormvariate(0.0, 0.5)


@pytest.mark.parametrize("refusal_s", [0.002, 0.05, 0.5])
@pytest.mark.parametrize(
    ("latency", "mean_s"), [(steady(1.0), 1.0), (long_tailed(1.0), math.exp(0.125))], ids=["steady", "long tail"]
)
@pytest.mark.parametrize(("start", "holds"), [(60, 20), (60, 80), (10, 150)])
def test_it_settles_near_what_the_judge_holds(
    start: int, holds: int, latency: Callable[[random.Random], float], mean_s: float, refusal_s: float
) -> None:
    simulation = Simulation(InFlightLimit(start, 256), lambda now: holds, latency, refusal_s).run(25.0)
    limit, rate = simulation.mean_over(25.0)
    assert 0.9 * holds <= limit <= 1.1 * holds
    assert rate >= 0.9 * holds / mean_s


@pytest.mark.parametrize(("before", "after"), [(100, 40), (40, 100), (200, 20)])
def test_it_follows_a_judge_that_moves(before: int, after: int) -> None:
    simulation = Simulation(InFlightLimit(60, 256), lambda now: before if now < 20 else after, steady(1.0), 0.01)
    simulation.run(40.0)
    limit, rate = simulation.mean_over(20.0)
    assert 0.9 * after <= limit <= 1.1 * after
    assert rate >= 0.9 * after


def test_it_climbs_to_its_ceiling_where_nothing_is_refused() -> None:
    simulation = Simulation(InFlightLimit(60, 256), lambda now: 10_000, steady(1.0)).run(10.0)
    assert simulation.limit.limit == 256


def test_it_does_not_climb_beyond_what_is_used() -> None:
    limit = InFlightLimit(60, 256)
    for number in range(1000):
        limit.on_success(1.0 + number / 100, number / 100, in_flight=30)
    assert limit.limit == 60


def test_rare_failures_are_accidents_and_many_are_an_overload() -> None:
    rare = Simulation(InFlightLimit(60, 60), lambda now: 100, steady(1.0), fails=0.02).run(30.0)
    assert rare.limit.cuts == 0
    many = Simulation(InFlightLimit(60, 60), lambda now: 100, steady(1.0), fails=0.5).run(30.0)
    assert many.limit.limit < 30


def test_a_fixed_limit_stays_where_it_is() -> None:
    simulation = Simulation(InFlightLimit(60, 256, adaptive=False), lambda now: 20, steady(1.0), 0.01).run(10.0)
    assert simulation.limit.limit == 60
    assert simulation.limit.cuts == 0


Event = tuple[str, float, float]
EVENTS = st.lists(
    st.tuples(st.sampled_from(["success", "refusal", "failure"]), st.floats(0, 2), st.floats(0, 3)), max_size=150
)


@settings(max_examples=60, deadline=None)
@given(EVENTS, st.integers(1, 300), st.integers(1, 200), st.booleans())
def test_no_history_leads_out_of_bounds(events: list[Event], start: int, ceiling: int, adaptive: bool) -> None:
    limit = InFlightLimit(start, ceiling, adaptive)
    assert 1 <= limit.limit <= ceiling
    now = 0.0
    for what, passed, age in events:
        now += passed
        if what == "success":
            limit.on_success(now, now - age, in_flight=max(1, int(limit.limit)))
        elif what == "refusal":
            limit.on_refusal(now, now - age)
        else:
            limit.on_failure(now, now - age)
        assert 1 <= limit.limit <= ceiling
        assert limit.admits(0)
        assert not limit.admits(ceiling)


@settings(max_examples=60, deadline=None)
@given(EVENTS, st.floats(0.1, 3.0))
def test_one_round_trip_sees_one_cut_and_loses_at_most_half(events: list[Event], round_trip_s: float) -> None:
    """Refusals of calls that were sent before the last cut, or within a round trip of it, are the same trouble."""
    limit = InFlightLimit(200, 256)
    limit.round_trip_s = round_trip_s
    now, cut_at, before = 0.0, -math.inf, 200.0
    for what, passed, age in events:
        if what != "refusal":
            continue
        now += passed
        cuts, level = limit.cuts, limit.limit
        limit.on_refusal(now, now - age)
        if limit.cuts > cuts:
            assert now - cut_at >= round_trip_s
            assert now - age >= cut_at
            assert limit.limit >= max(1.0, 0.95 * level) or limit.limit == pytest.approx(max(1, level - 1))
            cut_at, before = now, level
        else:
            assert limit.limit >= level - 1
        assert limit.limit >= max(1.0, DEEPEST_CUT * before)


@settings(max_examples=50, deadline=None)
@given(
    st.floats(0.5, 500),
    st.floats(1, 200),
    st.lists(st.tuples(st.floats(0, 2), st.floats(0.1, 300)), min_size=1, max_size=60),
)
def test_a_bucket_never_exceeds_its_rate(rate: float, capacity: float, wishes: list[tuple[float, float]]) -> None:
    """Over any stretch of time no more starts than flows in, plus what the bucket holds, plus the last wish."""
    bucket = Bucket(rate, capacity)
    now, taken = 0.0, []
    for pause, amount in wishes:
        now += pause
        while (wait := bucket.wait_s(now, amount)) > 0:
            now += wait + 1e-9
        bucket.take(now, amount)
        taken.append((now, amount))
    for first, (start, _) in enumerate(taken):
        total = 0.0
        for at, amount in taken[first:]:
            assert total <= capacity + rate * (at - start) + 1e-3
            total += amount


def test_a_bucket_lets_what_is_larger_than_it_pass_in_debt() -> None:
    bucket = per_minute(60)
    assert bucket.wait_s(0.0, 30) == 0
    bucket.take(0.0, 30)
    assert bucket.wait_s(0.0, 1) == pytest.approx(30)
    assert bucket.wait_s(29.0, 30) == pytest.approx(1)


def test_a_bucket_heeds_the_provider_and_forgets_no_refund() -> None:
    bucket = Bucket(rate=10, capacity=600)
    bucket.cap(0.0, 3)
    assert bucket.wait_s(0.0, 4) == pytest.approx(0.1)
    bucket.cap(0.0, 500)
    assert bucket.level == 3, "a hint that there is more left never adds"
    bucket.take(0.0, -5)
    assert bucket.level == 8
    bucket.take(0.0, -5000)
    assert bucket.level == 600


def test_a_bucket_survives_a_clock_that_stands_still_or_steps_back() -> None:
    bucket = per_minute(600)
    bucket.take(100.0, 10)
    for now in (100.0, 50.0, 0.0):
        assert bucket.wait_s(now, 10) == pytest.approx(1.0)
    assert bucket.wait_s(101.0, 10) == 0


@settings(max_examples=60, deadline=None)
@given(
    st.floats(0.01, 5),
    st.integers(10, 5000),
    st.lists(st.tuples(st.floats(0, 1), st.integers(0, 900), st.floats(0, 1), st.integers(0, 5)), max_size=80),
)
def test_a_budget_is_never_overshot(usd: float, tokens: int, calls: list[tuple[float, int, float, int]]) -> None:
    """Calls reserve, end in any order, and cost at most what they reserved."""
    budget = Budget(usd, tokens)
    held: deque[tuple[float, int, float]] = deque()
    for cost, amount, share, ends in calls:
        if budget.reserve(cost, amount):
            held.append((cost, amount, share))
        for _ in range(min(ends, len(held))):
            reserved_usd, reserved_tokens, spent = held.popleft()
            budget.spend(reserved_usd * spent, int(reserved_tokens * spent))
            budget.release(reserved_usd, reserved_tokens)
        assert budget.spent_usd + budget.reserved_usd <= usd + 1e-9
        assert budget.spent_tokens + budget.reserved_tokens <= tokens
        assert budget.idle == (not held)
    while held:
        reserved_usd, reserved_tokens, _ = held.popleft()
        budget.release(reserved_usd, reserved_tokens)
    assert budget.idle
    assert budget.reserved_tokens == 0
    assert budget.reserved_usd == pytest.approx(0, abs=1e-9)


def test_no_budget_has_no_end() -> None:
    budget = Budget()
    assert all(budget.reserve(1e9, 10**9) for _ in range(10))


@settings(max_examples=60, deadline=None)
@given(st.floats(0, 0.5), st.lists(st.booleans(), max_size=400))
def test_hedges_are_capped(fraction: float, steps: list[bool]) -> None:
    policy = HedgePolicy(fraction)
    allowed = 0
    for is_call in steps:
        if is_call:
            policy.on_call()
        elif policy.allows():
            allowed += 1
        assert allowed <= fraction * policy.calls
    assert allowed == policy.hedges


def test_a_hedge_is_due_far_beyond_what_calls_take() -> None:
    policy = HedgePolicy(0.05)
    for _ in range(ENOUGH_LATENCIES - 1):
        policy.on_latency(1.0)
    assert policy.delay_s == math.inf
    for _ in range(REFRESH):
        policy.on_latency(1.0)
    assert policy.delay_s == 2.0
    for _ in range(300):
        policy.on_latency(0.001)
    assert policy.delay_s == SHORTEST_HEDGE_S
    never = HedgePolicy(0.0)
    for _ in range(100):
        never.on_latency(1.0)
    assert never.delay_s == math.inf


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(0, 100), min_size=1, max_size=50), st.floats(0, 1))
def test_a_quantile_is_a_value_with_that_share_below(values: list[float], q: float) -> None:
    found = quantile(deque(values), q)
    assert found in values
    assert sum(value <= found for value in values) >= q * len(values) - 1e-9


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 10_000), st.floats(0, 0.999), st.none() | st.floats(0, 120))
def test_backoff_doubles_up_to_its_end_and_heeds_hints(attempt: int, draw: float, hint: float | None) -> None:
    wait = backoff_s(attempt, draw, hint)
    assert 0 <= wait <= max(MAX_BACKOFF_S, 1.1 * (hint or 0.0))
    if hint is not None:
        assert wait >= hint
    elif attempt > 1:
        assert wait >= backoff_s(attempt - 1, draw)


def test_hints_of_no_wait_at_all_do_not_make_a_storm() -> None:
    assert backoff_s(1, 0.5, 0.0) == 0
    assert backoff_s(6, 0.5, 0.0) == backoff_s(6, 0.5)
