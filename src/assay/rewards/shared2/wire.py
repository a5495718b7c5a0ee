"""Requests and outcomes as bodies of OpenAI's chat API, with what that has no place for under `assay`.

Nothing that is read is believed before its types are checked.
"""

from __future__ import annotations

import json
import math
from typing import get_args

from assay.errors import RewardError
from assay.rewards.base import CallFailure, FailureKind, Outcome, Reply, Request, Usage
from assay.types import Json, Message

VERSION = 1
"""Raised when what passes changes. Processes of different versions do not work together, and say so."""

_ENCODE = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode
_KINDS = frozenset(get_args(FailureKind))


class WireError(RewardError):
    """What the other process sent is not what these processes say to each other."""


def encode_ask(do: str, process: str, request: Request | None, left_s: float | None) -> bytes:
    """A body that asks the hub to `do` something; `left_s` are the seconds until the deadline."""
    extra: dict[str, Json] = {"do": do, "process": process, "left_s": left_s}
    body: dict[str, Json] = {}
    if request is not None:
        said = [{"role": message.role, "content": message.content} for message in request.messages]
        body = {"model": request.model, "messages": said, **request.params}
        extra |= {"version": request.version, "replica": request.replica}
    return _ENCODE({**body, "assay": extra}).encode("ascii")


def decode_ask(data: bytes) -> tuple[str, str, Request | None, float | None]:
    """What `encode_ask` was given; a chat request of any other program is a call.

    Raises:
        WireError: it is neither.
    """
    try:
        body = json.loads(data)
        extra = body.pop("assay", {})
        do, process, left_s = extra.get("do", "call"), extra.get("process", ""), extra.get("left_s")
        request = None
        if "model" in body:
            messages = tuple(Message(said["role"], said["content"]) for said in body.pop("messages"))
            model = body.pop("model")
            request = Request(model, messages, body, extra.get("version", ""), extra.get("replica", 0))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise WireError(f"a body holds no chat request: {error!r}") from error
    texts = [do, process]
    if request is not None:
        texts += [request.model, request.version]
        texts += [text for message in request.messages for text in (message.role, message.content)]
    numbers = left_s is None or (type(left_s) in (int, float) and math.isfinite(left_s))
    if not (all(type(text) is str for text in texts) and numbers and type(extra.get("replica", 0)) is int):
        raise WireError("a body holds a chat request with fields of wrong types")
    return do, process, request, left_s


def encode_outcome(outcome: Outcome) -> tuple[int, bytes]:
    """Status and body of a reply or failure."""
    usage = outcome.usage
    spent = [usage.calls, usage.prompt_tokens, usage.completion_tokens, usage.usd]
    extra: dict[str, Json] = {"spent": spent, "attempts": outcome.attempts}
    if isinstance(outcome, CallFailure):
        return 502, _ENCODE({"error": {"message": outcome.message, "type": outcome.kind}, "assay": extra}).encode()
    extra |= {"cached": outcome.cached, "latency_s": outcome.latency_s}
    said = {"role": "assistant", "content": outcome.text}
    choice = {"index": 0, "message": said, "finish_reason": outcome.finish_reason}
    return 200, _ENCODE({"model": outcome.model, "choices": [choice], "assay": extra}).encode("ascii")


def decode_outcome(data: bytes) -> Outcome:
    """The outcome that `encode_outcome` was given.

    Raises:
        WireError: it never was.
    """
    try:
        body = json.loads(data)
        extra = body["assay"]
        spent, attempts = Usage(*extra["spent"]), extra["attempts"]
        if "error" in body:
            if body["error"]["type"] not in _KINDS:
                raise ValueError(body["error"]["type"])
            return CallFailure(body["error"]["type"], str(body["error"]["message"]), attempts, spent)
        choice = body["choices"][0]
        text, finish = choice["message"]["content"], choice["finish_reason"]
        return Reply(text, finish, body["model"], spent, extra["cached"], attempts, extra["latency_s"])
    except (ValueError, TypeError, KeyError, IndexError, RecursionError) as error:
        raise WireError(f"a body holds neither a reply nor a failure: {error!r}") from error
