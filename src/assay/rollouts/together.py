"""Tasks that belong together: all of them finish, or all are stopped."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

logger = logging.getLogger(__name__)

T = TypeVar("T")

GRACE_S = 10.0
"""How long a cancelled task may take to clean up before it is cancelled again."""
ATTEMPTS = 3
"""Times that a task is cancelled before it is given up."""


async def together(coroutines: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Run coroutines side by side; their results in order.

    Where one fails, or the caller is cancelled, the others are cancelled and waited for first.

    Raises:
        Exception: what the first one to fail raised.
    """
    tasks = [asyncio.create_task(coroutine) for coroutine in coroutines]
    try:
        if tasks:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        failed = (task for task in tasks if task.done() and not task.cancelled() and task.exception() is not None)
        for task in failed:
            task.result()
        return [task.result() for task in tasks]
    finally:
        await stop(tasks)


async def stop(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel tasks and wait until they have ended, however they end.

    One that swallows its cancellation is cancelled again, after a while or when the caller is cancelled itself; one
    that still runs is abandoned, with an error in the log, since nothing can end it.
    """
    tasks = list(tasks)
    interrupted: asyncio.CancelledError | None = None
    for _ in range(ATTEMPTS):
        left = [task for task in tasks if not task.done()]
        if not left:
            break
        for task in left:
            task.cancel()
        try:
            await asyncio.wait(left, timeout=GRACE_S)
        except asyncio.CancelledError as error:
            interrupted = error
    if left := [task for task in tasks if not task.done()]:
        names = ", ".join(repr(task.get_coro()) for task in left[:3])
        logger.error(
            "%d of %d tasks still run although they were cancelled %d times, and are abandoned: %s. An env that "
            "catches CancelledError must end soon after.",
            len(left),
            len(tasks),
            ATTEMPTS,
            names,
        )
    for task in tasks:
        if task.done() and not task.cancelled():
            task.exception()  # What tasks raise while they are stopped is not needed.
    if interrupted is not None:
        raise interrupted


def reraise_if_cancelled(error: BaseException) -> None:
    """Raise a `CancelledError` again where the present task was cancelled, rather than something that it waited for."""
    task = asyncio.current_task()
    if isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling():
        raise error
