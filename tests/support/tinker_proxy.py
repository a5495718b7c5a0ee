"""A proxy between the SDK and a server that is right: ASGI middleware that alters requests and answers."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tinker.proto import tinker_public_pb2 as pb

App = Callable[[Any, Any, Any], Awaitable[None]]
Message = MutableMapping[str, Any]
API = "/api/v1/"


@dataclass
class Call:
    """One request, and the answer that the server gave to it."""

    path: str
    """Below /api/v1/."""
    body: bytes
    status: int = 200
    answer: bytes = b""
    scope: Any = None

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    def proto(self) -> Any:
        message = pb.ForwardBackwardRequest()
        message.ParseFromString(self.body)
        return message


@dataclass
class Fault:
    """Alters what passes; the base class alters nothing. `kinds` has what each future was asked for."""

    kinds: dict[str, str] = field(default_factory=dict)

    def asked(self, call: Call) -> None:
        """Alter a request, in place."""

    def answered(self, call: Call) -> None:
        """Alter an answer, in place."""

    def result(self, call: Call, kind: str) -> None:
        """Alter the result of a future that was asked for by a request to `kind`."""

    async def held(self, call: Call, kind: str) -> None:
        """Hold a request up before the server gets it; `kind` as for `result`."""

    def again(self, call: Call) -> Sequence[Call]:
        """Requests that the server gets before this one, and whose answers nobody hears."""
        return ()

    def cut(self, call: Call) -> bool:
        """Whether the connection breaks in the middle of the answer."""
        return False


class Proxy:
    """The server behind a fault, which may be changed at any time. `log` has the requests that passed."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.fault = Fault()
        self.log: list[str] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        fault, call = self.fault, Call(scope["path"].removeprefix(API), await _read(receive), scope=scope)
        self.log.append(call.path)
        fault.asked(call)
        kind = fault.kinds.get(call.json["request_id"], "") if call.path == "retrieve_future" else ""
        await fault.held(call, kind)
        for other in fault.again(call):
            await self._forward(replace(other))
        start = await self._forward(call)
        fault.answered(call)
        if call.path == "retrieve_future":
            fault.result(call, kind)
        elif b'"request_id"' in call.answer:
            fault.kinds[json.loads(call.answer)["request_id"]] = call.path
        headers = [(k, v) for k, v in start.get("headers", []) if k.lower() != b"content-length"]
        headers.append((b"content-length", str(len(call.answer)).encode()))
        await send({"type": "http.response.start", "status": call.status, "headers": headers})
        if not fault.cut(call):  # else uvicorn closes the connection of an answer that is not whole
            await send({"type": "http.response.body", "body": call.answer})

    async def _forward(self, call: Call) -> Message:
        started: Message = {}
        parts: list[bytes] = []
        unread = [call.body]

        async def receive() -> Message:
            return {"type": "http.request", "body": unread.pop() if unread else b"", "more_body": False}

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                started.update(message)
            else:
                parts.append(message.get("body", b""))

        headers = [(k, v) for k, v in call.scope["headers"] if k.lower() != b"content-length"]
        headers.append((b"content-length", str(len(call.body)).encode()))
        await self.app({**call.scope, "headers": headers}, receive, send)
        call.status, call.answer = started["status"], b"".join(parts)
        return started


async def _read(receive: Any) -> bytes:
    parts: list[bytes] = []
    while True:
        message = await receive()
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(parts)
