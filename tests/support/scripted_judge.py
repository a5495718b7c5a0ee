"""A judge on the loopback interface, in a thread of the test, whose every reply a function decides; and what to ask it.

`Said` holds everything that a reply can be: text, status, headers, delay, the very bytes, and how the connection ends.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from assay.errors import UnreadableReplyError
from assay.rewards import EngineConfig, JudgeConfig, Reply, Request, Sample
from assay.types import Message, Score

End = Literal["keep", "close", "reset", "hang"]


@dataclass(frozen=True)
class Asked:
    """One request, as the judge sees it."""

    text: str
    """Content of the last message."""
    number: int
    """How many requests came before it."""
    nth: int
    """How many requests with the same text came before it."""
    in_flight: int
    """Requests under way, this one included."""
    body: Mapping[str, Any]
    head: str


@dataclass(frozen=True)
class Said:
    """One reply. `raw` are its very bytes; otherwise they follow from status, text, usage and headers."""

    text: str = "1"
    status: int = 200
    delay_s: float = 0.0
    headers: Mapping[str, str] = field(default_factory=dict)
    tokens: tuple[int, int] | None = (10, 2)
    code: str = ""
    body: Any = None
    raw: bytes | None = None
    end: End = "keep"
    """What becomes of the connection: kept, closed, reset; `hang` never answers."""

    def bytes(self) -> bytes:
        if self.raw is not None:
            return self.raw
        body = self.body
        if body is None and self.status == 200:
            body = completion(self.text, self.tokens)
        elif body is None:
            body = {"error": {"message": self.text, "type": self.code, "code": self.code}}
        return response(json.dumps(body).encode(), self.status, self.headers)


def completion(text: str, tokens: tuple[int, int] | None = (10, 2)) -> dict[str, Any]:
    """A chat completion as OpenAI writes it."""
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    usage = {"usage": {"prompt_tokens": tokens[0], "completion_tokens": tokens[1]}} if tokens else {}
    return {"choices": [choice], "model": "judge-2", **usage}


def response(body: bytes, status: int = 200, headers: Mapping[str, str] | None = None) -> bytes:
    lines = {"content-type": "application/json", **(headers or {}), "content-length": str(len(body))}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    return f"HTTP/1.1 {status} Said\r\n{head}\r\n".encode() + body


Answer = Callable[[Asked], "Said | str | int"]


class ScriptedJudge:
    """A running judge. Its counters may be read at any time; `answer` may be replaced while it runs."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.asked: list[str] = []
        self.answered: Counter[str] = Counter()
        """Texts to which a completion was sent whole."""
        self.connections = 0
        self.open = 0
        self.in_flight = 0
        self.max_in_flight = 0
        self.port = 0
        self.loop = asyncio.new_event_loop()

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def config(self, **changes: Any) -> JudgeConfig:
        return JudgeConfig(**{"base_url": self.base_url, "api_key_env": "", "model": "judge-1", **changes})


class _Connection(asyncio.Protocol):
    def __init__(self, judge: ScriptedJudge) -> None:
        self.judge = judge
        self.received = b""
        self.busy = False
        self.timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport
        self.judge.connections += 1
        self.judge.open += 1

    def connection_lost(self, exc: Exception | None) -> None:
        self.judge.open -= 1
        if self.timer is not None:
            self.timer.cancel()
        self.release()

    def release(self) -> None:
        self.judge.in_flight -= self.busy
        self.busy = False

    def data_received(self, data: bytes) -> None:
        self.received += data
        head, found, rest = self.received.partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0]) if found else 0
        if not found or len(rest) < length:
            return
        assert not self.busy, "a second request before the first was answered"
        self.received = rest[length:]
        self.serve(head.decode("latin-1"), json.loads(rest[:length]))

    def serve(self, head: str, body: dict[str, Any]) -> None:
        judge = self.judge
        text = body["messages"][-1]["content"]
        self.busy = True
        judge.in_flight += 1
        judge.max_in_flight = max(judge.max_in_flight, judge.in_flight)
        nth = judge.asked.count(text)
        said = judge.answer(Asked(text, len(judge.asked), nth, judge.in_flight, body, head))
        judge.asked.append(text)
        if isinstance(said, str):
            said = Said(said)
        elif isinstance(said, int):
            said = Said("out of order", status=said)
        if said.delay_s:
            self.timer = judge.loop.call_later(said.delay_s, self.say, text, said)
        else:
            self.say(text, said)

    def say(self, text: str, said: Said) -> None:
        if said.end == "hang":
            return
        self.release()
        self.transport.write(said.bytes())
        if said.status == 200 and said.raw is None:
            self.judge.answered[text] += 1
        if said.end == "close":
            self.transport.close()
        elif said.end == "reset":
            linger = struct.pack("ii", 1, 0)
            self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self.transport.abort()


@contextmanager
def scripted_judge(answer: Answer = lambda asked: "1") -> Iterator[ScriptedJudge]:
    """A judge that answers by `answer` until the block ends."""
    judge = ScriptedJudge(answer)
    loop = judge.loop
    listener = socket.create_server(("127.0.0.1", 0), backlog=512)
    judge.port = listener.getsockname()[1]

    def serve() -> None:
        server = loop.run_until_complete(loop.create_server(lambda: _Connection(judge), sock=listener))
        loop.run_forever()
        server.close()
        loop.close()

    thread = threading.Thread(target=serve, name="scripted-judge", daemon=True)
    thread.start()
    try:
        yield judge
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()


def after(delay_s: float, answer: Answer = lambda asked: "1") -> Answer:
    """The same answers, each after a delay."""

    def later(asked: Asked) -> Said:
        said = answer(asked)
        said = Said(said) if isinstance(said, str) else Said("out of order", said) if isinstance(said, int) else said
        return replace(said, delay_s=delay_s)

    return later


def ask(text: str, **changes: Any) -> Request:
    """A request whose last message is `text`."""
    given = {"model": "judge-1", "params": {"temperature": 0.0, "max_tokens": 4}, **changes}
    return Request(messages=(Message("user", text),), **given)


@dataclass(frozen=True)
class Marks:
    """A reward: the judge's reply as a number. `votes` calls per sample, of which the mean is taken."""

    votes: int = 1
    name: str = "marks"
    fingerprint: str = "marks:1"

    def requests(self, sample: Sample) -> Sequence[Request]:
        return [ask(sample.response, replica=vote) for vote in range(self.votes)]

    def score(self, sample: Sample, replies: Sequence[Reply]) -> Score:
        values = []
        for place, reply in enumerate(replies):
            try:
                values.append(float(reply.text))
            except ValueError:
                raise UnreadableReplyError(f"no number in {reply.text!r}", (place,)) from None
        return Score("scored", sum(values) / len(values))


def samples(texts: Sequence[object]) -> list[Sample]:
    return [Sample(str(text)) for text in texts]


def settings(**changes: Any) -> EngineConfig:
    """An engine without a cache whose faults show soon."""
    return EngineConfig(**{"cache": False, "max_failure_rate": 1.0, "call_deadline_s": 5.0, **changes})
