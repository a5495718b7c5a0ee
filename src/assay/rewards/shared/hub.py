"""One judge for all processes of a machine: one limit, one table of calls in flight, one cache, one budget.

The processes name the same path. The process that gets the lock beside it becomes the hub: it makes the real caller and
serves it on a Unix socket; the others send their requests there. When the hub closes or dies, its lock is free, another
process takes over, and unanswered calls are made again: earlier answers are in the cache. The API key stays in the
process that uses it. No further thread or process is started. Processes of other users are neither served nor asked.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import logging
import os
import random
import socket
import stat
from collections.abc import Callable
from pathlib import Path

from assay.errors import RewardError
from assay.rewards.base import Caller, CallFailure, Outcome, Request
from assay.rewards.shared.frames import VERSION, FrameError, decode_outcome
from assay.rewards.shared.link import FollowerLink, HubConnection, HubGone, forget_fd, keep_from_children
from assay.rewards.shared.owner import is_foreign, user_at_other_end

logger = logging.getLogger(__name__)

MAX_FRAME_BYTES = 64 * 2**20
ELECTION_TIMEOUT_S = 30.0
"""How long to look for a hub while another process holds the lock but does not answer."""
GREETING_TIMEOUT_S = 5.0
GRACE_S = 2.0
"""How long beyond a call's deadline to wait for what the hub says about it."""
MAX_HUBS = 10
"""Hubs that may die during one call before it is given up: the call may be what kills them."""
SOCKET_PATH_BYTES = 100
"""Longest path of a socket; platforms take 103 to 107 bytes."""

_POLL_S = (0.005, 0.1)


class Unreachable(RewardError):
    """No process serves the judge, and this one may not."""


class SharedCaller:
    """A `Caller` that all processes of this machine which name the same `path` share. Belongs to one event loop.

    Args:
        path: the socket; `<path>.lock` stands beside it, and stays. One for each judge and its settings.
        make: makes the real caller, in the one process that becomes the hub.
        max_frame_bytes: largest request or reply that is passed between processes.
        drain_s: how long a closing hub waits for the calls of others that are under way; calls not answered by then are
            made, and perhaps paid for, again.
    """

    def __init__(
        self,
        path: Path,
        make: Callable[[], Caller],
        *,
        max_frame_bytes: int = MAX_FRAME_BYTES,
        drain_s: float = 30.0,
    ) -> None:
        self.path = Path(os.path.realpath(path))
        self._make = make
        self._max_frame_bytes = max_frame_bytes
        self._drain_s = drain_s
        self._role: _Hub | HubConnection | None = None
        self._election: asyncio.Task[None] | None = None
        self._closed = False
        self._pid = os.getpid()

    @property
    def is_hub(self) -> bool:
        """Whether this process has the real caller."""
        return isinstance(self._role, _Hub)

    async def call(self, request: Request, deadline: float | None = None) -> Outcome:
        """See `Caller.call`. Where no hub can be reached, a failure of kind `connection`."""
        role = self._role
        if not (isinstance(role, _Hub) and role.usable):
            try:
                async with asyncio.timeout_at(None if deadline is None else deadline + GRACE_S):
                    found = await self._forwarded(request, deadline)
            except TimeoutError:
                return CallFailure("deadline", "the process that has the judge did not answer before the deadline")
            except FrameError as error:
                return CallFailure("bad_request", str(error))
            except Unreachable as error:
                return CallFailure("connection", str(error))
            if not isinstance(found, _Hub):
                return found
            role = found
        return await role.caller.call(request, deadline)

    async def forget(self, request: Request) -> None:
        """See `Caller.forget`."""
        while not isinstance(role := await self._elected(), _Hub):
            with contextlib.suppress(HubGone):
                await role.ask("forget", request)
                return
        await role.caller.forget(request)

    async def counters(self) -> dict[str, float]:
        """The real caller's counters, for all processes together, and `hub_processes`: how many share it now."""
        while not isinstance(role := await self._elected(), _Hub):
            with contextlib.suppress(HubGone):
                counters: dict[str, float] = await role.ask("counters")
                return counters
        return await role.counters()

    async def close(self) -> None:
        """See `Caller.close`. A hub first answers what the others have under way; then one of them takes over."""
        self._closed = True
        if self._pid != os.getpid():
            return
        if self._election is not None:
            self._election.cancel()
            await asyncio.wait([self._election])
        role, self._role = self._role, None
        if isinstance(role, _Hub):
            await role.close(self._drain_s)
        elif role is not None:
            role.abort()
            await role.gone.wait()

    async def _forwarded(self, request: Request, deadline: float | None) -> Outcome | _Hub:
        """The answer of the hub, or of this process's own caller once it is the hub."""
        for _ in range(MAX_HUBS):
            role = await self._elected()
            if isinstance(role, _Hub):
                return role
            with contextlib.suppress(HubGone):
                return decode_outcome(await role.ask("call", request, deadline))
        raise Unreachable(f"{MAX_HUBS} processes that had the judge died while they handled this call")

    async def _elected(self) -> _Hub | HubConnection:
        """This process's own hub, or the connection to another's."""
        while self._role is None or not self._role.usable:
            if self._pid != os.getpid():
                raise RewardError("a shared caller was used after a fork. Make a new one in the child process.")
            if self._closed:
                raise Unreachable("the shared caller was closed")
            if self._election is None or self._election.done():
                self._election = asyncio.get_running_loop().create_task(self._elect())
                self._election.add_done_callback(_retrieve)
            election = self._election
            await asyncio.wait([election])  # Many wait for it, and cancelling one of them must not end it.
            if not election.cancelled():
                election.result()
        return self._role

    async def _elect(self) -> None:
        """Become the hub, or find it."""
        if isinstance(self._role, HubConnection):
            await self._role.gone.wait()
        self._role = None
        loop = asyncio.get_running_loop()
        give_up = loop.time() + ELECTION_TIMEOUT_S
        pause_s, longest_s = _POLL_S
        make_folder(self.path.parent)
        address = socket_path(self.path)
        while True:
            lock = try_lock(self.path.with_name(self.path.name + ".lock"))
            if lock is not None:
                self._role = await _Hub.start(address, lock, self._make, self._max_frame_bytes)
                return
            self._role = await _connect(address, self._max_frame_bytes)
            if self._role is not None:
                return
            if loop.time() > give_up:
                raise Unreachable(
                    f"another process holds {self.path}.lock, but does not answer on {address}, so the judge that they "
                    f"share was not asked. Look whether it hangs (fuser {self.path}.lock); if it runs in another "
                    "container, give each container its own path."
                )
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))
            pause_s = min(2 * pause_s, longest_s)


