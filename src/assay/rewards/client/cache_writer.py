"""Writes replies to the cache in groups: all that arrive in one turn of the event loop share one transaction."""

from __future__ import annotations

import asyncio

from assay.rewards.cache import ReplyCache, StoredReply


class CacheWriter:
    """Puts rows into a cache from one event loop. A transaction takes microseconds, so it is not worth a thread."""

    def __init__(self, cache: ReplyCache) -> None:
        self._cache = cache
        self._rows: list[tuple[str, StoredReply]] = []
        self._waiters: list[asyncio.Future[None]] = []

    async def put(self, key: str, reply: StoredReply) -> None:
        """Store a reply; returns once it would survive the death of this process."""
        loop = asyncio.get_running_loop()
        if not self._rows:
            loop.call_soon(self._flush)
        self._rows.append((key, reply))
        written = loop.create_future()
        self._waiters.append(written)
        await written

    def drop(self, key: str) -> None:
        """Forget a stored reply."""
        self._cache.drop(key)

    def close(self) -> None:
        """Write what waits and close the cache."""
        self._flush()
        self._cache.close()

    def _flush(self) -> None:
        rows, self._rows = self._rows, []
        waiters, self._waiters = self._waiters, []
        try:
            if rows:
                self._cache.put(rows)
        finally:  # a reply that could not be stored is a reply all the same
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_result(None)
