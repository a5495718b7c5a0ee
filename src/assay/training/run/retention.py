"""Which checkpoints of a run may go: `keep_last`, `keep_best`, and what must be kept anyway. Only decides.

Also kept, besides the newest and the best ones:

- the newest, which a resume goes on from;
- the one that RL began with, where a rollback finds no better one;
- for each kept one, every one before it that a health rollback after it could go back to, so that a run resumed from
  it computes the same (each checkpoint holds the reference policy of a KL penalty itself);
- with `max_steps_off_policy=k`, the last one at least k batches before the newest, from which a complete run can grow.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Keep:
    """What is kept; with both None, everything is."""

    last: int | None = None
    """How many of the newest checkpoints."""
    best: int | None = None
    """How many of those with the largest `metric`."""
    metric: str = ""
    ahead: int = 0
    """Steps that batches are sampled ahead."""
    window: int = 0
    """Most steps before an alarm in which its trouble may have begun."""

    @property
    def everything(self) -> bool:
        """Whether no checkpoint is ever removed."""
        return self.last is None and self.best is None


@dataclass(frozen=True, slots=True)
class Saved:
    """What retention needs to know of a checkpoint."""

    name: str
    batch: int
    """RL batches done before it."""
    refuge: bool
    """Whether a health rollback may go back to it."""
    value: float | None = None
    """The metric that decides which are best, at its step; None where it was not measured there."""
    rolled_back_at: int = 0
    """RL batches done when the run was last rolled back before it; 0 where it was not."""
    went_to: int = 0
    """RL batches behind the policy that it went back to then."""


def refuges(saved: Sequence[Saved], latest: Saved, limit: int, *, own_step: bool = False) -> list[Saved]:
    """The checkpoints that a rollback may go back to, the best choice first.

    The newest healthy one of at most `limit` RL batches; nothing from before the last rollback, since it is known what
    that led to. Then the one that was gone back to then, but only where the fault is that of the judged step alone
    (`own_step`). At last the policy that RL began with.

    Args:
        saved: the run's checkpoints in the order they were written.
        latest: what the run's state now is; its `rolled_back_at` and `went_to` count.
    """
    back = latest.rolled_back_at
    found = [s for s in saved if s.refuge and back < s.batch <= limit]
    again = [s for s in saved if own_step and s.refuge and 0 < s.batch == latest.went_to]
    start = [s for s in saved if s.batch == 0][-1:]
    return list(dict.fromkeys([*reversed(found), *reversed(again), *start]))


def superfluous(saved: Sequence[Saved], keep: Keep) -> list[str]:
    """The names of the checkpoints that may be removed, oldest first; `saved` is in the order they were written."""
    if not saved or keep.everything:
        return []
    wanted = {saved[-1].name, *(s.name for s in saved[-(keep.last or 1) :])}
    measured = [s for s in saved if s.value is not None and math.isfinite(s.value)]
    # Of equal values the later one counts as the better: it has been trained for longer.
    measured.reverse()
    wanted |= {s.name for s in sorted(measured, key=lambda s: -(s.value or 0.0))[: keep.best or 0]}
    if keep.ahead:
        wanted |= {s.name for s in [s for s in saved if s.batch + keep.ahead <= saved[-1].batch][-1:]}
    for place, one in enumerate(saved):
        if one.name in wanted:
            wanted |= _needed_after(saved[: place + 1], one, keep.window)
    return [s.name for s in saved if s.name not in wanted]


def _needed_after(saved: Sequence[Saved], one: Saved, window: int) -> set[str]:
    """The checkpoints that a rollback in any step after `one`, the last of `saved`, could choose.

    Its limit is at least `window` batches before `one`; so each refuge since then may be the newest within the limit.
    """
    choices = [
        refuges(saved, one, limit, own_step=own_step)
        for limit in range(one.batch - window, one.batch + 1)
        for own_step in (False, True)
    ]
    return {found.name for choice in choices for found in (*choice[:1], *choice[-1:])}
