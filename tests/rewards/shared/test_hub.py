"""Processes that share one caller: asked once for all, whoever dies, closes, or talks nonsense."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import stat
import struct
import subprocess
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from assay.errors import RewardError
from assay.rewards.base import CallFailure, Reply, Request, Usage
from assay.rewards.shared import hub as hub_module
from assay.rewards.shared import link
from assay.rewards.shared.frames import FrameReader, decode_request, encode_outcome, encode_request, frame
from assay.rewards.shared.hub import SharedCaller, socket_path
from assay.types import Message
from support.shared_calls import CountingCaller, asked, output, process, request, verdict

ASK = """
print("ready", flush=True)
await stdin_line()
numbers = range(*arguments)
replies = await asyncio.gather(*(shared.call(request(n)) for n in numbers))
assert [r.text for r in replies] == [verdict(n) for n in numbers]
await shared.close()
print(sum(r.usage.calls for r in replies), flush=True)
"""
"""Asks for a range of requests, given as arguments, when told to."""

SERVE = """
assert (await shared.counters())["pid"] == os.getpid()
print("ready", flush=True)
await stdin_line()
await shared.close()
print("closed", flush=True)
"""
"""Becomes the hub and stays it until told to close."""


def say(child: subprocess.Popen[str]) -> None:
    """Tell a process to go on."""
    assert child.stdin is not None
    child.stdin.write("\n")
    child.stdin.flush()


def ready(child: subprocess.Popen[str]) -> subprocess.Popen[str]:
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n", child.communicate(timeout=30)
    return child


@contextlib.asynccontextmanager
async def sharing(
    folder: Path, count: int = 2, *, delay_s: float = 0.0, drain_s: float = 5.0, max_frame_bytes: int = 2**20
) -> AsyncIterator[list[SharedCaller]]:
    """Callers in this process; the first is the hub, the others reach it through the socket."""
    options = {"max_frame_bytes": max_frame_bytes, "drain_s": drain_s}
    callers = [
        SharedCaller(folder / "hub.sock", lambda: CountingCaller(folder, delay_s), **options)  # type: ignore[arg-type]
        for _ in range(count)
    ]
    for caller in callers:
        await caller.counters()
    assert [caller.is_hub for caller in callers] == [True] + [False] * (count - 1)
    try:
        yield callers
    finally:
        for caller in reversed(callers):
            await caller.close()


async def waiting(caller: SharedCaller, count: int) -> None:
    """Return once `count` calls are under way in the hub."""
    async with asyncio.timeout(20):
        while (await caller.counters())["waiting"] != count:
            await asyncio.sleep(0.01)


def test_eight_processes_ask_each_distinct_request_once(tmp_path: Path) -> None:
    children = [process(tmp_path, ASK, 10 * me, 10 * me + 100, delay_s=0.05) for me in range(8)]
    for child in children:
        ready(child)
    for child in children:
        say(child)
    for child in children:
        output(child)
    assert sorted(asked(tmp_path)) == list(range(170))
    assert not (tmp_path / "hub.sock").exists()


def test_all_is_answered_although_the_hub_is_killed(tmp_path: Path) -> None:
    hub = ready(process(tmp_path, SERVE, delay_s=0.3))
    children = [process(tmp_path, ASK, 20 * me, 20 * me + 40, delay_s=0.02) for me in range(4)]
    for child in children:
        say(ready(child))
    while not (tmp_path / "asked").exists() or len(asked(tmp_path)) < 50:
        time.sleep(0.01)
    hub.send_signal(signal.SIGKILL)
    hub.communicate(timeout=30)
    for child in children:
        output(child)
    calls = asked(tmp_path)
    assert set(calls) == set(range(100))
    assert max(calls.count(n) for n in set(calls)) <= 2, "once by each of two hubs, at most"


def test_hubs_that_are_killed_one_after_another(tmp_path: Path) -> None:
    code = """
me = arguments[0]
for number in range(1000 * me, 1000 * me + 150):
    reply = await shared.call(request(number))
    assert reply.text == verdict(number), reply
    if shared.is_hub and me < 3 and number % 1000 > 20:
        os.kill(os.getpid(), signal.SIGKILL)
