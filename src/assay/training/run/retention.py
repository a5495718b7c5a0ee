"""Which checkpoints of a run may go: `keep_last`, `keep_best`, and what must be kept anyway. Only decides.

Also kept, besides the newest and the best ones:

- the newest, which a resume goes on from;
- for each kept one, the last one before it that a health rollback could go back to, so that a run resumed from it
  computes the same (each checkpoint holds the reference policy of a KL penalty itself);
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
    value: float | None
    """The metric that decides which are best, at its step; None where it was not measured there."""


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
            wanted |= {s.name for s in [s for s in saved[: place + 1] if s.refuge][-1:]}
    return [s.name for s in saved if s.name not in wanted]
