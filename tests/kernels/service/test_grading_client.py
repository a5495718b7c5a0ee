"""The client of a grading service, against services that misbehave: a failure is no score, and ends some time.

What a healthy service answers is tested with the service itself, in tests/server.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from assay.errors import AssayError, ConfigError, GradingServiceError
from assay.kernels.config import GraderConfig
from assay.kernels.pool import GradingPool, require_grader
from assay.kernels.problems.scaling import unscaled
from assay.kernels.problems.sources import make_problem
from assay.kernels.service import wire
from assay.kernels.service.client import MOST_PREPARING, RemoteGrader
from assay.kernels.verdicts import Verdict
from assay.transport.http import MAX_RESPONSE_BYTES
from support.grading_services import Behaviour, misbehaving, response
from support.kernelbench_data import TINY

PROBLEM = make_problem(1, 1, "tiny", TINY, "test")
OK = Verdict("ok", "numerics", tests_passed=5, tests_total=5)


def verdict_to(body: bytes, **changes: Any) -> bytes:
    """What a healthy service answers to a request, with other fields in the verdict."""
    return wire.reply_body(json.loads(body)["id"], verdict={**OK.to_json(), **changes})


def says(make: Callable[[bytes], bytes], **kwargs: str) -> Behaviour:
    """A service that answers every request with a body of its own."""

    async def behave(_: asyncio.StreamReader, writer: asyncio.StreamWriter, body: bytes) -> None:
        writer.write(response(make(body), **kwargs))

    return behave


async def ends(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, _: bytes) -> None:
    """A service that dies in the middle of a grade."""
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 500\r\n\r\n{")
    writer.transport.abort()


async def sleeps(*_: object) -> None:
    await asyncio.sleep(30)


def grade(behave: Behaviour, timeout_s: float = 0.5) -> tuple[Verdict | AssayError, int]:
    """What comes of one grade, and of how many requests."""

    async def main() -> tuple[Verdict | AssayError, int]:
        async with (
            misbehaving(behave) as (url, bodies),
            GradingPool(GraderConfig(url=url, url_timeout_s=timeout_s)) as pool,
        ):
            try:
                return await pool.grade(PROBLEM, "code"), len(bodies)
            except AssayError as error:
                return error, len(bodies)

    return asyncio.run(main())


def replaced(old: str, new: str) -> Callable[[bytes], bytes]:
    return lambda body: verdict_to(body).replace(old.encode(), new.encode(), 1)


GARBAGE: dict[str, Callable[[bytes], bytes]] = {
    "no JSON": lambda _: b"<html>",
    "deep": lambda _: b"[" * 100_000,
    "not a service's": lambda _: b'{"verdict": {"kind": "ok", "stage": "numerics"}}',
    "no verdict": lambda body: wire.reply_body(json.loads(body)["id"]),
    "an unknown kind": lambda body: verdict_to(body, kind="great"),
    "an unknown stage": lambda body: verdict_to(body, stage="heaven"),
    "an unknown field": lambda body: verdict_to(body, bonus=1),
    "a count of another type": lambda body: verdict_to(body, tests_passed="5"),
    "more right than there were": lambda body: verdict_to(body, tests_passed=6),
    "infinitely many": replaced('"tests_passed": 5', '"tests_passed": 1e999'),
    "NaN": replaced('"cpu_s": 0.0', '"cpu_s": NaN'),
    "another's verdict": lambda _: wire.reply_body("0123", verdict=OK.to_json()),
    "huge": lambda _: b" " * (MAX_RESPONSE_BYTES + 1),
}


@pytest.mark.parametrize("name", GARBAGE)
def test_garbage_is_no_verdict_and_is_soon_given_up(name: str) -> None:
    verdict, requests = grade(says(GARBAGE[name]), timeout_s=20)
    assert isinstance(verdict, Verdict), verdict
    assert (verdict.kind, requests, verdict.problem) == ("infra_error", 3, PROBLEM.hash)
    assert "does not answer as one does" in verdict.message


@pytest.mark.parametrize(
    ("behave", "said"),
    [
        (sleeps, "it has not answered"),
        (ends, "closed before the response was complete"),
        (says(lambda _: b"", status="502 Bad Gateway"), "status 502"),
        (says(lambda _: b"oops", status="429 Too Many Requests", Retry_After="30"), "status 429"),
    ],
    ids=["slow", "killed", "gateway", "busy"],
)
def test_a_service_that_fails_is_an_infra_error_in_the_end(behave: Behaviour, said: str) -> None:
    verdict, requests = grade(behave)
    assert isinstance(verdict, Verdict) and verdict.kind == "infra_error" and said in verdict.message
    assert requests >= 1 and "within 0.5 s" in verdict.message


def test_a_failure_is_tried_again_until_there_is_a_verdict() -> None:
    attempts: list[bytes] = []

    async def behave(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, body: bytes) -> None:
        attempts.append(body)
        if len(attempts) == 1:
            await ends(reader, writer, body)
        elif len(attempts) == 2:
            writer.write(response(b"", status="503 Service Unavailable", Retry_After="0"))
        else:
            writer.write(response(verdict_to(body)))

    assert grade(behave, timeout_s=20) == (Verdict("ok", "numerics", tests_passed=5, tests_total=5), 3)


def error_body(message: str) -> Callable[[bytes], bytes]:
    return lambda body: wire.reply_body(json.loads(body)["id"], error={"code": "x", "message": message})


KEY = "a-key-that-nobody-guesses-0123456789"


@pytest.mark.parametrize(
    ("behave", "kind", "said"),
    [
        (says(error_body(f"no, {KEY}\x1b[2J"), status="401 Unauthorized"), ConfigError, r"no, \[API key\].\[2J"),
        (says(error_body("policy=lax"), status="422 Unprocessable Entity"), GradingServiceError, "policy=lax"),
        (says(replaced('"wire": 1', '"wire": 2')), GradingServiceError, "Install the same version"),
        (says(error_body(""), status="307 Moved", Location="http://evil.example/"), GradingServiceError, "redirect"),
    ],
    ids=["key", "settings", "version", "redirect"],
)
def test_a_service_that_refuses_every_grade_is_an_error(
    behave: Behaviour, kind: type[AssayError], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(wire.KEY_VARIABLE, KEY)
    error, requests = grade(behave)
    assert isinstance(error, kind) and requests == 1
    with pytest.raises(kind, match=said):
        raise error
    assert KEY not in str(error) and "\x1b" not in str(error)


@pytest.mark.parametrize(
    ("behave", "said"),
    [(says(GARBAGE["no JSON"]), "not a reply"), (says(verdict_to), "does not say what it is"), (ends, "was closed")],
)
def test_a_service_is_asked_before_anything_is_spent(behave: Behaviour, said: str) -> None:
    async def main() -> None:
        async with misbehaving(behave) as (url, _):
            with pytest.raises(GradingServiceError, match=said):
                await asyncio.to_thread(require_grader, GraderConfig(url=url))

    asyncio.run(main())


def test_nobody_there_is_said_at_once() -> None:
    with pytest.raises(GradingServiceError, match=r"cannot connect to 127\.0\.0\.1:1"):
        require_grader(GraderConfig(url="http://127.0.0.1:1"))


def test_what_is_asked_says_what_a_verdict_means_and_no_more() -> None:
    asked = wire.asked_of(GraderConfig())
    assert set(asked) == {
        "backend", "device", "precision", "scale", "policy", "compile_check", "arch", "num_correct_trials",
        "measure_performance", "baselines",
    }  # fmt: skip


def test_a_request_is_read_as_it_was_written_and_is_never_too_large() -> None:
    worst = make_problem(1, 1, "\U0001f600" * 999, TINY + "#" + "\U0001f600" * (199_999 - len(TINY)), "test")
    body = wire.request_body(GraderConfig(), "a-1", worst, "\U0001f600" * 1_000_000)
    assert len(body) <= wire.MAX_REQUEST_BYTES
    read = wire.read_request(body)
    assert read.problem is not None and read.problem.code == worst.code and read.problem.hash == worst.hash
    surrogate = wire.read_request(wire.request_body(GraderConfig(), "a-1", PROBLEM, "x = '\udc80'"))
    assert surrogate.code == "x = '\udc80'"


def test_numbers_that_json_lacks_do_not_spoil_a_verdict() -> None:
    verdict = Verdict("wrong", "numerics", evidence={"worst": float("inf"), "all": [float("nan"), 1.5]})
    reply = wire.read_reply(wire.reply_body("a", verdict=verdict.to_json()), "a")
    assert wire.read_verdict(reply).evidence == {"worst": None, "all": [None, 1.5]}


def test_sizes_of_the_callers_choice_are_refused() -> None:
    async def main() -> None:
        async with GradingPool(GraderConfig(url="http://127.0.0.1:1")) as pool:
            with pytest.raises(GradingServiceError, match="sizes of the caller's choice"):
                await pool.grade(unscaled(PROBLEM), "code")

    asyncio.run(main())


def test_a_service_that_never_answers_does_not_hold_up_preparing() -> None:
    async def main() -> None:
        async with misbehaving(sleeps) as (url, bodies):
            grader = RemoteGrader(GraderConfig(url=url, url_timeout_s=0.3))
            async with asyncio.timeout(10):
                await asyncio.gather(*(grader.prepare(PROBLEM) for _ in range(MOST_PREPARING + 1)))
            await grader.close()
            assert len(bodies) == MOST_PREPARING + 1

    asyncio.run(main())
