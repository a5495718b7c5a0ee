"""How the server starts and stops."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import math
import os
import re
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import uvicorn

from assay.errors import ConfigError
from assay.server.running import address_of, ended_by_signals
from assay.server.tinker.config import KEY_VARIABLE, STATE, ServeConfig, require_keys, require_model
from assay.storage.files import Writing
from assay.storage.sqlite_file import locked
from assay.transport.keys import read_key

if TYPE_CHECKING:
    from assay.server.tinker.desk import Desk
    from assay.server.tinker.host import ModelHost

logger = logging.getLogger(__name__)

SWEEP_S, EXPIRY_S = 15.0, 300.0
"""How often the server forgets what is over in memory, and on disk, where it has to read every record."""
BACKLOG = 2048
"""Connections that wait to be taken up, as uvicorn has it; early ones wait for the model."""
SPARE_CONNECTIONS = 256
"""Beyond `max_requests`, for what is answered at once."""


class _Server(uvicorn.Server):
    """Signals are ours: the work under way ends first."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve(
    config: ServeConfig,
    started: Callable[[str], None],
    stop: asyncio.Event | None = None,
    host: ModelHost | None = None,
) -> None:
    """Serve until SIGTERM, SIGINT or `stop`; then end what is under way within `stop_s`.

    Args:
        started: called with the server's address once it listens.
        stop: ends it too, once it is set.
        host: the model, in place of what the settings say.

    Raises:
        ConfigError: no model, no key where one is needed, or the port cannot be had.
        ModelError: there is no such model, or it cannot be served.
        RunDirectoryError: `state_path` cannot be used.
    """
    if host is None:
        require_model(config)
    keys = frozenset(filter(None, re.split(r"[\s,]+", read_key(KEY_VARIABLE))))
    require_keys(config, keys)
    stop = stop or asyncio.Event()
    with _alone(Path(config.state_path)), contextlib.closing(_listen(config)) as listener:
        # Behind the checks: these import torch, which takes seconds, and a mistake is told at once.
        from assay.server.tinker.app import App
        from assay.server.tinker.desk import Desk
        from assay.server.tinker.host import ModelHost

        desk = Desk(config, host or ModelHost(config))
        port = listener.getsockname()[1]
        app = App(desk, keys, port)
        app.asgi.state.desk = desk
        server = _Server(
            uvicorn.Config(
                app.asgi,
                log_config=None,
                access_log=False,
                lifespan="off",
                timeout_graceful_shutdown=5,
                limit_concurrency=config.max_requests + SPARE_CONNECTIONS,
            )
        )
        running = asyncio.create_task(server.serve(sockets=[listener]))
        sweeping = asyncio.create_task(_sweep(desk))
        with ended_by_signals(stop.set):
            started(address_of(config.host, port))
            ended = asyncio.create_task(stop.wait())
            await asyncio.wait((ended, running), return_when=asyncio.FIRST_COMPLETED)
            ended.cancel()
            await desk.promises.stop(config.stop_s)
            server.should_exit = True
            await running
        sweeping.cancel()
        await desk.host.close()


@contextlib.contextmanager
def _alone(state: Path) -> Iterator[None]:
    """Hold the folder of the state for this server alone.

    Raises:
        ConfigError: another server holds it.
        RunDirectoryError: it cannot be made or written to.
    """
    with contextlib.ExitStack() as stack:
        try:
            with Writing(state, "the server's state", home=STATE):
                state.mkdir(parents=True, exist_ok=True)
                stack.enter_context(locked(state / "serve.lock", 0.0))
        except TimeoutError:
            raise ConfigError(f"Another server uses state_path={state}. Stop it, or give another folder.") from None
        yield


def _listen(config: ServeConfig) -> socket.socket:
    family = socket.AF_INET6 if ipaddress.ip_address(config.host).version == 6 else socket.AF_INET
    # Named, because asyncio sends small answers at once (TCP_NODELAY) only where a socket says that it is of TCP.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((config.host, config.port))
        # At once: two sockets may be bound to a port, and one of them would fail after its model was loaded.
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"Port {config.port} at {config.host} cannot be used ({os.strerror(error.errno or 0)}). Give another one "
            "with port=..."
        ) from error
    return listener


async def _sweep(desk: Desk) -> None:
    """Now and then forget what is over."""
    looked = -math.inf
    while True:
        asleep = time.monotonic()
        await asyncio.sleep(SWEEP_S)
        now = time.monotonic()
        # After a time in which this process stood still, the heartbeats that came in meanwhile have yet to be read.
        desk.sessions.excuse(now - asleep - SWEEP_S)
        desk.promises.forget(now)
        gone = 0
        try:
            desk.sessions.sweep(now)
            if now - looked >= EXPIRY_S:
                looked = now
                gone = await asyncio.get_running_loop().run_in_executor(None, desk.store.remove_expired)
        except OSError as error:
            logger.error("Files below state_path=%s cannot be removed (%s).", desk.config.state_path, error)
        if gone:
            logger.info("Removed %d checkpoints whose time to live was over.", gone)
