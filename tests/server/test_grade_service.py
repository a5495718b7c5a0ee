"""The grading service over real connections: what it refuses, in what order it works, and how it stops.

Scheduling is tested with a grader that waits when it is told to; one test runs the command with the real one.
"""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from assay.errors import ConfigError, GradingServiceError
from assay.kernels.config import GraderConfig
from assay.kernels.grader import VERSION
from assay.kernels.pool import GradingPool
from assay.kernels.problems.sources import make_problem
from assay.kernels.problems.starter import starter
from assay.kernels.service import wire
from assay.kernels.service.client import ask_service, check_service
from assay.kernels.verdicts import Verdict
from assay.server.grading import http
from assay.server.grading.config import GradeServerConfig, require_key
from assay.server.grading.http import MAX_HEAD_BYTES
from support.grading_services import served
from support.kernelbench_data import TINY, shipped
from support.sandboxes import children

KEY = "a-key-that-nobody-guesses-0123456789"
PROBLEM = make_problem(1, 1, "tiny", TINY, "test")
CLIENT = GraderConfig(compile_check="off", url="http://127.0.0.1:1")
HEADERS = {"Content-Type": "application/json", "Host": "127.0.0.1:{port}"}


def asked(**changes: Any) -> dict[str, Any]:
    """A request for a grade, as data; None leaves a key out."""
    data = {**json.loads(wire.request_body(CLIENT, "id-1", PROBLEM, "ok")), **changes}
    return {name: value for name, value in data.items() if value is not None}


def told(**changes: Any) -> bytes:
    return json.dumps(asked(**changes)).encode()


async def exchange(
    port: int, body: bytes, path: str = wire.GRADE, method: str = "POST", headers: Mapping[str, str] = HEADERS
) -> tuple[int, dict[str, str], Any]:
    """What a server answers to one request: status, headers, body."""
    head = {"Content-Length": str(len(body)), "Connection": "close", **headers}
    lines = "".join(f"{name}: {value.format(port=port)}\r\n" for name, value in head.items())
    return await answer_to(port, f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode() + body)


async def answer_to(port: int, data: bytes) -> tuple[int, dict[str, str], Any]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    head, _, body = (await asyncio.wait_for(reader.read(), 20)).partition(b"\r\n\r\n")
    writer.close()
    first, *lines = head.decode().split("\r\n")
    return int(first.split()[1]), dict(line.lower().split(": ", 1) for line in lines), json.loads(body)


def setting(name: str, value: Any) -> bytes:
    return told(settings={**wire.asked_of(CLIENT), name: value})


def of_problem(**changes: Any) -> bytes:
    return told(problem={**asked()["problem"], **changes})


BODIES: dict[str, tuple[bytes, int, str]] = {
    "no JSON": (b"grade this", 400, "not JSON"),
    "no UTF-8": (b"\xff\xfe", 400, "not JSON"),
    "deep": (b"[" * 200_000, 400, "not JSON"),
    "a huge integer": (b'{"wire": ' + b"1" * 5000 + b"}", 400, "not JSON"),
    "NaN": (told().replace(b'"ok"', b"NaN"), 400, "NaN is no JSON"),
    "a list": (b"[]", 400, "must be an object"),
    "nothing": (b"{}", 409, "Install the same version"),
    "another grader": (told(grader="4"), 409, "'4'"),
    "another format": (told(wire=2), 409, "wire format 1"),
    "an unknown key": (told(hint="x"), 400, "['hint']"),
    "an id with a line break": (told(id="a\nb"), 400, "id must be"),
    "no id": (told(id=None), 400, "id must be"),
    "code that is none": (told(code=["x"]), 400, "code must be text"),
    "no code": (told(code=None), 400, "needs a problem"),
    "no problem": (told(problem=None), 400, "needs a problem"),
    "a problem that is none": (told(problem=[]), 400, "problem must be an object"),
    "a level that is true": (of_problem(level=True), 400, "problem.level must be int"),
    "a level out of range": (of_problem(level=10**30), 400, "from 0 to"),
    "a lone surrogate": (of_problem(code="\ud800"), 400, "UTF-8"),
    "a feigned source": (of_problem(source="huggingface"), 400, "shipped or client"),
    "a problem that is not shipped": (of_problem(source="shipped"), 422, "not one that comes with"),
    "no settings": (told(settings=None), 400, "settings must be an object"),
    "a limit": (setting("wall_s", 9), 422, "the service decides all else"),
    "no walls": (setting("sandbox", "unsafe"), 422, "'sandbox' cannot be asked for"),
    "an unknown setting": (setting("__class__", 9), 422, "cannot be asked for"),
    "a setting of another type": (setting("num_correct_trials", True), 422, "must be a whole number"),
    "infinitely many calls": (told().replace(b'"num_correct_trials": 6', b'"num_correct_trials": 1e999'), 422, "whole"),
    "too many calls": (setting("num_correct_trials", 10**30), 422, "at most 64"),
    "no such policy": (setting("policy", "lax"), 422, "one of strict, partial"),
    "no such architecture": (
        told(settings={**wire.asked_of(CLIENT), "compile_check": "all", "arch": "x"}),
        422,
        "arch='x'",
    ),
    "another device": (setting("device", "cuda"), 422, "this service has device=cpu"),
    "timing": (setting("measure_performance", True), 422, "does not time kernels"),
}


