"""A small HTTP/1.1 server for requests that take long: bounded heads, bodies, connections and times, and nothing else.

Parsing is httptools' (the parser of Node.js). A request is refused as soon as its head says that it will be: before its
body is read. Its handler is cancelled when the client goes away. Requests on one connection come one after the other;
a client that sends the next one before it has the answer is cut off.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, cast

from assay.transport.http import httptools

logger = logging.getLogger(__name__)

MAX_HEAD_BYTES = 2**14
MAX_HELD_BYTES = 64 * 2**20
"""Bytes of bodies that have not been read yet as what they are, over all connections."""
IDLE_S = 90.0
"""After which a connection without a request is closed; longer than clients keep theirs."""
LINGER_S = 2.0
"""For a client that is still sending a body that is refused: its end must read the answer first."""


@dataclass(frozen=True, slots=True)
class Head:
    """The head of a request. Header names are in lower case."""

    method: str
    path: str
    headers: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Answer:
    """What is sent back: a body of JSON."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


class Handler:
    """What answers requests: a head is refused or let in, a whole request is answered."""

    def refusal(self, head: Head) -> Answer | None:
        """What is answered to a request whose body need not be read."""
        raise NotImplementedError

    def fault(self, status: int, code: str, message: str) -> Answer:
        """The answer to what is not a request."""
        raise NotImplementedError

    def handle(self, head: Head, body: bytes) -> Awaitable[Answer]:
        """The answer to a request. Cancelled where the client goes away."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """What a server takes."""

    body_bytes: int
    connections: int
    read_s: float


class HttpServer:
    """Connections, and how much of bodies they hold."""

    def __init__(self, handler: Handler, limits: HttpLimits) -> None:
        self.handler, self.limits = handler, limits
        self.connections: set[_Connection] = set()
        self.held = 0

    def protocol(self) -> asyncio.Protocol:
        """For `loop.create_server`."""
        return _Connection(self)

    async def finish(self) -> None:
        """Let every request that is being handled have its answer, then close all connections."""
        tasks = [connection.task for connection in self.connections if connection.task is not None]
        await asyncio.gather(*tasks, return_exceptions=True)
        for connection in list(self.connections):
            connection.close()


class _Connection(asyncio.Protocol):
    """One connection: collects a request, has it handled, writes the answer."""

    def __init__(self, server: HttpServer) -> None:
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.task: asyncio.Task[None] | None = None
        self._closing = False
        self._begin()

    def _begin(self) -> None:
        """Be ready for a request."""
        self._parser: Any = httptools.HttpRequestParser(self)
        self._url, self._headers = b"", cast(dict[str, str], {})
        self._head: Head | None = None
        self._head_size = 0
        self._body = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._server.connections.add(self)
        if len(self._server.connections) > self._server.limits.connections:
            self._refuse(self._fault(503, "busy", "too many connections: come again later"))
            return
        self._after(IDLE_S)

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.connections.discard(self)
        self._stop_timer()
        self._let_go()
        if self.task is not None:
            self.task.cancel()

    def eof_received(self) -> None:
        """The client has gone: nobody waits for the answer."""
        if self.task is not None:
            self.task.cancel()

    def data_received(self, data: bytes) -> None:
        if self._closing:
            return
        if self.task is not None:  # the next request before the answer: nothing here expects that
            self.close()
            return
        if self._head is None and not self._head_size:
            self._after(self._server.limits.read_s)
        self._head_size += len(data) if self._head is None else 0
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._refuse(self._fault(400, "malformed", "this server speaks HTTP/1.1 and nothing else"))
        except httptools.HttpParserError as error:
            if not self._closing:  # else a callback has refused it
                self._refuse(self._fault(400, "malformed", f"this is not HTTP: {error}"[:200]))
        if self._head is None and self._head_size > MAX_HEAD_BYTES and not self._closing:
            self._refuse(self._long_head())

    def on_url(self, url: bytes) -> None:
        """httptools: a part of the address."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """httptools: one header."""
        key = name.decode("latin-1").lower()
        if key in self._headers and key in ("host", "content-length", "authorization", "content-type"):
            self._headers["transfer-encoding"] = "twice"  # refused as what is not a request with one meaning
        self._headers[key] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """httptools: the whole head is here."""
        head = self._head = Head(
            self._parser.get_method().decode("latin-1"), self._url.decode("latin-1").partition("?")[0], self._headers
        )
        size = len(self._url) + sum(len(name) + len(value) for name, value in self._headers.items())
        refused = self._long_head() if size > MAX_HEAD_BYTES else None
        refused = refused or self._server.handler.refusal(head) or self._too_large(head)
        if refused is not None:
            self._refuse(refused)
        elif head.headers.get("expect", "").lower() == "100-continue" and self._transport is not None:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def _long_head(self) -> Answer:
        return self._fault(431, "malformed", f"the headers have more than {MAX_HEAD_BYTES} bytes")

    def _too_large(self, head: Head) -> Answer | None:
        if "transfer-encoding" in head.headers:
            return self._fault(411, "malformed", "a request needs one Content-Length, and no Transfer-Encoding")
        length = head.headers.get("content-length", "0")
        most = self._server.limits.body_bytes
        if not (length.isascii() and length.isdigit()) or len(length) > 12 or int(length) > most:
            return self._fault(413, "too_large", f"a body has at most {most} bytes")
        return self._too_much_held() if self._server.held + int(length) > MAX_HELD_BYTES else None

    def _too_much_held(self) -> Answer:
        return self._fault(503, "busy", "too many requests are being sent at a time: come again later")

    def on_body(self, body: bytes) -> None:
        """httptools: a part of the body."""
        if not self._closing:
            self._body += body
            self._server.held += len(body)
            if self._server.held > MAX_HELD_BYTES:  # others were let in before their bodies came
                self._refuse(self._too_much_held())

    def on_message_complete(self) -> None:
        """httptools: the whole request is here."""
        if self._closing or self._head is None:
            return
        self._stop_timer()
        body, keep = bytes(self._body), bool(self._parser.should_keep_alive())  # known here, and not later
        self._let_go()
        if self.task is not None:
            self.close()
            return
        self.task = asyncio.get_running_loop().create_task(self._handle(self._head, body, keep))

    async def _handle(self, head: Head, body: bytes, keep: bool) -> None:
        try:
            answer = await self._server.handler.handle(head, body)
        except asyncio.CancelledError:
            self.close()
            raise
        except BaseException:
            self._send(self._fault(500, "fault", "the service itself failed, please report it"), keep=False)
            raise
        finally:
            self.task = None
        self._send(answer, keep)

    def _send(self, answer: Answer, keep: bool) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        self._transport.write(_bytes_of(answer, keep))
        if keep:
            self._begin()
            self._after(IDLE_S)
        else:
            self.close()

    def _refuse(self, answer: Answer) -> None:
        """Answer, and read nothing more. What the client still sends is thrown away for a moment, since closing at once
        would make its system drop the answer."""
        if self._transport is None or self._closing:
            return
        self._closing = True
        self._let_go()
        self._transport.write(_bytes_of(answer, keep=False))
        self._transport.write_eof()
        self._after(LINGER_S)

    def _fault(self, status: int, code: str, message: str) -> Answer:
        return self._server.handler.fault(status, code, message)

    def close(self) -> None:
        """Close, once what was written has been sent."""
        self._closing = True
        self._stop_timer()
        if self._transport is not None:
            self._transport.close()

    def _after(self, seconds: float) -> None:
        """Close after so many seconds, unless something else happens."""
        self._stop_timer()
        self._timer = asyncio.get_running_loop().call_later(seconds, self.close)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _let_go(self) -> None:
        self._server.held -= len(self._body)
        self._body = bytearray()


def _bytes_of(answer: Answer, keep: bool) -> bytes:
    lines = {
        "Content-Type": "application/json",
        "Content-Length": str(len(answer.body)),
        "Cache-Control": "no-store",
        "X-Content-Type-Options": "nosniff",
        "Connection": "keep-alive" if keep else "close",
        **answer.headers,
    }
    head = [f"HTTP/1.1 {answer.status} {HTTPStatus(answer.status).phrase}"]
    head += [f"{name}: {value}" for name, value in lines.items()]
    return "\r\n".join([*head, "", ""]).encode("latin-1") + answer.body