class _Hub:
    """The real caller, the lock that makes it the only one, and the socket on which others reach it."""

    def __init__(self, address: Path, lock: int, caller: Caller, max_frame_bytes: int) -> None:
        self.caller = caller
        self.usable = True
        self._address = address
        self._lock = lock
        self._max_frame_bytes = max_frame_bytes
        self._links: set[FollowerLink] = set()
        self._server: asyncio.AbstractServer | None = None
        self._listening = -1

    @classmethod
    async def start(cls, address: Path, lock: int, make: Callable[[], Caller], max_frame_bytes: int) -> _Hub:
        """Make the caller and serve it. The lock is given back where that fails, with the error that `make` raises."""
        hub = None
        try:
            hub = cls(address, lock, make(), max_frame_bytes)
            await hub._listen()
        except BaseException:
            if hub is not None:
                await hub.caller.close()
            unlock(lock)
            raise
        return hub

    async def counters(self) -> dict[str, float]:
        """The caller's counters, and how many processes share it."""
        return {**await self.caller.counters(), "hub_processes": 1.0 + len(self._links)}

    async def close(self, drain_s: float) -> None:
        """Take no more calls, answer those in flight, close the caller, and only then let another process take over."""
        self.usable = False
        try:
            if self._server is not None:
                forget_fd(self._listening)
                self._server.close()
            self._address.unlink(missing_ok=True)
            for link in self._links:
                link.say_closing()
            tasks = [task for link in self._links for task in link.tasks.values()]
            if tasks:
                await asyncio.wait(tasks, timeout=drain_s)
            await self.caller.close()
        finally:
            links = list(self._links)
            for link in links:
                link.close()
            try:
                async with asyncio.timeout(1.0):
                    for link in links:
                        await link.gone.wait()
            except TimeoutError:
                for link in links:
                    link.abort()
            finally:
                unlock(self._lock)

    async def _listen(self) -> None:
        listener = listening_socket(self._address)
        try:
            self._server = await asyncio.get_running_loop().create_unix_server(self._follower, sock=listener)
        except BaseException:
            listener.close()
            raise
        self._listening = listener.fileno()
        keep_from_children(self._listening)

    def _follower(self) -> FollowerLink:
        return FollowerLink(self._links, self.caller, self.counters, lambda: self.usable, self._max_frame_bytes)


