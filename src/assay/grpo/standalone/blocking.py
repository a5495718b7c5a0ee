"""Blocking calls of what is written for an event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


def blocking(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end, also where an event loop is running already (a notebook's, say)."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(work)
    with ThreadPoolExecutor(1, "grpo") as thread:
        return thread.submit(asyncio.run, work).result()
