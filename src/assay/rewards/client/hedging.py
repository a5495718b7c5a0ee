"""Watches calls in flight and reports those that take far longer than usual, with one timer for all of them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from assay.rewards.client.limits import HedgePolicy

_C = TypeVar("_C")


class HedgeWatch(Generic[_C]):
    """Calls `on_late(call)` when a watched call is older than the policy's delay; again later if that returns False."""

    def __init__(self, policy: HedgePolicy, on_late: Callable[[_C], bool]) -> None:
        self.policy = policy
        self._on_late = on_late
        self._watched: dict[int, _C] = {}
        self._order: deque[tuple[float, int]] = deque()
        """(when started or last looked at, ticket), oldest first; those that are over are skipped."""
        self._tickets = 0
        self._timer: asyncio.TimerHandle | None = None

    def start(self, call: _C) -> int:
        """Watch a call from now on; returns the ticket that `stop` takes."""
        loop = asyncio.get_running_loop()
        self._tickets += 1
        self._watched[self._tickets] = call
        self._order.append((loop.time(), self._tickets))
        if self._timer is None:
            self._arm(loop)
        return self._tickets

    def stop(self, ticket: int) -> None:
        """The call is over."""
        self._watched.pop(ticket, None)

    def close(self) -> None:
        """Watch nothing any more."""
        self._watched.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _arm(self, loop: asyncio.AbstractEventLoop) -> None:
        """Set the timer for the oldest call that is still watched."""
        while self._order and self._order[0][1] not in self._watched:
            self._order.popleft()
        delay_s = self.policy.delay_s
        if self._order and delay_s != float("inf"):
            self._timer = loop.call_at(max(self._order[0][0] + delay_s, loop.time() + 0.001), self._look)
        else:
            self._timer = None

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        now, delay_s = loop.time(), self.policy.delay_s
        while self._order and (self._order[0][1] not in self._watched or self._order[0][0] + delay_s <= now):
            _, ticket = self._order.popleft()
            call = self._watched.get(ticket)
            if call is None:
                continue
            if self._on_late(call):
                del self._watched[ticket]
            else:
                self._order.append((now, ticket))
        self._arm(loop)