def socket_path(path: Path) -> Path:
    """Where the socket for `path` stands: there, or under a short name where sockets take no path as long.

    Raises:
        RewardError: the folder for short names belongs to another user.
    """
    if len(os.fsencode(path)) + len(".new") <= SOCKET_PATH_BYTES:
        return path
    # Not the folder that TMPDIR names: it may be another one in each process.
    folder = Path("/tmp") / f"assay-{os.getuid()}"
    make_folder(folder)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise RewardError(
            f"{path} is too long for a socket, and the folder for shorter names, {folder}, is open to other users. "
            f"Choose a path of at most {SOCKET_PATH_BYTES - len('.new')} bytes, or remove that folder."
        )
    return folder / hashlib.sha256(os.fsencode(path)).hexdigest()[:32]


def listening_socket(address: Path) -> socket.socket:
    """A socket that listens at `address`, for this user alone.

    It is made under another name: a socket left behind by a process that died is replaced, and none is ever half made.
    """
    fresh = address.with_name(address.name + ".new")
    fresh.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.setblocking(False)
        listener.bind(str(fresh))
        fresh.chmod(0o600)
        listener.listen(1024)
        os.replace(fresh, address)
    except BaseException:
        listener.close()
        raise
    return listener


def make_folder(folder: Path) -> None:
    """The folder of a socket, which only this user may enter where it is new.

    Raises:
        RewardError: it cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise RewardError(
            f"the folder {folder}, through which processes share a judge or an environment, cannot be made: {error}. "
            "Choose another path."
        ) from error


def try_lock(path: Path) -> int | None:
    """The descriptor of the locked file, or None where another process has the lock.

    Raises:
        RewardError: it cannot be locked, or belongs to another user.
    """
    try:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise RewardError(
            f"{path}, which decides which process has what they share, cannot be opened: {error}. Choose a path in a "
            "folder of this user's on a local disk."
        ) from error
    if is_foreign(owner := os.fstat(lock).st_uid):
        os.close(lock)
        raise RewardError(_foreign(path, owner))
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    except OSError as error:
        os.close(lock)
        raise RewardError(f"{path} cannot be locked: {error}. Choose a path on a local disk.") from error
    keep_from_children(lock)
    return lock


def _foreign(path: Path, user: int | None) -> str:
    return (
        f"{path}, through which processes share a judge or an environment, belongs to another user (number {user}), "
        "who would read every prompt and could forge every reply. Choose a path in a folder of this user's own."
    )


def unlock(lock: int) -> None:
    """Give a lock back."""
    forget_fd(lock)
    os.close(lock)


async def _connect(address: Path, max_frame_bytes: int) -> HubConnection | None:
    """A connection to a hub that has greeted, or None where none does."""
    loop = asyncio.get_running_loop()
    connection = None
    version = None
    try:
        async with asyncio.timeout(GREETING_TIMEOUT_S):
            transport, connection = await loop.create_unix_connection(
                lambda: HubConnection(max_frame_bytes), str(address)
            )
            user = user_at_other_end(transport.get_extra_info("socket").fileno())
            if is_foreign(user):
                raise RewardError(_foreign(address, user))
            version = await connection.greeted
    except (OSError, HubGone, FrameError) as error:  # TimeoutError among them.
        logger.debug("hub at %s not reached: %r", address, error)
    finally:
        if connection is not None and version != VERSION:
            connection.abort()
    if version not in (None, VERSION):
        raise RewardError(
            f"the process that has the judge at {address} speaks version {version} and this one {VERSION}: they run "
            "different versions of Assay. Use one, or give each its own path."
        )
    return connection if version == VERSION else None


def _retrieve(election: asyncio.Task[None]) -> None:
    """Nothing may be left waiting for an election; all that wait get its error."""
    if not election.cancelled():
        election.exception()
