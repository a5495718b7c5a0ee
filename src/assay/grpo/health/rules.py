"""The rules: each a pure function of the thresholds and of the metrics of the last steps. Imports no torch.

    check(config, [{"entropy": 1.9, "kl_div": 0.01}, ..., {"entropy": 0.04, "kl_div": 0.2}])
        ->  [Finding("entropy_floor", "warn", "The entropy is 0.04 nats/token, ...", "entropy", 0.04, 0.05, 20)]

A metric that a step lacks is unknown there, never 0. Levels are judged by the median of the last three values, so that
one odd batch raises no alarm once there are more. Trends need at least ten values, and a standard error that is widened
for autocorrelation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import fmean, median

from assay.grpo.health.config import DEFAULT_ACTIONS, HealthConfig
from assay.grpo.health.finding import CLEAR, LEVEL_VALUES, NEARLY, Finding, finding, level_of, rise, solved, sustained
from assay.grpo.health.records import BEST_LEVEL, FIRST_LEVEL
from assay.grpo.health.reward_rules import (
    constant_groups,
    least_change,
    no_gradient,
    not_recovered,
    part_divergence,
    restored_reward,
    reward_drop,
    reward_shift,
    truncation,
)
from assay.grpo.health.trend import LEAST_VALUES, History, Observation, fit_trend, points, values

Rule = Callable[[HealthConfig, History], "Finding | None"]

WATCHED = ("reward/", "part/", "rollout/")
"""How the metrics of rollouts begin that are watched beside those of training. What an environment reports (`env/`,
`tag/`) may be anything, also not a number."""
_GROWTH_VALUES, _GROWTH_VALUES_AT_START = 8, 4
"""Fewest values from which growth is judged, and fewest where the first of them is where the run began."""


def watched(rollouts: Observation) -> dict[str, float]:
    """The metrics of rollouts (`rollout_metrics`) that belong in an observation."""
    return {name: value for name, value in rollouts.items() if name.startswith(WATCHED)}


def check(config: HealthConfig, history: History) -> list[Finding]:
    """What every rule that is not ignored finds, in the order of `DEFAULT_ACTIONS`. The last step is judged."""
    if not history:
        return []
    findings = (RULES[name](config, history) for name in DEFAULT_ACTIONS if config.action(name) != "ignore")
    return [found for found in findings if found is not None]


def non_finite(config: HealthConfig, history: History) -> Finding | None:
    """A metric of the last step is NaN or infinite, or its optimizer step was skipped for that. Needs no history."""
    last = history[-1]
    bad = sorted(name for name, value in last.items() if not math.isfinite(value))
    skipped = last.get("nan_skip", 0.0) > 0
    if not bad and not skipped:
        return None
    metric = bad[0] if bad else "nan_skip"
    happened = ", ".join(f"{name} is {last[name]}" for name in bad[:5])
    happened += "; the optimizer step was skipped" if skipped and bad else ""
    message = (
        f"{happened or 'The optimizer step was skipped for a non-finite gradient'}. Weights updated with such a number "
        "are lost, and every later step fails too. Go back to the last good checkpoint with a lower learning rate; if "
        "it happens again, look at the rewards and at the precision."
    )
    return finding(config, "non_finite", metric, last[metric], 0.0, message, suspect=0)


def kl_tail(config: HealthConfig, history: History) -> Finding | None:
    """The 95th percentile of the tokens' KL estimates is above its limit, and rewards do not speak for it."""
    metric = _measured(history, SAMPLED_KL_TAIL, "kl_div_95pct")
    level, limit = level_of(history, metric), config.kl_tail_limit
    if level is None or level <= limit or _learns(config, history) or _keeps_gain(config, history):
        return None
    message = (
        f"One token in twenty has a KL of {level:.3g} nats or more against the reference (limit {limit:.3g}): the mean "
        "hides answers that are very unlikely under the reference. Raise the weight of the KL penalty or lower the "
        "learning rate."
    )
    return finding(config, "kl_tail", metric, level, limit, message)


