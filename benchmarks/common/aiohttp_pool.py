"""aiohttp behind the interface of `assay.transport.http.HttpPool`: the engine without its own client.

aiohttp is given all that the engine's own client has: any number of connections, kept for as long, few attempts to
connect at once, no cookies, no decompression, no retries, and uvloop. Its session is made in the first request, in the
event loop of that request.
"""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any

import aiohttp
from yarl import URL

from assay.transport.http import (
    ADDRESS_TTL_S,
    CONNECT_TIMEOUT_S,
    CONNECTS_AT_ONCE,
    IDLE_S,
    MAX_RESPONSE_BYTES,
    Response,
    ResponseError,
    TransportError,
)

TRIES = 3
AGAIN = frozenset({408, 409, 429, *range(500, 600)})
"""Statuses after which OpenAI's client tries again."""

_connected: ContextVar[bool] = ContextVar("_connected")
"""Whether the request of this task had to make a connection."""


class FewAtOnce(aiohttp.TCPConnector):
    """Connections without a limit, of which few are being made at a time; aiohttp has no setting for that."""

    def __init__(self) -> None:
        super().__init__(limit=0, keepalive_timeout=IDLE_S, ttl_dns_cache=int(ADDRESS_TTL_S), happy_eyeballs_delay=None)
        self._attempts = asyncio.Semaphore(CONNECTS_AT_ONCE)

    async def _create_connection(self, *args: Any, **options: Any) -> Any:
        async with self._attempts:
            _connected.set(True)
            return await super()._create_connection(*args, **options)


class AiohttpPool:
    """`HttpPool` over aiohttp."""

    def __init__(self, url: str, headers: Mapping[str, str], proxy: str | None = None) -> None:
        self._url, self._proxy = URL(url), proxy
        self._headers = {"User-Agent": "assay", "Accept-Encoding": "identity", **headers}
        self._session: aiohttp.ClientSession | None = None

    async def post(self, body: bytes) -> Response:
        """Send one request and read its response."""
        if self._session is None:
            self._session = session(self._headers)
        _connected.set(False)
        try:
            async with self._session.post(self._url, data=body, proxy=self._proxy, allow_redirects=False) as response:
                parts, size = [], 0
                async for part in response.content.iter_any():
                    parts.append(part)
                    size += len(part)
                    if size > MAX_RESPONSE_BYTES:
                        raise ResponseError(f"the response is larger than {MAX_RESPONSE_BYTES >> 20} MB")
                headers = {name.lower(): value for name, value in response.headers.items()}
                return Response(response.status, headers, b"".join(parts))
        except aiohttp.ClientConnectorCertificateError as error:
            raise TransportError(f"the certificate is not trusted: {error.certificate_error}") from error
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError, ssl.SSLError) as error:
            raise TransportError(str(error), stale=not _connected.get()) from error
        except aiohttp.ClientResponseError as error:
            raise ResponseError(f"what came back is not HTTP: {error}") from error
        except (aiohttp.ClientError, TimeoutError) as error:
            raise TransportError(str(error)) from error

    def close(self) -> None:
        """Close every connection; requests under way fail."""
        if self._session is not None and self._session.connector is not None:
            self._session.connector._close(abort_ssl=True)  # the public one can only be awaited
            self._session.detach()


async def post_with_retries(session: aiohttp.ClientSession, url: str, body: bytes) -> bytes:
    """The body of the answer to one request, after at most two retries, as OpenAI's client makes them."""
    for tries in range(1, TRIES + 1):
        asked_to_wait = None
        try:
            async with session.post(url, data=body) as response:
                if response.status == 200 or tries == TRIES or response.status not in AGAIN:
                    response.raise_for_status()
                    return await response.read()
                asked_to_wait = response.headers.get("retry-after")
        except (aiohttp.ClientConnectionError, aiohttp.ClientPayloadError):
            if tries == TRIES:
                raise
        wait_s = min(0.5 * 2 ** (tries - 1), 8.0) * random.uniform(0.75, 1.0)
        await asyncio.sleep(float(asked_to_wait) if asked_to_wait else wait_s)
    raise AssertionError("unreachable")


def session(headers: Mapping[str, str]) -> aiohttp.ClientSession:
    """A session as lean as aiohttp has one, for judges that answer in their own time."""
    return aiohttp.ClientSession(
        connector=FewAtOnce(),
        headers=headers,
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S),
        auto_decompress=False,
    )
