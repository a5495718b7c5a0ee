"""One judge for all processes of a machine: one limit, one table of calls under way, one cache, one budget.

The processes name the same path. Whoever gets the lock beside it becomes the hub: it makes the real caller and serves
it as an OpenAI-compatible endpoint on the loopback interface, whose port and key it writes to that path, for this user
only; the others send their requests there. When the hub closes or dies, its lock is free, another process takes over,
and what was unanswered is asked again: what had been answered is in the cache. The judge's API key stays in the process
that uses it. There is no thread and no process beside those that ask.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import logging
import os
import random
import secrets
import stat
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from assay.errors import RewardError
from assay.rewards.base import Caller, CallFailure, Outcome, Request
from assay.rewards.client.chat import PATH, headers_of
from assay.rewards.client.http import HttpPool, Response, TransportError
from assay.rewards.client.resources import allow_open_files
from assay.rewards.client.route import route_to
from assay.rewards.shared2.forks import forget_fd, keep_from_children
from assay.rewards.shared2.server import Connection, LoopbackServer, Refused
from assay.rewards.shared2.wire import (
    VERSION,
    WireError,
    decode_ask,
    decode_outcome,
    encode_ask,
    encode_outcome,
)

logger = logging.getLogger(__name__)

MAX_BODY_BYTES = 32 * 2**20
ELECTION_TIMEOUT_S = 30.0
"""How long to look for a hub while another process holds the lock but does not answer."""
GREETING_TIMEOUT_S = 5.0
GRACE_S = 2.0
"""How long beyond a call's deadline to wait for what the hub says about it."""
MAX_HUBS = 10
"""Hubs that may die over one call before it is given up: it may be what kills them."""
CLOSING = 503
"""Status with which a hub that is closing sends its followers to the next one."""
WINDOW = 2048
"""Requests that a process has under way in the hub, each on a connection of its own; more wait."""

_POLL_S = (0.005, 0.1)


class HubGone(Exception):
    """The hub has died or is closing, and did not answer."""


class Unreachable(RewardError):
    """No process serves the judge, and this one may not."""


class SharedCaller:
    """A `Caller` that all processes of this machine which name the same `path` share. Belongs to one event loop.

    Args:
        path: where the hub writes its address; `<path>.lock` stands beside it, and stays. One for each judge and its
            settings.
        make: makes the real caller, in the one process that becomes the hub.
        max_body_bytes: largest request or reply that is passed between processes.
        drain_s: how long a closing hub waits for the calls of others that are under way; what is sent and not
            answered by then is asked, and perhaps paid for, again.
    """

    def __init__(
        self,
        path: Path,
        make: Callable[[], Caller],
        *,
        max_body_bytes: int = MAX_BODY_BYTES,
        drain_s: float = 30.0,
    ) -> None:
        self.path = Path(os.path.realpath(path))
        self._make = make
        self._max_body_bytes = max_body_bytes
        self._drain_s = drain_s
        self._role: _Hub | _Follower | None = None
        self._election: asyncio.Task[None] | None = None
        self._closed = False
        self._pid = os.getpid()
        self._id = uuid.uuid4().hex

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
            except WireError as error:
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
                return await role.counters()
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
            role.close()

    async def _forwarded(self, request: Request, deadline: float | None) -> Outcome | _Hub:
        """What the hub answers; or this process's own, once that is where to ask."""
        for _ in range(MAX_HUBS):
            role = await self._elected()
            if isinstance(role, _Hub):
                return role
            with contextlib.suppress(HubGone):
                return await role.call(request, deadline)
        raise Unreachable(f"{MAX_HUBS} processes that had the judge died while they were asked this")

    async def _elected(self) -> _Hub | _Follower:
        """The caller's place: this process's own hub, or the connection to another's."""
        while self._role is None or not self._role.usable:
            if self._pid != os.getpid():
                raise RewardError("a shared caller was used after a fork. Make it anew in the child process.")
            if self._closed:
                raise Unreachable("the shared caller was closed")
            if self._election is None or self._election.done():
                self._election = asyncio.get_running_loop().create_task(self._elect())
                self._election.add_done_callback(_retrieve)
            election = self._election
            await asyncio.wait([election])  # Many wait for it, and none of them ends it by being cancelled.
            if not election.cancelled():
                election.result()
        return self._role

    async def _elect(self) -> None:
        """Become the hub, or find it."""
        self._role = None
        loop = asyncio.get_running_loop()
        give_up = loop.time() + ELECTION_TIMEOUT_S
        pause_s, longest_s = _POLL_S
        _make_folder(self.path.parent)
        while True:
            lock = _try_lock(self.path.with_name(self.path.name + ".lock"))
            if lock is not None:
                self._role = await _Hub.start(self.path, lock, self._make, self._max_body_bytes)
                return
            address = _read_address(self.path)
            if address is not None:
                follower = _Follower(address, self._id, self._max_body_bytes)
                try:
                    async with asyncio.timeout(GREETING_TIMEOUT_S):
                        await follower.ask("hello")
                    self._role = follower
                    return
                except (HubGone, TimeoutError) as error:
                    logger.debug("no hub at port %d: %r", address.port, error)
                    if follower.closing:
                        give_up = loop.time() + ELECTION_TIMEOUT_S
                finally:
                    if self._role is None:
                        follower.close()
            if loop.time() > give_up:
                raise Unreachable(
                    f"another process holds {self.path}.lock, but does not answer, so the judge that they share was "
                    f"not asked. Look whether it hangs (fuser {self.path}.lock); if it runs in another container, give "
                    "each container a path of its own."
                )
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))
            pause_s = min(2 * pause_s, longest_s)


