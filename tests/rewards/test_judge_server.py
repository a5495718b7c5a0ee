"""The loopback judge that tests and benchmarks ask: what it counts, refuses and breaks, seen by a plain client."""

from __future__ import annotations

import asyncio
import http.client
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from benchmarks.common.judge_behaviour import Behaviour, Bucket, Limit, duration
from benchmarks.common.judge_server import JudgeServer

Answer = tuple[int, dict[str, str], dict[str, Any]]


@pytest.fixture(scope="module")
def shared_server() -> Iterator[JudgeServer]:
    with JudgeServer() as server:
        yield server


@pytest.fixture
def server(shared_server: JudgeServer) -> JudgeServer:
    """The one server of this module, as if it had just been started."""
    shared_server.configure(**json.loads(Behaviour().to_json()))
    shared_server.reset()
    return shared_server


def body_of(text: str, model: str = "judge") -> bytes:
    return json.dumps({"model": model, "messages": [{"role": "user", "content": text}]}).encode()


def ask(server: JudgeServer, text: str = "a", key: str = "key", model: str = "judge", timeout: float = 10) -> Answer:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=timeout)
    try:
        headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        connection.request("POST", "/v1/chat/completions", body_of(text, model), headers)
        reply = connection.getresponse()
        return reply.status, {k.lower(): v for k, v in reply.getheaders()}, json.loads(reply.read())
    finally:
        connection.close()


async def ask_at_once(server: JudgeServer, texts: list[str]) -> list[int]:
    """Statuses of requests that are in flight together, each on a connection of its own."""

    async def one(text: str) -> int:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        body = body_of(text)
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        status = int((await reader.readline()).split()[1])
        writer.close()
        return status

    return await asyncio.gather(*map(one, texts))


def test_a_reply_is_a_chat_completion_with_usage(server: JudgeServer) -> None:
    status, headers, body = ask(server, "what is it?", model="a-judge")
    assert status == 200
    assert headers["content-type"] == "application/json"
    assert body["model"] == "a-judge"
    assert body["choices"][0]["finish_reason"] == "stop"
    assert body["choices"][0]["message"]["content"] in Behaviour().replies
    usage = body["usage"]
    assert usage["prompt_tokens"] > 0 and usage["completion_tokens"] > 0
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


def test_the_last_message_alone_decides_the_reply(server: JudgeServer) -> None:
    def text_of(answer: Answer) -> str:
        return answer[2]["choices"][0]["message"]["content"]

    questions = [f'question {i} with "quotes" and \\ a slash' for i in range(30)]
    first = [text_of(ask(server, q)) for q in questions]
    assert set(first) == set(Behaviour().replies)
    assert [text_of(ask(server, q, model="another")) for q in questions] == first


def test_counters(server: JudgeServer) -> None:
    for text in ("a", "b", "a"):
        ask(server, text)
    stats = server.stats()
    assert (stats["requests"], stats["answered"], stats["answered_distinct"], stats["paid_twice"]) == (3, 3, 2, 1)
    assert stats["max_in_flight"] == 1 and stats["in_flight_now"] == 0
    assert 0 <= stats["first_answer_s"] <= stats["last_answer_s"]
    server.reset()
    assert server.stats()["requests"] == 0


def test_a_connection_is_kept_and_takes_split_and_joined_requests(server: JudgeServer) -> None:
    async def talk() -> list[bytes]:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        body = body_of("a")
        one = b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(body) + body
        writer.write(one + one + one[:50])
        await asyncio.sleep(0.02)
        writer.write(one[50:-3])
        await asyncio.sleep(0.02)
        writer.write(one[-3:])
        found = []
        for _ in range(3):
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            found.append(await reader.readexactly(length))
        writer.close()
        return found

    replies = asyncio.run(talk())
    assert len(set(replies)) == 1 and server.stats()["answered"] == 3


