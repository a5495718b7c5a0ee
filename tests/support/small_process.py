"""A new Python process for what forks hundreds of times.

The process of the tests has PyTorch and the memory of all tests before, and a fork of it takes five times as long.
"""

from __future__ import annotations

import multiprocessing
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

LIMIT_S = 110.0
"""Below the time that a test has, so that a process which hangs does not outlive it."""


def in_small_process(work: Callable[..., None], *arguments: Any) -> None:
    """Run a function of a module in a new process; its traceback is in the failure."""
    context = multiprocessing.get_context("spawn")
    report, reply = context.Pipe(duplex=False)
    process = context.Process(target=_work, args=(reply, work, arguments))
    process.start()
    reply.close()
    failed = report.recv() if report.poll(LIMIT_S) else f"{work.__name__} did not end within {LIMIT_S:g} s"
    process.kill()
    process.join()
    assert failed is None, failed


def _work(report: Connection, work: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    try:
        work(*arguments)
    except BaseException:  # noqa: BLE001  whatever it was, the caller fails with it
        report.send(traceback.format_exc())
    else:
        report.send(None)