class _Hub:
    """The real caller, the lock that makes it the only one, and the server on which others reach it."""

    def __init__(self, path: Path, lock: int, caller: Caller, max_body_bytes: int) -> None:
        self.caller = caller
        self.usable = True
        self._path = path
        self._lock = lock
        self._address = Address(0, secrets.token_hex(16), secrets.token_hex(16))
        self._server = LoopbackServer(self._handle, self._address.key, self._address.token, max_body_bytes)

    @classmethod
    async def start(cls, path: Path, lock: int, make: Callable[[], Caller], max_body_bytes: int) -> _Hub:
        """Make the caller and serve it. The lock is given back where that fails, with whatever `make` raises."""
        hub = None
        try:
            path.unlink(missing_ok=True)  # the address of a hub that died: its port may be anybody's by now
            allow_open_files(8 * WINDOW)
            hub = cls(path, lock, make(), max_body_bytes)
            await hub._server.listen()
            _write_address(path, Address(hub._server.port, hub._address.key, hub._address.token))
        except BaseException:
            if hub is not None:
                hub._server.close()
                await hub.caller.close()
            _unlock(lock)
            raise
        return hub

    async def counters(self) -> dict[str, float]:
        """The caller's counters, and how many processes share it."""
        processes = {connection.process for connection in self._server.connections} - {""}
        return {**await self.caller.counters(), "hub_processes": 1.0 + len(processes)}

    async def close(self, drain_s: float) -> None:
        """Take nothing more, answer what is under way, close the caller, and only then let another take over."""
        self.usable = False
        try:
            await self._server.drain(drain_s)
            self._path.unlink(missing_ok=True)
            await self.caller.close()
        finally:
            self._server.close()
            await asyncio.sleep(0)
            _unlock(self._lock)

    async def _handle(self, connection: Connection, body: bytes) -> tuple[int, bytes]:
        """Do what a body asks for."""
        try:
            do, connection.process, request, left_s = decode_ask(body)
        except WireError as error:
            raise Refused(400, str(error)) from error
        if not self.usable:
            return CLOSING, b""
        if do == "hello":
            return 200, b""
        if do == "counters":
            return 200, json.dumps(await self.counters()).encode()
        if request is not None and do == "forget":
            await self.caller.forget(request)
            return 200, b""
        if request is None or do != "call":
            raise Refused(400, "a body asks for nothing that a hub does")
        deadline = None if left_s is None else asyncio.get_running_loop().time() + left_s
        status, answer = encode_outcome(await self.caller.call(request, deadline))
        if len(answer) > self._server.max_bytes:
            message = f"the reply has {len(answer)} bytes, but {self._server.max_bytes} is the most that is passed on"
            status, answer = encode_outcome(CallFailure("malformed", message))
        return status, answer


