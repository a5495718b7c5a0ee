"""Where calls wait for their turn: calls in flight, requests and tokens per minute, and pauses after refusals.

Retries go before new calls. After a refusal nothing starts until some call was answered (a place has come free) or the
pause is over, so that a judge that refuses everything is asked a few times and not a thousand times.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping

from assay.rewards.client.chat import Refusal, rate_hint
from assay.rewards.client.limits import Bucket, InFlightLimit, per_minute
from assay.transport.waits import backoff_s

_Waiter = tuple["asyncio.Future[None]", int]


class Gate:
    """Admits calls. Belongs to one event loop."""

    def __init__(self, limit: InFlightLimit, requests_per_minute: int | None, tokens_per_minute: int | None) -> None:
        self.limit = limit
        self.in_flight = 0
        self.waiting = 0
        self.sent = 0
        self._buckets: dict[str, Bucket] = {}
        self._given = {"requests": requests_per_minute, "tokens": tokens_per_minute}
        for what, quota in self._given.items():
            if quota is not None:
                self._buckets[what] = per_minute(quota)
        self._retries: deque[_Waiter] = deque()
        self._fresh: deque[_Waiter] = deque()
        self._paused_until = 0.0
        self._pause_ends_with_success = False
        self._streak = 0
        self._timer: asyncio.TimerHandle | None = None

    async def enter(self, tokens: int, retry: bool) -> None:
        """Wait until a call of about `tokens` tokens may start. Every `enter` is followed by one `leave`."""
        loop = asyncio.get_running_loop()
        if not self._retries and not self._fresh and self._delay(loop.time(), tokens) == 0:
            self._start(loop.time(), tokens)
            return
        waiter: _Waiter = (loop.create_future(), tokens)
        queue = self._retries if retry else self._fresh
        queue.append(waiter)
        self.waiting += 1
        self._pump()
        try:
            await waiter[0]
        except asyncio.CancelledError:
            if waiter[0].cancelled():
                self._pump()  # the others may have waited behind it
            else:
                self.leave()  # admitted and cancelled in the same turn of the loop
            raise
        finally:
            self.waiting -= 1

    def leave(self) -> None:
        """A call is over, however it ended."""
        self.in_flight -= 1
        self._pump()

    def on_answer(self, started: float, sent: int, headers: Mapping[str, str], surplus_tokens: int) -> None:
        """A call was answered.

        Args:
            started, sent: loop time and `self.sent` when it started.
            surplus_tokens: tokens used beyond those announced to `enter`. They hold up later calls for a minute at
                most, after which any quota per minute is whole again.
        """
        now = asyncio.get_running_loop().time()
        self.limit.on_success(now, started, self.in_flight)
        self._streak = 0
        if self._pause_ends_with_success:
            self._paused_until = 0.0
        self._heed(now, started, sent, headers)
        if surplus_tokens and "tokens" in self._buckets:
            bucket = self._buckets["tokens"]
            bucket.take(now, min(surplus_tokens, 60 * bucket.rate))

    def on_refusal(self, refusal: Refusal, started: float, sent: int, headers: Mapping[str, str], draw: float) -> None:
        """A call was refused or failed; `draw` is uniform in [0, 1)."""
        now = asyncio.get_running_loop().time()
        self._heed(now, started, sent, headers)
        if refusal.overload and not refusal.too_fast:
            if refusal.status == 429:
                self.limit.on_refusal(now, started)
            else:
                self.limit.on_failure(now, started)
        elif refusal.kind == "timeout":
            self.limit.on_failure(now, started)
        if refusal.overload or refusal.kind == "connection":
            paused = now < self._paused_until
            self._streak += not paused  # those refused together are one refusal
            pause = backoff_s(self._streak, draw, refusal.wait_s)
            self._paused_until = max(self._paused_until, now + pause)
            self._pause_ends_with_success = not refusal.too_fast and (self._pause_ends_with_success or not paused)

    def _heed(self, now: float, started: float, sent: int, headers: Mapping[str, str]) -> None:
        """Learn a quota from the headers of a reply, unless it was given in the settings."""
        if not headers:
            return
        for what, given in self._given.items():
            hint = rate_hint(headers, what)
            if given is not None or hint is None:
                continue
            bucket = self._buckets.get(what)
            if bucket is None or bucket.capacity != hint.limit:
                bucket = self._buckets[what] = Bucket(rate=hint.limit / 60, capacity=hint.limit)
            since = self.sent - sent if what == "requests" else 0
            bucket.cap(now, hint.remaining + (now - started) * bucket.rate - since)

    def _delay(self, now: float, tokens: int) -> float:
        """Seconds until a call may start; infinite where only an answer can tell."""
        if not self.limit.admits(self.in_flight):
            return float("inf")
        delay = self._paused_until - now
        for what, bucket in self._buckets.items():
            delay = max(delay, bucket.wait_s(now, 1 if what == "requests" else tokens))
        return max(0.0, delay)

    def _start(self, now: float, tokens: int) -> None:
        self.in_flight += 1
        self.sent += 1
        for what, bucket in self._buckets.items():
            bucket.take(now, 1 if what == "requests" else tokens)

    def _pump(self) -> None:
        """Admit the calls that may start; run again when the next one may."""
        if not self._retries and not self._fresh:
            return
        loop = asyncio.get_running_loop()
        now = loop.time()
        while queue := self._retries or self._fresh:
            future, tokens = queue[0]
            if future.done():  # cancelled while it waited
                queue.popleft()
                continue
            delay = self._delay(now, tokens)
            if delay > 0:
                self._wake_in(loop, delay)
                return
            queue.popleft()
            self._start(now, tokens)
            future.set_result(None)

    def _wake_in(self, loop: asyncio.AbstractEventLoop, delay: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if delay != float("inf"):
            self._timer = loop.call_later(delay, self._pump)
