"""An event loop in a thread of its own, so that hosts with a loop, without one, or with several can share an engine."""

from __future__ import annotations

import asyncio
import importlib
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, wait
from typing import Any, TypeVar

_T = TypeVar("_T")

LAST_WORDS_S = 5.0
"""How long `close` waits for tasks that it has cancelled."""


def new_event_loop() -> asyncio.AbstractEventLoop:
    """uvloop's where it is installed (half the CPU per call), else asyncio's own."""
    try:
        factory: Callable[[], asyncio.AbstractEventLoop] = importlib.import_module("uvloop").new_event_loop
    except ImportError:  # not made for this platform
        factory = asyncio.new_event_loop
    return factory()


class LoopThread:
    """Runs coroutines in one background thread. The thread ends with `close`, or with the process."""

    def __init__(self, name: str) -> None:
        self.loop = new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def is_here(self) -> bool:
        """Whether the calling code runs in this thread, where waiting for the loop would never end."""
        return threading.current_thread() is self._thread

    @property
    def alive(self) -> bool:
        """False after `close`, and in a forked child, which has no such thread."""
        return self._thread.is_alive() and not self.loop.is_closed()

    def submit(self, coroutine: Coroutine[Any, Any, _T]) -> Future[_T]:
        """Run a coroutine; cancelling the future cancels it."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def close(self, wait_s: float | None = None) -> None:
        """Cancel what still runs, stop the loop and wait for the thread.

        Args:
            wait_s: longest wait for a loop that foreign code may block. Its thread is left behind then: it ends with
                that code, or with the process.
        """
        if self.alive:
            ending = self.submit(_end_tasks())
            done, _ = wait([ending], wait_s)
            if not done:
                ending.add_done_callback(lambda _: self.loop.call_soon_threadsafe(self.loop.stop))
                return
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join()
            self.loop.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()


async def _end_tasks() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=LAST_WORDS_S)
    await asyncio.get_running_loop().shutdown_asyncgens()
