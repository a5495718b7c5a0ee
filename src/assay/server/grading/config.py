"""Settings of a grading service."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from typing import Annotated

import chz

from assay.config import Above, AtLeast, AtMost, refuse
from assay.errors import ConfigError
from assay.kernels.config import GraderConfig
from assay.kernels.service.wire import KEY_VARIABLE

SHORTEST_KEY = 16
"""Characters of a key that guards more than this machine."""


@chz.chz
class GradeServerConfig(GraderConfig):
    """How a grading service grades, where it listens, and how much it takes on."""

    host: str = "127.0.0.1"
    """Address to listen at. Any but a loopback address needs a key."""
    port: Annotated[int, AtLeast(0), AtMost(65535)] = 8177
    """Port to listen at; 0 for a free one."""
    max_requests: Annotated[int, AtLeast(1), AtMost(100_000)] = 512
    """Requests that wait or are worked on at a time; further ones are told to come again later."""
    max_settings: Annotated[int, AtLeast(1), AtMost(64)] = 4
    """Different settings that clients may use at a time; each keeps problems ready of its own (`max_prepared`)."""
    stop_s: Annotated[float, AtLeast(0)] = 30.0
    """Seconds that grades under way have to end when the service is told to stop."""
    read_s: Annotated[float, Above(0)] = 30.0
    """Seconds in which a request has to arrive, from its first byte on."""

    @chz.validate
    def _a_server(self) -> None:
        refuse(_impossible(self))


def _impossible(config: GradeServerConfig) -> Iterator[str]:
    if config.url is not None:
        yield "url: a grading service grades by itself, and asks no other. Remove it."
    try:
        ipaddress.ip_address(config.host)
    except ValueError:
        yield f"host={config.host!r} is not an IP address. Give one, such as 127.0.0.1 or 0.0.0.0."


def is_loopback(host: str) -> bool:
    """Whether an IP address can be reached from this machine alone."""
    return ipaddress.ip_address(host).is_loopback


def require_key(config: GradeServerConfig, key: str) -> None:
    """Refuse to serve other machines without a key.

    Raises:
        ConfigError: there is none, or one that can be guessed.
    """
    if not key and not is_loopback(config.host):
        raise ConfigError(
            f"host={config.host} can be reached from other machines, and {KEY_VARIABLE} is not set: anyone could run "
            f"code here. Export {KEY_VARIABLE} with a long random key, or listen at 127.0.0.1."
        )
    if key and len(key) < SHORTEST_KEY and not is_loopback(config.host):
        raise ConfigError(
            f"{KEY_VARIABLE} has {len(key)} characters, and a key that others could try needs at least {SHORTEST_KEY}. "
            "Export a longer one, such as the output of `openssl rand -hex 32`."
        )