def test_more_than_the_limit_are_refused_at_once(server: JudgeServer) -> None:
    server.configure(latency_s=0.3, max_in_flight=3)
    statuses = asyncio.run(ask_at_once(server, [str(i) for i in range(5)]))
    assert sorted(statuses) == [200, 200, 200, 429, 429]
    stats = server.stats()
    assert stats["refused"] == {"concurrency": 2} and stats["max_in_flight"] == 3 and stats["answered"] == 3


@pytest.mark.parametrize("after", [None, 2.5])
def test_retry_after_of_a_concurrency_refusal(server: JudgeServer, after: float | None) -> None:
    server.configure(script=["refuse"], retry_after_s=after)
    status, headers, body = ask(server)
    assert status == 429 and headers.get("retry-after") == (None if after is None else "2.5")
    assert body["error"]["code"] == "rate_limit_exceeded"
    assert ask(server)[0] == 200


def test_the_limit_moves_with_the_answers(server: JudgeServer) -> None:
    server.configure(latency_s=0.2, max_in_flight=4, schedule=[[4, 1], [5, 2]], schedule_by="answered")
    counts = [asyncio.run(ask_at_once(server, ["a"] * 4)).count(200) for _ in range(3)]
    assert counts == [4, 1, 2]
    assert [limit for _, limit in server.stats()["limits"]] == [4, 1, 2]


def test_the_limit_moves_with_time() -> None:
    limit = Limit(Behaviour(max_in_flight=80, schedule=((10, 40), (20, 120))))
    assert [limit.at(t, 0) for t in (0, 9.9, 10.1, 19, 21)] == [80, 80, 40, 40, 120]
    assert limit.log == [(0.0, 80), (10, 40), (20, 120)]


def test_a_bucket_holds_its_rate() -> None:
    bucket = Bucket(600, burst=5)
    taken = [t / 100 for t in range(1000) if bucket.take(1, t / 100) == 0]
    assert taken[:5] == [0.0, 0.01, 0.02, 0.03, 0.04]
    assert 100 <= len(taken) <= 105
    assert bucket.take(1, 9.99) == pytest.approx(0.1, abs=0.1)
    large = Bucket(600, burst=5)
    assert large.take(15, 0.0) == 0.0 and large.take(1, 0.0) == pytest.approx(1.1)


def test_rates_are_refused_and_told(server: JudgeServer) -> None:
    server.configure(requests_per_minute=60, request_burst=2)
    first, second, third = (ask(server, str(i)) for i in range(3))
    assert (first[0], second[0], third[0]) == (200, 200, 429)
    assert first[1]["x-ratelimit-limit-requests"] == "60" and first[1]["x-ratelimit-remaining-requests"] == "1"
    assert second[1]["x-ratelimit-remaining-requests"] == "0" and second[1]["x-ratelimit-reset-requests"].endswith("s")
    assert third[1]["retry-after"] == "1" and 0 < int(third[1]["retry-after-ms"]) <= 1000
    server.configure(requests_per_minute=60, request_burst=1, rate_headers=False, rate_retry_after=False)
    assert ask(server)[0] == 200
    status, headers, _ = ask(server)
    assert status == 429 and not [name for name in headers if "retry" in name or "ratelimit" in name]


def test_tokens_have_a_rate_too(server: JudgeServer) -> None:
    server.configure(tokens_per_minute=6000, token_burst=300)
    text = "word " * 160
    status, headers, _ = ask(server, text)
    assert status == 200 and headers["x-ratelimit-limit-tokens"] == "6000"
    status, _, body = ask(server, text)
    assert status == 429 and body["error"]["type"] == "tokens" and server.stats()["refused"] == {"tokens": 1}


def test_durations_as_openai_writes_them() -> None:
    assert [duration(s) for s in (0.012, 1.5, 30, 360)] == ["12ms", "1.5s", "30s", "6m0s"]


