"""The rules about rewards and what is left to learn from: each a pure function, as in `assay.grpo.health.rules`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, median

from assay.grpo.health.config import HealthConfig
from assay.grpo.health.finding import NEARLY, Finding, finding, solved, sustained
from assay.grpo.health.records import (
    BEST_LEVEL,
    BEST_REWARD,
    FIRST_LEVEL,
    FIRST_SPREAD,
    ORIGIN_SPREAD,
    RESTORED_BEFORE,
    RESTORED_LEVEL,
    RESTORED_NOISE,
    WORST_REWARD,
    deviation_of_means,
)
from assay.grpo.health.recovery import SOUGHT_FOR, SOUGHT_LEVEL
from assay.grpo.health.trend import History, Observation, Trend, fit_trend, points, values

PART = "part/"
"""Prefix of the means of the named parts of the reward."""


def constant_groups(config: HealthConfig, history: History) -> Finding | None:
    """Over the last steps, almost no group had rewards that differ, and the task is not solved."""
    share, limit = sustained(config, history, "rollout/constant_group_fraction"), config.constant_groups_limit
    if share is None or share <= limit or solved(config, history):
        return None
    message = (
        f"{share:.0%} of the groups of the last {config.sustained_steps} steps had all-equal rewards (limit "
        f"{limit:.0%}), so the steps trained almost nothing. Choose harder or easier tasks, larger groups or a higher "
        "temperature, and check that the verifier tells answers apart."
    )
    return finding(config, "constant_groups", "rollout/constant_group_fraction", share, limit, message)


def no_gradient(config: HealthConfig, history: History) -> Finding | None:
    """No optimizer step was taken for `no_gradient_steps` steps, whatever the cause.

    Where the task is solved, the finding is a warning, unless `actions` says otherwise.
    """
    last = history[-config.no_gradient_steps :]
    if len(last) < config.no_gradient_steps or any(step.get("optimizer_steps", 1.0) > 0 for step in last):
        return None
    reward = history[-1].get("reward/mean", math.nan)
    message = f"The last {len(last)} steps took no optimizer step (limit {config.no_gradient_steps}), "
    action = config.action("no_gradient")
    if solved(config, history):
        action = action if "no_gradient" in config.actions else "warn"
        message += (
            f"since no group has rewards that differ and the mean, {reward:.3g}, is near the best reward that the run "
            "has seen: it has solved these tasks, and further batches of them only cost time. Stop here, or choose "
            "harder tasks."
        )
    else:
        message += (
            f"since no group has rewards that differ (the mean is {reward:.3g}): the run goes on without learning "
            "anything. If it learned before, the policy has collapsed to one answer for each prompt: go back to an "
            "earlier checkpoint with a lower learning rate. Else choose harder or easier tasks, larger groups or a "
            "higher temperature, and check that the verifier tells answers apart."
        )
    number = float(len(last))
    return Finding("no_gradient", action, message, "optimizer_steps", 0.0, number, config.window)


def reward_drop(config: HealthConfig, history: History) -> Finding | None:
    """The reward has lost most of what the run had gained, or is below where the run began, by more than noise.

    Levels are means over `sustained_steps`. A change counts from five standard errors of such a mean on, and from
    a quarter of the standard deviation of one step's rewards.
    """
    now, level = history[-1], sustained(config, history, "reward/mean")
    first, best = now.get(FIRST_LEVEL), now.get(BEST_LEVEL)
    if level is None or first is None or best is None:
        return None
    least = least_change(config, history)
    if _heavy_tailed(now):  # a few rewards far away move a mean, and are no loss of the others
        level = max(level, median(values(history, "reward/mean")[-config.sustained_steps :]))
    lost, gained = best - level, best - first
    fell_below_start = first - level > least
    lost_its_gain = gained > least and lost > max(least, config.reward_drop_share * gained)
    if not fell_below_start and not lost_its_gain:
        return None
    limit = first - least if fell_below_start else best - max(least, config.reward_drop_share * gained)
    message = (
        f"The mean reward of the last {config.sustained_steps} steps is {level:.3g} (limit {limit:.3g}); the run began "
        f"at {first:.3g} and reached {best:.3g}: it is losing what it learned. If the tasks did not become harder, go "
        "back to an earlier checkpoint with a lower learning rate."
    )
    return finding(config, "reward_drop", "reward/mean", level, limit, message)


def restored_reward(config: HealthConfig, history: History) -> Finding | None:
    """The policy that the run went back to earns less than the same policy did before, by more than noise.

    The policy is not at fault then: the tasks have become harder, or rewards mean something else.
    """
    now = history[-1]
    level, before = now.get(RESTORED_LEVEL), now.get(RESTORED_BEFORE)
    if level is None or before is None:
        return None
    spread = now.get("reward/std", 0.0)
    error = math.sqrt(2 / max(1.0, now.get("rollout/scored", 1.0))) * spread
    error = max(error, math.sqrt(2) * now.get(RESTORED_NOISE, 0.0))
    limit = before - max(_NOISE * error, _SPREADS * spread)
    if level >= limit:
        return None
    message = (
        f"The mean reward of the first step after the rollback is {level:.3g} (limit {limit:.3g}), and the "
        f"same policy earned {before:.3g} before: the trouble is not in its weights. Check whether the verifier or "
        "the tasks have changed."
    )
    return finding(config, "restored_reward", "reward/mean", level, limit, message, suspect=0)


def surpassed(config: HealthConfig, history: History) -> bool:
    """Whether the reward since a rollback is clearly above the best before; False where nothing is sought."""
    level, sought = sustained(config, history, "reward/mean"), history[-1].get(SOUGHT_LEVEL)
    return level is not None and sought is not None and level >= sought + least_change(config, history)


def cured(config: HealthConfig, history: History) -> bool:
    """Whether the policy has learned on since a rollback, or earns as much as before and nearly the best that there is;
    False where nothing is sought."""
    level, sought = sustained(config, history, "reward/mean"), history[-1].get(SOUGHT_LEVEL)
    if level is None or sought is None or level < sought - least_change(config, history):
        return False
    return surpassed(config, history) or solved(config, history, near=NEARLY)


def not_recovered(config: HealthConfig, history: History, steps: int | None = None) -> Finding | None:
    """The policy has not learned on within `recovery_steps` steps after a rollback (see `cured`).

    The same reward as before is not enough: it may be that of the same trouble, and of a rate that is too low now.

    Args:
        steps: instead of the configured ones.
    """
    since, level = (history[-1].get(SOUGHT_FOR), sustained(config, history, "reward/mean")) if history else (None, None)
    least = config.recovery_steps if steps is None else steps
    if since is None or level is None or since < least or cured(config, history):
        return None
    before = history[-1][SOUGHT_LEVEL]
    limit = before + least_change(config, history)
    message = (
        f"{since:.0f} steps after the rollback the mean reward of the last {config.sustained_steps} steps is "
        f"{level:.3g} (limit {limit:.3g}), and it was {before:.3g} before: the policy has not learned on. Read the "
        "rollouts: the learning rate may be too low now or still too high, the tasks may have changed, or the policy "
        "may be stuck with one kind of answer."
    )
    return finding(config, "not_recovered", "reward/mean", level, limit, message)


def reward_shift(config: HealthConfig, history: History) -> Finding | None:
    """The mean reward of a step is outside of all rewards that the run had seen, by more than their whole range.

    No policy learns that in one step: what rewards mean has changed.
    """
    if len(history) < 2 or FIRST_LEVEL not in history[-2]:
        return None
    mean, before = history[-1].get("reward/mean"), history[-2]
    best, worst = before.get(BEST_REWARD), before.get(WORST_REWARD)
    if mean is None or best is None or worst is None or best <= worst:
        return None
    limit = 2 * best - worst if mean > best else 2 * worst - best
    if 2 * worst - best <= mean <= 2 * best - worst:
        return None
    message = (
        f"The mean reward is {mean:.3g} (limit {limit:.3g}), and all rewards before were between {worst:.3g} and "
        f"{best:.3g}: no policy learns that in one step, so what rewards mean has changed, and advantages are not "
        "comparable with those before. Check the verifier and the tasks of this batch."
    )
    return finding(config, "reward_shift", "reward/mean", mean, limit, message, suspect=0)


_NOISE, _SPREADS, _RANGES = 5.0, 0.25, 0.05
"""Standard errors, standard deviations of one step's rewards, and ranges of all rewards so far, from which a change of
the reward counts."""


def least_change(config: HealthConfig, history: History) -> float:
    """The least change of the reward's level that counts.

    The share of the range of all rewards is for a policy whose answers hardly differ: its step means hardly vary
    either, until a prompt comes along that it has no answer to. It is at most the standard deviation of a step's
    rewards when the run began: a single reward far away from all others must not hide what befalls those.
    """
    now = history[-1]
    spread, reach = now.get(FIRST_SPREAD, 0.0), now.get(BEST_REWARD, 0.0) - now.get(WORST_REWARD, 0.0)
    of_reach = min(_RANGES * reach, now.get(ORIGIN_SPREAD, 0.0) or math.inf)
    return max(_NOISE * _error_of_level(config, history), _SPREADS * spread, of_reach)


def _heavy_tailed(now: Observation) -> bool:
    """Whether the range of all rewards is that of rare ones: far wider than rewards differed when the run began."""
    reach = now.get(BEST_REWARD, 0.0) - now.get(WORST_REWARD, 0.0)
    return 0.0 < now.get(ORIGIN_SPREAD, 0.0) < _RANGES * reach


def _error_of_level(config: HealthConfig, history: History) -> float:
    """Standard error of the difference of two means over `sustained_steps`, from the changes between neighbours."""
    return deviation_of_means(values(history, "reward/mean")) * math.sqrt(2 / config.sustained_steps)


def truncation(config: HealthConfig, history: History) -> Finding | None:
    """Over the last steps, too many completions were cut off at the token limit, and the task is not solved."""
    share, limit = sustained(config, history, "rollout/truncated_fraction"), config.truncation_limit
    if share is None or share <= limit or solved(config, history):
        return None
    message = (
        f"{share:.0%} of the completions of the last {config.sustained_steps} steps were cut off at the token limit "
        f"(limit {limit:.0%}): their rewards judge the limit rather than the answer. Raise max_tokens, or reward "
        "shorter answers."
    )
    return finding(config, "truncation", "rollout/truncated_fraction", share, limit, message)


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
    return finding(config, "part_divergence", metric, falling[down], -least[down], message)


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
