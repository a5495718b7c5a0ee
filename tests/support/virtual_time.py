"""An event loop whose clock jumps to the next timer instead of waiting for it: hours of timers in milliseconds.

For code without I/O: whatever another thread or the kernel does takes no time here, and may come too late.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

MOST_TURNS = 200_000
TURN_S = 1e-6
"""What every turn of the loop takes, as on a real machine: waits shorter than the clock can tell must end, too."""


class _Selector(selectors.DefaultSelector):
    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0
        self.turns = 0

    def select(self, timeout: float | None = None) -> Any:
        if timeout is None:
            raise AssertionError("the test waits for something that will never happen")
        self.turns += 1
        assert self.turns < MOST_TURNS, "the test runs for ever"
        self.now += max(timeout, TURN_S)
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    """The loop; `time()` is virtual."""

    def __init__(self) -> None:
        self.clock = _Selector()
        super().__init__(self.clock)

    def time(self) -> float:
        return self.clock.now


def play(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine in virtual time; a wait for nothing is an error, and so is a task left behind."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(_and_nothing_left(coroutine))


async def _and_nothing_left(coroutine: Coroutine[Any, Any, T]) -> T:
    result = await coroutine
    left = asyncio.all_tasks() - {asyncio.current_task()}
    assert not left, f"tasks left behind: {left}"
    return result
