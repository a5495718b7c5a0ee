"""Processes of another user are neither asked nor served, and numbers in frames are bounded."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import struct
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from assay.errors import RewardError
from assay.rewards.base import CallFailure
from assay.rewards.shared import owner
from assay.rewards.shared.frames import VERSION, FrameError, decode_outcome, decode_remaining
from assay.rewards.shared.hub import SharedCaller
from support.shared_calls import CountingCaller, request

HUGE = 10**400
NOBODY = 65534


def shortly(value: Any) -> str:
    return repr(value)[:8]


as_another_user = pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a process of another user")

FORGER = """
import json, os, socket, struct, sys, fcntl
def frame(message):
    body = json.dumps(message).encode()
    return struct.pack("!I", len(body)) + body
path, version = sys.argv[1], int(sys.argv[2])
os.setgroups([]); os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)
lock = os.open(path + ".lock", os.O_RDWR | os.O_CREAT, 0o666)
os.fchmod(lock, 0o666)
fcntl.flock(lock, fcntl.LOCK_EX)
hub = socket.socket(socket.AF_UNIX)
hub.bind(path)
os.chmod(path, 0o777)
hub.listen()
print("ready", flush=True)
while True:
    link, _ = hub.accept()
    link.sendall(frame([0, "hello", version]))
    while data := link.recv(1 << 16):
        number = json.loads(data[4:])[0]
        link.sendall(frame([number, "ok", ["reply", "forged", "stop", "m", [0, 0, 0, 0.0], False, 1, 0.0]]))
"""

FOLLOWER = """
import os, socket, sys
os.setgroups([]); os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)
link = socket.socket(socket.AF_UNIX)
link.connect(sys.argv[1])
link.settimeout(20)
print(len(link.recv(100)), flush=True)
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that every user may write to, as /tmp is; pytest's own are closed to others."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        os.chmod(name, 0o1777)
        yield Path(name)


@as_another_user
def test_the_hub_of_another_user_is_not_believed(folder: Path, tmp_path: Path) -> None:
    path = folder / "hub.sock"
    code = [sys.executable, "-c", FORGER, str(path), str(VERSION)]
    forger = subprocess.Popen(code, stdout=subprocess.PIPE, text=True)
    try:
        assert forger.stdout is not None and forger.stdout.readline() == "ready\n"

        async def main() -> None:
            caller = SharedCaller(path, lambda: CountingCaller(tmp_path, 0.0))
            with pytest.raises(RewardError, match="belongs to another user"):
                await caller.call(request(1))
            await caller.close()

        asyncio.run(main())
    finally:
        forger.kill()
        forger.communicate()


@as_another_user
def test_a_process_of_another_user_is_not_served(folder: Path, tmp_path: Path) -> None:

    async def main() -> None:
        caller = SharedCaller(folder / "hub.sock", lambda: CountingCaller(tmp_path, 0.0))
        await caller.counters()
        (folder / "hub.sock").chmod(0o777)
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", FOLLOWER, str(folder / "hub.sock"), stdout=asyncio.subprocess.PIPE
        )
        said, _ = await process.communicate()
        assert said == b"0\n", "it is not even greeted"
        assert (await caller.counters())["hub_processes"] == 1
        await caller.close()

    asyncio.run(main())


@as_another_user
def test_the_lock_of_another_user_is_not_taken(folder: Path, tmp_path: Path) -> None:
    lock = folder / "hub.sock.lock"
    lock.touch()
    os.chown(lock, NOBODY, NOBODY)

    async def main() -> None:
        caller = SharedCaller(folder / "hub.sock", lambda: CountingCaller(tmp_path, 0.0))
        with pytest.raises(RewardError, match=r"hub\.sock\.lock.*belongs to another user"):
            await caller.call(request(1))
        await caller.close()

    asyncio.run(main())
    assert not (tmp_path / "asked").exists()


def test_a_lock_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("x")
    (tmp_path / "hub.sock.lock").symlink_to(tmp_path / "precious")

    async def main() -> None:
        caller = SharedCaller(tmp_path / "hub.sock", lambda: CountingCaller(tmp_path, 0.0))
        with pytest.raises(RewardError, match="cannot be opened"):
            await caller.call(request(1))
        await caller.close()

    asyncio.run(main())


def test_whose_the_other_end_is() -> None:
    here, there = socket.socketpair()
    with here, there:
        assert owner.user_at_other_end(here.fileno()) in (os.geteuid(), None)
        assert here.fileno() >= 0, "the socket itself stays open"
    assert not owner.is_foreign(os.geteuid())
    assert not owner.is_foreign(None)
    assert owner.is_foreign(os.geteuid() + 1)


@pytest.mark.parametrize("value", [HUGE, -HUGE, float("nan"), float("inf"), 1e300, True, "1", [1]], ids=shortly)
def test_a_time_without_bound_is_refused(value: Any) -> None:
    with pytest.raises(FrameError):
        decode_remaining(value)
    with pytest.raises(FrameError):
        decode_outcome(["reply", "t", "stop", "m", [1, 1, 1, 0.1], False, 1, value])


@pytest.mark.parametrize("value", [HUGE, -1, float("nan"), True, None, "1"], ids=shortly)
def test_a_bill_without_bound_is_refused(value: Any) -> None:
    for place in range(4):
        spent: list[Any] = [1, 1, 1, 0.5]
        spent[place] = value
        for outcome in (["reply", "t", "stop", "m", spent, False, 1, 0.0], ["failure", "timeout", "m", 1, spent]):
            with pytest.raises(FrameError):
                decode_outcome(outcome)


def test_numbers_without_bound_end_only_the_connection_that_sent_them(tmp_path: Path) -> None:
    async def main() -> None:
        caller = SharedCaller(tmp_path / "hub.sock", lambda: CountingCaller(tmp_path, 0.0))
        await caller.counters()
        errors: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: errors.append(context))
        reader, writer = await asyncio.open_unix_connection(str(tmp_path / "hub.sock"))
        body = json.dumps([1, "call", HUGE, ["m", [["user", "x"]], {}, "", 0]]).encode()
        writer.write(struct.pack("!I", len(body)) + body)
        said = await reader.read()
        assert b"where a number" in said
        writer.close()
        assert not errors
        outcome = await caller.call(request(1))
        assert not isinstance(outcome, CallFailure)
        await caller.close()

    asyncio.run(main())
