"""Logs the progress of a batch: scored, rate, in flight, from the cache, refused, money, time left."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future

from assay.errors import RewardError

logger = logging.getLogger(__name__)

EVERY_S = 10.0

_WORDS = {"cache_hits": "cached", "shared": "shared", "refusals": "refused", "hedges": "hedged"}


class Progress:
    """Logs a line every ten seconds while a batch is scored; a batch that is quick says nothing."""

    def __init__(self, name: str, total: int | None) -> None:
        self._name, self._total = name, total
        self._before: Mapping[str, float] = {}
        self._started = time.monotonic()
        self.scored = 0
        self.failed = 0

    def on_start(self, counters: Future[dict[str, float]]) -> None:
        """Take the totals at the start of the batch, to be left out of its lines."""
        if not counters.cancelled() and counters.exception() is None:
            self._before = counters.result()

    def on_score(self, ok: bool) -> None:
        """Count one sample."""
        self.scored += 1
        self.failed += not ok

    async def report(self, read: Callable[[], Future[dict[str, float]]]) -> None:
        """Log a line every ten seconds until cancelled, also while nothing is scored; `read` gives the counters."""
        while True:
            await asyncio.sleep(EVERY_S)
            try:
                counters = await asyncio.wrap_future(read())
            except RewardError as error:  # a line that cannot be written must not end the batch
                logger.debug("the progress line cannot show the counters: %s", error)
                counters = {}
            logger.info("%s", self.line(counters, time.monotonic() - self._started))

    def line(self, counters: Mapping[str, float], elapsed_s: float) -> str:
        """The line, after `elapsed_s` of the batch."""
        rate = self.scored / max(elapsed_s, 1e-9)
        of = f"/{self._total}" if self._total is not None else ""
        parts = [f"{self._name}: {self.scored}{of} scored, {rate:.1f}/s"]
        if "in_flight" in counters:
            parts.append(f"{counters['in_flight']:.0f} in flight (limit {counters['limit']:.0f})")
        for key, word in _WORDS.items():
            if count := counters.get(key, 0.0) - self._before.get(key, 0.0):
                parts.append(f"{count:.0f} {word}")
        if self.failed:
            parts.append(f"{self.failed} failed")
        if spent := counters.get("usd", 0.0) - self._before.get("usd", 0.0):
            parts.append(f"${spent:.2f}")
        if self._total is not None and self.scored:
            parts.append(f"about {(self._total - self.scored) / rate:.0f} s left")
        return ", ".join(parts)