await shared.close()
print("done")
"""
    children = [process(tmp_path, code, me, delay_s=0.002) for me in range(5)]
    ends = [(child.communicate(timeout=60), child.returncode) for child in children]
    assert [out for (out, _), code in ends[3:]] == ["done\n"] * 2, ends
    assert all(code in (0, -signal.SIGKILL) for _, code in ends), ends
    assert set(range(3000, 3150)) | set(range(4000, 4150)) <= set(asked(tmp_path))


def test_a_hub_that_closes_answers_what_is_under_way_and_another_takes_over(tmp_path: Path) -> None:
    async def main() -> None:
        async with sharing(tmp_path, 3, delay_s=0.2) as (hub, second, third):
            under_way = [asyncio.create_task(c.call(request(n))) for n in range(10) for c in (second, third)]
            await waiting(third, 20)
            closing = asyncio.create_task(hub.close())
            await asyncio.sleep(0.05)
            late = asyncio.create_task(third.call(request(10)))
            await closing
            assert not hub.is_hub
            replies = await asyncio.gather(*under_way)
            assert [r.text for r in replies] == [verdict(n) for n in range(10) for _ in range(2)]
            assert (await late).text == verdict(10)
            assert sorted(asked(tmp_path)) == list(range(11)), "a closing hub answers what it has, and takes no more"
            more = await asyncio.gather(*(c.call(request(n)) for n in range(20) for c in (second, third)))
            assert sum(r.cached for r in more) >= 22
            assert [second.is_hub, third.is_hub].count(True) == 1
            assert sorted(asked(tmp_path)) == list(range(20))
            assert (await third.counters())["hub_processes"] == 2

    asyncio.run(main())


def test_a_follower_that_arrives_while_the_hub_closes_is_turned_away(tmp_path: Path) -> None:
    """It asks the next hub: served by this one, its call would be cut off when the caller closes."""

    async def main() -> None:
        shared = SharedCaller(tmp_path / "hub", lambda: CountingCaller(tmp_path, 0.0))
        await shared.counters()
        hub = shared._role
        assert isinstance(hub, hub_module._Hub)
        hub.usable = False  # as `close` begins; the follower's socket was accepted just before
        mine, theirs = socket.socketpair(socket.AF_UNIX)
        loop = asyncio.get_running_loop()
        await loop.connect_accepted_socket(hub._follower, theirs)
        _, connection = await loop.create_unix_connection(lambda: link.HubConnection(1 << 20), sock=mine)
        with pytest.raises(link.HubGone):
            await asyncio.wait_for(connection.greeted, 10)
        assert not hub._links
        await shared.close()

    asyncio.run(main())


def test_a_closing_hub_does_not_wait_for_ever(tmp_path: Path) -> None:
    async def main() -> None:
        async with sharing(tmp_path, 2, drain_s=0.05) as (hub, other):
            endless = asyncio.create_task(other.call(request(-1)))
            await waiting(other, 1)
            await hub.close()
            assert (await other.call(request(1))).text == verdict(1)
            assert other.is_hub
            endless.cancel()

    asyncio.run(main())


def test_outcomes_arrive_as_they_were(tmp_path: Path) -> None:
    async def main() -> None:
        async with sharing(tmp_path) as (hub, other):
            refused = CallFailure("rate_limited", "too fast", 3, Usage(3, 1, 2, 0.5))
            assert await hub.call(request(-2)) == await other.call(request(-2)) == refused
            paid = Reply(verdict(1), "stop", "judge-1", Usage(1, 10, 2, 0.001))
            assert await other.call(request(1)) == paid
            assert await other.call(request(1)) == Reply(verdict(1), "stop", "judge-1", cached=True)
            await other.forget(request(1))
            assert await hub.call(request(1)) == paid
            await hub.forget(request(1))
            assert await other.call(request(1)) == paid
            assert asked(tmp_path) == [1, 1, 1]

    asyncio.run(main())


def test_requests_arrive_as_they_were() -> None:
    odd = Request(
        "m/漢",
        (Message("system", ""), Message("user", 'a\0b \ud83d 🙂 "\\')),
        {"max_tokens": 5, "stop": ["a", "b"], "nested": {"x": None, "y": 1.5}},
        "v2",
        7,
    )
    data = frame(encode_request(odd)) * 3
    for step in (1, 2, 3, 7, 1000):
        reader = FrameReader(10_000)
        parts = [message for i in range(0, len(data), step) for message in reader.feed(data[i : i + step])]
        assert [decode_request(part) for part in parts] == [odd] * 3


def test_a_caller_that_raises_is_an_error_where_it_was_asked(tmp_path: Path) -> None:
    async def main() -> None:
        async with sharing(tmp_path) as (hub, other):
            with pytest.raises(RewardError, match="ValueError: a bug"):
                await other.call(request(-3))
            with pytest.raises(ValueError, match="a bug"):
                await hub.call(request(-3))
            assert (await other.call(request(1))).text == verdict(1)

    asyncio.run(main())


def test_a_caller_that_cannot_be_made_is_an_error_for_each_that_tries(tmp_path: Path) -> None:
    async def main() -> None:
        def make() -> CountingCaller:
            raise RewardError("no key")

        broken = [SharedCaller(tmp_path / "hub.sock", make) for _ in range(2)]
        for caller in broken:
            results = await asyncio.gather(*(caller.call(request(n)) for n in range(3)), return_exceptions=True)
            assert [str(r) for r in results] == ["no key"] * 3
        async with sharing(tmp_path, 1) as (able,):
            assert (await broken[0].call(request(1))).text == verdict(1)
            assert (await able.counters())["hub_processes"] == 2
            await broken[0].close()

    asyncio.run(main())


def test_deadlines_cross_the_socket(tmp_path: Path) -> None:
    async def main() -> None:
        async with sharing(tmp_path) as (_, other):
            deadline = asyncio.get_running_loop().time() + 0.05
            assert await other.call(request(-1), deadline) == CallFailure("deadline", "told by the hub")

    asyncio.run(main())


def test_a_hub_that_does_not_answer_costs_no_more_than_the_deadline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub_module, "GRACE_S", 0.05)
    hub = ready(process(tmp_path, SERVE))

    async def main() -> None:
        other = SharedCaller(tmp_path / "hub.sock", lambda: CountingCaller(tmp_path, 0))
        assert (await other.call(request(1))).text == verdict(1)
        hub.send_signal(signal.SIGSTOP)
        outcome = await other.call(request(2), asyncio.get_running_loop().time() + 0.05)
        assert isinstance(outcome, CallFailure)
        assert outcome.kind == "deadline"
        hub.send_signal(signal.SIGCONT)
        assert (await other.call(request(3))).text == verdict(3)
        await other.close()

    asyncio.run(main())
    say(hub)
    assert output(hub) == "closed\n"


def test_a_cancelled_call_stops_only_its_own_waiter(tmp_path: Path) -> None:
    async def main() -> None:
        async with sharing(tmp_path, 3, delay_s=0.5) as (hub, second, third):
            calls = [asyncio.create_task(c.call(request(1))) for c in (second, second, third)]
            endless = asyncio.create_task(third.call(request(-1)))
            await waiting(hub, 4)
            calls[0].cancel()
            endless.cancel()
            await waiting(hub, 2)
            assert [r.text for r in await asyncio.gather(*calls[1:])] == [verdict(1)] * 2
            assert asked(tmp_path) == [1]
            assert endless.cancelled()

    asyncio.run(main())


def test_the_calls_of_a_process_that_dies_are_stopped(tmp_path: Path) -> None:
    async def main() -> None:
        async with sharing(tmp_path, 1) as (hub,):
            child = ready(process(tmp_path, 'print("ready", flush=True)\nawait shared.call(request(-1))'))
            await waiting(hub, 1)
            child.kill()
            await waiting(hub, 0)
            child.communicate()
            assert (await hub.counters())["hub_processes"] == 1

    asyncio.run(main())


NONSENSE = [
    b"GET / HTTP/1.1\r\n\r\n",
    struct.pack("!I", 2**31) + b"x",
    struct.pack("!I", 4) + b"\xff\xfe\x00\x01",
    struct.pack("!I", 100_000) + b"[" * 100_000,
    frame({"not": "a list"}),
    frame([1, "call", None, ["judge-1", [["user"]], {}, "", 0]]),
    frame([1, "call", None, ["judge-1", [["user", 5]], {}, "", 0]]),
    frame([1, "call", None, None]),
    frame([1, "call", "soon", encode_request(request(1))]),
    frame([1, "call", float("nan"), encode_request(request(1))]),
    frame([0, "call", None, encode_request(request(1))]),
    frame([1, "call", None, encode_request(request(-1))]) * 2,
    frame([1, "shutdown"]),
    frame([]),
]


def test_nonsense_from_a_stranger_ends_only_its_own_connection(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with sharing(tmp_path) as (hub, other):
            calls = [asyncio.create_task(c.call(request(-1))) for c in (hub, other)]
            for data in NONSENSE:
                reader, writer = await asyncio.open_unix_connection(tmp_path / "hub.sock")
                writer.write(data)
                async with asyncio.timeout(10):
                    greeting, refusal = FrameReader(10_000).feed(await reader.read())
                assert greeting[:2] == [0, "hello"]
                assert refusal[:2] == [0, "error"]
                writer.close()
            assert (await other.call(request(1))).text == verdict(1)
            await waiting(hub, 2)
            assert not any(call.done() for call in calls)
            for call in calls:
                call.cancel()

    asyncio.run(main())
    refused = [r for r in caplog.records if "was refused" in r.getMessage()]
    assert len(refused) == len(NONSENSE) == len(caplog.records)


def test_half_a_frame_and_silence_disturb_nobody(tmp_path: Path) -> None:
    async def main() -> None:
        async with sharing(tmp_path) as (_, other):
            _, writer = await asyncio.open_unix_connection(tmp_path / "hub.sock")
            writer.write(frame([1, "call", None, encode_request(request(2))])[:-3])
            assert (await other.call(request(1))).text == verdict(1)
            writer.close()

    asyncio.run(main())
    assert asked(tmp_path) == [1]


def test_large_prompts_pass_and_larger_ones_are_failures(tmp_path: Path) -> None:
    async def main() -> None:
        async with sharing(tmp_path, 2, max_frame_bytes=200_000) as (_, other):
            calls = [other.call(request(n, chars=30_000)) for n in range(40)]
            assert [r.text for r in await asyncio.gather(*calls)] == [verdict(n, 30_000) for n in range(40)]
            for number, chars in ((1, 300_000), (-4, 10)):
                failure = await other.call(request(number, chars))
                assert isinstance(failure, CallFailure)
                assert "200000" in failure.message
            assert (await other.call(request(1))).text == verdict(1)

    asyncio.run(main())


def test_a_hub_reads_no_further_than_its_window(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "WINDOW", 50)
    monkeypatch.setattr(link, "UNSENT_BYTES", 10_000)

    async def main() -> None:
        async with sharing(tmp_path, 3) as (hub, second, third):
            endless = [asyncio.create_task(second.call(request(-1, chars=60_000))) for _ in range(200)]
            async with asyncio.timeout(20):
                while (await hub.counters())["waiting"] < 50:
                    await asyncio.sleep(0.01)
            await asyncio.sleep(0.1)
            assert (await hub.counters())["waiting"] == 50
            assert (await third.call(request(1))).text == verdict(1)
            for call in endless:
                call.cancel()
            await asyncio.gather(*endless, return_exceptions=True)

    asyncio.run(main())


def test_replies_to_one_that_does_not_read_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "UNSENT_BYTES", 10_000)
    monkeypatch.setattr(link, "WINDOW", 20)
    answered = []
    monkeypatch.setattr(link, "encode_outcome", lambda outcome: answered.append(1) or encode_outcome(outcome))
    many = b"".join(frame([n, "call", None, encode_request(request(-4))]) for n in range(1, 8000))

    async def main() -> None:
        async with sharing(tmp_path, 2) as (_, other):
            link = socket.socket(socket.AF_UNIX)
            link.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(link, str(tmp_path / "hub.sock"))
            sending = asyncio.create_task(loop.sock_sendall(link, many))
            for number in range(20):
                assert (await other.call(request(number))).text == verdict(number)
            assert not sending.done(), "the hub goes on reading from one that does not read"
            assert 20 < len(answered) < 20 + 2 * 20 + 10, "it makes more answers than it may keep"
            sending.cancel()
            await asyncio.wait([sending])
            link.close()

    asyncio.run(main())


def test_only_the_user_may_connect_and_nothing_but_the_lock_stays(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"

    async def main() -> None:
        async with sharing(folder):
            assert stat.S_IMODE((folder / "hub.sock").stat().st_mode) == 0o600
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700

    asyncio.run(main())
    assert sorted(p.name for p in folder.iterdir() if "rewards" not in p.name) == ["asked", "hub.sock.lock"]


def test_a_long_path_gets_a_short_socket(tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 30)

    async def main() -> None:
        async with sharing(folder) as (_, other):
            assert (await other.call(request(1))).text == verdict(1)
            assert len(os.fsencode(socket_path(folder / "hub.sock"))) < 60
            assert socket_path(folder / "hub.sock").exists()
            assert socket_path(folder / "other.sock") != socket_path(folder / "hub.sock")

    asyncio.run(main())
    assert not socket_path(folder / "hub.sock").exists()


def test_a_socket_left_by_the_dead_is_replaced(tmp_path: Path) -> None:
    for name in ("hub.sock", "hub.sock.new"):
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(tmp_path / name))

    async def main() -> None:
        async with sharing(tmp_path) as (_, other):
            assert (await other.call(request(1))).text == verdict(1)

    asyncio.run(main())


def test_a_child_of_the_hub_does_not_keep_its_place(tmp_path: Path) -> None:
    code = """