class _Follower:
    """The hub, as another process sees it."""

    def __init__(self, address: Address, process: str, max_body_bytes: int) -> None:
        self.usable = True
        self.closing = False
        self._process = process
        self._token = address.token
        self._max_body_bytes = max_body_bytes
        url = f"http://127.0.0.1:{address.port}/v1{PATH}"
        self._pool = HttpPool(route_to(url, headers_of(address.key), proxies={}))
        self._places = asyncio.Semaphore(WINDOW)
        self._under_way = 0

    async def call(self, request: Request, deadline: float | None) -> Outcome:
        """What the hub answers."""
        return decode_outcome((await self.ask("call", request, deadline)).body)

    async def counters(self) -> dict[str, float]:
        """The hub's counters."""
        found: dict[str, float] = json.loads((await self.ask("counters")).body)
        return found

    async def ask(self, do: str, request: Request | None = None, deadline: float | None = None) -> Response:
        """What the hub answers. Cancelling it closes a connection, by which the hub knows that nobody waits any more.

        Raises:
            HubGone: it did not answer: ask the next hub.  WireError: it cannot be asked this.
            RewardError: it could not do this.
        """
        async with self._places:
            if not self.usable:
                raise HubGone
            left_s = None if deadline is None else deadline - asyncio.get_running_loop().time()
            body = encode_ask(do, self._process, request, left_s)
            if len(body) > self._max_body_bytes:
                text = f"the request has {len(body)} bytes, but {self._max_body_bytes} is the most that is taken"
                raise WireError(text)
            response = await self._exchange(body)
        if response.status == 500:
            raise RewardError(f"the process that has the judge could not ask it: {response.body.decode()}")
        return response

    async def _exchange(self, body: bytes) -> Response:
        self._under_way += 1
        try:
            response = await self._pool.post(body)
            if response.headers.get("x-assay-hub") != self._token:  # another program has the port of a hub that died
                raise HubGone
            self.closing = response.status == CLOSING
            if self.closing:
                raise HubGone
        except (TransportError, HubGone) as error:
            self.usable = False
            raise HubGone from error
        finally:
            self._under_way -= 1
            if not self.usable and self._under_way == 0:  # a closing hub still answers what is under way
                self._pool.close()
        return response

    def close(self) -> None:
        """Let go of the hub."""
        self.usable = False
        self._pool.close()


@dataclass(frozen=True)
class Address:
    """Where a hub is reached, what it wants to hear, and what it answers with to be believed."""

    port: int
    key: str
    token: str


def _write_address(path: Path, address: Address) -> None:
    fresh = path.with_name(path.name + ".new")
    fresh.unlink(missing_ok=True)
    said = {"version": VERSION, "port": address.port, "key": address.key, "token": address.token}
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        json.dump(said, file)
    os.replace(fresh, path)


def _read_address(path: Path) -> Address | None:
    """The address that a hub has written, or None.

    Raises:
        RewardError: somebody else may have written it, or a hub of another version.
    """
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW)) as file:
            status = os.fstat(file.fileno())
            said = json.load(file)
    except (FileNotFoundError, ValueError):
        return None
    except OSError as error:
        raise RewardError(f"{path}, by which processes share a judge, cannot be read: {error}.") from error
    if status.st_uid != os.getuid() or stat.S_IMODE(status.st_mode) & 0o077:
        raise RewardError(f"{path}, by which processes share a judge, is not this user's alone. Choose another path.")
    if said["version"] != VERSION:
        raise RewardError(
            f"the process that has the judge at {path} speaks version {said['version']} and this one {VERSION}: they "
            "run different versions of Assay. Use one, or give each a path of its own."
        )
    return Address(said["port"], said["key"], said["token"])


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise RewardError(
            f"the folder {folder}, through which processes share a judge, cannot be made: {error}. Choose another path."
        ) from error


def _try_lock(path: Path) -> int | None:
    """The descriptor of the locked file, or None where another process has the lock."""
    try:
        lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise RewardError(
            f"{path}, by which processes agree who asks the judge, cannot be opened: {error}. Choose a path in a "
            "folder of this user's on a local disk."
        ) from error
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


def _unlock(lock: int) -> None:
    forget_fd(lock)
    os.close(lock)


def _retrieve(election: asyncio.Task[None]) -> None:
    """Nobody may be left waiting for an election, and whoever waits sees its error."""
    if not election.cancelled():
        election.exception()
