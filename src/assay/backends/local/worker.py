"""The one thread on which a model computes, and how an event loop waits for it."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncGenerator, Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

T = TypeVar("T")


class Worker:
    """Runs one call at a time, in order; the event loop stays free meanwhile."""

    def __init__(self, torch_threads: int) -> None:
        self._pool = ThreadPoolExecutor(1, "torch", initializer=torch.set_num_threads, initargs=(torch_threads,))

    async def run(self, work: Callable[[], T]) -> T:
        """The result of `work`. Cancelling the wait does not interrupt it; the next work starts after it."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)

    async def iterate(self, work: Callable[[], Generator[T, None, None]]) -> AsyncGenerator[T, None]:
        """The items of the generator `work()`, as it yields them; it runs to its end without waiting for the reader.

        A reader that goes away, or is cancelled, closes the generator at its next item and waits for that.
        """
        loop = asyncio.get_running_loop()
        found: asyncio.Queue[tuple[T] | None] = asyncio.Queue()
        abandoned = threading.Event()

        def produce() -> None:
            try:
                with contextlib.closing(work()) as items:
                    for item in items:
                        if abandoned.is_set():
                            return
                        loop.call_soon_threadsafe(found.put_nowait, (item,))
            finally:
                loop.call_soon_threadsafe(found.put_nowait, None)

        job = self._pool.submit(produce)
        over = False
        try:
            while (item := await found.get()) is not None:
                yield item[0]
            over = True
            await asyncio.wrap_future(job)
        finally:
            abandoned.set()
            while not over and not job.cancel():
                over = await found.get() is None
