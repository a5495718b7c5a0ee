"""What a reader must be told of how a run ended: that its policy is worse than before, or hardly trained. Pure."""

from __future__ import annotations

import math
from statistics import fmean, variance

from assay.training.metrics.intervals import Interval, t_quantile_975
from assay.training.report.charts import MINUS
from assay.training.report.comparison import difference, direction, measured_policy, signed
from assay.training.run.reader import RunRecords

_BATCHES, _LEAST = 10, 5
"""Batches at either end of a run whose rewards are compared where nothing was evaluated, and the fewest that do."""


def remarks(records: RunRecords) -> list[str]:
    """Sentences about the end of a run; none where there is nothing to warn of."""
    return [*_worse(records), *_idle(records)]


def _worse(records: RunRecords) -> list[str]:
    """That the policy ended worse than it began: on the held-out tasks, else by the rewards of training."""
    if records.first is not None and records.last is not None:
        before, after = measured_policy("", records.first), measured_policy("", records.last)
        gap, then, now = difference(after, before, "reward"), before.estimate("reward"), after.estimate("reward")
        if gap is None or then is None or now is None or direction(gap) >= 0:
            return []
        where, when = "held-out reward", ("before RL", "at its end")
        levels = then.mean, now.mean
    else:
        rewards = [value for _, value in records.curve("reward/mean", "rl")]
        count = min(_BATCHES, len(rewards) // 2)
        if count < _LEAST:
            return []
        gap = _change(rewards[:count], rewards[-count:])
        if direction(gap) >= 0:
            return []
        where, when = "mean reward", (f"in the first {count} batches", f"in the last {count}")
        levels = fmean(rewards[:count]), fmean(rewards[-count:])
    figures = f"{levels[0]:.3f} {when[0]}, {levels[1]:.3f} {when[1]}".replace("-", MINUS)
    return [
        f"The policy ended WORSE than it began: {where} {figures} ({signed(gap)}). An earlier checkpoint may be better "
        "(assay export --best, or resume_from_batch), and a lower learning rate or a larger KL penalty may help."
    ]


def _change(before: list[float], after: list[float]) -> Interval:
    """The difference of two means of equally many batches (at least two) with a 95 % interval."""
    count, mean = len(before), fmean(after) - fmean(before)
    half = t_quantile_975(count - 1) * math.sqrt((variance(before) + variance(after)) / count)
    return Interval(mean, mean - half, mean + half, count)


def _idle(records: RunRecords) -> list[str]:
    """That most batches trained nothing."""
    steps = [value for _, value in records.curve("train/optimizer_steps", "rl")]
    idle = sum(value == 0 for value in steps)
    if 2 * idle <= len(steps):
        return []
    return [
        f"{idle} of {len(steps)} RL batches trained NOTHING: no group in them had rewards that differ. Choose harder "
        "or easier tasks, larger groups or a higher temperature, and look at the alarms."
    ]
