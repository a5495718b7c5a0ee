"""What a rule finds, and the levels by which rules judge. Pure; imports no torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import fmean, median

from assay.grpo.health.config import Action, HealthConfig
from assay.grpo.health.records import BEST_REWARD, EXPLORED, WORST_REWARD
from assay.grpo.health.trend import History, Observation, values

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


NEARLY = 0.25
"""Share of the range of rewards that a policy may be below the best one to have learned and not collapsed."""


def explored(config: HealthConfig, history: History) -> bool:
    """Whether the policy has looked for better answers for a window of optimizer steps."""
    return history[-1].get(EXPLORED, 0.0) >= config.window


def solved(config: HealthConfig, history: History, near: float = 0.1) -> bool:
    """Whether rollouts hardly earn less than the best reward that the run can find, after having earned less.

    That answers hardly differ then is the end of learning, and no trouble. The best reward so far counts as the best
    that can be found once the policy has explored for a window of optimizer steps: one that collapsed to one answer
    within a few steps also earns the best that it ever saw, since it hardly looked. The median step is judged: one
    prompt of many that was never solved lowers the mean of the steps that it is drawn in.

    Args:
        near: share of the range of rewards below the best one that counts as the best.
    """
    now, last = history[-1], values(history, "reward/mean")[-config.sustained_steps :]
    best, worst = (now.get(name, math.nan) for name in (BEST_REWARD, WORST_REWARD))
    ceiling = explored(config, history)
    if "reward/mean" not in now or len(last) < config.sustained_steps or not ceiling or best <= worst:
        return False
    return median(last) >= best - near * (best - worst)


@dataclass(frozen=True, slots=True)
class Rise:
    """How the reward changed over the last steps."""

    change: float
    error: float
    """Standard error of the change, from the deviation of rewards within steps."""

    @property
    def rose(self) -> bool:
        """Whether it rose by more than noise."""
        return self.change > CLEAR * self.error


CLEAR = 2.0
"""Standard errors from which a change of the reward counts."""


def rise(history: History, span: int) -> Rise | None:
    """The mean reward of the last `span` steps less that of the first as many; None where rewards are not known.

    The error is that of steps whose rollouts are independent; where their number is unknown, a step counts as one.
    """
    known = [step for step in history if math.isfinite(step.get("reward/mean", math.nan))]
    if len(known) < 2:
        return None
    span = min(span, len(known) // 2)
    ends = (known[:span], known[-span:])
    means = [fmean(step["reward/mean"] for step in end) for end in ends]
    variances = [fmean(map(_variance_of_mean, end)) for end in ends]
    return Rise(means[1] - means[0], math.sqrt(sum(variances) / span))


def _variance_of_mean(step: Observation) -> float:
    deviation = step.get("reward/std", 0.0)
    return deviation**2 / max(1.0, step.get("rollout/scored", 1.0)) if math.isfinite(deviation) else 0.0


def finding(
    config: HealthConfig, rule: str, metric: str, value: float, limit: float, message: str, suspect: int | None = None
) -> Finding:
    """A rule's finding with its configured action; by default all updates of the window are suspect."""
    suspect = config.window if suspect is None else suspect
    return Finding(rule, config.action(rule), message, metric, value, limit, suspect)
