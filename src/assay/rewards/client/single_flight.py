"""One call with its attempts and its waiters: the first waiter pays, and cancelling one does not end it for others."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field, replace

from assay.rewards.base import NOTHING, CallFailure, Outcome, Reply, Usage


@dataclass(eq=False)
class Call:
    """A call in flight."""

    body: bytes
    key: str
    estimate: Usage
    """What an attempt may use at most."""
    since: float
    task: asyncio.Task[Outcome] | None = None
    waiters: dict[asyncio.Future[Outcome], None] = field(default_factory=dict)
    """In the order in which they came."""
    attempts: int = 0
    began: float = 0.0
    """When the first attempt was sent, and how many calls the judge had answered by then."""
    answered_before: int = 0
    usage: Usage = NOTHING
    hedge: asyncio.Task[None] | None = None
    """A second attempt beside the present one."""
    rescued: Reply | None = None
    """What the hedge was answered while the present attempt still waited."""

    @property
    def tokens(self) -> int:
        """Tokens that an attempt may use at most."""
        return self.estimate.prompt_tokens + self.estimate.completion_tokens

    async def wait(self, deadline: float | None) -> Outcome:
        """Wait for the outcome, at most until `deadline`."""
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[Outcome] = loop.create_future()
        self.waiters[outcome] = None
        timer = loop.call_at(deadline, _expire, outcome) if deadline is not None else None
        try:
            return await outcome
        finally:
            if timer is not None:
                timer.cancel()
            del self.waiters[outcome]

    def hand_out(self, task: asyncio.Task[Outcome]) -> None:
        """Give the result of `task` to all that still wait; the first of them pays."""
        paid = False
        for waiter in self.waiters:
            if waiter.done():
                continue
            if task.cancelled():
                waiter.cancel()
            elif (error := task.exception()) is not None:
                waiter.set_exception(error)
            else:
                waiter.set_result(replace(task.result(), usage=NOTHING) if paid else task.result())
                paid = True


def _expire(outcome: asyncio.Future[Outcome]) -> None:
    if not outcome.done():
        outcome.set_result(CallFailure("deadline", "the batch ran out of time while the judge was asked"))
