"""A new Python process for what forks hundreds of times.

The process of the tests has PyTorch and the memory of all tests before, and a fork of it takes five times as long.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from typing import Any

LIMIT_S = 110.0
"""Below the time that a test has, so that a process which hangs does not outlive it."""


def in_small_process(work: Callable[..., None], *arguments: Any) -> None:
    """Run a function of a module in a new process; its traceback goes to standard error."""
    process = multiprocessing.get_context("spawn").Process(target=work, args=arguments)
    process.start()
    process.join(LIMIT_S)
    if process.is_alive():
        process.kill()
        process.join()
    assert process.exitcode == 0, f"{work.__name__} ended with {process.exitcode}: see its standard error"
