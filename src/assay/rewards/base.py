"""The records of the reward engine, and what a reward is: two pure functions around the calls that it needs.

    Sample --requests--> Request --judge--> Reply --score--> Score

A reward says which calls a sample needs and what the replies to them mean. The engine makes the calls: it caches,
shares, limits, retries and bills them. Because a reward never calls anything itself, a stored reply can be scored again
for free when weights or parsers change.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from assay.types import Json, Message, Score

MOST_TOKENS = 10_000_000
"""No call of any model reads or writes more; a larger count is not believed."""
_CANONICAL = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode


def token_count(value: object) -> int:
    """A count of tokens that a provider gave; 0 where it is none that can be believed."""
    return value if type(value) is int and 0 < value <= MOST_TOKENS else 0


@dataclass(frozen=True, slots=True)
class Sample:
    """One completion to be scored. Hosts fill what they have; `data_source` and `extra` are theirs, passed through."""

    response: str
    ground_truth: Json = None
    data_source: str = ""
    prompt: tuple[Message, ...] = ()
    extra: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Request:
    """One call of a judge, with everything that determines its reply.

    `params` are sampling parameters, sent as they are (`temperature`, `max_tokens`). `version` names the prompt version
    or anything else that should keep otherwise equal calls apart. `replica` numbers the draws of one question, so that
    K votes are K calls and never one.
    """

    model: str
    messages: tuple[Message, ...]
    params: Mapping[str, Json] = field(default_factory=dict)
    version: str = ""
    replica: int = 0

    def body(self) -> bytes:
        """The JSON body that is sent, in one canonical form."""
        messages = [{"role": m.role, "content": m.content} for m in self.messages]
        return _CANONICAL({"model": self.model, "messages": messages, **self.params}).encode("ascii")

    def key(self, endpoint: str, body: bytes | None = None) -> str:
        """Content hash (hex, 64 characters) of the request as sent to `endpoint`; equal calls have equal keys.

        Args:
            body: what `body` returned, where it is at hand.
        """
        apart = _CANONICAL([endpoint, self.version, self.replica]).encode("ascii")
        return hashlib.sha256(apart + (self.body() if body is None else body)).hexdigest()


@dataclass(frozen=True, slots=True)
class Usage:
    """What calls consumed: requests that were answered, tokens as the provider counted them, and their price.

    Where the provider gave no count that can be believed, or an attempt may have been billed although nothing came of
    it, both are what such a call may use at most.
    """

    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    usd: float = 0.0

    def __add__(self, other: Usage) -> Usage:
        if other is NOTHING or self is NOTHING:
            return self if other is NOTHING else other
        return Usage(
            self.calls + other.calls,
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            self.usd + other.usd,
        )


NOTHING = Usage()
"""What a cached or shared reply costs."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What a judge answered. `usage` is what this answer cost its asker: zero if it was `cached` or shared."""

    text: str
    finish_reason: str = "stop"
    model: str = ""
    """The model that answered, as the provider names it."""
    usage: Usage = NOTHING
    cached: bool = False
    attempts: int = 1
    """Requests sent until this one was answered."""
    latency_s: float = 0.0
    """From the first attempt to the answer, waits between attempts included; 0 where cached."""


FailureKind = Literal[
    "rate_limited",
    "quota",
    "auth",
    "unknown_model",
    "bad_request",
    "timeout",
    "connection",
    "unreachable",
    "server",
    "malformed",
    "not_a_judge",
    "unreadable",
    "deadline",
    "budget",
    "not_cached",
    "reward",
    "unscored",
    "died",
]
"""Why a call has no reply: refused by a limit; the account's quota is used up; key refused; no such model; the request
itself is at fault; no answer in time; broken connection; no connection was ever made; 5xx; a reply that does not follow
the protocol; an endpoint whose replies never did; a reply without a readable verdict; the batch ran out of time; the
budget is spent; offline and not in the cache; the reward's own code raised or returned nonsense; it returned no score;
its process died."""

FATAL: frozenset[FailureKind] = frozenset({"quota", "auth", "unknown_model", "not_a_judge", "unreachable", "budget"})
"""Failures that every further call would share: they stop a batch instead of erroring its samples one by one."""


@dataclass(frozen=True, slots=True)
class CallFailure:
    """A call that has no reply. Never cached, never a score. `message` holds no secret."""

    kind: FailureKind
    message: str
    attempts: int = 0
    usage: Usage = NOTHING
    """What its attempts cost all the same."""


Outcome = Reply | CallFailure

LEVELS = frozenset({"in_flight", "waiting", "limit", "pid", "hub_processes"})
"""Counters of a caller's present state; all others are totals."""


class Reward(Protocol):
    """What a completion is worth, given a judge's replies. Both methods are pure: no I/O, no state, any thread."""

    name: str
    """Names the reward in metrics and bills."""
    fingerprint: str
    """Identifies the definition and its options, so that a score can be traced and replayed."""

    def requests(self, sample: Sample) -> Sequence[Request]:
        """The calls that this sample needs; none where it can be scored without a judge."""
        ...

    def score(self, sample: Sample, replies: Sequence[Reply]) -> Score:
        """The score, given one reply per request, in order.

        Raises:
            UnreadableReplyError: no verdict can be read from a reply. It is asked again, and not cached.
        """
        ...


class DirectReward(Protocol):
    """A reward that scores a sample by itself: a user's function, a checker in a process of its own, a chess engine.

    It asks no judge. `close`, where it has one (`async def close(self) -> None`), ends what it holds; it is awaited
    when an engine with this reward is closed, and scoring afterwards starts it again.
    """

    name: str
    fingerprint: str

    async def evaluate(self, sample: Sample) -> Score:
        """The score of one sample. The engine awaits as many at once as calls may be in flight, until their deadline.

        Raises:
            ConfigError, DataError, RewardError: nothing can be scored this way; ends the batch. Any other exception
                errors this sample alone.
        """
        ...


class Caller(Protocol):
    """Answers requests: a judge's endpoint, or another process that owns the endpoint's limit and cache."""

    async def call(self, request: Request, deadline: float | None = None) -> Outcome:
        """The outcome of one request. `deadline` is on the event loop's clock. Never raises for a failing judge."""
        ...

    async def forget(self, request: Request) -> None:
        """Drop the stored reply of a request: no verdict could be read from it, and it will be asked again."""
        ...

    async def counters(self) -> dict[str, float]:
        """Totals since the start (`calls`, `attempts`, `cache_hits`, `refusals`, `usd`, ...) and the present state."""
        ...

    async def close(self) -> None:
        """Give back connections, files and processes; safe to call twice."""
        ...
