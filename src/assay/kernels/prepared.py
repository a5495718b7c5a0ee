"""Problems made ready for grading, shared by all grades of a grader and kept while they are in use.

    task = preparations.task(key, make)
    prepared = await shared(task)

Making a problem ready takes seconds, so it is done once for all grades that need it. The problems graded last are kept.
A failure, and a refusal that a machine under load may have caused, goes to the grades that wait for it and is not kept.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

from assay.kernels.numerics.secret_inputs import InputBank
from assay.kernels.problems.scaling import ScaledProblem

MAX_PREPARED = 64
"""Problems kept, least recently graded ones dropped first: each holds megabytes of arrays. Problems that are being made
ready are kept beyond this."""

T = TypeVar("T")


@dataclass(slots=True)
class Prepared:
    """A problem at the sizes it is graded at, or why it cannot be graded."""

    scaled: ScaledProblem
    bank: InputBank | None
    refusal: str = ""
    lasting: bool = True
    """False for a refusal for which a machine under load may be to blame: the next grade tries again."""


class Closed(Exception):
    """The grader was closed while a grade waited for what grades share."""


class Preparations:
    """The problems of one grader, by problem and size. Belongs to one event loop."""

    def __init__(self) -> None:
        self._tasks: OrderedDict[str, asyncio.Task[Prepared]] = OrderedDict()

    def task(self, key: str, make: Callable[[], Coroutine[Any, Any, Prepared]]) -> asyncio.Task[Prepared]:
        """The task that makes a problem ready, or has done so; started where there is none that is worth keeping."""
        task = self._tasks.get(key)
        if task is None or _is_stale(task):
            task = self._tasks[key] = asyncio.create_task(make())
        self._tasks.move_to_end(key)
        excess = len(self._tasks) - MAX_PREPARED
        if excess > 0:
            idle = [other for other, made in self._tasks.items() if made.done() and other != key]
            for other in idle[:excess]:
                del self._tasks[other]
        return task

    def tasks(self) -> list[asyncio.Task[Prepared]]:
        """All of them, the least recently asked for first."""
        return list(self._tasks.values())


async def shared(task: asyncio.Task[T]) -> T:
    """The result of a task that others wait for too. Cancelling one waiter does not cancel the task.

    Raises:
        Closed: the task was cancelled, which only the grader's `close` does.
    """
    await asyncio.wait([task])
    if task.cancelled():
        raise Closed
    return task.result()


def _is_stale(task: asyncio.Task[Prepared]) -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None or not task.result().lasting)
