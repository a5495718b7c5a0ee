"""How many calls may be in flight, how fast they may start, and what they may cost: pure state machines.

They never wait, sleep or read a clock: times are arguments, in seconds on any monotonic clock, so that a test can
simulate a day in a millisecond. `gate.py` uses them.

The limit on calls in flight works like TCP's congestion window. Each refusal lowers it by one, since the judge accepted
one call less than was sent; the first refusal of a round trip lowers it by at least 5 % (multiplicative decrease), and
a round trip by at most half. The limit first doubles with every round trip. After a refusal it closes half of the gap
to the limit at which calls were refused, then probes beyond that by 1, 2, 4, ... (BIC's search, Xu et al. 2004). It
grows at the pace at which a refusal would be known, which for judges that refuse at once is far faster than a round
trip, and only while the limit is what holds calls back.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

FIRST_CUT = 0.95
DEEPEST_CUT = 0.5
NOISE = 0.05
"""Share of failures (503, timeouts) up to which they count as accidents, not as overload."""
NOISE_SAMPLE = 20
"""Fewer outcomes than this are too few to measure a share."""
SMOOTHING = 0.1
"""Weight of the newest value in running means of latencies."""
SURE = 4.0
"""A call in flight for this multiple of a refusal's latency was not refused."""
SHORTEST_STEP_S = 0.05
OUT_OF_REACH_S = 3.0
"""How long to try to connect to an endpoint that has never answered."""


@dataclass
class InFlightLimit:
    """How many calls may be in flight at once."""

    limit: float
    ceiling: int
    """The limit never grows beyond this."""
    adaptive: bool = True
    trouble_at: float | None = None
    """The limit at which calls were last refused."""
    cuts: int = 0
    """Round trips with a cut."""
    round_trip_s: float = math.nan
    """Running mean of how long answers take."""
    refusal_s: float = math.nan
    """Running mean of how long refusals take."""
    _cut_at: float = -math.inf
    _stepped_at: float = -math.inf
    _floor: float = 1.0
    _held: float = 1.0
    """Calls that the judge seems to accept at once, estimated from the refusals since the last cut."""
    _probe: float = 1.0
    _outcomes: deque[bool] = field(default_factory=lambda: deque(maxlen=200))

    def __post_init__(self) -> None:
        self.limit = max(1.0, float(min(self.limit, self.ceiling)))

    def admits(self, in_flight: int) -> bool:
        """Whether one more call may start."""
        return in_flight < max(1, int(self.limit))

    def calm(self, now: float) -> bool:
        """Whether a whole round trip has passed since the last refusal."""
        return self._cut_at == -math.inf or now - self._cut_at >= self.round_trip_s

    def on_success(self, now: float, started: float, in_flight: int) -> None:
        """A call that started at `started` was answered; `in_flight` counted it."""
        self._outcomes.append(True)
        self.round_trip_s = _mean(self.round_trip_s, now - started)
        if not self.adaptive or in_flight < 0.9 * int(self.limit):
            return
        if self.trouble_at is None:
            if started >= self._stepped_at:  # doubles with every round trip
                self.limit = min(self.limit + 1, float(self.ceiling))
        elif now - self._stepped_at >= self._step_s():
            self._step(now)

    def on_refusal(self, now: float, started: float) -> None:
        """A call was refused because too many are in flight (429), or an overload (503, timeout) is not an accident."""
        self._outcomes.append(False)
        self.refusal_s = _mean(self.refusal_s, now - started)
        if not self.adaptive:
            return
        if started >= self._cut_at and self.calm(now):
            self._floor, self._held = max(1.0, self.limit * DEEPEST_CUT), self.limit - 1
            self.trouble_at = self.limit
            self.limit = max(self._floor, min(self._held, self.limit * FIRST_CUT))
            self._cut_at, self._probe = now, 1.0
            self.cuts += 1
        else:
            # Calls sent before the cut were refused at the old limit; later ones at the present one.
            self._held = max(self._floor, (self._held if started < self._cut_at else self.limit) - 1)
            self.limit = min(self.limit, self._held)
            self.trouble_at = min(self.trouble_at or self.limit, self._held + 1)
        self._stepped_at = now

    def on_failure(self, now: float, started: float) -> None:
        """A call failed by overload or by accident (503, timeout); it takes many of them to lower the limit."""
        failed = sum(not ok for ok in self._outcomes) + 1
        total = len(self._outcomes) + 1
        if total >= NOISE_SAMPLE and failed > NOISE * total:
            self.on_refusal(now, started)
        else:
            self._outcomes.append(False)

    def _step_s(self) -> float:
        """Seconds after which a call that was not refused counts as accepted, so that the limit may grow again."""
        if math.isnan(self.refusal_s) or math.isnan(self.round_trip_s):
            return SHORTEST_STEP_S
        return max(SHORTEST_STEP_S, min(self.round_trip_s, SURE * self.refusal_s))

    def _step(self, now: float) -> None:
        """Raise the limit: halfway back to where calls were refused; beyond it, after a good round trip, by 1, 2, 4,
        ..."""
        assert self.trouble_at is not None
        gap = self.trouble_at - 1 - self.limit
        if gap > 0.5:
            self.limit += max(0.5, gap / 2)
        elif self.calm(now):
            self.limit += self._probe
            self._probe = min(2 * self._probe, max(1.0, self.limit / 2))
            self.trouble_at = max(self.trouble_at, self.limit)
        self.limit = min(self.limit, float(self.ceiling))
        self._stepped_at = now


