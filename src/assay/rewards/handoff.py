"""Samples going from a host's event loop to the engine's, and scores coming back, in bounded numbers.

The two loops may be the same one, or run in different threads; either may end before the other does. The host gets an
outcome for every sample, since it would wait forever for a missing one.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Iterable, Sequence

from assay.errors import JudgeError, RewardError
from assay.rewards.base import Sample
from assay.rewards.loop_thread import LoopThread
from assay.types import Score

CHUNK = 64
"""Samples handed to the engine's loop at once."""
CHUNK_S = 0.01
"""After this time, the samples that a slow iterable has given so far are handed over."""
NEWS_EVERY_S = 0.002
"""Waking another thread costs as much as scoring a sample, so it is done for many at once."""
STEP = 16
"""Samples whose calls are prepared before the loop may send them."""

Scoring = Callable[[Sample, float | None], Awaitable[Score | JudgeError]]
"""(sample, deadline on the engine's loop) -> its score, or why nothing can be scored any more."""


class Flow:
    """One batch or stream. `feed` and `results` run in the host's loop, `score` in that of `thread`.

    Args:
        window: most samples under way.
        deadline_s: longest that the samples may take, from the first one on.
    """

    def __init__(self, thread: LoopThread, score: Scoring, window: int, deadline_s: float | None) -> None:
        self._thread, self._score = thread, score
        self._window = window
        self._deadline_s = deadline_s
        self._deadline: float | None = None
        self._host = asyncio.get_running_loop()
        self._under_way = 0
        self._room = asyncio.Event()
        self._done: deque[tuple[int, Score | BaseException]] = deque()
        self._news = asyncio.Event()
        self._telling = False
        self._waiting: deque[tuple[int, Sample]] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._cancelled = False

    async def feed(self, samples: Iterable[Sample] | AsyncIterable[Sample]) -> None:
        """Hand over all samples, as far ahead as the window allows."""
        index = 0
        async with contextlib.aclosing(_chunks(samples)) as chunks:
            async for chunk in chunks:
                while self._under_way >= self._window:
                    self._room.clear()
                    await self._room.wait()
                self._thread.loop.call_soon_threadsafe(self._start, list(enumerate(chunk, index)))
                self._under_way += len(chunk)
                index += len(chunk)

    async def results(self, feeding: asyncio.Task[None]) -> AsyncGenerator[tuple[int, Score], None]:
        """Scores in the order of completion, until all samples were handed over and scored.

        Raises:
            JudgeError: the judge refuses every call.
        """
        feeding.add_done_callback(self._on_fed)
        while self._done or self._under_way or not feeding.done():
            while self._done:
                index, result = self._done.popleft()
                if isinstance(result, BaseException):
                    raise result
                self._under_way -= 1
                self._room.set()
                yield index, result
            if self._under_way or not feeding.done():
                await self._news.wait()
                self._news.clear()
        feeding.result()

    def fail(self, error: BaseException) -> None:
        """Raise `error` where the results are read. From any thread."""
        self._done.append((-1, error))
        with contextlib.suppress(RuntimeError):  # the host's loop is closed: they are not read
            self._host.call_soon_threadsafe(self._news.set)

    def cancel(self) -> None:
        """Stop scoring whatever is still under way. From any thread."""
        with contextlib.suppress(RuntimeError):  # the engine's loop is closed: nothing is under way
            self._thread.loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        self._cancelled = True
        for task in self._tasks:
            task.cancel()

    def _on_fed(self, feeding: asyncio.Task[None]) -> None:
        if not feeding.cancelled():
            feeding.exception()  # seen, also where another error ends the batch first
        self._news.set()

    def _start(self, samples: Sequence[tuple[int, Sample]]) -> None:
        """Begin to score some samples. Runs in the engine's loop."""
        if self._deadline_s is not None and self._deadline is None:
            self._deadline = self._thread.loop.time() + self._deadline_s
        if not self._waiting:
            self._thread.loop.call_soon(self._start_some)
        self._waiting.extend(samples)

    def _start_some(self) -> None:
        """Start a few and let the loop send what they ask, before preparing the next few."""
        for _ in range(min(STEP, len(self._waiting)) if not self._cancelled else 0):
            index, sample = self._waiting.popleft()
            task = self._thread.loop.create_task(self._one(index, sample))
            self._tasks.add(task)
            task.add_done_callback(self._on_end)
        if self._waiting and not self._cancelled:
            self._thread.loop.call_soon(self._start_some)

    async def _one(self, index: int, sample: Sample) -> None:
        result = await self._score(sample, self._deadline)
        self._done.append((index, result))
        if isinstance(result, JudgeError):  # further calls would only be refused until the host knows
            self._cancel()
            self._tell()
        elif len(self._tasks) == 1 and not self._waiting:
            self._tell()
        elif not self._telling:
            self._telling = True
            self._thread.loop.call_later(NEWS_EVERY_S, self._tell)

    def _on_end(self, task: asyncio.Task[None]) -> None:
        """Pass an error (not a score) on to the host: a fault of the caller or of Assay."""
        self._tasks.discard(task)
        if task.cancelled():
            if not self._cancelled:
                self.fail(RewardError("the calls of a sample were cancelled by their caller. Was it closed?"))
        elif (error := task.exception()) is not None:
            self.fail(error)

    def _tell(self) -> None:
        """Wake the host, which takes whatever is done by then."""
        self._telling = False
        try:
            self._host.call_soon_threadsafe(self._news.set)
        except RuntimeError:  # the host's loop was closed during its batch: nothing waits any more
            self._cancel()


async def _chunks(samples: Iterable[Sample] | AsyncIterable[Sample]) -> AsyncGenerator[list[Sample], None]:
    """Samples in lists of at most `CHUNK`; one by one where they arrive over time."""
    if isinstance(samples, AsyncIterable):
        async for sample in samples:
            yield [sample]
        return
    chunk: list[Sample] = []
    since = time.monotonic()
    for sample in samples:
        chunk.append(sample)
        if len(chunk) == CHUNK or time.monotonic() - since > CHUNK_S:
            yield chunk
            await asyncio.sleep(0)  # let scores through before more is drawn
            chunk, since = [], time.monotonic()
    if chunk:
        yield chunk
