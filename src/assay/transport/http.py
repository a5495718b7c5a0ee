"""A lean HTTP/1.1 client for one endpoint: persistent connections, one request at a time on each, no pipelining.

General HTTP clients spend 0.3 to 3 ms of CPU on a call; at a thousand calls in flight that limits throughput.
This one does what the API of a judge or a grader needs and no more: POST with a JSON body, TLS, proxies from the
environment, bounded bodies. Parsing is httptools' (the parser of Node.js); nothing here retries, follows redirects or
keeps cookies.
"""

from __future__ import annotations

import asyncio
import importlib
import socket
import ssl
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from assay.errors import MissingDependencyError, pip_install
from assay.transport.route import Route

try:
    httptools: Any = importlib.import_module("httptools")
except ImportError:  # settings and offline scoring do not need it; `require_parser` raises where it is needed
    httptools = None

CONNECT_TIMEOUT_S = 20.0
MAX_RESPONSE_BYTES = 8 * 2**20
"""Longest response; a million tokens are some 4 MB."""
MAX_HELD_BYTES = 64 * 2**20
"""Bytes of unfinished responses that one pool holds, over all connections: with hundreds in flight, a bound for each
alone would be none."""
MAX_HEAD_BYTES = 2**16
"""Bytes of the headers of one response, which take far more memory than they have bytes."""
IDLE_S = 25.0
"""A connection idle for longer is not used again: servers and balancers close theirs after 30 s or more."""
ADDRESS_TTL_S = 60.0
CONNECTS_AT_ONCE = 128
"""More connection attempts at once overflow the accept queue of common servers, which costs seconds."""


class TransportError(Exception):
    """The exchange broke before a whole response was read.

    Attributes:
        stale: it was on a kept connection that the server had closed.
        unreachable: no connection was made: the address refuses, or the name does not exist.
        answer_begun: a part of the response had come, so that the provider may charge for it.
    """

    def __init__(self, message: str, stale: bool = False, unreachable: bool = False) -> None:
        super().__init__(message)
        self.stale, self.unreachable = stale, unreachable
        self.answer_begun = False


class ResponseError(TransportError):
    """What came back is not HTTP, or too large."""