await shared.counters()
if os.fork() == 0:
    time.sleep(60)
    os._exit(0)
"""
    hub = ready(process(tmp_path, code + SERVE))

    async def main() -> None:
        other = SharedCaller(tmp_path / "hub.sock", lambda: CountingCaller(tmp_path, 0))
        assert (await other.call(request(1))).text == verdict(1)
        assert not other.is_hub
        call = asyncio.create_task(other.call(request(-1)))
        await waiting(other, 1)
        hub.send_signal(signal.SIGKILL)
        async with asyncio.timeout(20):
            while not other.is_hub:
                await asyncio.sleep(0.01)
        assert (await other.call(request(2))).text == verdict(2)
        call.cancel()
        await other.close()

    asyncio.run(main())


def test_after_a_fork_it_says_to_make_it_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        caller = SharedCaller(tmp_path / "hub.sock", lambda: CountingCaller(tmp_path, 0))
        with monkeypatch.context() as patch:
            patch.setattr(os, "getpid", lambda: -1)
            with pytest.raises(RewardError, match="after a fork"):
                await caller.call(request(1))
            await caller.close()

    asyncio.run(main())


def test_a_hub_of_another_version_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with sharing(tmp_path, 1):
            monkeypatch.setattr(hub_module, "VERSION", 2)
            other = SharedCaller(tmp_path / "hub.sock", lambda: CountingCaller(tmp_path, 0))
            with pytest.raises(RewardError, match="different versions of Assay"):
                await other.call(request(1))
            await other.close()

    asyncio.run(main())


def test_a_lock_without_a_hub_is_a_failure_of_the_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_module, "ELECTION_TIMEOUT_S", 0.1)

    async def main() -> None:
        lock = hub_module.try_lock(tmp_path / "hub.sock.lock")
        assert lock is not None
        other = SharedCaller(tmp_path / "hub.sock", lambda: CountingCaller(tmp_path, 0))
        failure = await other.call(request(1))
        assert isinstance(failure, CallFailure)
        assert failure.kind == "connection"
        assert "hub.sock.lock" in failure.message
        hub_module.unlock(lock)
        assert (await other.call(request(1))).text == verdict(1)
        await other.close()
        closed = await other.call(request(1))
        assert isinstance(closed, CallFailure)
        assert "closed" in closed.message
        await other.close()

    asyncio.run(main())


def test_a_folder_that_cannot_be_used_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    async def main() -> None:
        caller = SharedCaller(tmp_path / "file" / "hub.sock", lambda: CountingCaller(tmp_path, 0))
        with pytest.raises(RewardError, match="another path"):
            await caller.call(request(1))

    asyncio.run(main())
