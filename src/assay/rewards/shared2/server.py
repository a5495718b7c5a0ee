"""A small HTTP server on the loopback interface: one JSON body in, one out, for whoever knows the key.

A connection has one request at a time, and whoever closes it stops what it asked for.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import Awaitable, Callable
from typing import Any, cast

import httptools

from assay.rewards.shared2.forks import forget_fd, keep_from_children

logger = logging.getLogger(__name__)

Handler = Callable[["Connection", bytes], Awaitable[tuple[int, bytes]]]


class Refused(Exception):
    """A request that makes no sense, or comes from somebody who does not know the key."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class LoopbackServer:
    """Serves `handler`. Its address is `port` on 127.0.0.1."""

    def __init__(self, handler: Handler, key: str, token: str, max_bytes: int) -> None:
        self.handler, self.max_bytes = handler, max_bytes
        self.authorization = f"Bearer {key}".encode()
        self.token = token
        self.connections: set[Connection] = set()
        self.port = 0
        self._server: asyncio.AbstractServer | None = None
        self._listening = -1

    async def listen(self) -> None:
        """Take a free port."""
        loop = asyncio.get_running_loop()
        self._server = server = await loop.create_server(lambda: Connection(self), "127.0.0.1", 0, backlog=4096)
        self.port = server.sockets[0].getsockname()[1]
        self._listening = server.sockets[0].fileno()
        keep_from_children(self._listening)

    async def drain(self, timeout_s: float) -> None:
        """Wait for what is under way."""
        tasks = [c.task for c in self.connections if c.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=timeout_s)

    def close(self) -> None:
        """Close every connection once it has sent what it has to send."""
        if self._server is not None:
            forget_fd(self._listening)
            self._server.close()
        for connection in list(self.connections):
            connection.close()


class Connection(asyncio.Protocol):
    """A client, as the server sees it."""

    def __init__(self, server: LoopbackServer) -> None:
        self.process = ""
        """Who asks, as far as it has said."""
        self.task: asyncio.Task[tuple[int, bytes]] | None = None
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._body: list[bytes] = []
        self._size = 0
        self._authorization = b""
        self._fd = -1

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the event loop."""
        self._transport = cast(asyncio.Transport, transport)
        self._fd = transport.get_extra_info("socket").fileno()
        keep_from_children(self._fd)
        self._server.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the event loop."""
        forget_fd(self._fd)
        self._server.connections.discard(self)
        if self.task is not None:
            self.task.cancel()

    def data_received(self, data: bytes) -> None:
        """Called by the event loop."""
        self._size += len(data)
        try:
            if self._size > self._server.max_bytes:
                raise Refused(413, f"a request of more than {self._server.max_bytes} bytes")
            self._parser.feed_data(data)
        except Refused as error:
            self._refuse(error)
        except httptools.HttpParserError as error:
            cause = error.__context__
            self._refuse(cause if isinstance(cause, Refused) else Refused(400, f"no HTTP: {error}"))

    def on_message_begin(self) -> None:
        """httptools: a request begins."""
        if self.task is not None:
            raise Refused(400, "a request came before the one before it was answered")

    def on_header(self, name: bytes, value: bytes) -> None:
        """httptools: one header."""
        if name.lower() == b"authorization":
            self._authorization = value

    def on_headers_complete(self) -> None:
        """httptools: all headers of a request."""
        if not hmac.compare_digest(self._authorization, self._server.authorization):
            raise Refused(401, "the key is missing or wrong")

    def on_body(self, body: bytes) -> None:
        """httptools: a part of the body."""
        self._body.append(body)

    def on_message_complete(self) -> None:
        """httptools: a whole request."""
        body, self._body, self._size, self._authorization = b"".join(self._body), [], 0, b""
        self.task = asyncio.get_running_loop().create_task(cast(Any, self._server.handler(self, body)))
        self.task.add_done_callback(self._answer)

    def _answer(self, task: asyncio.Task[tuple[int, bytes]]) -> None:
        self.task = None
        if task.cancelled():
            self.close()
        elif (error := task.exception()) is None:
            self.send(*task.result())
        elif isinstance(error, Refused):
            self._refuse(error)
        else:
            logger.error("the caller that processes share raised, which it never should", exc_info=error)
            self.send(500, f"{type(error).__name__}: {error}".encode())

    def send(self, status: int, body: bytes) -> None:
        """Send a response."""
        if self._transport is not None and not self._transport.is_closing():
            head = f"HTTP/1.1 {status} -\r\nX-Assay-Hub: {self._server.token}\r\nContent-Length: {len(body)}\r\n\r\n"
            self._transport.write(head.encode() + body)

    def _refuse(self, error: Refused) -> None:
        logger.warning("a process that is connected to this one to share its judge was refused: %s", error)
        self._server.connections.discard(self)
        if self._transport is not None:
            self._transport.write(
                f"HTTP/1.1 {error.status} -\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode()
            )
        self.close()

    def close(self) -> None:
        """Send what is unsent, then close."""
        if self._transport is not None:
            self._transport.close()
