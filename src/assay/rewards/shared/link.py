"""The two ends of a connection between a hub, which has the real caller, and a process that shares it.

A follower asks with `[number, kind, ...]` and is answered with `[number, "ok", ...]`, in any order. Number 0 is the
connection's own: a greeting, the news that the hub is closing, and what was wrong with what was sent. Neither end
keeps more than a window for the other: a hub stops reading from a follower that has too many calls in flight or does
not read its answers, and a follower's calls wait while nothing more can be sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
from collections import deque
from collections.abc import Callable, Coroutine
from functools import partial
from typing import cast

from assay.errors import RewardError
from assay.rewards.base import Caller, CallFailure, Request
from assay.rewards.shared.frames import (
    VERSION,
    FrameError,
    FrameReader,
    decode_remaining,
    decode_request,
    encode_outcome,
    encode_request,
    frame,
)
from assay.rewards.shared.owner import is_foreign, user_at_other_end
from assay.types import Json

logger = logging.getLogger(__name__)

WINDOW = 2048
"""Most requests of one process in flight at a hub."""
UNSENT_BYTES = 1_000_000
"""Most bytes kept to be sent on one connection before more must wait."""

_not_for_children: set[int] = set()


def keep_from_children(fd: int) -> None:
    """Take care that a forked child does not hold `fd` open: a hub's death must be seen although its child lives."""
    _not_for_children.add(fd)


def forget_fd(fd: int) -> None:
    """Undo `keep_from_children`, before the number is used for another file."""
    _not_for_children.discard(fd)


def _cover_inherited() -> None:
    # Closed, the numbers would be given to other files, which inherited objects could then close by mistake.
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for fd in _not_for_children:
        os.dup2(nothing, fd, inheritable=False)
    os.close(nothing)
    _not_for_children.clear()


os.register_at_fork(after_in_child=_cover_inherited)


class HubGone(Exception):
    """The hub has closed or died before it answered."""


class Link(asyncio.Protocol):
    """One end: cuts what arrives into messages, and sends frames, all of one turn of the event loop at once."""

    def __init__(self, max_frame_bytes: int) -> None:
        self.max_frame_bytes = max_frame_bytes
        self.gone = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._reader = FrameReader(max_frame_bytes)
        self._inbox: deque[Json] = deque()
        self._unsent: list[bytes] = []
        self._unsent_bytes = 0
        self._stalled = False
        self._writable = asyncio.Event()
        self._writable.set()
        self._fd = -1

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the event loop."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=UNSENT_BYTES)
        self._fd = transport.get_extra_info("socket").fileno()
        keep_from_children(self._fd)

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the event loop."""
        forget_fd(self._fd)
        self.gone.set()
        self._writable.set()
        self._unsent.clear()
        self._inbox.clear()

    def data_received(self, data: bytes) -> None:
        """Called by the event loop."""
        try:
            self._inbox.extend(self._reader.feed(data))
        except FrameError as error:
            self.refuse(error)
        else:
            self.take()

    def take(self) -> None:
        """Act on what has arrived."""
        try:
            while self._inbox and self.may_take():
                self.received(self._inbox.popleft())
        except FrameError as error:
            self._inbox.clear()
            self.refuse(error)

    def may_take(self) -> bool:
        """Whether another message may be acted on now."""
        return True

    def received(self, message: Json) -> None:
        """Act on a message. Raises FrameError where it makes no sense."""
        raise NotImplementedError

    def refuse(self, error: FrameError) -> None:
        """End the connection, because what came over it makes no sense."""
        self.close()

    def pause_writing(self) -> None:
        """Called by the event loop: the other side does not read."""
        self._stalled = True
        self._writable.clear()

    def resume_writing(self) -> None:
        """Called by the event loop."""
        self._stalled = False
        self._writable.set()
        self.take()

    def send(self, data: bytes) -> None:
        """Send a frame, at the end of this turn of the event loop."""
        if self.gone.is_set():
            return
        if not self._unsent:
            self._loop.call_soon(self._flush)
        self._unsent.append(data)
        self._unsent_bytes += len(data)
        if self._unsent_bytes > UNSENT_BYTES:
            self._writable.clear()

    def close(self) -> None:
        """Send what is unsent, then close."""
        self._flush()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Close, whatever is unsent."""
        if self._transport is not None:
            self._transport.abort()

    def _flush(self) -> None:
        if self._unsent and self._transport is not None and not self._transport.is_closing():
            self._transport.write(self._unsent[0] if len(self._unsent) == 1 else b"".join(self._unsent))
        self._unsent.clear()
        self._unsent_bytes = 0
        if not self._stalled and not self._writable.is_set():
            self._writable.set()
            self.take()


