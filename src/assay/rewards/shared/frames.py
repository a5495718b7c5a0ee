"""What passes between processes that share a caller: frames of JSON, and requests and outcomes inside them.

A frame is its length (4 bytes, big-endian) and that many bytes of ASCII JSON. Everything that is read is checked for
its types first, since any process that can open the socket can write anything.
"""

from __future__ import annotations

import json
import struct
from typing import get_args

from assay.errors import RewardError
from assay.rewards.base import CallFailure, FailureKind, Outcome, Reply, Request, Usage
from assay.terminal import shown
from assay.types import Json, Message

VERSION = 1
"""Raised when the messages change. Processes of different versions refuse to work together."""

LONGEST_S = 1e9
"""Most seconds that a frame can speak of."""
MOST = 1e15
"""Most calls, tokens or dollars that a frame can speak of; all integers up to it are exact as floats."""

_HEADER = struct.Struct("!I")
_ENCODE = json.JSONEncoder(separators=(",", ":"), check_circular=False).encode
_DECODE = json.JSONDecoder().decode
_KINDS = frozenset(get_args(FailureKind))


class FrameError(RewardError):
    """The other process sent an invalid message."""


class FrameReader:
    """Cuts a stream of bytes into messages."""

    def __init__(self, max_frame_bytes: int) -> None:
        self._max = max_frame_bytes
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[Json]:
        """The messages that `data` completes.

        Raises:
            FrameError: a frame is too large, or not JSON.
        """
        buffer = self._buffer
        buffer += data
        messages = []
        start = 0
        while len(buffer) - start >= _HEADER.size:
            (size,) = _HEADER.unpack_from(buffer, start)
            if size > self._max:
                raise FrameError(f"a frame of {size} bytes was announced, but at most {self._max} are accepted")
            end = start + _HEADER.size + size
            if len(buffer) < end:
                break
            messages.append(_parsed(buffer[start + _HEADER.size : end]))
            start = end
        del buffer[:start]
        return messages


def frame(message: Json) -> bytes:
    """The bytes of one message."""
    body = _ENCODE(message).encode("ascii")
    return _HEADER.pack(len(body)) + body


def _parsed(body: bytearray) -> Json:
    try:
        return _DECODE(body.decode("ascii"))
    except (ValueError, RecursionError) as error:
        raise FrameError(f"a frame is not valid JSON: {error}") from error


def encode_request(request: Request) -> Json:
    """A request as JSON."""
    messages = [[message.role, message.content] for message in request.messages]
    return [request.model, messages, dict(request.params), request.version, request.replica]


def decode_request(value: Json) -> Request:
    """The request that `encode_request` was given.

    Raises:
        FrameError: it is not valid.
    """
    try:
        model, messages, params, version, replica = value
        request = Request(model, tuple(Message(role, content) for role, content in messages), params, version, replica)
    except (TypeError, ValueError) as error:
        raise FrameError(f"a frame is not a request: {error}") from error
    texts = [model, version, *(text for message in request.messages for text in (message.role, message.content))]
    if not (all(type(text) is str for text in texts) and type(params) is dict and type(replica) is int):
        raise FrameError("a frame holds a request with fields of wrong types")
    return request


def decode_remaining(value: Json) -> float | None:
    """Seconds until a deadline, or None where there is none.

    Raises:
        FrameError: it is neither.
    """
    return None if value is None else _number(value, -LONGEST_S, LONGEST_S)


def encode_outcome(outcome: Outcome) -> Json:
    """A reply or failure as JSON."""
    usage = outcome.usage
    spent = [usage.calls, usage.prompt_tokens, usage.completion_tokens, usage.usd]
    if isinstance(outcome, CallFailure):
        return ["failure", outcome.kind, outcome.message, outcome.attempts, spent]
    return [
        "reply",
        outcome.text,
        outcome.finish_reason,
        outcome.model,
        spent,
        outcome.cached,
        outcome.attempts,
        outcome.latency_s,
    ]


def decode_outcome(value: Json) -> Outcome:
    """The outcome that `encode_outcome` was given.

    Raises:
        FrameError: it is not valid.
    """
    match value:
        case ["reply", str(text), str(finish), str(model), [_, _, _, _] as spent, bool(cached), int(attempts), latency]:
            return Reply(text, finish, model, _usage(spent), cached, attempts, _number(latency, 0, LONGEST_S))
        case ["failure", str(kind), str(message), int(attempts), [_, _, _, _] as spent] if kind in _KINDS:
            return CallFailure(kind, message, attempts, _usage(spent))  # type: ignore[arg-type]
    raise FrameError("a frame holds neither a reply nor a failure")


def _usage(spent: list[Json]) -> Usage:
    calls, prompt, completion, usd = (_number(value, 0, MOST) for value in spent)
    return Usage(int(calls), int(prompt), int(completion), usd)


def _number(value: Json, low: float, high: float) -> float:
    """A number between two others. JSON can write integers that no float holds, and NaN."""
    if type(value) not in (int, float) or not low <= value <= high:
        raise FrameError(f"a frame gives {shown(value, 60)} where a number from {low:g} to {high:g} belongs")
    return float(value)
