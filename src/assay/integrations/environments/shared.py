"""One desk for all processes of a machine: the process that gets the lock has the environment, and serves the others.

The others send tasks, texts and rollouts over a Unix socket, and are answered with messages, scores and verdicts: JSON,
never code, and never a key, which stays in the process that uses it. When the process that has the environment ends,
rollouts under way there are errored, and the next process that asks takes over. Processes of other users are neither
served nor asked.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypeVar

from assay.envs.base import Env
from assay.errors import AssayError
from assay.integrations.environments.desk import Desk, Found
from assay.integrations.environments.reference import EnvironmentReference, Split, TaskReference
from assay.integrations.environments.remote import GREETING_S, DeskConnection, DeskGone, FollowerSession
from assay.rewards.shared.hub import listening_socket, make_folder, socket_path, try_lock, unlock
from assay.rewards.shared.link import forget_fd, keep_from_children
from assay.rewards.shared.owner import is_foreign, user_at_other_end
from assay.types import Score, Task, Trajectory

logger = logging.getLogger(__name__)

T = TypeVar("T")

ELECTION_S = 30.0
"""How long to look for the process that has an environment while another one holds the lock but does not answer."""
MOST_DESKS = 5
"""Processes that may end during one call before it is given up: the call may be what ends them."""
_POLL_S = (0.005, 0.1)


class Unreachable(AssayError, RuntimeError):
    """No process serves the environment, and this one may not."""


class SharedDesk:
    """The desk of all processes that name the same path. Belongs to one event loop.

    Args:
        path: the socket; `<path>.lock` stands beside it, and stays. One for each environment and its settings.
        make: makes the real desk, in the one process that has it.
    """

    def __init__(self, path: Path, make: Callable[[], Desk]) -> None:
        self.path = Path(os.path.realpath(path))
        self._make = make
        self._own: _Served | None = None
        self._connection: DeskConnection | None = None
        self._electing = asyncio.Lock()

    @property
    def is_here(self) -> bool:
        """Whether this process has the environment."""
        return self._own is not None

    async def tasks(self, environment: EnvironmentReference, split: Split) -> Sequence[Task]:
        """See `Desk`."""
        return await self._asked(lambda desk: desk.tasks(environment, split))

    async def find(self, reference: TaskReference) -> Found:
        """See `Desk`."""
        return await self._asked(lambda desk: desk.find(reference))

    async def make(self, reference: TaskReference, n: int) -> Sequence[Env]:
        """See `Desk`."""
        return await self._asked(lambda desk: desk.make(reference, n))

    async def score(self, reference: TaskReference, trajectories: Sequence[Trajectory]) -> list[Score]:
        """See `Desk`."""
        return await self._asked(lambda desk: desk.score(reference, trajectories))

    async def close(self) -> None:
        """Close the environment where it is here, so that another process can take over, or let go of it."""
        own, self._own = self._own, None
        connection, self._connection = self._connection, None
        if connection is not None:
            await connection.close()
        if own is not None:
            await own.close()

    async def _asked(self, ask: Callable[[Desk], Awaitable[T]]) -> T:
        """What the desk answers, asked again where the process that has it ends meanwhile."""
        for _ in range(MOST_DESKS):
            desk = await self._desk()
            try:
                return await ask(desk)
            except DeskGone:
                logger.info("The process that had the environment at %s ended; looking for the next.", self.path)
        raise Unreachable(
            f"{MOST_DESKS} processes that had the environment at {self.path} ended while they handled this task. Look "
            "at their logs: the task may be what ends them."
        )

    async def _desk(self) -> Desk:
        async with self._electing:
            if self._own is not None:
                return self._own.desk
            if self._connection is None or not self._connection.usable:
                self._connection = None
                await self._elect()
            found = self._own.desk if self._own is not None else self._connection
            assert found is not None, "an election finds a desk, or raises"
            return found

    async def _elect(self) -> None:
        """Have the environment, or find the process that has it."""
        loop = asyncio.get_running_loop()
        give_up, (pause_s, longest_s) = loop.time() + ELECTION_S, _POLL_S
        make_folder(self.path.parent)
        address = socket_path(self.path)
        while True:
            lock = try_lock(self.path.with_name(self.path.name + ".lock"))
            if lock is not None:
                self._own = await _Served.start(address, lock, self._make)
                return
            self._connection = await _connected(address)
            if self._connection is not None:
                return
            if loop.time() > give_up:
                raise Unreachable(
                    f"Another process holds {self.path}.lock, but does not answer on {address}, so no task could be "
                    f'played. Look whether it hangs (fuser {self.path}.lock); share="process" does not need it.'
                )
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))
            pause_s = min(2 * pause_s, longest_s)


class _Served:
    """The real desk, the lock that makes it the only one, and the socket on which others reach it."""

    def __init__(self, address: Path, lock: int, desk: Desk) -> None:
        self.desk = desk
        self._address, self._lock = address, lock
        self._server: asyncio.AbstractServer | None = None
        self._sessions: set[asyncio.Task[None]] = set()
        self._listening = -1

    @classmethod
    async def start(cls, address: Path, lock: int, make: Callable[[], Desk]) -> _Served:
        """Make the desk and serve it. The lock is given back where that fails."""
        try:
            served = cls(address, lock, make())
            await served._listen()
        except BaseException:
            unlock(lock)
            raise
        return served

    async def _listen(self) -> None:
        listener = listening_socket(self._address)
        try:
            self._server = await asyncio.start_unix_server(self._follower, sock=listener)
        except BaseException:
            listener.close()
            raise
        self._listening = listener.fileno()
        keep_from_children(self._listening)

    async def close(self) -> None:
        """Serve nobody any more, close the desk, and only then let another process take over."""
        try:
            if self._server is not None:
                forget_fd(self._listening)
                self._server.close()
            self._address.unlink(missing_ok=True)
            for session in self._sessions:
                session.cancel()
            if self._sessions:
                await asyncio.wait(self._sessions)
            await self.desk.close()
        finally:
            unlock(self._lock)

    async def _follower(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        user = user_at_other_end(writer.get_extra_info("socket").fileno())
        if is_foreign(user):
            logger.warning("A process of another user (number %s) asked for this one's environment: refused.", user)
            writer.close()
            return
        task = asyncio.current_task()
        assert task is not None, "a connection is served by a task"
        self._sessions.add(task)
        try:
            await FollowerSession(self.desk, writer).serve(reader)
        finally:
            self._sessions.discard(task)


async def _connected(address: Path) -> DeskConnection | None:
    """A connection to a process that has greeted, or None where none does.

    Raises:
        Unreachable: it belongs to another user.
    """
    try:
        async with asyncio.timeout(GREETING_S):
            reader, writer = await asyncio.open_unix_connection(str(address))
            user = user_at_other_end(writer.get_extra_info("socket").fileno())
            if is_foreign(user):
                writer.close()
                raise Unreachable(
                    f"{address} belongs to another user (number {user}), who would see every answer and could forge "
                    "every score. Set XDG_CACHE_HOME to a folder of this user's own."
                )
            return await DeskConnection.greeted(reader, writer)
    except (OSError, DeskGone) as error:  # TimeoutError among them.
        logger.debug("No environment at %s: %r", address, error)
        return None
