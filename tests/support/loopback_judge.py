"""A judge on the loopback interface that answers by a rule: the last message -> a reply, or a status to fail with."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Answer = Callable[[str], str | int]


@dataclass
class LoopbackJudge:
    """A running judge; `asked` are the texts of the last messages, in order of arrival."""

    base_url: str
    asked: list[str] = field(default_factory=list)
    models: set[str] = field(default_factory=set)
    keys: set[str] = field(default_factory=set)


@contextmanager
def loopback_judge(answer: Answer) -> Iterator[LoopbackJudge]:
    judge = LoopbackJudge("")

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            text = request["messages"][-1]["content"]
            judge.asked.append(text)
            judge.models.add(request["model"])
            judge.keys.add(self.headers.get("Authorization", ""))
            said = answer(text)
            if isinstance(said, int):
                self.reply(said, {"error": {"message": "out of order"}})
                return
            choice = {"index": 0, "message": {"role": "assistant", "content": said}, "finish_reason": "stop"}
            usage = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
            self.reply(200, {"choices": [choice], "model": "rule-1", "usage": usage})

        def reply(self, status: int, data: object) -> None:
            body = json.dumps(data).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    judge.base_url = f"http://127.0.0.1:{server.server_address[1]}/v1"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield judge
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
