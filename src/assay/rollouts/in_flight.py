"""A batch of rollouts that plays by itself while its owner does something else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

from assay.rollouts.together import stop

T = TypeVar("T")


class InFlight(Generic[T]):
    """Rollouts that start when this is made. The code that makes it must stop it."""

    def __init__(self, start: Callable[[Callable[[], None]], Coroutine[Any, Any, T]]) -> None:
        """`start` plays the rollouts; it is given what to call when nothing more will be sampled."""
        self._sampled = asyncio.Event()
        self._task = asyncio.create_task(start(self._sampled.set))
        self._task.add_done_callback(lambda _: self._sampled.set())

    async def sampled(self) -> None:
        """Wait until nothing more will be sampled, so that the policy may change; verdicts may still be out.

        Raises:
            AssayError: the rollouts have failed.
        """
        await self._sampled.wait()
        if self._task.done():
            self._task.result()

    async def result(self) -> T:
        """What `start` returned, when all rollouts are scored.

        Raises:
            AssayError: as `sampled`.
        """
        return await self._task

    async def stop(self) -> None:
        """End what still runs; safe to call twice, and after a failure."""
        await stop([self._task])
