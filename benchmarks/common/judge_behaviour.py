"""How a loopback judge behaves: latency, limits, faults. Plain data as JSON, and the pure arithmetic behind it.

Limits refuse in the order of real providers: key, model, request, quota, rate, concurrency. A fault strikes a request
that was accepted, after its latency; whether it does is drawn by `seed` in the order of arrival.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

LATENCIES = ("fixed", "uniform", "lognormal")
FAULTS = (
    "http_500",
    "http_502",
    "http_503",
    "reset_before",
    "reset_during",
    "malformed",
    "truncated",
    "drip",
    "hang",
    "garbage",
)
"""Server errors; a connection reset before or in the middle of the reply; a reply whose body is no JSON; one that ends
early; one that comes a few bytes at a time; none at all; one without a verdict."""
SCRIPTED = (*FAULTS, "ok", "refuse")


@dataclass(frozen=True)
class Behaviour:
    """Everything that can be set about the judge; times in seconds."""

    latency: str = "fixed"
    """`fixed`, `uniform` (`latency_s` +- `spread`) or `lognormal` (median `latency_s`, sigma `spread`)."""
    latency_s: float = 0.0
    spread: float = 0.0
    seed: int = 0

    max_in_flight: int | None = None
    """Requests served at once; one more is refused with 429."""
    schedule: tuple[tuple[float, int], ...] = ()
    """(from when, `max_in_flight`) in rising order; overrides `max_in_flight` from its first entry on."""
    schedule_by: str = "seconds"
    """What `schedule` counts: `seconds` since the first request, or requests `answered`."""
    retry_after_s: float | None = None
    """`retry-after` of a concurrency refusal; none sends no such header."""
    refusal_latency_s: float = 0.0
    requests_per_minute: float | None = None
    request_burst: int | None = None
    """Requests taken at once after a rest; none stands for one second's worth."""
    tokens_per_minute: float | None = None
    token_burst: int | None = None
    rate_headers: bool = True
    """Send `x-ratelimit-*` with every reply where a rate is limited."""
    rate_headers_of: str = "arrival"
    """When those figures were true: at the request's `arrival`, or when its `reply` left."""
    rate_retry_after: bool = True
    """Send `retry-after` (whole seconds) and `retry-after-ms` with a rate refusal."""

    faults: Mapping[str, float] = field(default_factory=dict)
    """Probability of each of FAULTS."""
    drip_s: float = 2.0
    script: tuple[str, ...] = ()
    """What happens to the first requests, in order, whatever their chances: one of FAULTS, `ok`, or `refuse` (429)."""

    api_key: str = ""
    """Key that is asked for; empty takes any. Another one is refused with 401."""
    models: tuple[str, ...] = ()
    """Models that exist; empty has all. Another one is refused with 404."""
    quota: int | None = None
    """Answers after which every request is refused with 429 `insufficient_quota`."""
    bad_request: str = ""
    """A request whose body contains this is refused with 400; empty refuses none."""
    replies: tuple[str, ...] = ("<answer>True</answer>", "<answer>False</answer>")
    """Texts to answer with; the last message's text decides which."""
    garbage: str = "I would rather not say."

    def __post_init__(self) -> None:
        if self.latency not in LATENCIES:
            raise ValueError(f"latency={self.latency!r} is not one of {', '.join(LATENCIES)}")
        if self.schedule_by not in ("seconds", "answered"):
            raise ValueError(f"schedule_by={self.schedule_by!r} is neither seconds nor answered")
        if self.rate_headers_of not in ("arrival", "reply"):
            raise ValueError(f"rate_headers_of={self.rate_headers_of!r} is neither arrival nor reply")
        unknown = [*(set(self.faults) - set(FAULTS)), *(set(self.script) - set(SCRIPTED))]
        if unknown:
            raise ValueError(f"unknown faults {sorted(unknown)}; there are {', '.join(SCRIPTED)}")
        if sum(self.faults.values()) > 1 or any(chance < 0 for chance in self.faults.values()):
            raise ValueError(f"faults={dict(self.faults)} are no probabilities: their sum must lie between 0 and 1")
        if not self.replies:
            raise ValueError("replies is empty: give at least one text to answer with")

    def with_changes(self, changes: Mapping[str, Any]) -> Behaviour:
        """A copy with some fields set from JSON."""
        unknown = set(changes) - {f.name for f in fields(self)}
        if unknown:
            raise ValueError(f"unknown settings {sorted(unknown)} of the judge")
        return replace(self, **{name: _frozen(value) for name, value in changes.items()})

    def to_json(self) -> str:
        return json.dumps(asdict(self))


