"""What a loopback judge knows and says: who is refused, what is counted, and the bytes of every reply.

Bodies are searched, not parsed: a benchmark's server must cost less than the client that is measured.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
import time
import zlib
from collections import Counter
from typing import Any, NamedTuple

from .judge_behaviour import Behaviour, Bucket, Limit, drawn_fault, drawn_latency

CONTENT = re.compile(rb'"content"\s*:\s*"([^"\\]*(?:\\.[^"\\]*)*)"', re.DOTALL)
MODEL = re.compile(rb'"model"\s*:\s*"([^"]*)"')
LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d+)", re.IGNORECASE)
KEY = re.compile(rb"\r\nauthorization:[ \t]*bearer[ \t]+([^\r\n]*)", re.IGNORECASE)
CLOSE = re.compile(rb"\r\nconnection:[ \t]*close", re.IGNORECASE)
REASONS = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found", 429: "Too Many Requests"}


class Head(NamedTuple):
    """What matters of a request's head."""

    target: bytes
    length: int
    key: str
    close: bool


def read_head(raw: bytes) -> Head:
    line = raw.partition(b"\r\n")[0].split(b" ")
    length, key = LENGTH.search(raw), KEY.search(raw)
    return Head(
        b" ".join(line[:2]),
        int(length.group(1)) if length else 0,
        key.group(1).decode("latin-1") if key else "",
        CLOSE.search(raw) is not None,
    )


def http_reply(status: int, body: bytes, headers: str = "") -> bytes:
    reason = REASONS.get(status, "Error")
    return (
        b"HTTP/1.1 %d %s\r\ncontent-type: application/json\r\n%scontent-length: %d\r\n\r\n"
        % (status, reason.encode(), headers.encode(), len(body))
    ) + body


def error_body(message: str, kind: str, code: str | None = None, param: str | None = None) -> bytes:
    """An error as OpenAI writes it."""
    return json.dumps({"error": {"message": message, "type": kind, "param": param, "code": code}}).encode()