def kl_runaway(config: HealthConfig, history: History) -> Finding | None:
    """The mean KL against the reference is high and has multiplied over the window, as has its 95th percentile.

    The percentile has to agree, because single tokens can dominate the mean: one that is far likelier under the
    reference than under the policy counts e^gap. What is suspect begins where the KL first was above half of what it
    was before, and above a level that is harmless in any case.
    """
    metric = _measured(history, SAMPLED_KL, "kl_div")
    growth = _growth(config, history, metric)
    tail = _growth(config, history, _measured(history, SAMPLED_KL_TAIL, "kl_div_95pct"))
    if growth is None or (tail or growth).factor <= config.kl_runaway_factor:
        return None
    level = config.kl_runaway_level * (1 if growth.count >= _GROWTH_VALUES else _EARLY_LEVEL)
    limit = max(level, config.kl_runaway_factor * growth.before)
    if growth.level <= limit or _learns(config, history, at_best=growth.level <= _AT_BEST_LEVEL * limit):
        return None
    message = (
        f"The KL against the reference went from {growth.before:.3g} to {growth.level:.3g} nats/token within "
        f"{growth.count} steps (limit {limit:.3g}): the policy is leaving the reference faster than rewards can guide "
        "it, and rarely returns. Go back to a checkpoint from before the growth with a lower learning rate or a larger "
        "weight of the KL penalty."
    )
    calm = max(_CALM_GROWTH * growth.before, _CALM_SHARE * config.kl_runaway_level)
    suspect = _steps_above(history[-config.window :], metric, calm)
    return finding(config, "kl_runaway", metric, growth.level, limit, message, suspect)


def _learns(config: HealthConfig, history: History, *, at_best: bool = True) -> bool:
    """Whether the reward rose by more than noise over the window, or stands at the best level that the run has had.

    Args:
        at_best: whether the latter is enough.
    """
    recent = history[-config.window :]
    change = rise(recent, _RISE_STEPS)
    if change is None:
        return False
    last = fmean(values(recent, "reward/mean")[-_RISE_STEPS:])
    best, first = history[-1].get(BEST_LEVEL), history[-1].get(FIRST_LEVEL)
    if best is None or first is None or best <= first:
        return change.rose
    return change.rose or (at_best and last >= best - max(_NEAR_BEST * (best - first), CLEAR * change.error))


def _keeps_gain(config: HealthConfig, history: History) -> bool:
    """Whether the reward is above its first level by more than noise, and by half of the largest gain so far or more: a
    distance from the reference is what that costs."""
    now, level = history[-1], sustained(config, history, "reward/mean")
    best, first = now.get(BEST_LEVEL), now.get(FIRST_LEVEL)
    if level is None or best is None or first is None:
        return False
    return level - first > max(least_change(config, history), (best - first) / 2)


_NEAR_BEST = 0.1
"""Share of what the reward gained since the run began by which it may be below its best level."""
_AT_BEST_LEVEL = 1.5
"""Multiple of its limit up to which a growing KL passes where the reward only stands at its best level."""
_RISE_STEPS = 5
"""Steps at both ends of the window over which the reward is averaged."""
_EARLY_LEVEL = 2.0
"""Multiple of `kl_runaway_level` from which fewer values are enough: a run's first steps may well be its largest."""
_CALM_GROWTH, _CALM_SHARE = 1.5, 0.25
"""A KL up to so many times that before the growth, or this share of `kl_runaway_level`, is not part of a runaway."""


def _steps_above(history: History, metric: str, limit: float) -> int:
    """Steps from the first with a metric above a limit to the last, both included: so many updates are suspect.

    The metric of a step is that of the policy before its update, so the update of the step before counts too.
    """
    first = next(i for i, value in zip(*points(history, metric), strict=True) if value > limit)
    return len(history) - first


