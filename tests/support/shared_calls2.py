"""A caller that counts what it is really asked, and processes that share it through a hub."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

from assay.rewards.base import CallFailure, Outcome, Reply, Request, Usage
from assay.rewards.cache import ReplyCache, StoredReply
from assay.types import Message


def request(number: int, chars: int = 10) -> Request:
    return Request("judge-1", (Message("user", f"{number} ".ljust(chars, "é")),), {"temperature": 0.0}, "v1", 0)


def verdict(number: int, chars: int = 10) -> str:
    return f"{len(request(number, chars).messages[0].content)} {number}"


class CountingCaller:
    """Answers each distinct request once, after a delay, keeps it in a cache, and writes down that it was asked.

    Requests below 0 are not answered: -1 never, -2 is refused, -3 raises, -4 has a very long answer.
    """

    def __init__(self, folder: Path, delay_s: float) -> None:
        self._cache = ReplyCache(folder / "rewards.sqlite", 10)
        self._log = os.open(folder / "asked", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._delay_s = delay_s
        self._under_way: dict[str, asyncio.Task[Reply]] = {}
        self.waiting = 0
        self.asked = 0

    async def call(self, request: Request, deadline: float | None = None) -> Outcome:
        number = int(request.messages[0].content.split()[0])
        self.waiting += 1
        try:
            if number == -1:
                async with asyncio.timeout_at(deadline):
                    await asyncio.Event().wait()
            if number == -2:
                return CallFailure("rate_limited", "too fast", 3, Usage(3, 1, 2, 0.5))
            if number == -3:
                raise ValueError("a bug")
            if number == -4:
                return Reply("x" * 300_000)
            key = request.key("here")
            if (stored := self._cache.get(key)) is not None:
                return stored.reply()
            if key not in self._under_way:
                self._under_way[key] = asyncio.create_task(self._ask(key, number, request))
                self._under_way[key].add_done_callback(lambda _: self._under_way.pop(key))
            return await asyncio.shield(self._under_way[key])
        except TimeoutError:
            return CallFailure("deadline", "told by the hub")
        finally:
            self.waiting -= 1

    async def _ask(self, key: str, number: int, request: Request) -> Reply:
        self.asked += 1
        os.write(self._log, f"{number}\n".encode())
        await asyncio.sleep(self._delay_s)
        reply = Reply(f"{len(request.messages[0].content)} {number}", "stop", "judge-1", Usage(1, 10, 2, 0.001))
        self._cache.put([(key, StoredReply.of(reply))])
        return reply

    async def forget(self, request: Request) -> None:
        self._cache.drop(request.key("here"))

    async def counters(self) -> dict[str, float]:
        return {"waiting": self.waiting, "asked": self.asked, "pid": os.getpid()}

    async def close(self) -> None:
        self._cache.close()
        os.close(self._log)


PRELUDE = """
import asyncio, json, os, signal, sys, time
from pathlib import Path
from assay.rewards.shared2.hub import SharedCaller
from support.shared_calls2 import CountingCaller, request, verdict
folder, delay = Path(sys.argv[1]), float(sys.argv[2])
arguments = [int(a) for a in sys.argv[3:]]
shared = SharedCaller(folder / "hub.sock", lambda: CountingCaller(folder, delay))
async def stdin_line():
    return await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
"""


def process(folder: Path, code: str, *arguments: int, delay_s: float = 0.0) -> subprocess.Popen[str]:
    """A process that runs `code`, the body of a coroutine, after `PRELUDE`."""
    body = "".join(f"    {line}\n" for line in code.strip().splitlines())
    folders = [str(Path(__file__).parents[1]), *sys.path]
    return subprocess.Popen(
        [
            sys.executable,
            "-c",
            f"{PRELUDE}\nasync def main():\n{body}\nasyncio.run(main())",
            str(folder),
            str(delay_s),
            *map(str, arguments),
        ],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, folders))},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def output(process: subprocess.Popen[str]) -> str:
    """What a process printed since it was last read, once it has ended well."""
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    return out


def asked(folder: Path) -> list[int]:
    """The calls that really were made, in order."""
    return [int(line) for line in (folder / "asked").read_text().split()]
