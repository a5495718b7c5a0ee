"""How requests reach an endpoint: straight or through a proxy, and the head that all of them share."""

from __future__ import annotations

import base64
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import SplitResult, unquote, urlsplit

from assay.errors import ConfigError


@dataclass(frozen=True)
class Route:
    """Where to connect, whether through a tunnel, and the head of every request."""

    host: str
    port: int
    tls: bool
    server_name: str
    tunnel: bytes | None = field(repr=False)
    """CONNECT request for a proxy in front of a TLS endpoint. Holds secrets, as `head` does."""
    head: bytes = field(repr=False)
    """Everything up to the value of Content-Length."""


def route_to(url: str, headers: Mapping[str, str], proxies: Mapping[str, str] | None = None) -> Route:
    """The route for POST requests to `url`. `proxies` (scheme -> URL) defaults to the environment's.

    Raises:
        ConfigError: not an http(s) URL, a proxy of another kind, or a header that holds a line break.
    """
    parts = urlsplit(url)
    given_port = _port(parts)
    if parts.scheme not in ("http", "https") or not parts.hostname or given_port == 0 or not _plain(url):
        raise ConfigError(f"{url!r} is not an http:// or https:// URL, so it cannot be reached.")
    tls = parts.scheme == "https"
    port = given_port or (443 if tls else 80)
    name = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    authority = name if port == (443 if tls else 80) else f"{name}:{port}"
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    proxy = _proxy_for(parts.scheme, parts.hostname, proxies)
    lines = {"Host": authority, "User-Agent": "assay", "Accept-Encoding": "identity", **headers}
    if proxy and not tls:
        path = f"http://{authority}{path}"
        lines.update(_proxy_authorization(proxy))
    head = _head(f"POST {path} HTTP/1.1", lines) + b"Content-Length: "
    if not proxy:
        return Route(parts.hostname, port, tls, parts.hostname, None, head)
    at = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
    proxy_port = _port(at)
    if at.scheme != "http" or not at.hostname or proxy_port == 0:
        where = f"{at.scheme}://{at.hostname}"
        raise ConfigError(
            f"The proxy for {parts.scheme} URLs ({where}) is not an http:// proxy, and other kinds are not supported. "
            "Set another one, or name the host in NO_PROXY."
        )
    tunnel = None
    if tls:
        target = f"{name}:{port}"
        tunnel = _head(f"CONNECT {target} HTTP/1.1", {"Host": target, **_proxy_authorization(proxy)}) + b"\r\n"
    return Route(at.hostname, proxy_port or 80, tls, parts.hostname, tunnel, head)


def _port(parts: SplitResult) -> int | None:
    """The port that a URL names; 0 if it is not valid."""
    try:
        return parts.port
    except ValueError:
        return 0


def _plain(url: str) -> bool:
    """Whether a URL can stand in a request as it is: other characters must be written as %XX, hosts as punycode."""
    return url.isascii() and url.isprintable() and " " not in url


def _proxy_for(scheme: str, host: str, proxies: Mapping[str, str] | None) -> str | None:
    if proxies is not None:
        return proxies.get(scheme)
    return None if urllib.request.proxy_bypass(host) else urllib.request.getproxies().get(scheme)


def _proxy_authorization(proxy: str) -> dict[str, str]:
    parts = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
    if parts.username is None:
        return {}
    credentials = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return {"Proxy-Authorization": f"Basic {base64.b64encode(credentials.encode()).decode()}"}


def _head(first: str, headers: Mapping[str, str]) -> bytes:
    for name, value in headers.items():
        if "\r" in value or "\n" in value:
            raise ConfigError(f"The header {name} holds a line break. Is there a stray newline in the API key?")
    return "".join([f"{first}\r\n", *(f"{name}: {value}\r\n" for name, value in headers.items())]).encode("latin-1")