def _mean(mean: float, value: float) -> float:
    return value if math.isnan(mean) else mean + SMOOTHING * (value - mean)


@dataclass
class Bucket:
    """A token bucket: `rate` units a second, at most `capacity` at once. It may go into debt, which delays later
    calls."""

    rate: float
    capacity: float
    level: float = math.nan
    _at: float = -math.inf

    def __post_init__(self) -> None:
        if math.isnan(self.level):
            self.level = self.capacity

    def wait_s(self, now: float, amount: float) -> float:
        """Seconds until `amount` may be taken; more than the capacity waits for a full bucket."""
        self._fill(now)
        return max(0.0, (min(amount, self.capacity) - self.level) / self.rate)

    def take(self, now: float, amount: float) -> None:
        """Take `amount` (a negative one gives back)."""
        self._fill(now)
        self.level = min(self.capacity, self.level - amount)

    def cap(self, now: float, level: float) -> None:
        """The provider says that no more than `level` is left."""
        self._fill(now)
        self.level = min(self.level, level)

    def _fill(self, now: float) -> None:
        if now > self._at:
            elapsed = now - self._at if math.isfinite(self._at) else 0.0
            self.level = min(self.capacity, self.level + elapsed * self.rate)
            self._at = now


def per_minute(quota: float) -> Bucket:
    """The bucket of a quota per minute; it bursts for one second at most, for providers that count by the second."""
    return Bucket(rate=quota / 60, capacity=max(1.0, quota / 60))


@dataclass
class Budget:
    """Money and tokens that may be spent. The cost of calls in flight is reserved, so that the budget is not
    exceeded."""

    usd: float | None = None
    tokens: int | None = None
    spent_usd: float = 0.0
    spent_tokens: int = 0
    reserved_usd: float = 0.0
    reserved_tokens: int = 0
    holders: int = 0
    """Calls that something is reserved for."""

    def reserve(self, usd: float, tokens: int) -> bool:
        """Reserve what a call may cost, if that much is left."""
        if self.usd is not None and self.spent_usd + self.reserved_usd + usd > self.usd:
            return False
        if self.tokens is not None and self.spent_tokens + self.reserved_tokens + tokens > self.tokens:
            return False
        self.reserved_usd += usd
        self.reserved_tokens += tokens
        self.holders += 1
        return True

    def release(self, usd: float, tokens: int) -> None:
        """Give back what `reserve` reserved."""
        self.reserved_usd = max(0.0, self.reserved_usd - usd)
        self.reserved_tokens -= tokens
        self.holders -= 1

    def spend(self, usd: float, tokens: int) -> None:
        """A call was billed."""
        self.spent_usd += usd
        self.spent_tokens += tokens

    @property
    def idle(self) -> bool:
        """Whether nothing is reserved, so that waiting frees nothing."""
        return self.holders == 0

    def __str__(self) -> str:
        parts = []
        if self.usd is not None:
            parts.append(f"${self.spent_usd:.4f} of ${self.usd:.4f}")
        if self.tokens is not None:
            parts.append(f"{self.spent_tokens} of {self.tokens} tokens")
        return " and ".join(parts) or "no budget"


SHORTEST_HEDGE_S = 0.25
"""Calls quicker than this are not worth a second one."""
ENOUGH_LATENCIES = 30
"""Answers before which nothing is known about how long calls take."""
REFRESH = 16
"""Answers after which the percentile is computed again."""


@dataclass
class HedgePolicy:
    """When to send a call a second time because the first takes far longer than calls do.

    Hedges are capped at `fraction` of all calls. One is due at twice the 95th percentile of recent latencies
    (Dean and Barroso, "The Tail at Scale", 2013, defer theirs to the 95th).
    """

    fraction: float
    calls: int = 0
    hedges: int = 0
    _latencies: deque[float] = field(default_factory=lambda: deque(maxlen=256))
    _answered: int = 0
    _delay_s: float = math.inf

    def on_call(self) -> None:
        """A call is sent."""
        self.calls += 1

    def on_latency(self, seconds: float) -> None:
        """A call was answered after `seconds`."""
        self._latencies.append(seconds)
        self._answered += 1
        if self._answered >= ENOUGH_LATENCIES and self._answered % REFRESH == 0:
            self._delay_s = max(SHORTEST_HEDGE_S, 2 * quantile(self._latencies, 0.95))

    @property
    def delay_s(self) -> float:
        """Age at which a call may be sent again; infinite while unknown."""
        return self._delay_s if self.fraction > 0 else math.inf

    def allows(self) -> bool:
        """Whether one more hedge stays within the cap; counts it if so."""
        if self.hedges + 1 > self.fraction * self.calls:
            return False
        self.hedges += 1
        return True


def quantile(values: deque[float], q: float) -> float:
    """The nearest-rank quantile of a non-empty sequence."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, math.ceil(q * len(ordered)) - 1))]


def is_out_of_reach(reached: bool, tried_s: float) -> bool:
    """Whether to give up on an endpoint that cannot be connected to.

    One that has answered in this run is tried again: it may be restarting. One that never has is most likely at another
    address, or not running.

    Args:
        reached: whether it has ever answered.
        tried_s: seconds since the first attempt.
    """
    return not reached and tried_s >= OUT_OF_REACH_S