def _frozen(value: Any) -> Any:
    return tuple(_frozen(item) for item in value) if isinstance(value, list) else value


def drawn_latency(behaviour: Behaviour, rng: random.Random) -> Callable[[], float]:
    """Draws the latency of one request."""
    middle, spread = behaviour.latency_s, behaviour.spread
    if behaviour.latency == "uniform":
        return lambda: max(0.0, rng.uniform(middle - spread, middle + spread))
    if behaviour.latency == "lognormal":
        return lambda: middle * math.exp(rng.gauss(0.0, spread))
    return lambda: middle


def drawn_fault(behaviour: Behaviour, rng: random.Random) -> Callable[[], str]:
    """Draws what happens to one accepted request: one of FAULTS, or `ok`."""
    kinds, chances = list(behaviour.faults), list(behaviour.faults.values())
    if not sum(chances):
        return lambda: "ok"
    kinds.append("ok")
    chances.append(1 - sum(chances))
    return lambda: rng.choices(kinds, chances)[0]


class Bucket:
    """A token bucket: `per_minute` flow in, at most `burst` wait inside."""

    def __init__(self, per_minute: float, burst: int | None) -> None:
        self.per_minute = per_minute
        self.rate = per_minute / 60
        self.burst = burst or max(1, int(self.rate))
        self.level = float(self.burst)
        self._updated: float | None = None

    def take(self, amount: float, now: float) -> float:
        """Take `amount` and return 0, or take nothing and return the seconds until there is enough."""
        self._fill(now)
        # What is larger than the bucket would wait for ever: a full bucket lets it pass, in debt.
        missing = min(amount, self.burst) - self.level
        if missing > 1e-9:
            return missing / self.rate
        self.level -= amount
        return 0.0

    def _fill(self, now: float) -> None:
        if self._updated is not None:
            self.level = min(self.burst, self.level + (now - self._updated) * self.rate)
        self._updated = now

    def headers(self, noun: str, now: float) -> str:
        """OpenAI's three headers about `requests` or `tokens`."""
        self._fill(now)
        full_in = (self.burst - self.level) / self.rate
        return (
            f"x-ratelimit-limit-{noun}: {self.per_minute:.0f}\r\n"
            f"x-ratelimit-remaining-{noun}: {max(0, math.floor(self.level))}\r\n"
            f"x-ratelimit-reset-{noun}: {duration(full_in)}\r\n"
        )


def duration(seconds: float) -> str:
    """A time as OpenAI writes it: `12ms`, `1.5s`, `6m0s`."""
    if seconds < 1:
        return f"{seconds * 1000:.0f}ms"
    if seconds < 60:
        return f"{seconds:.3f}".rstrip("0").rstrip(".") + "s"
    return f"{seconds // 60:.0f}m{seconds % 60:.0f}s"


class Limit:
    """How many requests are served at once, as it moves; remembers when it moved."""

    def __init__(self, behaviour: Behaviour) -> None:
        self.value = behaviour.max_in_flight
        self.log: list[tuple[float, int | None]] = []
        """(seconds since the first request, limit from then on)"""
        self._left = list(behaviour.schedule)
        self._by_time = behaviour.schedule_by == "seconds"

    def at(self, elapsed: float, answered: int) -> int | None:
        """The limit `elapsed` seconds after the first request, with so many answered."""
        if not self.log:
            self.log.append((0.0, self.value))
        while self._left and (elapsed if self._by_time else answered) >= self._left[0][0]:
            start, self.value = self._left.pop(0)
            self.log.append((start if self._by_time else elapsed, self.value))
        return self.value