def completion_body(text: str, model: bytes, prompt_tokens: int) -> bytes:
    tokens = max(1, len(text) // 4)
    return (
        b'{"id":"chatcmpl-loopback","object":"chat.completion","created":1767225600,"model":"%s","choices":[{"index":0,'
        b'"message":{"role":"assistant","content":%s,"refusal":null},"logprobs":null,"finish_reason":"stop"}],'
        b'"usage":{"prompt_tokens":%d,"completion_tokens":%d,"total_tokens":%d}}'
        % (model, json.dumps(text).encode(), prompt_tokens, tokens, prompt_tokens + tokens)
    )


class Refusal(NamedTuple):
    kind: str
    status: int
    body: bytes
    headers: str = ""


class Judge:
    """The state behind all connections: limits, chances and counters."""

    def __init__(self, behaviour: Behaviour) -> None:
        self.heads: dict[bytes, Head] = {}
        self.in_flight = 0
        self.configure(behaviour)
        self.reset()

    def configure(self, behaviour: Behaviour) -> None:
        """Behave differently from now on; requests in flight stay as they are."""
        rng = random.Random(behaviour.seed)
        self.behaviour = behaviour
        self.latency, self.fault = drawn_latency(behaviour, rng), drawn_fault(behaviour, rng)
        self.limit = Limit(behaviour)
        self.script = list(behaviour.script)
        b = behaviour
        self.requests_left = Bucket(b.requests_per_minute, b.request_burst) if b.requests_per_minute else None
        self.tokens_left = Bucket(b.tokens_per_minute, b.token_burst) if b.tokens_per_minute else None
        self.reply_tokens = max(map(len, b.replies)) // 4

    def reset(self) -> None:
        """Counters to zero, and the clock of the schedule."""
        self.limit = Limit(self.behaviour)
        self.requests = self.answered = self.paid_twice = self.abandoned = 0
        self.max_in_flight = self.in_flight
        self.refused: Counter[str] = Counter()
        self.faulty: Counter[str] = Counter()
        self.seen: set[bytes] = set()
        self.first_request: float | None = None
        self.first_answer: float | None = None
        self.last_answer: float | None = None
        self.cpu_before = time.process_time()

    def stats(self) -> dict[str, Any]:
        """All counters; times in seconds since the first request."""
        start, now = self.first_request, time.monotonic()
        if start is not None:
            self.limit.at(now - start, self.answered)
        return {
            "requests": self.requests,
            "answered": self.answered,
            "answered_distinct": len(self.seen),
            "paid_twice": self.paid_twice,
            "refused": dict(self.refused),
            "faults": dict(self.faulty),
            "abandoned": self.abandoned,
            "max_in_flight": self.max_in_flight,
            "in_flight_now": self.in_flight,
            "first_answer_s": None if self.first_answer is None else self.first_answer - start,
            "last_answer_s": None if self.last_answer is None else self.last_answer - start,
            "limits": self.limit.log,
            "cpu_s": time.process_time() - self.cpu_before,
        }

    def refusal(self, head: Head, body: bytes, now: float) -> Refusal | None:
        """Why a request is not served, or None."""
        b = self.behaviour
        if b.api_key and head.key != b.api_key:
            message = "Incorrect API key provided. Find yours in the account's settings."
            return Refusal("auth", 401, error_body(message, "invalid_request_error", "invalid_api_key"))
        if b.models and (name := model_of(body).decode()) not in b.models:
            message = f"The model `{name}` does not exist or you do not have access to it."
            return Refusal("model", 404, error_body(message, "invalid_request_error", "model_not_found", "model"))
        if b.bad_request and b.bad_request.encode() in body:
            return Refusal("bad_request", 400, error_body("This request is refused.", "invalid_request_error"))
        if b.quota is not None and self.answered >= b.quota:
            message = "You exceeded your current quota, please check your plan and billing details."
            return Refusal("quota", 429, error_body(message, "insufficient_quota", "insufficient_quota"))
        if (self.requests_left or self.tokens_left) and (refused := self._over_rate(body, now)):
            return refused
        limit = self.limit.at(now - self.first_request, self.answered)
        if limit is not None and self.in_flight >= limit:
            return self.too_many()
        return None

    def too_many(self) -> Refusal:
        """The refusal of a request above the concurrency limit."""
        after = self.behaviour.retry_after_s
        headers = "" if after is None else f"retry-after: {after:g}\r\n"
        message = "Too many requests in flight. Please slow down."
        return Refusal("concurrency", 429, error_body(message, "requests", "rate_limit_exceeded"), headers)

    def _over_rate(self, body: bytes, now: float) -> Refusal | None:
        wanted = [(self.requests_left, 1, "requests"), (self.tokens_left, len(body) // 4 + self.reply_tokens, "tokens")]
        for bucket, amount, noun in wanted:
            if bucket and (wait := bucket.take(amount, now)):
                after = f"retry-after: {-(-wait // 1):.0f}\r\nretry-after-ms: {wait * 1000:.0f}\r\n"
                message = f"Rate limit reached for {noun} per minute. Please try again in {wait:.3f}s."
                headers = (after if self.behaviour.rate_retry_after else "") + self.rate_headers(now)
                return Refusal(noun, 429, error_body(message, noun, "rate_limit_exceeded"), headers)
        return None

    def rate_headers(self, now: float) -> str:
        """What every reply says about limited rates."""
        requests, tokens = self.requests_left, self.tokens_left
        if not (requests or tokens) or not self.behaviour.rate_headers:
            return ""
        told = ((requests, "requests"), (tokens, "tokens"))
        return "".join(bucket.headers(noun, now) for bucket, noun in told if bucket)

    def reply(self, body: bytes, headers: str, garbage: bool = False) -> bytes:
        """A good reply, whole. `headers` are the rates at the request's arrival."""
        b = self.behaviour
        start = body.rfind(b'"content"')
        content = CONTENT.match(body, start) if start >= 0 else None
        text = b.replies[zlib.crc32(content.group(1) if content else body) % len(b.replies)]
        if b.rate_headers_of == "reply":
            headers = self.rate_headers(time.monotonic())
        return http_reply(200, completion_body(b.garbage if garbage else text, model_of(body), len(body) // 4), headers)

    def count_answer(self, body: bytes) -> None:
        """One request was answered, and paid."""
        self.answered += 1
        self.last_answer = time.monotonic()
        if self.first_answer is None:
            self.first_answer = self.last_answer
        digest = hashlib.blake2b(body, digest_size=8).digest()
        if digest in self.seen:
            self.paid_twice += 1
        else:
            self.seen.add(digest)

    def manage(self, head: Head, body: bytes) -> bytes:
        """The reply to what is not a completion."""
        if head.target == b"GET /stats":
            return http_reply(200, json.dumps(self.stats()).encode())
        if head.target == b"POST /reset":
            self.reset()
            return http_reply(200, b"{}")
        if head.target == b"POST /configure":
            try:
                self.configure(self.behaviour.with_changes(json.loads(body)))
            except (ValueError, TypeError) as error:
                return http_reply(400, error_body(str(error), "invalid_request_error"))
            return http_reply(200, self.behaviour.to_json().encode())
        return http_reply(404, error_body(f"There is no {head.target.decode('latin-1')}.", "invalid_request_error"))


def model_of(body: bytes) -> bytes:
    found = MODEL.search(body)
    return found.group(1) if found else b"unknown"