@dataclass(frozen=True, slots=True)
class _Growth:
    before: float
    """Median of the first quarter of the window; the first value itself where the run, or what follows a rollback,
    begins within the window: a policy that is ruined by its first updates has no calm quarter."""
    level: float
    count: int
    """Values in the window."""

    @property
    def factor(self) -> float:
        return self.level / self.before if self.before > 0 else math.inf


def _growth(config: HealthConfig, history: History, metric: str) -> _Growth | None:
    """What a metric grew from and to; None for too few values, or where the last step has none."""
    series, level = values(history[-config.window :], metric), level_of(history, metric)
    whole = len(history) < config.window
    if level is None or len(series) < (_GROWTH_VALUES_AT_START if whole else _GROWTH_VALUES):
        return None
    before = series[0] if whole else median(series[: max(LEVEL_VALUES, len(series) // 4)])
    return _Growth(before, level, len(series))


SAMPLED_KL, SAMPLED_KL_TAIL, SAMPLED_ENTROPY = "sampled_kl", "sampled_kl_95pct", "sampled_entropy"
"""Measured on all that was sampled, groups with equal rewards included."""


def _measured(history: History, *names: str) -> str:
    """The first of these metrics that the last step has; the last one of them where it has none."""
    return next((name for name in names if name in history[-1]), names[-1])


def _entropy_metric(history: History) -> str:
    return _measured(history, SAMPLED_ENTROPY, "entropy", "approx_entropy")


def entropy_floor(config: HealthConfig, history: History) -> Finding | None:
    """The entropy is below its floor, and the task is not solved. Needs no history."""
    metric, limit = _entropy_metric(history), config.entropy_floor
    level = level_of(history, metric)
    if level is None or level >= limit or solved(config, history):
        return None
    message = (
        f"The entropy is {level:.3g} nats/token (floor {limit:.3g}): rollouts of one prompt hardly differ, so "
        "there is little left to learn from. Go back to an earlier checkpoint and raise the weight of the KL penalty, "
        "the entropy bonus or the temperature."
    )
    return finding(config, "entropy_floor", metric, level, limit, message)


def policy_collapse(config: HealthConfig, history: History) -> Finding | None:
    """Over the last steps, groups were constant and the entropy was below its floor, and the task is not solved.

    Both together say that the policy gives one answer to each prompt: no gradient leads away from it, and only an older
    policy can learn on. Low entropy alone passes, and constant groups alone may be those of tasks too hard or too easy.
    """
    share, limit = sustained(config, history, "rollout/constant_group_fraction"), config.constant_groups_limit
    metric, floor = _entropy_metric(history), config.entropy_floor
    entropies = values(history[-config.sustained_steps :], metric) if metric in history[-1] else []
    if share is None or share <= limit or not entropies or median(entropies) >= floor:
        return None
    if solved(config, history, near=NEARLY):
        return None
    message = (
        f"The policy gives one answer to each prompt: over the last {config.sustained_steps} steps {share:.0%} of the "
        f"groups had all-equal rewards (limit {limit:.0%}), at an entropy of {median(entropies):.3g} nats/token (floor "
        f"{floor:.3g}). It did not look for better answers long enough for this to be the best one, and nothing leads "
        "away from it. Go back to a checkpoint from before with a lower learning rate."
    )
    return finding(config, "policy_collapse", metric, median(entropies), floor, message, config.most_suspect)


def entropy_slope(config: HealthConfig, history: History) -> Finding | None:
    """The entropy falls so fast that its trend reaches the floor within `entropy_horizon` steps."""
    metric = _entropy_metric(history)
    steps, series = points(history[-config.window :], metric)
    trend = fit_trend(steps, series) if metric in history[-1] else None
    if trend is None or trend.significance > -config.trend_significance:
        return None
    left = max(0.0, (trend.last - config.entropy_floor) / -trend.slope)
    if left >= config.entropy_horizon:
        return None
    message = (
        f"The entropy is {series[-1]:.3g} nats/token and falls by {-trend.slope:.2g} a step: at this rate it is at its "
        f"floor of {config.entropy_floor:.3g} in {left:.0f} steps (limit {config.entropy_horizon}), and exploration "
        "ends. Lower the learning rate, or raise the weight of the KL penalty, the entropy bonus or the temperature."
    )
    return finding(config, "entropy_slope", metric, left, float(config.entropy_horizon), message)


def clip_fraction(config: HealthConfig, history: History) -> Finding | None:
    """Over the last steps, the loss clipped too large a share of the tokens."""
    share, limit = sustained(config, history, "fraction_clipped"), config.clip_fraction_limit
    if share is None or share <= limit:
        return None
    message = (
        f"{share:.0%} of the tokens of the last {config.sustained_steps} steps were clipped (limit {limit:.0%}): they "
        "carry no gradient, and the policy has moved far within a batch. Lower the learning rate, the epochs per "
        "rollout or the staleness of the buffer."
    )
    return finding(config, "clip_fraction", "fraction_clipped", share, limit, message)


def mismatch(config: HealthConfig, history: History) -> Finding | None:
    """Sampler and trainer give different probabilities to the same tokens on the same weights. Needs no history.

    Both the largest ratio and the KL must say so. The largest ratio alone is that of one token: a mixture of experts in
    bfloat16 sends a few tokens to other experts, at a KL of 1e-4 that biases no gradient.
    """
    ratio, kl = level_of(history, "ratio_error"), level_of(history, "mismatch_kl")
    if ratio is None or kl is None or ratio <= config.mismatch_ratio_limit or kl <= config.mismatch_kl_limit:
        return None
    message = (
        f"Before any update mismatch_kl is {kl:.3g} nats/token (limit {config.mismatch_kl_limit:.3g}) and ratio_error "
        f"{ratio:.3g} (limit {config.mismatch_ratio_limit:.3g}), and both should be rounding error: sampler and "
        "trainer disagree about the same weights, so gradients are biased. Compare their temperature, precision, "
        "truncation of the distribution and the version of the weights."
    )
    return finding(config, "mismatch", "mismatch_kl", kl, config.mismatch_kl_limit, message, suspect=0)


def grad_norm(config: HealthConfig, history: History) -> Finding | None:
    """The gradient norm is above its absolute limit (needs no history), or stays far above the window's median.

    A single spike passes, since clipping bounds what it does. Where the task is solved, the median is that of next to
    no gradients, and says nothing.
    """
    last, level = history[-1].get("grad_norm"), level_of(history, "grad_norm")
    if last is None or level is None or not math.isfinite(last):
        return None
    limit, why = config.grad_norm_limit, "too large for any run"
    before = values(history[-config.window : -1], "grad_norm")
    if len(before) >= LEAST_VALUES and not solved(config, history):
        spike = max(config.grad_norm_harmless, config.grad_norm_spike_factor * median(before))
        if spike < limit and last <= limit:
            last, limit = min(last, level), spike
            why = f"the median of the last {len(before)} steps is {median(before):.3g}"
    if last <= limit:
        return None
    message = (
        f"The gradient norm is {last:.3g} (limit {limit:.3g}; {why}): one batch decides the direction of the step, and "
        "clipping changes only its length. Look at the rewards of this step; if it happens again, lower the learning "
        "rate."
    )
    return finding(config, "grad_norm", "grad_norm", last, limit, message, suspect=0)


RULES: Mapping[str, Rule] = {
    "non_finite": non_finite,
    "kl_runaway": kl_runaway,
    "policy_collapse": policy_collapse,
    "mismatch": mismatch,
    "kl_tail": kl_tail,
    "entropy_floor": entropy_floor,
    "entropy_slope": entropy_slope,
    "clip_fraction": clip_fraction,
    "no_gradient": no_gradient,
    "reward_drop": reward_drop,
    "restored_reward": restored_reward,
    "not_recovered": not_recovered,
    "reward_shift": reward_shift,
    "constant_groups": constant_groups,
    "truncation": truncation,
    "grad_norm": grad_norm,
    "part_divergence": part_divergence,
}
"""Every rule by its name; `DEFAULT_ACTIONS` has the same names."""
