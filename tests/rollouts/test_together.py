"""Tasks that belong together end together: on failure, on cancellation, and where one of them resists."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from assay.rollouts import together as module
from assay.rollouts.together import reraise_if_cancelled, stop, together
from support.virtual_time import play


async def after(seconds: float, result: Any) -> Any:
    await asyncio.sleep(seconds)
    if isinstance(result, Exception):
        raise result
    return result


def test_results_come_in_order() -> None:
    assert play(together([after(3, "a"), after(1, "b"), after(2, "c")])) == ["a", "b", "c"]
    assert play(together([])) == []


def test_a_failure_ends_the_others_first() -> None:
    ended: list[str] = []

    async def cleaning(name: str) -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            await asyncio.sleep(1)
            ended.append(name)

    with pytest.raises(ValueError, match="two"):
        play(together([cleaning("a"), after(2, ValueError("two")), after(5, ValueError("five")), cleaning("b")]))
    assert ended == ["a", "b"]


def resists(times: int, ended: list[int]) -> Callable[[], Coroutine[Any, Any, None]]:
    """A coroutine that swallows its first `times` cancellations."""

    async def run() -> None:
        for _ in range(times):
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(1e9)
        try:
            await asyncio.sleep(1e9)
        finally:
            ended.append(times)

    return run


def test_a_cancelled_caller_leaves_nothing_running() -> None:
    ended: list[int] = []

    async def run() -> None:
        caller = asyncio.create_task(together([resists(0, ended)(), resists(2, ended)()]))
        await asyncio.sleep(1)
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller

    play(run())
    assert ended == [0, 2]


def test_a_task_that_cannot_be_ended_is_given_up_and_named(caplog: pytest.LogCaptureFixture) -> None:
    ended: list[int] = []

    async def run() -> None:
        task = asyncio.create_task(resists(module.ATTEMPTS, ended)())
        await asyncio.sleep(1)
        await stop([task])
        assert not task.done()
        assert "1 of 1 tasks still run although they were cancelled 3 times" in caplog.text and "resists" in caplog.text
        await stop([task])

    play(run())
    assert ended == [module.ATTEMPTS]


def test_stops_that_lie_within_each_other_try_as_often() -> None:
    ended: list[int] = []

    async def run() -> None:
        outer = asyncio.create_task(together([together([resists(module.ATTEMPTS - 1, ended)()])]))
        await asyncio.sleep(1)
        await stop([outer])
        assert ended == [module.ATTEMPTS - 1]

    play(run())


def test_stopping_says_nothing_of_what_the_tasks_raise(caplog: pytest.LogCaptureFixture) -> None:
    async def fails_when_cancelled() -> None:
        try:
            await asyncio.sleep(1e9)
        except asyncio.CancelledError:
            raise OSError("while cleaning up") from None

    async def run() -> None:
        tasks = [asyncio.create_task(fails_when_cancelled()), asyncio.create_task(after(0, 1))]
        await asyncio.sleep(1)
        await stop(tasks)
        await stop(tasks)
        assert all(task.done() for task in tasks)

    play(run())
    assert not caplog.records


def test_a_cancellation_is_told_from_one_that_was_only_met() -> None:
    async def met() -> str:
        inner = asyncio.ensure_future(asyncio.sleep(1e9))
        asyncio.get_running_loop().call_later(1, inner.cancel)
        try:
            await inner
        except asyncio.CancelledError as error:
            reraise_if_cancelled(error)
        return "goes on"

    async def own() -> None:
        task = asyncio.create_task(met())
        await asyncio.sleep(0.5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    assert play(met()) == "goes on"
    play(own())
