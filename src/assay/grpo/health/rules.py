"""The rules: each a pure function of the thresholds and of the metrics of the last steps. Imports no torch.

    check(config, [{"entropy": 1.9, "kl_div": 0.01}, ..., {"entropy": 0.04, "kl_div": 0.2}])
        ->  [Finding("entropy_floor", "warn", "The entropy is 0.04 nats/token, ...", "entropy", 0.04, 0.05)]

A metric that a step lacks is unknown there, never 0. Levels are judged by the median of the last three values, so that
one odd batch raises no alarm once there are more. Trends need at least ten values, and a standard error that is widened
for autocorrelation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from assay.grpo.health.config import DEFAULT_ACTIONS, Action, HealthConfig
from assay.grpo.health.trend import LEAST_VALUES, History, Observation, Trend, fit_trend, points, values

Rule = Callable[[HealthConfig, History], "Finding | None"]

WATCHED = ("reward/", "part/", "rollout/")
"""How the metrics of rollouts begin that are watched beside those of training. What an environment reports (`env/`,
`tag/`) may be anything, also not a number."""
_LEVEL_VALUES = 3
"""Values whose median is the present level."""
_GROWTH_VALUES = 8
"""Fewest values from which growth is judged."""
PART = "part/"
"""Prefix of the means of the named parts of the reward."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One rule's alarm. The message says what happened, why it matters and what to do."""

    rule: str
    action: Action
    message: str
    metric: str
    value: float
    limit: float


def watched(rollouts: Observation) -> dict[str, float]:
    """The metrics of rollouts (`rollout_metrics`) that belong in an observation."""
    return {name: value for name, value in rollouts.items() if name.startswith(WATCHED)}


def check(config: HealthConfig, history: History) -> list[Finding]:
    """What every rule that is not ignored finds, in the order of `DEFAULT_ACTIONS`. The last step is judged."""
    if not history:
        return []
    findings = (RULES[name](config, history) for name in DEFAULT_ACTIONS if config.action(name) != "ignore")
    return [finding for finding in findings if finding is not None]


def _level(history: History, metric: str) -> float | None:
    """The present level: the median of the last three values, None unless the last step has one."""
    last = history[-1].get(metric)
    if last is None or not math.isfinite(last):
        return None
    return median(values(history, metric)[-_LEVEL_VALUES:])


def _sustained(config: HealthConfig, history: History, metric: str) -> float | None:
    """Mean over the last `sustained_steps` values; None before there are so many."""
    last = values(history, metric)[-config.sustained_steps :]
    return fmean(last) if metric in history[-1] and len(last) == config.sustained_steps else None


def _finding(config: HealthConfig, rule: str, metric: str, value: float, limit: float, message: str) -> Finding:
    return Finding(rule, config.action(rule), message, metric, value, limit)


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
    return _finding(config, "non_finite", metric, last[metric], 0.0, message)


def kl_tail(config: HealthConfig, history: History) -> Finding | None:
    """The 95th percentile of the tokens' KL estimates is above its limit. Needs no history."""
    level, limit = _level(history, "kl_div_95pct"), config.kl_tail_limit
    if level is None or level <= limit:
        return None
    message = (
        f"One token in twenty has a KL of {level:.3g} nats or more against the reference (limit {limit:.3g}): the mean "
        "hides answers that are very unlikely under the reference. Raise the weight of the KL penalty or lower the "
        "learning rate."
    )
    return _finding(config, "kl_tail", "kl_div_95pct", level, limit, message)


def kl_runaway(config: HealthConfig, history: History) -> Finding | None:
    """The mean KL against the reference is high and has multiplied over the window, as has its 95th percentile.

    The percentile has to agree, because single tokens can dominate the mean: one that is far likelier under the
    reference than under the policy counts e^gap.
    """
    growth = _growth(config, history, "kl_div")
    if growth is None or (_growth(config, history, "kl_div_95pct") or growth).factor <= config.kl_runaway_factor:
        return None
    limit = max(config.kl_runaway_level, config.kl_runaway_factor * growth.before)
    if growth.level <= limit:
        return None
    message = (
        f"The KL against the reference went from {growth.before:.3g} to {growth.level:.3g} nats/token within "
        f"{growth.count} steps (limit {limit:.3g}): the policy is leaving the reference faster than rewards can guide "
        "it, and rarely returns. Go back to the last good checkpoint with a lower learning rate or a larger weight of "
        "the KL penalty."
    )
    return _finding(config, "kl_runaway", "kl_div", growth.level, limit, message)


@dataclass(frozen=True, slots=True)
class _Growth:
    before: float
    """Median of the first quarter of the window."""
    level: float
    count: int
    """Values in the window."""

    @property
    def factor(self) -> float:
        return self.level / self.before if self.before > 0 else math.inf


