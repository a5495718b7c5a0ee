"""Results on their way: one for each request however often it is sent, kept until it was fetched and for a while after.

A request is known by what its client calls it (an adapter and its number, say), so that a repeated one gets the same
future and is not worked on twice. A result that nobody fetched is kept for `result_s`, one that was fetched for
`AFTER_DELIVERY_S` more, since its answer may have been lost on the way. Results are bounded in bytes too: those that
were fetched go early, and where the rest is too much, new requests are told to come again later.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field

from assay.server.tinker.errors import RequestError, absent

AFTER_DELIVERY_S = 300.0
POLL_S = 35.0
"""A poll is held for this long; the SDK gives up after 45 seconds."""
PROTOBUF, JSON = "application/x-protobuf", "application/json"


@dataclass(frozen=True)
class Result:
    """The answer to a request."""

    body: bytes
    kind: str = JSON
    """Its content type."""


@dataclass
class Promise:
    """A request that was taken on."""

    id: str
    owner: str
    kind: str
    done: asyncio.Event = field(default_factory=asyncio.Event)
    result: Result | RequestError | None = None
    ended: float = 0.0
    delivered: float | None = None
    on_result: Callable[[Promise], None] | None = None

    def resolve(self, result: Result | RequestError) -> None:
        """Give it its result; the first one counts."""
        if self.result is None:
            # An error that was raised holds what raised it, its adapter and its batch, for as long as it is kept.
            self.result = result.anew() if isinstance(result, RequestError) else result
            self.ended = time.monotonic()
            self.done.set()
            if self.on_result is not None:
                self.on_result(self)


class Promises:
    """All requests that were taken on."""

    def __init__(self, result_s: float, most: int, most_bytes: int) -> None:
        self._result_s, self._most, self._most_bytes = result_s, most, most_bytes
        self.bytes = 0
        """Size of the results that are kept."""
        self._delivered: dict[str, None] = {}
        self._boot = secrets.token_hex(4)
        self._count = 0
        self._by_id: dict[str, Promise] = {}
        self._by_key: dict[Hashable, str] = {}
        self._keys: dict[str, Hashable] = {}
        self.stopping = self.stopped = False
        self.waiting = 0
        """Requests that have no result yet."""
        self.ended = {"ok": 0, "user": 0, "server": 0, "unknown": 0}
        """Requests that ended, by how."""

    def known(self, owner: str, key: Hashable | None) -> Promise | None:
        """The promise of a request that was made already, by what its client calls it."""
        return None if key is None else self._by_id.get(self._by_key.get((owner, key), ""))

    def open(self, owner: str, kind: str, key: Hashable | None) -> tuple[Promise, bool]:
        """The promise of a request, and whether it is a new one.

        Args:
            key: what the client calls the request; None where it gave it no name.

        Raises:
            RequestError: too many requests wait; or the name was given to a request of another kind.
        """
        known = self.known(owner, key)
        if known is not None:
            if known.kind != kind:
                raise RequestError(
                    400, f"This number was given to a request of the kind {known.kind} already, and now to {kind}."
                )
            return known, False
        if self.stopping:
            raise RequestError(503, "The server is being stopped.", "server")
        if self.waiting >= self._most:
            raise RequestError(429, f"{self.waiting} requests wait already: come again later.", "server")
        if self.bytes > self._most_bytes:
            raise RequestError(
                429, f"Results of {self.bytes >> 20} MB wait to be fetched: come again once they are.", "server"
            )
        self._count += 1
        promise = Promise(f"{self._boot}-{self._count}-{secrets.token_hex(8)}", owner, kind, on_result=self._ended)
        self.waiting += 1
        self._by_id[promise.id] = promise
        if key is not None:
            self._by_key[owner, key] = promise.id
            self._keys[promise.id] = (owner, key)
        return promise, True

    def _ended(self, promise: Promise) -> None:
        self.waiting -= 1
        self.ended[promise.result.category if isinstance(promise.result, RequestError) else "ok"] += 1
        self.bytes += _size(promise)
        self._make_room()

    def _make_room(self) -> None:
        """Let go of fetched results, those fetched first before others, until the rest is not too much.

        Their requests stay known, so that one that is sent again is not worked on again.
        """
        while self.bytes > self._most_bytes and self._delivered:
            name = next(iter(self._delivered))
            del self._delivered[name]
            promise = self._by_id[name]
            self.bytes -= _size(promise)
            promise.result = RequestError(410, "The result of this request was fetched, and has made room.", "server")

    async def fetch(self, owner: str, request_id: str) -> Result | RequestError | None:
        """The result of a request; None where it has none yet after `POLL_S`.

        Raises:
            RequestError: 410 for a request that is no longer known, 404 for one that never was.
        """
        promise = self._by_id.get(request_id)
        if promise is None or promise.owner != owner:
            if promise is None and not request_id.startswith(self._boot):
                raise RequestError(410, "The server was started again since, and does not know this request.", "server")
            if promise is None:
                raise RequestError(410, "The result of this request was kept for its time and is gone.", "server")
            raise absent("There is no such request.")
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(promise.done.wait(), POLL_S)
        if promise.result is None:
            if self.stopped:
                raise RequestError(503, "The server was stopped before it came to this request.", "server")
            return None
        found = promise.result
        promise.delivered = promise.delivered or time.monotonic()
        if self.find(owner, request_id) is promise:  # not forgotten in the meantime
            self._delivered.setdefault(request_id)
            self._make_room()
        return found

    def find(self, owner: str, request_id: str) -> Promise | None:
        """A request of a client, by its id."""
        promise = self._by_id.get(request_id)
        return promise if promise is not None and promise.owner == owner else None

    def forget(self, now: float) -> int:
        """Drop results whose time is over; returns how many."""
        old = [
            p.id
            for p in self._by_id.values()
            if p.result is not None
            and (now - p.ended > self._result_s if p.delivered is None else now - p.delivered > AFTER_DELIVERY_S)
        ]
        for name in old:
            self.bytes -= _size(self._by_id.pop(name))
            self._delivered.pop(name, None)
            self._by_key.pop(self._keys.pop(name, None), None)
        return len(old)

    async def stop(self, seconds: float) -> None:
        """Take nothing more on, and wait for what is under way; what does not end in time gets no result."""
        self.stopping = True
        deadline = time.monotonic() + seconds
        while self.waiting and time.monotonic() < deadline:
            await asyncio.sleep(0.05)
        self.stopped = True
        for promise in self._by_id.values():
            promise.done.set()


def _size(promise: Promise) -> int:
    return len(promise.result.body) if isinstance(promise.result, Result) else 0