class FollowerLink(Link):
    """A follower, as the hub sees it: each of its requests is a task. Ends when the follower does."""

    def __init__(
        self,
        links: set[FollowerLink],
        caller: Caller,
        counters: Callable[[], Coroutine[None, None, dict[str, float]]],
        usable: Callable[[], bool],
        max_frame_bytes: int,
    ) -> None:
        """`usable`: whether the hub still takes followers: one may arrive after all others were told that it closes."""
        super().__init__(max_frame_bytes)
        self._links = links
        self._usable = usable
        self.tasks: dict[int, asyncio.Task[Json]] = {}
        self._caller = caller
        self._counters = counters
        self._closing = False
        self._paused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Called by the event loop."""
        super().connection_made(transport)
        if is_foreign(user := user_at_other_end(self._fd)):
            logger.warning("a process of another user (number %s) asked this one to share its judge: refused", user)
            self._closing = True
            self.abort()
            return
        if not self._usable():
            self._closing = True
            self.abort()  # It finds the next hub.
            return
        self._links.add(self)
        self.send(frame([0, "hello", VERSION]))

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the event loop."""
        super().connection_lost(exc)
        self._links.discard(self)
        while self.tasks:
            self.tasks.popitem()[1].cancel()

    def received(self, message: Json) -> None:
        """Start what a follower asks for, or stop it."""
        if self._closing:
            return  # The follower asks the next hub.
        match message:
            case [int(number), "call", remaining, request]:
                self._serve(number, self._call(decode_request(request), decode_remaining(remaining)))
            case [int(number), "forget", _, request]:
                self._serve(number, self._caller.forget(decode_request(request)))
            case [int(number), "counters", _, _]:
                self._serve(number, self._counters())
            case [int(number), "cancel"]:
                if (task := self.tasks.pop(number, None)) is not None:
                    task.cancel()
            case _:
                raise FrameError("a frame asks for something that a hub does not do")

    def refuse(self, error: FrameError) -> None:
        """End the connection, because what came over it makes no sense."""
        logger.warning("a process that is connected to this one to share its judge was refused: %s", error)
        self.send(frame([0, "error", str(error)]))
        super().refuse(error)

    def say_closing(self) -> None:
        """Tell the follower to ask nothing more here."""
        self._closing = True
        self.send(frame([0, "closing"]))

    def take(self) -> None:
        """Act on what has arrived, as far as the window allows, and read on only then."""
        super().take()
        pause = bool(self._inbox)
        if self._transport is None or pause == self._paused or self._transport.is_closing():
            return
        self._paused = pause
        if pause:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def may_take(self) -> bool:
        """Not from a follower that has too many calls in flight, or does not read its answers."""
        return self._writable.is_set() and len(self.tasks) < WINDOW

    async def _call(self, request: Request, remaining: float | None) -> Json:
        deadline = None if remaining is None else self._loop.time() + remaining
        return encode_outcome(await self._caller.call(request, deadline))

    def _serve(self, number: int, work: Coroutine[None, None, Json]) -> None:
        if number in self.tasks or number <= 0:
            work.close()
            raise FrameError(f"a frame reuses the number {number} of an open request")
        task = self.tasks[number] = self._loop.create_task(work)
        task.add_done_callback(partial(self._answer, number))

    def _answer(self, number: int, task: asyncio.Task[Json]) -> None:
        if self.tasks.pop(number, None) is None:
            return  # The follower has stopped waiting, or is gone.
        if task.cancelled():
            if not self._closing:
                self.send(frame([number, "error", "the hub's caller was cancelled"]))
        elif (error := task.exception()) is not None:
            logger.error("the caller that processes share raised, which is a bug", exc_info=error)
            self.send(frame([number, "error", f"{type(error).__name__}: {error}"]))
        else:
            data = frame([number, "ok", task.result()])
            if len(data) > self.max_frame_bytes:
                message = f"the reply has {len(data)} bytes, but at most {self.max_frame_bytes} are passed on"
                data = frame([number, "ok", encode_outcome(CallFailure("malformed", message))])
            self.send(data)
        if self._inbox:
            self.take()


