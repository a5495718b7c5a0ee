"""Replies and refusals as providers write them: what each says, and what is made of hints that make no sense."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.rewards.client.chat import (
    MESSAGE_CHARS,
    Answer,
    RateHint,
    Refusal,
    duration_s,
    rate_hint,
    read,
    wait_hint,
)
from assay.transport.http import Response
from assay.transport.keys import json_headers
from assay.transport.waits import MAX_WAIT_HINT_S


def response(body: Any, status: int = 200, **headers: str) -> Response:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return Response(status, {name.replace("_", "-"): value for name, value in headers.items()}, raw)


def completion(content: Any = "yes", **changes: Any) -> dict[str, Any]:
    choice = {"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": "stop"}
    usage = {"prompt_tokens": 12, "completion_tokens": 3, "total_tokens": 15}
    return {"id": "x", "choices": [choice], "model": "judge-2026", "usage": usage, **changes}


def error(message: Any = "no", code: Any = None, kind: Any = None) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def refusal(body: Any, status: int, **headers: str) -> Refusal:
    found = read(response(body, status, **headers))
    assert isinstance(found, Refusal)
    return found


def test_a_completion_is_read_whole() -> None:
    assert read(response(completion("<answer>True</answer>"))) == Answer(
        "<answer>True</answer>", "stop", "judge-2026", 12, 3
    )


@pytest.mark.parametrize("usage", [None, [], ["x"], "much", {}, {"prompt_tokens": None}, {"prompt_tokens": -3}, 7])
def test_a_completion_without_a_count_is_an_answer(usage: Any) -> None:
    found = read(response(completion(usage=usage)))
    assert found == Answer("yes", "stop", "judge-2026", 0, 0)


def test_a_completion_with_the_least_is_an_answer() -> None:
    assert read(response({"choices": [{"message": {"content": "yes"}}]})) == Answer("yes", "", "", 0, 0)
    assert read(response({"choices": [{"message": {"content": "", "extra": 1}}], "model": None})) == Answer(
        "", "", "", 0, 0
    )


def test_a_model_that_refuses_has_answered() -> None:
    choice = {"message": {"content": None, "refusal": "I will not."}, "finish_reason": "content_filter"}
    assert read(response({"choices": [choice]})) == Answer("I will not.", "content_filter", "", 0, 0)
    silent = {"message": {"content": None, "tool_calls": [{}]}, "finish_reason": "tool_calls"}
    assert read(response({"choices": [silent]})) == Answer("", "tool_calls", "", 0, 0)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>welcome</html>",
        b'{"choices": [{"mess',
        b"[" * 100_000,
        b"\xff\xfe\x00",
        b"null",
        b"[]",
        b'"text"',
        {},
        {"choices": []},
        {"choices": None},
        {"choices": "yes"},
        {"choices": {"0": 1}},
        {"choices": [None]},
        {"choices": ["yes"]},
        {"choices": [{"message": None}]},
        {"choices": [{"message": "yes"}]},
        {"choices": [{"message": {}}]},
        {"choices": [{"text": "yes"}]},
        {"error": {"message": "upstream failed", "code": 502}},
        completion(7),
        completion({"text": "yes"}),
    ],
)
def test_what_is_no_completion_is_malformed(body: Any) -> None:
    found = refusal(body, 200)
    assert found.kind == "malformed"
    assert not found.overload


NAMES = ["choices", "message", "content", "usage", "model", "error", "code"]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=4),
    max_leaves=8,
)


@settings(max_examples=50, deadline=None)
@given(JSON, st.sampled_from([200, 400, 404, 429, 500]))
def test_no_json_breaks_the_reader(body: Any, status: int) -> None:
    assert isinstance(read(response(body, status)), Answer | Refusal)
    assert isinstance(read(response({"choices": [{"message": body}], "usage": body}, status)), Answer | Refusal)


@pytest.mark.parametrize(
    ("status", "body", "kind", "overload"),
    [
        (401, error("Incorrect API key provided", "invalid_api_key"), "auth", False),
        (403, error("Country not supported"), "auth", False),
        (429, error("You exceeded your quota", "insufficient_quota", "insufficient_quota"), "quota", False),
        (429, error("You exceeded your quota", None, "insufficient_quota"), "quota", False),
        (429, error("Hard limit", "billing_hard_limit_reached"), "quota", False),
        (400, error("Not active", "billing_not_active"), "quota", False),
        (402, error("Payment required"), "quota", False),
        (429, error("Rate limit reached", "rate_limit_exceeded"), "rate_limited", True),
        (429, b"slow down", "rate_limited", True),
        (404, error("The model does not exist", "model_not_found"), "unknown_model", False),
        (404, error("no such Model here"), "unknown_model", False),
        (404, error("x", "DeploymentNotFound"), "unknown_model", False),
        (400, error("bad model", "model_not_found"), "unknown_model", False),
        (404, error("no route"), "not_a_judge", False),
        (400, error("context too long", "context_length_exceeded"), "bad_request", False),
        (413, b"", "bad_request", False),
        (422, {"detail": [{"msg": "field required"}]}, "bad_request", False),
        (301, b"moved", "bad_request", False),
        (408, b"", "server", False),
        (409, b"", "server", False),
        (500, b"<html>oops</html>", "server", False),
        (502, b"", "server", False),
        (503, error("overloaded"), "server", True),
        (529, error("overloaded"), "server", False),
    ],
)
def test_refusals_are_told_apart(status: int, body: Any, kind: str, overload: bool) -> None:
    found = refusal(body, status)
    assert (found.kind, found.overload, found.status) == (kind, overload, status)
    assert found.message.startswith(f"status {status}")
    assert not found.too_fast


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (error("why it failed"), "status 500: why it failed"),
        ({"message": "top level"}, "status 500: top level"),
        ({"error": "only text"}, "status 500: only text"),
        (b"plain text", "status 500: plain text"),
        (b"", "status 500"),
        (error("x" * 1000), "status 500: " + "x" * MESSAGE_CHARS + " ..."),
        (b"y" * 1000, "status 500: " + "y" * MESSAGE_CHARS + " ..."),
        (b"\xff\xfe", "status 500: \ufffd\ufffd"),
    ],
)
def test_what_the_provider_says_is_passed_on_in_short(body: Any, said: str) -> None:
    assert refusal(body, 500).message == said


def rates(limit: Any, remaining: Any, reset: str = "", what: str = "requests") -> dict[str, str]:
    told = {"limit": str(limit), "remaining": str(remaining), "reset": reset}
    return {f"x-ratelimit-{name}-{what}": value for name, value in told.items()}


def test_a_refusal_for_a_rate_is_known_by_its_headers() -> None:
    def too_fast(headers: dict[str, str]) -> bool:
        found = read(Response(429, headers, b"{}"))
        assert isinstance(found, Refusal)
        return found.too_fast

    assert too_fast(rates(500, 0))
    assert too_fast({**rates(500, 3), **rates(90_000, 0, what="tokens")})
    assert not too_fast(rates(500, 3))
    assert not too_fast({})
    assert not too_fast(rates(-1, 0))
    assert not too_fast(rates(0, 0))


@pytest.mark.parametrize(
    ("headers", "hint"),
    [
        (rates(500, 3), RateHint(500, 3)),
        (rates(500, 0), RateHint(500, 0)),
        (rates(500, 500), RateHint(500, 500)),
        ({}, None),
        (rates(0, 0), None),
        (rates(-1, -1), None),
        (rates(500, -1), None),
        (rates(500, 501), None),
        (rates("", ""), None),
        (rates("many", "few"), None),
        (rates("60, 60;w=60", 3), None),
        (rates("9" * 5000, 3), None),
        ({"x-ratelimit-limit-requests": "500"}, None),
    ],
)
def test_rate_headers_are_believed_where_they_make_sense(headers: dict[str, str], hint: RateHint | None) -> None:
    assert rate_hint(headers, "requests") == hint
    assert rate_hint(headers, "tokens") is None


@pytest.mark.parametrize(
    ("headers", "wait_s"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "0.25"}, 0.25),
        ({"retry-after": "0"}, 0.0),
        ({"retry-after": "-1"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, MAX_WAIT_HINT_S),
        ({"retry-after": "86400"}, MAX_WAIT_HINT_S),
        ({"retry-after": ""}, None),
        ({"retry-after": "Wed, 21 Oct 2026 07:28:00 GMT"}, None),
        ({"retry-after-ms": "250"}, 0.25),
        ({"retry-after-ms": "250", "retry-after": "1"}, 0.25),
        ({"retry-after-ms": "-1", "retry-after": "1"}, 1.0),
        ({"retry-after-ms": "soon", "retry-after": "1"}, 1.0),
        (rates(500, 0, "120ms"), 0.12),
        (rates(500, 0, "6m0s"), 1.0),
        (rates(500, 3, "6m0s"), None),
        (rates(500, 0, "2026-01-01T00:00:00Z"), None),
        ({**rates(500, 0, "800ms"), **rates(90_000, 0, "300ms", "tokens")}, 0.3),
        ({**rates(500, 0, "20ms"), "retry-after": "2"}, 2.0),
    ],
)
def test_hints_to_wait(headers: dict[str, str], wait_s: float | None) -> None:
    assert wait_hint(headers) == (pytest.approx(wait_s) if wait_s is not None else None)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("20ms", 0.02),
        ("1s", 1.0),
        ("1.5s", 1.5),
        ("6m0s", 360.0),
        ("1h2m3s", 3723.0),
        ("1m30.5s", 90.5),
        ("", None),
        ("7", None),
        ("7 s", None),
        ("-1s", None),
        ("1d", None),
        ("1s later", None),
    ],
)
def test_durations(text: str, seconds: float | None) -> None:
    assert duration_s(text) == seconds


def test_no_key_sends_no_header() -> None:
    assert json_headers("k")["Authorization"] == "Bearer k"
    assert "Authorization" not in json_headers("")
