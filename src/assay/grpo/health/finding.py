"""What a rule finds, and the levels by which rules judge. Pure; imports no torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import fmean, median

from assay.grpo.health.config import Action, HealthConfig
from assay.grpo.health.records import BEST_REWARD, WORST_REWARD
from assay.grpo.health.trend import History, values

LEVEL_VALUES = 3
"""Values whose median is the present level."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One rule's alarm. The message says what happened, why it matters and what to do."""

    rule: str
    action: Action
    message: str
    metric: str
    value: float
    limit: float
    suspect: int = 0
    """How many of the last updates before the judged step may have done damage already: a rollback goes to a policy
    from before them. 0 where the judged step alone is at fault."""


def level_of(history: History, metric: str) -> float | None:
    """The present level: the median of the last three values, None unless the last step has one."""
    last = history[-1].get(metric)
    if last is None or not math.isfinite(last):
        return None
    return median(values(history, metric)[-LEVEL_VALUES:])


def sustained(config: HealthConfig, history: History, metric: str) -> float | None:
    """Mean over the last `sustained_steps` values; None before there are so many."""
    last = values(history, metric)[-config.sustained_steps :]
    return fmean(last) if metric in history[-1] and len(last) == config.sustained_steps else None


def solved(config: HealthConfig, history: History) -> bool:
    """Whether rollouts hardly earn less than the best reward that the run has seen, after having earned less.

    That answers hardly differ then is the end of learning, and no trouble.
    """
    level = sustained(config, history, "reward/mean")
    best, worst = (history[-1].get(name, math.nan) for name in (BEST_REWARD, WORST_REWARD))
    return level is not None and best > worst and level >= best - _NEAR * (best - worst)


_NEAR = 0.1
"""Share of the range of rewards below the best one that counts as the best."""


def finding(
    config: HealthConfig, rule: str, metric: str, value: float, limit: float, message: str, suspect: int | None = None
) -> Finding:
    """A rule's finding with its configured action; by default all updates of the window are suspect."""
    suspect = config.window if suspect is None else suspect
    return Finding(rule, config.action(rule), message, metric, value, limit, suspect)