def _growth(config: HealthConfig, history: History, metric: str) -> _Growth | None:
    """What a metric grew from and to; None for fewer than eight values, or where the last step has none."""
    series, level = values(history[-config.window :], metric), _level(history, metric)
    if level is None or len(series) < _GROWTH_VALUES:
        return None
    return _Growth(median(series[: max(_LEVEL_VALUES, len(series) // 4)]), level, len(series))


def _entropy_metric(history: History) -> str:
    return "entropy" if "entropy" in history[-1] else "approx_entropy"


def entropy_floor(config: HealthConfig, history: History) -> Finding | None:
    """The entropy is below its floor. Needs no history."""
    metric, limit = _entropy_metric(history), config.entropy_floor
    level = _level(history, metric)
    if level is None or level >= limit:
        return None
    message = (
        f"The entropy is {level:.3g} nats/token (floor {limit:.3g}): rollouts of one prompt hardly differ, so "
        "there is little left to learn from. If the task is solved, stop here. Else go back to an earlier checkpoint "
        "and raise the weight of the KL penalty, the entropy bonus or the temperature."
    )
    return _finding(config, "entropy_floor", metric, level, limit, message)


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
    return _finding(config, "entropy_slope", metric, left, float(config.entropy_horizon), message)


def clip_fraction(config: HealthConfig, history: History) -> Finding | None:
    """Over the last steps, the loss clipped too large a share of the tokens."""
    share, limit = _sustained(config, history, "fraction_clipped"), config.clip_fraction_limit
    if share is None or share <= limit:
        return None
    message = (
        f"{share:.0%} of the tokens of the last {config.sustained_steps} steps were clipped (limit {limit:.0%}): they "
        "carry no gradient, and the policy has moved far within a batch. Lower the learning rate, the epochs per "
        "rollout or the staleness of the buffer."
    )
    return _finding(config, "clip_fraction", "fraction_clipped", share, limit, message)


def constant_groups(config: HealthConfig, history: History) -> Finding | None:
    """Over the last steps, almost no group had rewards that differ."""
    share, limit = _sustained(config, history, "rollout/constant_group_fraction"), config.constant_groups_limit
    if share is None or share <= limit:
        return None
    message = (
        f"{share:.0%} of the groups of the last {config.sustained_steps} steps had all-equal rewards (limit "
        f"{limit:.0%}), so the steps trained almost nothing. Choose harder or easier tasks, larger groups or a higher "
        "temperature, and check that the verifier tells answers apart."
    )
    return _finding(config, "constant_groups", "rollout/constant_group_fraction", share, limit, message)


def truncation(config: HealthConfig, history: History) -> Finding | None:
    """Over the last steps, too many completions were cut off at the token limit."""
    share, limit = _sustained(config, history, "rollout/truncated_fraction"), config.truncation_limit
    if share is None or share <= limit:
        return None
    message = (
        f"{share:.0%} of the completions of the last {config.sustained_steps} steps were cut off at the token limit "
        f"(limit {limit:.0%}): their rewards judge the limit rather than the answer. Raise max_tokens, or reward "
        "shorter answers."
    )
    return _finding(config, "truncation", "rollout/truncated_fraction", share, limit, message)


def mismatch(config: HealthConfig, history: History) -> Finding | None:
    """Sampler and trainer give different probabilities to the same tokens on the same weights. Needs no history."""
    for metric, limit in (("ratio_error", config.mismatch_ratio_limit), ("mismatch_kl", config.mismatch_kl_limit)):
        level = _level(history, metric)
        if level is not None and level > limit:
            message = (
                f"Before any update {metric} is {level:.3g} (limit {limit:.3g}), and it should be rounding error: "
                "sampler and trainer disagree about the same weights, so gradients are biased. Compare their "
                "temperature, precision, truncation of the distribution and the version of the weights."
            )
            return _finding(config, "mismatch", metric, level, limit, message)
    return None


def grad_norm(config: HealthConfig, history: History) -> Finding | None:
    """The gradient norm is above its absolute limit (needs no history), or far above the window's median."""
    last = history[-1].get("grad_norm")
    if last is None or not math.isfinite(last):
        return None
    limit, why = config.grad_norm_limit, "too large for any run"
    before = values(history[-config.window : -1], "grad_norm")
    if len(before) >= LEAST_VALUES:
        spike = max(config.grad_norm_harmless, config.grad_norm_spike_factor * median(before))
        if spike < limit:
            limit, why = spike, f"the median of the last {len(before)} steps is {median(before):.3g}"
    if last <= limit:
        return None
    message = (
        f"The gradient norm is {last:.3g} (limit {limit:.3g}; {why}): one batch decides the direction of the step, and "
        "clipping changes only its length. Look at the rewards of this step; if it happens again, lower the learning "
        "rate."
    )
    return _finding(config, "grad_norm", "grad_norm", last, limit, message)


def part_divergence(config: HealthConfig, history: History) -> Finding | None:
    """A part of the reward, or all of it, rises while another part, or the rest, falls: a sign of reward hacking.

    Looked for over half the window, which is quick, and over all of it, which sees slow changes.
    """
    recent = history[-config.window :]
    spread = values(recent, "reward/std")[: config.window // 4]  # before the parts moved, which widens it
    scale = (median(spread) if spread else 0.0) or _largest_mean(recent)
    if not scale:
        return None
    return _divergence(config, recent[-(config.window // 2) :], scale) or _divergence(config, recent, scale)


def _divergence(config: HealthConfig, history: History, scale: float) -> Finding | None:
    trends = _part_trends(history)
    clear = {n: t for n, t in trends.items() if abs(t.significance) >= config.trend_significance}
    least = {n: config.part_divergence_share * _worth(t, scale) for n, t in clear.items()}
    rising = {n: t.change for n, t in clear.items() if t.change > least[n]}
    falling = {n: t.change for n, t in clear.items() if t.change < -least[n]}
    pairs = [(up, down) for up in rising for down in falling if _opposed(up, down)]
    if not pairs:
        return None
    up, down = max(pairs, key=lambda p: (p[0].startswith(PART), _REST not in p[1], -falling[p[1]] / least[p[1]]))
    metric = up if up.startswith(PART) else down
    message = (
        f"Over the last {len(history)} steps {_spoken(up)} rose by {rising[up]:.3g} while {_spoken(down)} fell by "
        f"{-falling[down]:.3g} (limits {least[up]:.3g} and {least[down]:.3g}): the policy may be gaining the first at "
        f"the cost of the second (reward hacking). Read the rollouts of this step, and reweight or fix {metric}."
    )
    return _finding(config, "part_divergence", metric, falling[down], -least[down], message)


def _worth(trend: Trend, scale: float) -> float:
    """The scale of a change: for a rise the spread of the rewards; for a fall the part's own level, if smaller.

    A part that is worth little is still lost when it falls to nothing. The level counts as a fifth of the spread at
    least, since a part near 0 loses nothing of worth.
    """
    level = trend.last - trend.change
    return scale if trend.change > 0 or level <= 0 else min(scale, max(level, 0.2 * scale))


_REST = "rest/"
_TOTAL = "reward/mean"


def _part_trends(history: History) -> dict[str, Trend]:
    """Trends of the reward, of each part, and, where parts add up to it, of the reward without each part."""
    parts = [name for name in history[-1] if name.startswith(PART)]
    added = parts if all(_add_up(observation, parts) for observation in history) else []
    rests = [{_REST + p: o[_TOTAL] - o[p] for p in added} for o in history]
    both = [{**observation, **rest} for observation, rest in zip(history, rests, strict=True)]
    names = [_TOTAL, *parts, *(_REST + part for part in added)] if parts else []
    fitted = {name: fit_trend(*points(both, name)) for name in names if name in both[-1]}
    return {name: trend for name, trend in fitted.items() if trend is not None}


def _add_up(observation: Observation, parts: Sequence[str]) -> bool:
    """Whether the parts of a step are summands of its reward: the rest beside one means nothing otherwise."""
    if _TOTAL not in observation or any(part not in observation for part in parts):
        return False
    return math.isclose(sum(observation[part] for part in parts), observation[_TOTAL], rel_tol=1e-3, abs_tol=1e-6)


def _opposed(up: str, down: str) -> bool:
    """Whether the pair says something: a rest is compared with its own part alone."""
    for one, other in ((up, down), (down, up)):
        if one.startswith(_REST):
            return other == one.removeprefix(_REST)
    return True


def _largest_mean(history: History) -> float:
    """Scale of the reward where its spread is unknown or 0."""
    means = [abs(fmean(values(history, n))) for n in history[-1] if n.startswith(PART) and values(history, n)]
    return max(means, default=0.0)


def _spoken(name: str) -> str:
    if name == _TOTAL:
        return "the reward"
    return f"the rest of the reward beside {name.removeprefix(_REST)}" if name.startswith(_REST) else name


RULES: Mapping[str, Rule] = {
    "non_finite": non_finite,
    "kl_runaway": kl_runaway,
    "mismatch": mismatch,
    "kl_tail": kl_tail,
    "entropy_floor": entropy_floor,
    "entropy_slope": entropy_slope,
    "clip_fraction": clip_fraction,
    "constant_groups": constant_groups,
    "truncation": truncation,
    "grad_norm": grad_norm,
    "part_divergence": part_divergence,
}
"""Every rule by its name; `DEFAULT_ACTIONS` has the same names."""
