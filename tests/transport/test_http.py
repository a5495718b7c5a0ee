"""The HTTP client against servers that send what servers send: split, chunked, cut short, too much, nothing at all."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import gc
import ipaddress
import shutil
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.errors import ConfigError
from assay.rewards.loop_thread import new_event_loop
from assay.transport import http
from assay.transport.http import HttpPool, ResponseError, TransportError
from assay.transport.keys import json_headers
from assay.transport.route import Route, route_to

T = TypeVar("T")
Run = Callable[[Coroutine[Any, Any, T]], T]
Handler = Callable[["Exchange"], Awaitable[None]]

KEY = "sk-a-secret-0123456789"
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@pytest.fixture(params=[new_event_loop, asyncio.new_event_loop], ids=["engine", "asyncio"])
def run(request: pytest.FixtureRequest) -> Run[Any]:
    """Runs a test in the loop that the engine takes, and in asyncio's own."""

    def runner(coroutine: Coroutine[Any, Any, T]) -> T:
        with asyncio.Runner(loop_factory=request.param) as loops:
            return loops.run(coroutine)

    return runner


class Exchange:
    """The server's side of a connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
        self.reader, self.writer, self.number = reader, writer, number
        """`number` counts connections from 0."""
        self.head = b""

    async def request(self) -> bytes:
        """Read one request; returns its body."""
        self.head = await self.reader.readuntil(b"\r\n\r\n")
        length = self.head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0]
        return await self.reader.readexactly(int(length or b"0"))

    async def send(self, *parts: bytes) -> None:
        """Send parts, each in a packet of its own as far as anybody can tell."""
        for part in parts:
            self.writer.write(part)
            await self.writer.drain()
            await asyncio.sleep(0.001)


class Server:
    def __init__(self, handler: Handler) -> None:
        self.handler = handler
        self.connections = 0
        self.heads: list[bytes] = []
        self.port = 0

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        exchange = Exchange(reader, writer, self.connections)
        self.connections += 1
        try:
            await self.handler(exchange)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.heads.append(exchange.head)
            writer.close()


@contextlib.asynccontextmanager
async def serving(handler: Handler, tls: ssl.SSLContext | None = None) -> AsyncIterator[Server]:
    server = Server(handler)
    listener = await asyncio.start_server(server.accept, "127.0.0.1", 0, ssl=tls)
    server.port = listener.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listener.close()


@contextlib.asynccontextmanager
async def pool_to(handler: Handler) -> AsyncIterator[tuple[HttpPool, Server]]:
    async with serving(handler) as server:
        pool = HttpPool(route_to(f"http://127.0.0.1:{server.port}/v1/x", {}, proxies={}))
        try:
            yield pool, server
        finally:
            pool.close()


def saying(*parts: bytes) -> Handler:
    """Answers every request with these parts."""

    async def handler(exchange: Exchange) -> None:
        while True:
            await exchange.request()
            await exchange.send(*parts)

    return handler


def once(*parts: bytes) -> Handler:
    """Answers one request with these parts and closes."""

    async def handler(exchange: Exchange) -> None:
        await exchange.request()
        await exchange.send(*parts)

    return handler


async def body_of(*parts: bytes) -> bytes:
    async with pool_to(once(*parts)) as (pool, _):
        return (await pool.post(b"{}")).body


async def failure_of(*parts: bytes) -> TransportError:
    async with pool_to(once(*parts)) as (pool, _):
        with pytest.raises(TransportError) as caught:
            await pool.post(b"{}")
        assert not pool._open, "a failed exchange must close its connection"
        return caught.value


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_a_response_may_come_in_any_pieces(run: Run[bytes], size: int) -> None:
    whole = b"HTTP/1.1 200 OK\r\nX-A: 1\r\nContent-Length: 11\r\n\r\nhello world"
    assert run(body_of(*(whole[i : i + size] for i in range(0, len(whole), size)))) == b"hello world"


def test_what_is_sent_is_what_was_given(run: Run[None]) -> None:
    async def main() -> None:
        received = []

        async def handler(exchange: Exchange) -> None:
            received.append(await exchange.request())
            await exchange.send(OK)

        async with serving(handler) as server:
            url = f"http://127.0.0.1:{server.port}/v1/chat?x=1"
            pool = HttpPool(route_to(url, json_headers(KEY), proxies={}))
            response = await pool.post(b"x" * 300_000)
            pool.close()
            await asyncio.sleep(0.01)
        assert response.status == 200
        assert received == [b"x" * 300_000]
        lines = server.heads[0].decode().split("\r\n")
        assert lines[0] == "POST /v1/chat?x=1 HTTP/1.1"
        assert f"Host: 127.0.0.1:{server.port}" in lines
        assert f"Authorization: Bearer {KEY}" in lines
        assert "Content-Length: 300000" in lines

    run(main())


def test_chunks_with_extensions_and_trailers(run: Run[bytes]) -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert run(body_of(head, b"5;x=1\r\nhello\r\n", b"6\r\n wor", b"ld\r\n0\r\nX-Trailer: 1\r\n\r\n")) == b"hello world"


@pytest.mark.parametrize("interim", [b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early\r\nX-Interim: 1\r\n\r\n"])
def test_interim_responses_announce_the_real_one(run: Run[None], interim: bytes) -> None:
    async def main() -> None:
        for parts in ([interim, OK], [interim + OK], [interim + interim + OK]):
            async with pool_to(saying(*parts)) as (pool, server):
                for _ in range(2):
                    response = await pool.post(b"{}")
                    assert (response.status, response.body) == (200, b"ok")
                    assert "x-interim" not in response.headers
                assert server.connections == 1

    run(main())


def test_the_end_of_the_connection_ends_a_body_without_a_length(run: Run[bytes]) -> None:
    assert run(body_of(b"HTTP/1.1 200 OK\r\nX: 1\r\n\r\nhel", b"lo")) == b"hello"
    assert run(body_of(b"HTTP/1.0 200 OK\r\n\r\nold")) == b"old"


@pytest.mark.parametrize(
    "parts",
    [
        [],
        [b"HTTP/1.1 200 OK\r\nX-A: 1\r\n"],
        [b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello"],
        [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n"],
        [b"HTTP/1.1 100 Continue\r\nX-A: 1\r\n\r\n"],
        [b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nX: 1\r\n"],
    ],
    ids=["nothing", "half a head", "short body", "no last chunk", "interim only", "interim and half a head"],
)
def test_a_response_that_is_cut_short_is_no_response(run: Run[TransportError], parts: list[bytes]) -> None:
    error = run(failure_of(*parts))
    assert not isinstance(error, ResponseError)
    assert "before the response was complete" in str(error)


@pytest.mark.parametrize(
    "garbage", [b"\0\x01\x02 what\r\n\r\n", b"SSH-2.0-OpenSSH_9\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n"]
)
def test_what_is_not_http_is_said_to_be_none(run: Run[TransportError], garbage: bytes) -> None:
    error = run(failure_of(garbage))
    assert isinstance(error, ResponseError)
    assert "not HTTP" in str(error)


@pytest.mark.parametrize("where", ["body", "chunks", "headers", "one header"])
def test_no_response_is_too_large_to_be_refused(
    run: Run[TransportError], where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "MAX_RESPONSE_BYTES", 2**20)
    filler = b"x" * 700_000
    parts = {
        "body": [b"HTTP/1.1 200 OK\r\nContent-Length: 9000000\r\n\r\n", filler, filler],
        "chunks": [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", *[b"AAE60\r\n" + filler + b"\r\n"] * 2],
        "headers": [b"HTTP/1.1 200 OK\r\n", *[b"X-A: " + b"x" * 1000 + b"\r\n"] * 1100],
        "one header": [b"HTTP/1.1 200 OK\r\nX-A: ", filler, filler],
    }
    error = run(failure_of(b"".join(parts[where][:-1]), parts[where][-1]))
    assert isinstance(error, ResponseError)
    assert ("headers of the response have more than" if where == "headers" else "larger than 1 MB") in str(error)


@settings(max_examples=40, deadline=None)
@given(
    st.binary(max_size=200), st.sampled_from([b"", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n"])
)
def test_no_bytes_break_the_client(tail: bytes, head: bytes) -> None:
    async def main() -> None:
        async with pool_to(once(head + tail)) as (pool, _):
            with contextlib.suppress(TransportError):
                await pool.post(b"{}")

    with asyncio.Runner(loop_factory=new_event_loop) as loops:
        loops.run(main())


def test_connections_are_kept_and_shared_out(run: Run[None]) -> None:
    async def main() -> None:
        async with pool_to(saying(OK)) as (pool, server):
            for _ in range(3):
                await asyncio.gather(*(pool.post(b"{}") for _ in range(5)))
            assert server.connections == 5
            await pool.post(b"{}")
            assert len(pool._idle) == 5

    run(main())


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
        OK + b"HTTP/1.1 200 OK\r\nX-Second: 1\r\nContent-Length: 3\r\n\r\nbad",
        OK + b"garbage",
    ],
    ids=["close", "1.0", "two responses", "garbage behind"],
)
def test_a_connection_that_cannot_be_trusted_is_not_used_again(run: Run[None], answer: bytes) -> None:
    async def main() -> None:
        async with pool_to(saying(answer)) as (pool, server):
            for number in range(3):
                response = await pool.post(b"{}")
                assert response.body == b"ok"
                assert "x-second" not in response.headers
                assert server.connections == number + 1

    run(main())


def test_a_message_while_idle_closes_the_connection(run: Run[None]) -> None:
    async def main() -> None:
        async def handler(exchange: Exchange) -> None:
            await exchange.request()
            await exchange.send(OK)
            await exchange.send(b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\n\r\n")
            await exchange.reader.read()

        async with pool_to(handler) as (pool, server):
            for number in range(2):
                assert (await pool.post(b"{}")).status == 200
                await asyncio.sleep(0.02)
                assert server.connections == number + 1
                assert not pool._open

    run(main())


def test_connections_closed_while_idle_are_passed_over(run: Run[None]) -> None:
    async def main() -> None:
        async with pool_to(once(OK)) as (pool, server):
            await asyncio.gather(*(pool.post(b"{}") for _ in range(4)))
            await asyncio.sleep(0.02)
            assert (await pool.post(b"{}")).body == b"ok"
            assert server.connections == 5
            assert len(pool._open) <= 1

    run(main())


def test_a_kept_connection_that_dies_under_a_request_is_stale(run: Run[None]) -> None:
    """Seen when a balancer forgets idle connections: the reset comes only with the next request, on each of them."""

    async def main() -> None:
        async def handler(exchange: Exchange) -> None:
            await exchange.request()
            await exchange.send(OK)
            await exchange.request()
            exchange.writer.transport.abort()

        async with pool_to(handler) as (pool, server):
            await asyncio.gather(*(pool.post(b"{}") for _ in range(5)))
            with pytest.raises(TransportError) as caught:
                await pool.post(b"{}")
            assert caught.value.stale
            assert (await pool.post(b"{}")).body == b"ok"  # not from another of the dead ones
            assert server.connections == 6

    run(main())


@pytest.mark.parametrize("parts", [(), (b"HTTP/1.1 200",)], ids=["on the first request", "in a response"])
def test_a_broken_connection_is_not_stale(run: Run[None], parts: tuple[bytes, ...]) -> None:
    async def main() -> None:
        async def handler(exchange: Exchange) -> None:
            if parts:
                await exchange.request()
                await exchange.send(OK)
            await exchange.request()
            await exchange.send(*parts)
            exchange.writer.transport.abort()

        async with pool_to(handler) as (pool, _):
            if parts:
                await pool.post(b"{}")
            with pytest.raises(TransportError) as caught:
                await pool.post(b"{}")
            assert not caught.value.stale

    run(main())


def test_connections_idle_for_long_are_closed(run: Run[None], monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with pool_to(saying(OK)) as (pool, server):
            await asyncio.gather(*(pool.post(b"{}") for _ in range(4)))
            monkeypatch.setattr(http, "IDLE_S", 0.0)
            await asyncio.sleep(0.01)
            await pool.post(b"{}")
            assert server.connections == 5
            await asyncio.sleep(0.01)
            assert len(pool._open) == 1

    run(main())


@pytest.mark.parametrize("when", ["connecting", "waiting", "reading"])
def test_cancelling_closes_the_connection(run: Run[None], when: str) -> None:
    async def main() -> None:
        async def handler(exchange: Exchange) -> None:
            await exchange.request()
            if when == "reading":
                await exchange.send(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello")
            arrived.set()
            assert await exchange.reader.read() == b""
            gone.set()

        arrived, gone = asyncio.Event(), asyncio.Event()
        async with pool_to(handler) as (pool, _):
            posting = asyncio.create_task(pool.post(b"{}"))
            if when == "connecting":
                await asyncio.sleep(0)
            else:
                await arrived.wait()
            posting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await posting
            if when != "connecting":
                await gone.wait()
            await asyncio.sleep(0.01)
            assert not pool._open
            assert not pool._idle

    run(main())


def test_closing_the_pool_fails_what_is_under_way(run: Run[None]) -> None:
    async def main() -> None:
        async def handler(exchange: Exchange) -> None:
            await exchange.request()
            arrived.set()
            await exchange.reader.read()

        arrived = asyncio.Event()
        async with pool_to(handler) as (pool, _):
            posting = asyncio.create_task(pool.post(b"{}"))
            await arrived.wait()
            pool.close()
            with pytest.raises(TransportError):
                await posting

    run(main())


def test_nobody_there_is_a_transport_error(run: Run[None]) -> None:
    async def main() -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            pool = HttpPool(route_to(f"http://127.0.0.1:{taken.getsockname()[1]}/", {}, proxies={}))
            with pytest.raises(TransportError, match="cannot connect to 127"):
                await pool.post(b"{}")
        for host in ("no-such-host.invalid", "a" * 70 + ".invalid"):
            pool = HttpPool(route_to(f"http://{host}/", {}, proxies={}))
            with pytest.raises(TransportError, match="cannot resolve"):
                await pool.post(b"{}")

    run(main())


def test_a_name_is_looked_up_once_for_many_connections(run: Run[None]) -> None:
    async def main() -> None:
        async with serving(saying(OK)) as server:
            pool = HttpPool(route_to(f"http://localhost:{server.port}/", {}, proxies={}))
            loop, lookups = asyncio.get_running_loop(), 0
            look_up = loop.getaddrinfo

            async def counted(*args: Any, **options: Any) -> Any:
                nonlocal lookups
                lookups += args[0] == "localhost"
                return await look_up(*args, **options)

            counting = Counting(loop, counted)
            await asyncio.gather(*(pool._resolve(counting) for _ in range(20)))  # type: ignore[arg-type]
            assert lookups == 1
            assert (await pool.post(b"{}")).body == b"ok"
            pool.close()

    run(main())


class Counting:
    """A loop whose name look-ups are counted."""

    def __init__(self, loop: asyncio.AbstractEventLoop, getaddrinfo: Callable[..., Awaitable[Any]]) -> None:
        self.loop, self.getaddrinfo = loop, getaddrinfo


@pytest.mark.parametrize("key", ["a\r\nX-Injected: 1", "a\nb", "a\rb"])
def test_a_line_break_in_the_key_is_refused_without_saying_the_key(key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        route_to("http://127.0.0.1/v1", json_headers(key), proxies={})
    assert "Authorization" in str(caught.value)
    assert key not in str(caught.value)
    assert "Injected" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "ftp://host/",
        "http:///v1",
        "http://host:99999/",
        "http://host:x/",
        "http://host:0/",
        "http://h/a b",
        "http://ö/",
    ],
)
def test_what_is_no_url_is_a_config_error(url: str) -> None:
    with pytest.raises(ConfigError, match="it cannot be reached"):
        route_to(url, {}, proxies={})


def test_the_route_shows_no_secret() -> None:
    proxied = {"https": "http://user:pass-word@proxy:3128", "http": "http://user:pass-word@proxy:3128"}
    for url in ("http://host/v1", "https://host/v1"):
        for proxies in ({}, proxied):
            shown = repr(route_to(url, json_headers(KEY), proxies=proxies))
            assert KEY not in shown
            assert "pass-word" not in shown
            assert "Authorization" not in shown


@pytest.mark.parametrize("proxy", ["socks5://proxy:1080", "https://proxy:443", "http://proxy:99999", "http://"])
def test_proxies_of_other_kinds_are_refused(proxy: str) -> None:
    with pytest.raises(ConfigError, match="NO_PROXY"):
        route_to("https://host/v1", {}, proxies={"https": proxy})


def test_a_proxy_gets_the_whole_url_and_its_own_credentials(run: Run[None]) -> None:
    async def main() -> None:
        async with serving(saying(OK)) as proxy:
            route = route_to("http://judge.test:8000/v1/x", {}, {"http": f"me:s%3Acret@127.0.0.1:{proxy.port}"})
            pool = HttpPool(route)
            for _ in range(2):
                assert (await pool.post(b"{}")).body == b"ok"
            pool.close()
            await asyncio.sleep(0.01)
        assert proxy.connections == 1
        lines = proxy.heads[0].decode().split("\r\n")
        assert lines[0] == "POST http://judge.test:8000/v1/x HTTP/1.1"
        assert "Host: judge.test:8000" in lines
        assert f"Proxy-Authorization: Basic {base64.b64encode(b'me:s:cret').decode()}" in lines

    run(main())


def test_the_environment_names_the_proxy_and_its_exceptions(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("https_proxy", "http://proxy.test:3128")
    monkeypatch.setenv("no_proxy", "localhost,127.0.0.1")
    assert route_to("https://host/v1", {}).host == "proxy.test"
    assert route_to("https://host/v1", {}).tunnel is not None
    assert route_to("https://127.0.0.1/v1", {}).host == "127.0.0.1"
    assert route_to("http://host/v1", {}).host == "host"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A self-signed certificate for judge.test, and its key, in one file."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("needs the openssl program to make a certificate")
    path = tmp_path_factory.mktemp("tls") / "cert.pem"
    names = f"subjectAltName=DNS:judge.test,IP:{ipaddress.ip_address('127.0.0.1')}"
    made = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "30"]
    options = ["-subj", "/CN=judge.test", "-addext", names, "-keyout", str(path), "-out", f"{path}.crt"]
    subprocess.run([openssl, *made, *options], check=True, capture_output=True)
    path.write_bytes(path.read_bytes() + Path(f"{path}.crt").read_bytes())
    return path


def tls_server(certificate: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    return context


def tls_pool(route: Route, certificate: Path | None) -> HttpPool:
    pool = HttpPool(route)
    assert pool._tls is not None
    if certificate is not None:
        pool._tls.load_verify_locations(certificate)
    return pool


def test_tls_connections_are_checked_and_kept(run: Run[None], certificate: Path) -> None:
    async def main() -> None:
        async with serving(saying(OK), tls_server(certificate)) as server:
            url = f"https://127.0.0.1:{server.port}/v1"
            trusting = tls_pool(route_to(url, json_headers(KEY), proxies={}), certificate)
            for _ in range(3):
                assert (await trusting.post(b"{}")).body == b"ok"
            assert server.connections == 1
            trusting.close()
            doubting = tls_pool(route_to(url, json_headers(KEY), proxies={}), None)
            with pytest.raises(TransportError, match=r"certificate of 127\.0\.0\.1:\d+ is not trusted"):
                await doubting.post(b"{}")
            assert not doubting._open

    run(main())


def tunnelling(answer: bytes, to: Callable[[], int]) -> Handler:
    """A proxy that answers CONNECT with `answer`, and passes bytes on where that is 200."""

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                writer.write(data)
        writer.close()

    async def handler(exchange: Exchange) -> None:
        exchange.head = await exchange.reader.readuntil(b"\r\n\r\n")
        await exchange.send(answer)
        if b" 200 " not in answer:
            return
        reader, writer = await asyncio.open_connection("127.0.0.1", to())
        await asyncio.gather(pump(exchange.reader, writer), pump(reader, exchange.writer))

    return handler


@pytest.mark.parametrize(
    "established",
    [
        b"HTTP/1.1 200 Connection established\r\n\r\n",
        b"HTTP/1.0 200 Connection established\r\nProxy-Agent: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
    ],
)
def test_https_goes_through_a_tunnel_that_is_kept(run: Run[None], certificate: Path, established: bytes) -> None:
    async def main() -> None:
        async with serving(saying(OK), tls_server(certificate)) as judge:
            async with serving(tunnelling(established, lambda: judge.port)) as proxy:
                proxies = {"https": f"http://me:secret@127.0.0.1:{proxy.port}"}
                route = route_to(f"https://judge.test:{judge.port}/v1", json_headers(KEY), proxies)
                pool = tls_pool(route, certificate)
                for _ in range(3):
                    assert (await pool.post(b"{}")).body == b"ok"
                assert (proxy.connections, judge.connections) == (1, 1)
                pool.close()
                await asyncio.sleep(0.02)
            head = proxy.heads[0].decode()
            assert head.startswith(f"CONNECT judge.test:{judge.port} HTTP/1.1\r\n")
            assert "Proxy-Authorization: Basic " in head
            assert KEY not in head, "the proxy must not learn the judge's key"

    run(main())


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 5\r\n\r\nno no", "status 407"),
        (b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 0\r\n\r\n", "status 502"),
        (b"nonsense\r\n\r\n", "not HTTP"),
        (b"", "before the response was complete"),
    ],
)
def test_a_proxy_that_refuses_is_named(run: Run[None], certificate: Path, answer: bytes, message: str) -> None:
    async def main() -> None:
        async with serving(tunnelling(answer, lambda: 0)) as proxy:
            pool = tls_pool(route_to("https://judge.test/v1", {}, {"https": f"127.0.0.1:{proxy.port}"}), certificate)
            with pytest.raises(TransportError, match=message):
                await pool.post(b"{}")
            await asyncio.sleep(0.01)
            assert not pool._open

    run(main())


def test_a_wrong_certificate_behind_a_proxy_is_refused(run: Run[None], certificate: Path) -> None:
    async def main() -> None:
        established = b"HTTP/1.1 200 Connection established\r\n\r\n"
        async with (
            serving(saying(OK), tls_server(certificate)) as judge,
            serving(tunnelling(established, lambda: judge.port)) as proxy,
        ):
            route = route_to(f"https://other.test:{judge.port}/v1", {}, {"https": f"127.0.0.1:{proxy.port}"})
            pool = tls_pool(route, certificate)
            with pytest.raises(TransportError, match="TLS failed through the proxy"):
                await pool.post(b"{}")
            await asyncio.sleep(0.01)
            assert not pool._open

    run(main())
    gc.collect()  # a transport that was left open would complain now