class HubConnection(Link):
    """The hub, as a follower sees it."""

    def __init__(self, max_frame_bytes: int) -> None:
        super().__init__(max_frame_bytes)
        self.greeted: asyncio.Future[int] = self._loop.create_future()
        """Version of the hub's messages, once it has said so."""
        self.usable = True
        """Whether the hub takes requests, as far as is known."""
        self._asked: dict[int, asyncio.Future[Json]] = {}
        self._numbers = itertools.count(1)

    async def ask(self, kind: str, request: Request | None = None, deadline: float | None = None) -> Json:
        """What the hub answers. Cancelling it tells the hub that the answer is no longer needed.

        Raises:
            HubGone: it did not answer: ask the next hub.  FrameError: this request cannot be sent.
            RewardError: the hub failed to do this.
        """
        while not self._writable.is_set():
            await self._writable.wait()
        if not self.usable:
            raise HubGone
        number = next(self._numbers)
        remaining = None if deadline is None else deadline - self._loop.time()
        data = frame([number, kind, remaining, None if request is None else encode_request(request)])
        if len(data) > self.max_frame_bytes:
            raise FrameError(f"the request has {len(data)} bytes, but at most {self.max_frame_bytes} are accepted")
        self.send(data)
        answer = self._asked[number] = self._loop.create_future()
        try:
            return await answer
        except asyncio.CancelledError:
            self.send(frame([number, "cancel"]))
            raise
        finally:
            del self._asked[number]

    def received(self, message: Json) -> None:
        """Hand an answer to the call that waits for it."""
        match message:
            case [0, "hello", int(version)] if not self.greeted.done():
                self.greeted.set_result(version)
            case [0, "closing"]:
                self.usable = False
            case [0, "error", str(text)]:
                raise FrameError(text)
            case [int(number), "ok", payload]:
                if (answer := self._asked.get(number)) is not None and not answer.done():
                    answer.set_result(payload)
            case [int(number), "error", str(text)]:
                if (answer := self._asked.get(number)) is not None and not answer.done():
                    answer.set_exception(RewardError(f"the process that has the judge could not ask it: {text}"))
            case _:
                raise FrameError("the hub sent something that is not an answer")

    def refuse(self, error: FrameError) -> None:
        """End the connection; what was asked over it would fail in the same way again."""
        self._end(error)
        super().refuse(error)

    def connection_lost(self, exc: Exception | None) -> None:
        """Called by the event loop."""
        super().connection_lost(exc)
        self._end(HubGone())

    def _end(self, error: Exception) -> None:
        self.usable = False
        for answer in self._asked.values():
            if not answer.done():
                answer.set_exception(error)
        with contextlib.suppress(asyncio.InvalidStateError):
            self.greeted.set_exception(error)
            self.greeted.exception()  # Retrieved, since there may be no waiter.
