"""The chat-completions protocol as OpenAI and its many imitators speak it: replies, refusals, hints.

Rate-limit headers are hints: gateways leave them out or send 0 and -1. A 429 means one of three things: the account's
quota is used up (stop), requests or tokens come too fast (wait), or too many are in flight (send fewer at once).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from assay.rewards.base import FailureKind, token_count
from assay.transport.http import Response
from assay.transport.waits import HINT_CHARS, number_text, retry_after_s

PATH = "/chat/completions"
MESSAGE_CHARS = 300
"""How much of a provider's error message is kept."""
SHOWN_BYTES = 65_536
"""Bodies that are longer are not quoted in messages."""

_QUOTA_CODES = {"insufficient_quota", "billing_hard_limit_reached", "billing_not_active"}
_MODEL_CODES = {"model_not_found", "deployment_not_found", "DeploymentNotFound"}
MOST_QUOTA = 10**12
"""A quota per minute above it is no quota; what says so is not believed."""
NAME_CHARS = 200
"""How much is kept of what a provider calls a model, or the end of a reply."""

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|h|m|s)")
_UNIT_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True, slots=True)
class Answer:
    """A chat completion."""

    text: str
    finish_reason: str
    model: str
    prompt_tokens: int
    """As the provider counted them; 0 where it gave no count that can be believed."""
    completion_tokens: int


@dataclass(frozen=True, slots=True)
class Refusal:
    """Anything but a chat completion."""

    kind: FailureKind
    message: str
    status: int = 0
    overload: bool = False
    """Whether it asks for fewer calls (429, 503) rather than reporting a fault."""
    too_fast: bool = False
    """Whether a rate limit is known to be behind it: fewer calls in flight would not help, a pause does."""
    wait_s: float | None = None
    """How long the provider asks to wait."""
    unreachable: bool = False
    """Whether not even a connection was made."""
    may_be_billed: bool = False
    """Whether the provider may charge for the attempt although nothing came of it."""


@dataclass(frozen=True, slots=True)
class RateHint:
    """What the headers of a reply say of one quota: so many a minute, so many left."""

    limit: int
    remaining: int


def read(response: Response, clean: Callable[[str], str] = str) -> Answer | Refusal:
    """What a response says. All text in the result went through `clean`, which takes secrets out, before it was cut."""
    try:
        data = json.loads(response.body)
    except (ValueError, RecursionError):
        data = None
    if response.status != 200:
        return _refusal(response, data, clean)
    if not isinstance(data, dict):
        return _malformed("status 200 with a body that is not a JSON object")
    try:
        choice = data["choices"][0]
        text = choice["message"]["content"]
    except (KeyError, IndexError, TypeError):
        shown = clipped(clean(_decoded(response.body)))
        return _malformed(f"a reply without choices[0].message.content: {shown}")
    if text is None:  # refused by the model, or only tool calls: an answer, though an empty one
        text = choice["message"].get("refusal") or ""
    if not isinstance(text, str):
        return _malformed("a reply whose content is not text")
    usage = data.get("usage")
    usage = usage if isinstance(usage, dict) else {}
    return Answer(
        clean(text),
        _name(choice.get("finish_reason"), clean),
        _name(data.get("model"), clean),
        token_count(usage.get("prompt_tokens")),
        token_count(usage.get("completion_tokens")),
    )


def _malformed(why: str) -> Refusal:
    return Refusal("malformed", why, 200, may_be_billed=True)


def _name(value: object, clean: Callable[[str], str]) -> str:
    return clean(value)[:NAME_CHARS] if isinstance(value, str) else ""


def _decoded(body: bytes) -> str:
    """A body as text. It is shown whole or not at all: half a secret would not be recognised and taken out."""
    return body.decode("utf-8", "replace") if len(body) <= SHOWN_BYTES else f"{len(body)} bytes, which are not shown"


def _refusal(response: Response, data: Any, clean: Callable[[str], str]) -> Refusal:
    status = response.status
    error = data.get("error", data) if isinstance(data, dict) else {}
    error = error if isinstance(error, dict) else {"message": error}
    code, kind = _name(error.get("code"), clean), _name(error.get("type"), clean)
    message = error.get("message")
    said = clipped(clean(message if isinstance(message, str) and message else _decoded(response.body)))
    message = f"status {status}: {said}" if said else f"status {status}"
    if {code, kind} & _QUOTA_CODES or status == 402:
        return Refusal("quota", message, status)
    if status in (401, 403):
        return Refusal("auth", message, status)
    if status == 429:
        wait_s = wait_hint(response.headers)
        return Refusal("rate_limited", message, status, overload=True, too_fast=_is_rate(response), wait_s=wait_s)
    if code in _MODEL_CODES or (status == 404 and "model" in said.lower()):
        return Refusal("unknown_model", message, status)
    if status in (404, 405):
        return Refusal("not_a_judge", message, status)
    if status in (408, 409) or status >= 500:
        return Refusal("server", message, status, overload=status == 503, wait_s=wait_hint(response.headers))
    return Refusal("bad_request", message, status)


def _is_rate(response: Response) -> bool:
    """Whether the headers of a refusal show a quota with nothing left."""
    hints = [rate_hint(response.headers, what) for what in ("requests", "tokens")]
    return any(hint is not None and hint.remaining == 0 for hint in hints)


def rate_hint(headers: Mapping[str, str], what: str) -> RateHint | None:
    """The quota of `requests` or `tokens`, if the headers give a plausible one."""
    try:
        limit = int(number_text(headers, f"x-ratelimit-limit-{what}"))
        remaining = int(number_text(headers, f"x-ratelimit-remaining-{what}"))
    except ValueError:
        return None
    return RateHint(limit, remaining) if 0 < limit <= MOST_QUOTA and 0 <= remaining <= limit else None


def wait_hint(headers: Mapping[str, str]) -> float | None:
    """Seconds to wait, from `retry-after-ms`, `retry-after` or the reset of a quota with nothing left."""
    if (wait_s := retry_after_s(headers)) is not None:
        return wait_s
    resets = [
        duration_s(number_text(headers, f"x-ratelimit-reset-{what}"))
        for what in ("requests", "tokens")
        if (hint := rate_hint(headers, what)) is not None and hint.remaining == 0
    ]
    # A reset tells when the whole quota is back; some of it is back at once, so this is only an upper bound.
    known = [reset for reset in resets if reset is not None]
    return min(*known, 1.0) if known else None


def duration_s(text: str) -> float | None:
    """Seconds in a duration such as `20ms`, `1.5s` or `6m0s`; None for anything else."""
    parts = _DURATION.findall(text) if len(text) <= HINT_CHARS else []
    if not parts or "".join(number + unit for number, unit in parts) != text:
        return None
    return sum(float(number) * _UNIT_S[unit] for number, unit in parts)


def clipped(text: str) -> str:
    """At most `MESSAGE_CHARS` characters of a message."""
    return text if len(text) <= MESSAGE_CHARS else text[:MESSAGE_CHARS] + " ..."
