"""One thread computes, in order; what it yields is read while it goes on, and a reader that leaves ends it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Generator
from contextlib import aclosing

import pytest

from assay.backends.local.worker import Worker


def test_items_are_read_while_the_work_goes_on() -> None:
    read = threading.Event()

    def work() -> Generator[int, None, None]:
        yield 1
        assert read.wait(10), "the first item must be there before the second"
        yield 2

    async def run() -> list[int]:
        found = []
        async for item in Worker(1).iterate(work):
            found.append(item)
            read.set()
        return found

    assert asyncio.run(run()) == [1, 2]


def test_the_work_does_not_wait_for_its_reader() -> None:
    done = threading.Event()

    def work() -> Generator[int, None, None]:
        yield from range(5)
        done.set()

    async def run() -> list[int]:
        items = Worker(1).iterate(work)
        first = await anext(items)
        assert await asyncio.to_thread(done.wait, 10)
        return [first, *[item async for item in items]]

    assert asyncio.run(run()) == [0, 1, 2, 3, 4]


def test_what_the_work_raises_comes_after_its_items() -> None:
    def work() -> Generator[int, None, None]:
        yield 1
        raise ValueError("no more")

    async def run() -> None:
        items = Worker(1).iterate(work)
        assert await anext(items) == 1
        with pytest.raises(ValueError, match="no more"):
            await anext(items)

    asyncio.run(run())


@pytest.mark.parametrize("how", ["close", "cancel"])
def test_a_reader_that_leaves_ends_the_work_and_not_the_worker(how: str) -> None:
    closed: list[str] = []
    name = threading.Event()

    def endless() -> Generator[int, None, None]:
        try:
            while True:
                yield 1
        finally:
            closed.append(threading.current_thread().name)

    async def read(worker: Worker) -> None:
        async with aclosing(worker.iterate(endless)) as items:
            async for _ in items:
                name.set()
                if how == "close":
                    return
                await asyncio.sleep(0)

    async def run() -> None:
        worker = Worker(1)
        reader = asyncio.create_task(read(worker))
        assert await asyncio.to_thread(name.wait, 10)
        if how == "cancel":
            reader.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reader
        else:
            await reader
        assert len(closed) == 1 and closed[0].startswith("torch"), "closed on its own thread, before the reader is gone"
        assert await worker.run(lambda: 5) == 5

    asyncio.run(run())


def test_work_that_has_not_begun_is_not_waited_for() -> None:
    release = threading.Event()

    def never() -> Generator[int, None, None]:
        raise AssertionError("nobody reads this")
        yield 1

    async def run() -> None:
        worker = Worker(1)
        before = asyncio.create_task(worker.run(lambda: release.wait(10)))
        await asyncio.sleep(0)
        queued = asyncio.create_task(anext(worker.iterate(never)))
        await asyncio.sleep(0)
        queued.cancel()
        with pytest.raises(asyncio.CancelledError):
            await queued
        assert not before.done()
        release.set()
        assert await before

    asyncio.run(run())
