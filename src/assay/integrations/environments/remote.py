"""The two ends of a connection between the process that has an environment and one that asks for its tasks.

A follower asks with `[number, kind, ...]` and is answered with `[number, "ok", answer]` or `[number, "failed", error,
words]`, in any order. Envs live where the environment is, until the follower drops their group or is gone.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import weakref
from collections.abc import Coroutine, Sequence
from functools import partial
from typing import get_args

from assay import errors
from assay.envs.base import Env, StepResult
from assay.errors import AssayError
from assay.integrations.environments.desk import Desk, Found
from assay.integrations.environments.reference import EnvironmentReference, Split, TaskReference
from assay.integrations.environments.wire import (
    VERSION,
    decode_found,
    decode_group,
    decode_messages,
    decode_result,
    decode_scores,
    decode_task,
    encode_found,
    encode_group,
    encode_messages,
    encode_result,
    encode_scores,
    encode_task,
)
from assay.plugins import in_words
from assay.rewards.shared.frames import FrameError, FrameReader, frame
from assay.types import Json, Message, Score, Task, Trajectory

logger = logging.getLogger(__name__)

MAX_FRAME_BYTES = 64 * 2**20
MOST_CALLS = 4096
"""Of one follower in flight at a time."""
PAGE = 256
"""Tasks in one answer."""
MOST_ENVS = 4096
"""Of one group."""
GREETING_S = 5.0
_READ_BYTES = 2**18


class DeskGone(AssayError, ConnectionError):
    """The process that had the environment ended."""


class EnvironmentFailure(AssayError, RuntimeError):
    """What an environment in another process raised, in words."""


class FollowerSession:
    """A follower, as the process sees it that has the environment. Its requests are tasks, which end with it."""

    def __init__(self, desk: Desk, writer: asyncio.StreamWriter) -> None:
        self._desk, self._writer = desk, writer
        self._tasks: dict[int, asyncio.Task[Json]] = {}
        self._groups: dict[int, Sequence[Env]] = {}
        self._numbers = itertools.count(1)

    async def serve(self, reader: asyncio.StreamReader) -> None:
        """Answer until the follower is gone, or sends something that makes no sense."""
        frames = FrameReader(MAX_FRAME_BYTES)
        self._send([0, "hello", VERSION])
        try:
            while data := await reader.read(_READ_BYTES):
                for message in frames.feed(data):
                    self._take(message)
                await self._writer.drain()
        except FrameError as error:
            logger.warning("A process that asked for this one's environment was refused: %s", error)
        except ConnectionError:
            logger.debug("A process that asked for this one's environment is gone.", exc_info=True)
        finally:
            for task in self._tasks.values():
                task.cancel()
            self._writer.close()

    def _take(self, message: Json) -> None:
        match message:
            case [int(number), "find", text]:
                self._start(number, self._find(text))
            case [int(number), "tasks", record, str(split), int(start)] if start >= 0:
                self._start(number, self._listed(record, split, start))
            case [int(number), "make", text, int(n)] if 0 < n <= MOST_ENVS:
                self._start(number, self._made(text, n))
            case [int(number), "reset", int(group), int(place)]:
                self._start(number, self._reset(self._env(group, place)))
            case [int(number), "step", int(group), int(place), str(text)]:
                self._start(number, self._step(self._env(group, place), text))
            case [int(number), "score", text, record]:
                self._start(number, self._score(text, record))
            case [0, "drop", int(group)]:
                self._groups.pop(group, None)
            case [int(number), "cancel"]:
                if (task := self._tasks.get(number)) is not None:
                    task.cancel()
            case _:
                raise FrameError("a frame asks for something that an environment does not do")

    def _env(self, group: int, place: int) -> Env:
        envs = self._groups.get(group, ())
        if not 0 <= place < len(envs):
            raise FrameError(f"a frame names env {place} of group {group}, which is not there")
        return envs[place]

    async def _find(self, text: Json) -> Json:
        return encode_found(await self._desk.find(TaskReference.from_json(text)))

    async def _listed(self, record: Json, split: str, start: int) -> Json:
        if not isinstance(record, str) or split not in get_args(Split):
            raise FrameError("a frame asks for the tasks of something that is no environment")
        tasks = await self._desk.tasks(EnvironmentReference(record), split)  # type: ignore[arg-type]
        return [encode_task(task) for task in tasks[start : start + PAGE]]

    async def _made(self, text: Json, n: int) -> Json:
        envs = await self._desk.make(TaskReference.from_json(text), n)
        number = next(self._numbers)
        self._groups[number] = envs
        return [number, [bool(getattr(env, "whole_replies", False)) for env in envs]]

    async def _reset(self, env: Env) -> Json:
        return encode_messages(await env.reset())

    async def _step(self, env: Env, text: str) -> Json:
        return encode_result(await env.step(text), f"{type(env).__name__}.step()")

    async def _score(self, text: Json, record: Json) -> Json:
        group = decode_group(record)
        return encode_scores(await self._desk.score(TaskReference.from_json(text), group.trajectories))

    def _start(self, number: int, work: Coroutine[None, None, Json]) -> None:
        if number in self._tasks or number <= 0 or len(self._tasks) >= MOST_CALLS:
            work.close()
            raise FrameError(f"a frame reuses the number {number}, or asks for more than {MOST_CALLS} things at a time")
        task = self._tasks[number] = asyncio.create_task(work)
        task.add_done_callback(partial(self._answer, number))

    def _answer(self, number: int, task: asyncio.Task[Json]) -> None:
        self._tasks.pop(number, None)
        if task.cancelled():
            return  # The follower has stopped waiting, or is gone.
        if (error := task.exception()) is not None:
            logger.debug("A call of another process failed.", exc_info=error)
            self._send([number, "failed", type(error).__name__, in_words(error)])
        else:
            data = frame([number, "ok", task.result()])
            if len(data) > MAX_FRAME_BYTES:
                words = f"the answer has {len(data)} bytes, but at most {MAX_FRAME_BYTES} are passed on"
                data = frame([number, "failed", "", words])
            if not self._writer.is_closing():
                self._writer.write(data)

    def _send(self, message: Json) -> None:
        if not self._writer.is_closing():
            self._writer.write(frame(message))


class DeskConnection:
    """The desk of another process. See `Desk`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.usable = True
        self._reader, self._writer = reader, writer
        self._frames = FrameReader(MAX_FRAME_BYTES)
        self._asked: dict[int, asyncio.Future[Json]] = {}
        self._numbers = itertools.count(1)
        self._loop = asyncio.get_running_loop()
        self._hello: asyncio.Future[int] = self._loop.create_future()
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def greeted(cls, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> DeskConnection:
        """The connection, once the other process has said which version it speaks.

        Raises:
            DeskGone: it ended first.  EnvironmentFailure: it speaks another version.
        """
        connection = cls(reader, writer)
        try:
            version = await connection._hello
        except BaseException:
            await connection.close()
            raise
        if version != VERSION:
            await connection.close()
            raise EnvironmentFailure(
                f"The process that has the environment speaks version {version} and this one {VERSION}: they run "
                "different versions of Assay. Use one."
            )
        return connection

    async def find(self, reference: TaskReference) -> Found:
        """See `Desk`."""
        return decode_found(await self._ask("find", reference.to_json()))

    async def tasks(self, environment: EnvironmentReference, split: Split) -> Sequence[Task]:
        """See `Desk`."""
        found: list[Task] = []
        while True:
            page = [decode_task(one) for one in await self._ask("tasks", environment.record, split, len(found))]
            found += page
            if len(page) < PAGE:
                return found

    async def make(self, reference: TaskReference, n: int) -> Sequence[Env]:
        """See `Desk`."""
        match await self._ask("make", reference.to_json(), n):
            case [int(number), list(whole)] if len(whole) == n:
                group = _Group(self, number)
                return [RemoteEnv(group, place, bool(replies)) for place, replies in enumerate(whole)]
        raise FrameError("a frame holds no group of envs")

    async def score(self, reference: TaskReference, trajectories: Sequence[Trajectory]) -> list[Score]:
        """See `Desk`."""
        if not trajectories:
            return []
        return decode_scores(await self._ask("score", reference.to_json(), encode_group(trajectories)))

    async def close(self) -> None:
        """Let go of it."""
        self._reading.cancel()
        await asyncio.wait([self._reading])
        self._writer.close()

    def drop(self, group: int) -> None:
        """Say that the envs of a group are no longer needed. From any thread."""
        if self.usable and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._send, [0, "drop", group])

    async def _ask(self, kind: str, *given: Json) -> Json:
        if not self.usable:
            raise DeskGone("the process that had the environment ended")
        number = next(self._numbers)
        data = frame([number, kind, *given])
        if len(data) > MAX_FRAME_BYTES:
            raise FrameError(f"the request has {len(data)} bytes, but at most {MAX_FRAME_BYTES} are accepted")
        answer = self._asked[number] = self._loop.create_future()
        self._writer.write(data)
        try:
            return await answer
        except asyncio.CancelledError:
            self._send([number, "cancel"])
            raise
        finally:
            del self._asked[number]

    async def _read(self) -> None:
        try:
            while data := await self._reader.read(_READ_BYTES):
                for message in self._frames.feed(data):
                    self._received(message)
        except (FrameError, ConnectionError) as error:
            logger.warning("The process that has the environment sent something that is no answer: %s", error)
        finally:
            self.usable = False
            gone = DeskGone("the process that had the environment ended, and with it this rollout")
            for answer in (self._hello, *self._asked.values()):
                if not answer.done():
                    answer.set_exception(gone)
            self._hello.exception()  # Retrieved, since there may be no waiter.
            self._writer.close()

    def _received(self, message: Json) -> None:
        match message:
            case [0, "hello", int(version)] if not self._hello.done():
                self._hello.set_result(version)
            case [int(number), "ok", payload]:
                if (answer := self._asked.get(number)) is not None and not answer.done():
                    answer.set_result(payload)
            case [int(number), "failed", str(kind), str(words)]:
                if (answer := self._asked.get(number)) is not None and not answer.done():
                    answer.set_exception(_error(kind, words))
            case _:
                raise FrameError("the process that has the environment sent something that is not an answer")

    def _send(self, message: Json) -> None:
        if not self._writer.is_closing():
            self._writer.write(frame(message))


class _Group:
    """The envs of a group in another process; dropped there when nobody here has them any longer."""

    def __init__(self, connection: DeskConnection, number: int) -> None:
        self.connection, self.number = connection, number
        weakref.finalize(self, connection.drop, number)


class RemoteEnv:
    """An env that lives in another process. See `Env`."""

    def __init__(self, group: _Group, place: int, whole_replies: bool) -> None:
        self._group, self._place, self.whole_replies = group, place, whole_replies

    async def reset(self) -> list[Message]:
        """See `Env`."""
        return decode_messages(await self._ask("reset"))

    async def step(self, text: str) -> StepResult:
        """See `Env`."""
        return decode_result(await self._ask("step", text))

    async def _ask(self, kind: str, *given: Json) -> Json:
        return await self._group.connection._ask(kind, self._group.number, self._place, *given)


def _error(kind: str, words: str) -> Exception:
    """What the other process raised: one of Assay's own errors as itself, others as their words."""
    cls = getattr(errors, kind, None)
    if isinstance(cls, type) and issubclass(cls, AssayError):
        return cls(words)
    return EnvironmentFailure(words)
