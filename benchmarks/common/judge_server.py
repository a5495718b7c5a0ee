"""A judge on the loopback interface: OpenAI's chat completions as cheaply as Python can, with every fault on order.

    python benchmarks/common/judge_server.py --port 0 --behaviour '{"latency_s": 1.0, "max_in_flight": 80}'

prints one JSON line with its port, and ends when its standard input does. `GET /stats` counts; `POST /configure` sets
fields of `Behaviour` while it runs; `POST /reset` sets the counters to zero. The last message's text decides which of
`replies` a request gets, so replies are deterministic. Bodies are searched, not parsed: it serves clients that behave,
and says nothing of what a real provider would think of a request. `JudgeServer` runs it in a process of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import http.client
import json
import os
import resource
import socket
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

if __name__ == "__main__":  # A script has no package, and so no neighbours.
    sys.path[0] = str(Path(__file__).parents[1])
    from common.judge_behaviour import Behaviour
    from common.judge_state import Head, Judge, error_body, http_reply, read_head
else:
    from .judge_behaviour import Behaviour
    from .judge_state import Head, Judge, error_body, http_reply, read_head

try:
    import uvloop
except ImportError:  # Slower, and the same in every other way.
    uvloop = None

FILE_LIMIT = 16384


class Connection(asyncio.Protocol):
    """One client connection: one request at a time, kept alive between them."""

    def __init__(self, judge: Judge, loop: asyncio.AbstractEventLoop) -> None:
        self.judge, self.loop = judge, loop
        self.transport: Any = None
        self.received = b""
        self.timer: asyncio.TimerHandle | None = None
        self.serving = False
        """Whether a request has been accepted and holds a place among those in flight."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        if self.timer:
            self.timer.cancel()
        if self.serving:
            self.judge.abandoned += 1
            self.release()
        self.transport = None

    def release(self) -> None:
        if self.serving:
            self.serving = False
            self.judge.in_flight -= 1

    def data_received(self, data: bytes) -> None:
        self.received = self.received + data if self.received else data
        if self.timer is None and not self.serving:
            self.next_request()

    def next_request(self) -> None:
        data, judge = self.received, self.judge
        end = data.find(b"\r\n\r\n")
        if end < 0:
            return
        raw = data[:end]
        head = judge.heads.get(raw)
        if head is None:
            head = read_head(raw)
            if len(judge.heads) < 4096:
                judge.heads[raw] = head
        stop = end + 4 + head.length
        if len(data) < stop:
            return
        body, self.received = data[end + 4 : stop], data[stop:]
        if head.target == b"POST /v1/chat/completions":
            self.serve(head, body)
        else:
            self.send(judge.manage(head, body), head.close)

    def serve(self, head: Head, body: bytes) -> None:
        judge = self.judge
        judge.requests += 1
        now = time.monotonic()
        if judge.first_request is None:
            judge.first_request = now
        scripted = judge.script.pop(0) if judge.script else None
        refused = judge.too_many() if scripted == "refuse" else judge.refusal(head, body, now)
        if refused:
            judge.refused[refused.kind] += 1
            data = http_reply(refused.status, refused.body, refused.headers)
            self.later(judge.behaviour.refusal_latency_s, self.send, data, head.close)
            return
        self.serving = True
        judge.in_flight += 1
        if judge.in_flight > judge.max_in_flight:
            judge.max_in_flight = judge.in_flight
        headers = judge.rate_headers(now)
        fault = scripted or judge.fault()
        if fault == "ok":
            self.later(judge.latency(), self.answer, body, headers, head.close)
        else:
            judge.faulty[fault] += 1
            if fault != "hang":
                self.later(judge.latency(), self.fail, fault, body, headers, head.close)

    def later(self, delay: float, do: Any, *args: Any) -> None:
        if delay > 0:
            self.timer = self.loop.call_later(delay, do, *args)
        else:
            do(*args)

    def answer(self, body: bytes, headers: str, close: bool) -> None:
        self.release()
        self.judge.count_answer(body)
        self.send(self.judge.reply(body, headers), close)

    def send(self, data: bytes, close: bool) -> None:
        """The end of one request: reply, and go on with the next."""
        self.timer = None
        self.transport.write(data)
        if close:
            self.transport.close()
        elif self.received:
            self.next_request()

    def fail(self, fault: str, body: bytes, headers: str, close: bool) -> None:
        """Do to an accepted request what FAULTS says."""
        if fault.startswith("http_"):
            status = int(fault.removeprefix("http_"))
            self.release()
            self.send(http_reply(status, error_body("The server had an error.", "server_error")), close)
            return
        whole = self.judge.reply(body, headers, garbage=fault == "garbage")
        if fault == "drip":
            self.drip(whole, body, close)
            return
        self.release()
        if fault == "garbage":
            self.send(whole, close)
        elif fault == "malformed":
            self.send(http_reply(200, b'{"choices": [{"message": {"content": "<ans'), close)
        elif fault == "truncated":
            self.transport.write(whole[:-40])
            self.transport.close()
        elif fault == "reset_before":
            self.reset()
        else:
            self.transport.write(whole[: len(whole) // 2])
            self.timer = self.loop.call_later(0.01, self.reset)  # Not before the half reply has left.

    def drip(self, left: bytes, body: bytes, close: bool) -> None:
        """A few bytes now, the rest later; answered with the last of them."""
        size = 16
        if len(left) <= size:
            self.judge.count_answer(body)
            self.release()
            self.send(left, close)
            return
        self.transport.write(left[:size])
        steps = max(1, 700 // size)
        self.timer = self.loop.call_later(self.judge.behaviour.drip_s / steps, self.drip, left[size:], body, close)

    def reset(self) -> None:
        """End the connection with a TCP reset."""
        self.timer = None
        sock = self.transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()


def raise_file_limit(wanted: int = FILE_LIMIT) -> None:
    """Allow this process and its children many open sockets, as far as the system lets it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, hard), hard))


async def serve(port: int, behaviour: Behaviour) -> None:
    """Serve until standard input ends."""
    loop, judge, ended = asyncio.get_running_loop(), Judge(behaviour), asyncio.Event()
    server = await loop.create_server(lambda: Connection(judge, loop), "127.0.0.1", port, backlog=4096)
    found = {"port": server.sockets[0].getsockname()[1], "loop": type(loop).__module__}
    print(json.dumps(found), flush=True)

    def watch() -> None:
        while sys.stdin.buffer.read(4096):
            pass
        with contextlib.suppress(RuntimeError):  # The loop has ended by itself.
            loop.call_soon_threadsafe(ended.set)

    threading.Thread(target=watch, daemon=True).start()
    await ended.wait()
    # Straight out: nothing here is worth waiting for connections that hang on purpose.
    os._exit(0)


class JudgeServer:
    """The judge in a process of its own, which ends with this one. A context manager.

    `behaviour` is where it starts; `configure` changes fields while it runs. `kill` and `start` again make an outage
    on the same port.
    """

    def __init__(self, behaviour: Behaviour | None = None, port: int = 0) -> None:
        self.behaviour = behaviour or Behaviour()
        self.port = port
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> JudgeServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def base_url(self) -> str:
        """The root that an OpenAI client is given."""
        return f"http://127.0.0.1:{self.port}/v1"

    def start(self) -> None:
        """Start the process, on the port of before if there was one."""
        options = ["--port", str(self.port), "--behaviour", self.behaviour.to_json()]
        command = [sys.executable, str(Path(__file__)), *options]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the judge server ended with status {self._process.wait()} before it listened")
        self.port = json.loads(line)["port"]

    def kill(self) -> None:
        """End the process at once, with every connection."""
        if self._process is None:
            return
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe:
                pipe.close()
        self._process = None

    def stats(self) -> dict[str, Any]:
        """Its counters."""
        return self._ask("GET", "/stats")

    def reset(self) -> None:
        """Set its counters to zero."""
        self._ask("POST", "/reset")

    def configure(self, **changes: Any) -> None:
        """Change fields of its behaviour while it runs; buckets and schedules begin anew."""
        self._ask("POST", "/configure", changes)

    def _ask(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request(method, path, json.dumps(body or {}), {"connection": "close"})
            reply = connection.getresponse()
            found: dict[str, Any] = json.loads(reply.read())
        finally:
            connection.close()
        if reply.status != 200:
            raise ValueError(found["error"]["message"])
        return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--behaviour", default="{}", help="JSON object of fields of Behaviour")
    args = parser.parse_args()
    behaviour = Behaviour().with_changes(json.loads(args.behaviour))
    raise_file_limit()
    (uvloop or asyncio).run(serve(args.port, behaviour))


if __name__ == "__main__":
    main()