@pytest.mark.parametrize(
    ("changes", "status", "code"),
    [
        ({"api_key": "another"}, 401, "invalid_api_key"),
        ({"models": ["another"]}, 404, "model_not_found"),
        ({"quota": 0}, 429, "insufficient_quota"),
        ({"bad_request": "poison"}, 400, None),
    ],
)
def test_errors_are_openais(server: JudgeServer, changes: dict[str, Any], status: int, code: str | None) -> None:
    server.configure(**changes)
    found, _, body = ask(server, "poison")
    assert found == status and body["error"]["code"] == code
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert server.stats()["answered"] == 0
    server.configure(api_key="key", models=["judge"], quota=None, bad_request="poison")
    assert ask(server, "harmless")[0] == 200


@pytest.mark.parametrize("status", [500, 502, 503])
def test_server_errors(server: JudgeServer, status: int) -> None:
    server.configure(script=[f"http_{status}"])
    assert ask(server)[0] == status
    assert ask(server)[0] == 200
    assert server.stats()["faults"] == {f"http_{status}": 1}


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        ("reset_before", ConnectionResetError),
        ("reset_during", (ConnectionResetError, http.client.IncompleteRead)),
        ("truncated", http.client.IncompleteRead),
        ("malformed", json.JSONDecodeError),
    ],
)
def test_broken_replies(server: JudgeServer, fault: str, error: type[Exception]) -> None:
    server.configure(script=[fault])
    with pytest.raises(error):
        ask(server)
    assert ask(server)[0] == 200
    stats = server.stats()
    assert stats["answered"] == 1 and stats["in_flight_now"] == 0 and stats["faults"] == {fault: 1}


def test_a_hang_holds_its_place_until_the_client_leaves(server: JudgeServer) -> None:
    server.configure(script=["hang"], max_in_flight=1)
    with pytest.raises(TimeoutError):
        ask(server, timeout=0.2)
    stats = server.stats()
    assert stats["abandoned"] == 1 and stats["in_flight_now"] == 0 and stats["answered"] == 0


def test_a_drip_comes_whole_and_late(server: JudgeServer) -> None:
    server.configure(script=["drip"], drip_s=0.3)
    begin = time.monotonic()
    assert ask(server)[2]["choices"][0]["message"]["content"] in Behaviour().replies
    assert time.monotonic() - begin > 0.1 and server.stats()["answered"] == 1


def test_garbage_has_no_verdict_and_is_no_answer(server: JudgeServer) -> None:
    server.configure(script=["garbage"])
    assert ask(server)[2]["choices"][0]["message"]["content"] == Behaviour().garbage
    assert server.stats()["answered"] == 0


def test_faults_are_drawn_by_seed(server: JudgeServer) -> None:
    def statuses() -> list[int]:
        server.configure(faults={"http_500": 0.5}, seed=3)
        return [ask(server)[0] for _ in range(30)]

    first = statuses()
    assert set(first) == {200, 500} and statuses() == first


def test_an_outage_on_one_port() -> None:
    with JudgeServer() as server:
        ask(server)
        port = server.port
        server.kill()
        with pytest.raises(ConnectionRefusedError):
            ask(server)
        server.start()
        assert server.port == port and ask(server)[0] == 200


def test_it_ends_with_its_parent() -> None:
    script = Path(__file__).parents[2] / "benchmarks" / "common" / "judge_server.py"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, str(script)], **pipes) as process:  # type: ignore[call-overload]
        assert json.loads(process.stdout.readline())["port"] > 0
        process.stdin.close()
        assert process.wait(timeout=10) == 0


@pytest.mark.parametrize(
    "settings", [{"latency": "slow"}, {"faults": {"fire": 1}}, {"faults": {"hang": 1.5}}, {"latency_ms": 1}]
)
def test_wrong_settings_are_refused(server: JudgeServer, settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        Behaviour().with_changes(settings)
    with pytest.raises(ValueError):
        server.configure(**settings)