def test_what_is_no_request_is_refused_in_words_and_harms_nothing() -> None:
    async def main() -> None:
        async with served() as service:
            for name, (body, status, said) in BODIES.items():
                found, _, reply = await exchange(service.port, body)
                assert (found, said in reply["error"]["message"]) == (status, True), (name, found, reply)
                assert reply["wire"] == wire.WIRE and reply["grader"] == VERSION
            assert service.stub.started == []
            status, headers, reply = await exchange(service.port, told())
            assert (status, reply["verdict"]["kind"], headers["x-request-id"]) == (200, "ok", "id-1")

    asyncio.run(main())


def test_what_is_no_http_is_refused_before_a_body_is_read() -> None:
    start = b"POST /v1/grade HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nContent-Type: application/json\r\n"
    heads: list[tuple[bytes, int]] = [
        (b"\x16\x03\x01\r\n\r\n", 400),
        (b"GET /v1/grade HTTP/1.1\r\n\r\n", 405),
        (b"POST /v2/grade HTTP/1.1\r\n\r\n", 404),
        (b"POST /v1/grade HTTP/1.1\r\nHost: evil.example\r\n\r\n", 421),
        (start.replace(b"application/json", b"text/plain") + b"\r\n", 415),
        (start + b"Content-Length: %d\r\n\r\n" % (wire.MAX_REQUEST_BYTES + 1), 413),
        (start + b"Content-Length: 9999999999999999999\r\n\r\n", 413),
        (start + b"Transfer-Encoding: chunked\r\n\r\n", 411),
        (start + b"X: %s\r\n\r\n" % (b"x" * MAX_HEAD_BYTES), 431),
    ]

    async def main() -> None:
        async with served() as service:
            for head, status in heads:
                found, _, _ = await answer_to(service.port, head.replace(b"%d", b"%d" % service.port))
                assert found == status, (head[:200], found)
            found, _, reply = await exchange(service.port, b"", wire.HEALTH, "GET")
            assert found == 200 and reply["status"] == "ok" and reply["requests"] == 0

    asyncio.run(main())


def test_all_bodies_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "MAX_HELD_BYTES", 100_000)
    head = b"POST /v1/grade HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nContent-Type: application/json\r\n"
    head += b"Content-Length: 80000\r\nExpect: 100-continue\r\n\r\n"

    async def main() -> None:
        async with served() as service:
            ends = [await asyncio.open_connection("127.0.0.1", service.port) for _ in range(2)]
            for _, writer in ends:  # both are let in while nothing is held
                writer.write(head % service.port)
            for reader, _ in ends:
                assert b" 100 " in await reader.readuntil(b"\r\n\r\n")
            for _, writer in ends:
                writer.write(b" " * 70_000)
            replies = [asyncio.create_task(reader.readuntil(b"\r\n\r\n")) for reader, _ in ends]
            done, waiting = await asyncio.wait(replies, timeout=10, return_when=asyncio.FIRST_COMPLETED)
            assert len(done) == 1 and b" 503 " in done.pop().result()
            waiting.pop().cancel()
            for _, writer in ends:
                writer.close()
            status, _, _ = await exchange(service.port, told())
            assert status == 200, "what was held is let go"

    asyncio.run(main())


