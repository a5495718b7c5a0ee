"""How long the event loop of a program is held up: late by the clock, and busy by the processor's.

    async with LoopWatch() as watch:
        ...
    watch.late_ms, watch.callback_ms

A loop is late where it runs a callback for long, and where the machine gives the processor to another program. The CPU
time of each callback tells the two apart: a busy machine lengthens none of it.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from asyncio.events import Handle
from types import TracebackType

_EVERY_S = 0.005


class LoopWatch:
    """Watches the loop that it is entered in. One at a time: it stands in the way of every callback."""

    def __init__(self) -> None:
        self.late_ms = 0.0
        """Longest time by which a wake-up came too late."""
        self.callback_ms = 0.0
        """Most CPU time that the loop's thread spent in one callback."""
        self.callback = ""
        """Which that was."""

    async def __aenter__(self) -> LoopWatch:
        self._run = Handle._run
        watch, run = self, self._run

        def timed(handle: Handle) -> None:
            begin = time.thread_time()
            run(handle)
            spent = (time.thread_time() - begin) * 1e3
            if spent > watch.callback_ms:
                watch.callback_ms, watch.callback = spent, _name_of(handle)

        Handle._run = timed  # type: ignore[method-assign]
        self._ticker = asyncio.create_task(self._tick())
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        Handle._run = self._run  # type: ignore[method-assign]
        self._ticker.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._ticker

    async def _tick(self) -> None:
        while True:
            begin = time.perf_counter()
            await asyncio.sleep(_EVERY_S)
            self.late_ms = max(self.late_ms, (time.perf_counter() - begin - _EVERY_S) * 1e3)


def _name_of(handle: Handle) -> str:
    """What a callback is: for a step of a task the coroutines in which it stands, the outermost first."""
    task = getattr(handle._callback, "__self__", None)
    if not isinstance(task, asyncio.Task):
        return repr(handle)[:200]
    names, found = [], task.get_coro()
    while found is not None and len(names) < 12:
        names.append(getattr(found, "__qualname__", type(found).__name__))
        found = getattr(found, "cr_await", None)
    return " > ".join(names)