@dataclass(frozen=True, slots=True)
class Response:
    """A whole response. Header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


def require_parser() -> None:
    """Check that the HTTP parser is installed.

    Raises:
        MissingDependencyError: the parser is not installed.
    """
    if httptools is None:
        raise MissingDependencyError(
            f"httptools is not installed, and no service can be asked without it. {pip_install('rewards')}"
        )


class HttpPool:
    """Connections to one endpoint. All methods belong to the event loop that the first request runs in."""

    def __init__(self, route: Route) -> None:
        require_parser()
        self._route = route
        self._idle: deque[_Connection] = deque()
        self._open: set[_Connection] = set()
        self._held = _Held()
        self._connecting = asyncio.Semaphore(CONNECTS_AT_ONCE)
        self._addresses: list[tuple[Any, ...]] = []
        self._resolved_at = float("-inf")
        self._resolving = asyncio.Lock()
        self._tls = ssl.create_default_context() if route.tls else None

    async def post(self, body: bytes) -> Response:
        """Send one request and read its response. Cancelling it closes its connection.

        Raises:
            TransportError: the connection could not be made or broke.  ResponseError: what came back is not HTTP.
        """
        connection = self._kept() or await self._connect()
        reused = connection.exchanges > 0
        try:
            response = await connection.exchange(self._route.head + b"%d\r\n\r\n" % len(body) + body)
        except TransportError as error:
            connection.abort()
            error.stale = reused and not connection.heard
            error.answer_begun = connection.heard
            if error.stale:  # those that have been idle for longer are stale too
                self._drop_idle(float("inf"))
            raise
        except BaseException:
            connection.abort()
            raise
        if connection.reusable:
            connection.idle_since = time.monotonic()
            self._drop_idle(connection.idle_since - IDLE_S)
            self._idle.append(connection)
        else:
            connection.abort()
        return response

    def close(self) -> None:
        """Close every connection; requests under way fail."""
        self._idle.clear()
        for connection in list(self._open):
            connection.abort()

    def _kept(self) -> _Connection | None:
        oldest = time.monotonic() - IDLE_S
        while self._idle:
            connection = self._idle.pop()
            if connection.reusable and connection.idle_since > oldest:
                return connection
            connection.abort()
        return None

    def _drop_idle(self, since: float) -> None:
        """Close the connections at the old end that have been idle since before `since`, or that the server closed."""
        while self._idle and (self._idle[0].idle_since < since or not self._idle[0].reusable):
            self._idle.popleft().abort()

    async def _connect(self) -> _Connection:
        loop = asyncio.get_running_loop()
        async with self._connecting:
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT_S):
                    connection = await self._first_reachable(loop)
                    if self._route.tunnel is not None:
                        await self._tunnel(loop, connection)
            except TimeoutError as error:
                raise TransportError(f"no connection to {self._where} within {CONNECT_TIMEOUT_S:.0f} s") from error
        return connection

    @property
    def _where(self) -> str:
        return f"{self._route.host}:{self._route.port}"

    async def _first_reachable(self, loop: asyncio.AbstractEventLoop) -> _Connection:
        tls = self._tls if self._route.tunnel is None else None
        name = self._route.server_name if tls else None
        failure: OSError = ConnectionError("no address")
        for address in await self._resolve(loop):
            try:
                _, connection = await loop.create_connection(
                    lambda: _Connection(self._open, self._held), address[0], address[1], ssl=tls, server_hostname=name
                )
                return connection
            except ssl.SSLCertVerificationError as error:
                reason = f"the certificate of {self._where} is not trusted: {error.verify_message}"
                raise TransportError(reason) from error
            except OSError as error:
                failure = error
        self._resolved_at = float("-inf")
        reason = f"cannot connect to {self._where}: {failure.strerror or failure}"
        raise TransportError(reason, unreachable=True) from failure

    async def _resolve(self, loop: asyncio.AbstractEventLoop) -> list[tuple[Any, ...]]:
        """Addresses of the endpoint, looked up once a minute; the first one moves on with every connection."""
        async with self._resolving:
            if time.monotonic() - self._resolved_at > ADDRESS_TTL_S:
                try:
                    found = await loop.getaddrinfo(self._route.host, self._route.port, type=socket.SOCK_STREAM)
                except (OSError, UnicodeError) as error:  # a label that is too long for the DNS is a UnicodeError
                    reason = getattr(error, "strerror", None) or error
                    raise TransportError(f"cannot resolve {self._route.host}: {reason}", unreachable=True) from error
                self._addresses = list(dict.fromkeys(entry[4] for entry in found))
                self._resolved_at = time.monotonic()
        self._addresses.append(self._addresses.pop(0))
        return self._addresses[-1:] + self._addresses[:-1]

    async def _tunnel(self, loop: asyncio.AbstractEventLoop, connection: _Connection) -> None:
        try:
            answer = await connection.exchange(cast(bytes, self._route.tunnel), tunnel=True)
            if answer.status != 200:
                raise TransportError(f"the proxy {self._where} refused the connection with status {answer.status}")
            assert self._tls is not None
            await connection.secure(loop, self._tls, self._route.server_name)
        except OSError as error:
            connection.abort()
            raise TransportError(f"TLS failed through the proxy {self._where}: {error}") from error
        except BaseException:
            connection.abort()
            raise


@dataclass(slots=True)
class _Held:
    """How much of unfinished responses a pool holds."""

    size: int = 0


class _Connection(asyncio.Protocol):
    """One connection: writes a request, collects the response that httptools reads out of the bytes."""

    def __init__(self, registry: set[_Connection], held: _Held) -> None:
        self._registry = registry
        self._held = held
        self._transport: asyncio.Transport | None = None
        self._parser: Any = None
        self._waiter: asyncio.Future[Response] | None = None
        self._headers: dict[str, str] = {}
        self._head_read = False
        self._head_size = 0
        self._body = bytearray()
        self._size = 0
        """Bytes of the current response, as `_held` counts them."""
        self._is_tunnel = False
        self.exchanges = 0
        self.heard = False
        """Whether any byte of the current response has come."""
        self.reusable = True
        self.idle_since = 0.0

    async def exchange(self, request: bytes, tunnel: bool = False) -> Response:
        """Send one request and wait for its response. `tunnel`: a CONNECT, whose response has no body."""
        self.heard, self._is_tunnel = False, tunnel
        if self._transport is None or self._transport.is_closing():
            raise TransportError("the connection is closed")
        self._parser = httptools.HttpResponseParser(self)
        self._headers, self._head_read, self._head_size, self._body = {}, False, 0, bytearray()
        self._waiter = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        try:
            response = await self._waiter
        finally:
            self._let_go()
        self.exchanges += 1
        return response

    async def secure(self, loop: asyncio.AbstractEventLoop, context: ssl.SSLContext, server_name: str) -> None:
        """Go on in TLS, as a new connection: what the proxy said of its own reply no longer counts."""
        assert self._transport is not None
        secured = await loop.start_tls(self._transport, self, context, server_hostname=server_name)
        self._transport = cast(asyncio.Transport, secured)
        self.exchanges, self.reusable = 0, True

    def abort(self) -> None:
        """Close at once."""
        self.reusable = False
        self._registry.discard(self)
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._registry.add(self)

    def data_received(self, data: bytes) -> None:
        self.heard = True
        if self._waiter is None:  # not requested: the server is closing with a message, or is out of step
            self.abort()
            return
        self._size += len(data)
        self._held.size += len(data)
        if self._size > MAX_RESPONSE_BYTES:
            self._fail(ResponseError(f"the response is larger than {MAX_RESPONSE_BYTES >> 20} MB"))
            return
        if self._held.size > MAX_HELD_BYTES:
            said = f"unfinished responses have more than {MAX_HELD_BYTES >> 20} MB together"
            self._fail(ResponseError(f"{said}, and this one was given up"))
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._done()
        except httptools.HttpParserError as error:
            self._fail(ResponseError(f"what came back is not HTTP: {error}"))

    def connection_lost(self, exc: Exception | None) -> None:
        self.reusable = False
        self._registry.discard(self)
        self._fail(TransportError("the connection was closed before the response was complete"))

    def eof_received(self) -> None:
        self.reusable = False
        if self._waiter is not None and self._parser is not None and self.heard:
            self._end_of_stream()

    def _end_of_stream(self) -> None:
        """A response without a length ends with the connection; any other was cut short."""
        lengths = {"content-length", "transfer-encoding"}
        if self._head_read and not lengths & self._headers.keys():
            self._done()

    def on_message_begin(self) -> None:
        """httptools: a response begins; an unrequested one leaves the connection out of step."""
        self._headers, self._head_read = {}, False
        if self._waiter is None:
            self.reusable = False

    def on_header(self, name: bytes, value: bytes) -> None:
        """httptools: one header."""
        self._head_size += len(name) + len(value)
        if self._head_size > MAX_HEAD_BYTES:
            self._fail(ResponseError(f"the headers of the response have more than {MAX_HEAD_BYTES} bytes"))
            return
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        """httptools: all headers of a response; a tunnel's ends here."""
        self._head_read = True
        if self._is_tunnel:
            self._done()

    def on_body(self, body: bytes) -> None:
        """httptools: a part of the body."""
        self._body += body

    def on_message_complete(self) -> None:
        """httptools: a whole response; an interim one (1xx) announces the real one."""
        if self._parser.get_status_code() >= 200:
            self._done()
        else:
            self._head_read = False

    def _done(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            self.reusable = self.reusable and bool(self._parser.should_keep_alive())
            waiter.set_result(Response(self._parser.get_status_code(), self._headers, bytes(self._body)))

    def _let_go(self) -> None:
        """Drop what has come of the response: it takes no room any more."""
        self._held.size -= self._size
        self._size = 0
        self._body = bytearray()

    def _fail(self, error: TransportError) -> None:
        self.reusable = False
        self._let_go()  # now: the event loop may have bytes for others, which would find the room still taken
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_exception(error)