def test_a_slow_request_is_cut_off() -> None:
    async def main() -> None:
        async with served(read_s=0.2) as service:
            reader, writer = await asyncio.open_connection("127.0.0.1", service.port)
            writer.write(b"POST /v1/grade HTTP/1.1\r\n")
            assert await asyncio.wait_for(reader.read(), 5) == b""
            writer.close()

    asyncio.run(main())


def test_only_those_with_the_key_are_served(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv(wire.KEY_VARIABLE, KEY)
    caplog.set_level(logging.DEBUG)

    async def main() -> None:
        async with served() as service:
            wrong = {**HEADERS, "Authorization": f"Bearer {KEY}x", "Content-Length": "999"}
            for headers in (HEADERS, wrong, {**HEADERS, "Authorization": KEY}):
                status, answer, reply = await exchange(service.port, b"", headers=headers)  # no body was sent yet
                assert status == 401 and answer["connection"] == "close" and KEY not in json.dumps(reply)
            config = GraderConfig(compile_check="off", url=service.url)
            assert (await ask_service(config))["backend"] == "triton"
            async with GradingPool(config) as pool:
                assert (await pool.grade(PROBLEM, "wrong")).kind == "wrong"
            monkeypatch.setenv(wire.KEY_VARIABLE, "another-key-0123456789")
            with pytest.raises(ConfigError, match=wire.KEY_VARIABLE):
                await ask_service(config)

    asyncio.run(main())
    assert "200 wrong" in caplog.text and KEY not in caplog.text and "another-key" not in caplog.text


@pytest.mark.parametrize(("key", "said"), [("", "is not set"), ("short", "at least 16")])
def test_other_machines_are_served_with_a_good_key_only(key: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        require_key(GradeServerConfig(host="0.0.0.0"), key)
    require_key(GradeServerConfig(host="0.0.0.0"), KEY)
    require_key(GradeServerConfig(host="::1"), key)
    with pytest.raises(ConfigError, match="not an IP address"):
        GradeServerConfig(host="localhost")
    with pytest.raises(ConfigError, match="asks no other"):
        GradeServerConfig(url="http://a:1")


def gone(pid: int) -> bool:
    """Whether a process has ended; whoever inherited it may not have noticed yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


async def until(condition: Any) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0.005)


def test_equal_candidates_are_graded_once_and_for_as_long_as_somebody_waits(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        async with served() as service:
            service.stub.gate.clear()
            config = GraderConfig(compile_check="off", url=service.url)
            async with GradingPool(config) as one, GradingPool(config) as other:
                first = asyncio.create_task(one.grade(PROBLEM, "ok same"))
                second = asyncio.create_task(other.grade(PROBLEM, "ok same"))
                alone = asyncio.create_task(other.grade(PROBLEM, "ok alone"))
                await until(lambda: len(service.stub.started) == 2 and service.stub.running == 2)
                first.cancel()
                alone.cancel()
                await until(lambda: service.stub.running == 1)
                assert sorted(service.stub.started) == ["ok alone", "ok same"]
                service.stub.gate.set()
                assert (await second).message == "ok same"
                one.prepare([PROBLEM])
                await until(lambda: service.stub.prepared == [PROBLEM.hash] and not one._ahead)

    asyncio.run(main())
    assert "could not be made ready" not in caplog.text


def test_a_full_service_says_when_to_come_again_and_the_client_does(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with served(max_requests=1) as service:
            service.stub.gate.clear()
            config = GraderConfig(compile_check="off", url=service.url)
            async with GradingPool(config) as pool:
                waiting = [asyncio.create_task(pool.grade(PROBLEM, f"ok {n}")) for n in range(2)]
                await until(lambda: service.stub.running == 1)
                status, headers, reply = await exchange(service.port, told())
                assert (status, headers["retry-after"], reply["error"]["code"]) == (503, "1", "busy")
                assert (await exchange(service.port, b"", wire.HEALTH, "GET"))[2]["requests"] == 1
                await asyncio.sleep(0.1)
                service.stub.gate.set()
                assert [v.kind for v in await asyncio.gather(*waiting)] == ["ok", "ok"]

    monkeypatch.setattr("assay.server.grading.app.RETRY_AFTER_S", 1)
    asyncio.run(main())


def test_only_so_many_settings_are_served_at_a_time() -> None:
    async def main() -> None:
        async with served(max_settings=1) as service:
            config = GraderConfig(compile_check="off", url=service.url)
            other = GraderConfig(compile_check="off", url=service.url, policy="partial", url_timeout_s=0.3)
            async with GradingPool(config) as pool, GradingPool(other) as second:
                service.stub.gate.clear()
                waiting = asyncio.create_task(pool.grade(PROBLEM, "ok"))
                await until(lambda: service.stub.running == 1)
                refused = await second.grade(PROBLEM, "ok")
                assert refused.kind == "infra_error" and "different settings" in refused.message
                service.stub.gate.set()
                assert (await waiting).ok
                assert (await second.grade(PROBLEM, "ok")).ok, "nobody uses the first settings any more"

    asyncio.run(main())


@pytest.mark.parametrize("stop_s", [20.0, 0.0])
def test_a_service_that_is_stopped_answers_what_is_under_way(stop_s: float) -> None:
    async def main() -> None:
        async with served(stop_s=stop_s) as service:
            service.stub.gate.clear()
            waiting = asyncio.create_task(exchange(service.port, told()))
            ahead = asyncio.create_task(exchange(service.port, told(code=None), wire.PREPARE))
            await until(lambda: service.stub.running == 1 and service.stub.prepared)
            service.stop.set()
            if stop_s:
                await until(lambda: not service.task.done())
                service.stub.gate.set()
            status, headers, reply = await waiting
            verdict = Verdict.from_json(reply["verdict"])
            if stop_s:
                assert (status, verdict.kind) == (200, "ok")
            else:
                assert (status, verdict.kind, "retry-after" in headers) == (503, "infra_error", True)
                assert "stopped before" in verdict.message
            assert (await ahead)[0] == status
            await service.task
            assert service.stub.closed and service.stub.running == 0
            with pytest.raises(OSError):
                await asyncio.open_connection("127.0.0.1", service.port)

    asyncio.run(main())


def test_a_grader_that_cannot_grade_at_all_is_no_verdict() -> None:
    async def main() -> None:
        async with served() as service:
            async with GradingPool(GraderConfig(compile_check="off", url=service.url, url_timeout_s=0.3)) as pool:
                verdict = await pool.grade(PROBLEM, "raise")
            assert verdict.kind == "infra_error" and "cannot isolate untrusted code" in verdict.message

    asyncio.run(main())


def test_the_command_grades_as_a_grader_here_does_and_leaves_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(wire.KEY_VARIABLE, KEY)
    settings = ["port=0", "compile_check=off", "workers=1", f"cache_path={tmp_path / 'kernels.sqlite'}"]
    command = [sys.executable, "-m", "assay", "grade-server", *settings]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        try:
            url = next(word for word in process.stdout.readline().split() if word.startswith("http")).rstrip(".")
            config = GraderConfig(compile_check="off", num_correct_trials=1, url=url)
            assert check_service(config)["device"] == "cpu"
            problem = shipped()["1/1"]
            code = starter(problem)

            async def main() -> list[Verdict]:
                async with GradingPool(config) as pool:
                    return [await pool.grade(problem, code), await pool.grade(problem, code)]

            first, again = asyncio.run(main())
            assert first.ok and first.tests_passed == first.tests_total and not first.cached
            assert again.ok and again.cached, "the verdicts of the service are kept"
            with pytest.raises(GradingServiceError, match="device=cpu"):
                check_service(GraderConfig(device="cuda", url=url))
            below = children(process.pid)
            assert below, "the workers"
        finally:
            process.send_signal(signal.SIGTERM)
            log = process.stderr.read()
        assert process.wait(30) == 0
    assert all(map(gone, below))
    assert "200 ok" in log and KEY not in log
