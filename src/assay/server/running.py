"""What servers share: the signals that end them, and how their address is written."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import signal
import threading
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def ended_by_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Have the signals that end a program stop a server in good order; a second one ends the program at once."""
    loop = asyncio.get_running_loop()

    def first() -> None:
        stop()
        for name in names:
            loop.remove_signal_handler(name)

    # Other threads get no signals.
    main = threading.current_thread() is threading.main_thread()
    names = (signal.SIGTERM, signal.SIGINT) if main else ()
    for name in names:
        loop.add_signal_handler(name, first)
    try:
        yield
    finally:
        for name in names:
            loop.remove_signal_handler(name)


def address_of(host: str, port: int) -> str:
    """The URL of a server that listens at an IP address."""
    address = ipaddress.ip_address(host)
    return f"http://{f'[{address}]' if address.version == 6 else address}:{port}"
