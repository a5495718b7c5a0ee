"""The metrics of a training step, pooled over everything that the step saw. Pure.

Percentiles are taken over the pooled step, never averaged over groups. A metric that the step cannot give is absent,
never 0. Names are those of the specification (`kl_div_95pct`, `fraction_clipped`, `approx_entropy`, `reward_25pct`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from assay.grpo.advantages import has_constant_rewards
from assay.grpo.kl import estimates
from assay.grpo.recipes import CLIP, Recipe
from assay.types import Datum, FloatArray, Task, TrajectoryGroup

PERCENTILES = (5, 25, 50, 75, 95)


@dataclass(frozen=True)
class Pass:
    """One optimizer step: its data, what the backend found before it, and what the optimizer said."""

    data: Sequence[Datum]
    logprobs: Sequence[FloatArray]
    """The learner's log-probabilities before the step."""
    metrics: Mapping[str, float]
    """Of the backend: `loss`, `kl_loss`, `entropy`, `grad_norm`."""
    fresh: bool
    """Whether the data were sampled by exactly the policy that was trained."""


def task_type(task: Task) -> str:
    """The type that metrics are split by: the first tag (`P` or `A` in chess), else the environment."""
    return task.tags[0] if task.tags else task.env


def rewards_by_task(groups: Sequence[TrajectoryGroup]) -> dict[str, list[float]]:
    """The rewards of all scored rollouts, by task type."""
    found: dict[str, list[float]] = {}
    for group in groups:
        rewards = [t.reward for t in group.trajectories if t.reward is not None]
        found.setdefault(task_type(group.task), []).extend(rewards)
    return {task: found[task] for task in sorted(found) if found[task]}


def reward_metrics(rewards: Sequence[float], prefix: str = "") -> dict[str, float]:
    """`reward_mean`, `_std`, `_min`, `_max` and percentiles; nothing where there are no rewards."""
    if not len(rewards):
        return {}
    values = np.asarray(rewards, np.float64)
    found = {"mean": values.mean(), "std": values.std(), "min": values.min(), "max": values.max()}
    found |= {f"{p}pct": v for p, v in zip(PERCENTILES, np.percentile(values, PERCENTILES), strict=True)}
    return {f"{prefix}reward_{name}": float(value) for name, value in found.items()}


def rollout_metrics(groups: Sequence[TrajectoryGroup]) -> dict[str, float]:
    """What the rollouts of a step say before any training: rewards, their parts, shares, task mix."""
    rollouts = [t for group in groups for t in group.trajectories]
    if not rollouts:
        return {}
    by_task = rewards_by_task(groups)
    pooled = [r for rewards in by_task.values() for r in rewards]
    turns = [turn for rollout in rollouts for turn in rollout.transitions]
    metrics = {
        "constant_groups": float(np.mean([has_constant_rewards(group) for group in groups])),
        "errored_fraction": float(np.mean([t.errored for t in rollouts])),
        **reward_metrics(pooled),
        **_part_means(groups),
    }
    if turns:
        metrics["truncated_fraction"] = float(np.mean([t.completion.stop_reason == "length" for t in turns]))
    for task, rewards in by_task.items():
        metrics[f"task/{task}/share"] = len(rewards) / len(pooled)
        metrics |= reward_metrics(rewards, f"task/{task}/")
    return metrics


def _part_means(groups: Sequence[TrajectoryGroup]) -> dict[str, float]:
    """Mean of each named part of the reward over the scored rollouts that report it, by their last turn."""
    columns: dict[str, list[float]] = {}
    for group in groups:
        for rollout in group.trajectories:
            if not rollout.errored and rollout.transitions:
                for name, value in rollout.transitions[-1].score.parts.items():
                    columns.setdefault(name, []).append(value)
    return {f"part/{name}": float(np.mean(values)) for name, values in sorted(columns.items())}


def pass_metrics(passes: Sequence[Pass], recipe: Recipe) -> dict[str, float]:
    """What the optimizer steps of a training step say together; `optimizer_steps` alone where there are none."""
    metrics = {"optimizer_steps": float(sum("grad_norm" in p.metrics for p in passes))}
    if not passes:
        return metrics
    now, behaviour = _pooled([(p.data, p.logprobs) for p in passes])
    gap = now - behaviour
    metrics |= _means([p.metrics for p in passes])
    metrics |= {
        "tokens": float(len(now)),
        "kl_behaviour": float(np.mean(estimates("k3", behaviour, now))),
        "logprob_ratio_min": float(np.exp(gap.min())),
        "logprob_ratio_max": float(np.exp(gap.max())),
        "approx_entropy": float(-now.mean()),
        "fraction_positive_advantages": float(np.mean(_trained(passes, "advantages") > 0)),
    }
    fresh = [p for p in passes if p.fresh]
    if fresh:
        metrics |= mismatch(*_pooled([(p.data, p.logprobs) for p in fresh]))
    if set(CLIP) <= set(recipe.thresholds):
        low, high = (recipe.thresholds[name] for name in CLIP)
        ratios = np.concatenate([_ratios(p, recipe) for p in passes])
        outside = (ratios < low) | (ratios > high)
        metrics["fraction_clipped"] = float(outside.mean())
    if all(d.ref_logprobs is not None for p in passes for d in p.data):
        kl = estimates("k3", now, _trained(passes, "ref_logprobs"))
        low, high = np.percentile(kl, [5, 95])
        metrics |= {"kl_div": float(kl.mean()), "kl_div_5pct": float(low), "kl_div_95pct": float(high)}
    return metrics


def mismatch(trainer: FloatArray, sampler: FloatArray) -> dict[str, float]:
    """How far trainer and sampler are apart on tokens of the present policy: two arrays [N] of log-probabilities.

    `ratio_error` is max |trainer / sampler - 1|, `mismatch_kl` the k3 estimate of KL(sampler || trainer).
    """
    gap = trainer - sampler
    return {
        "ratio_error": float(np.max(np.abs(np.expm1(gap)))),
        "mismatch_kl": float(np.mean(np.expm1(gap) - gap)),
    }


def trained_logprobs(data: Sequence[Datum], logprobs: Sequence[FloatArray]) -> tuple[FloatArray, FloatArray]:
    """Of the N trained tokens of the data, in float64: the given log-probabilities, and the behaviour policy's."""
    return _pooled([(data, logprobs)])


def _pooled(parts: Sequence[tuple[Sequence[Datum], Sequence[FloatArray]]]) -> tuple[FloatArray, FloatArray]:
    pairs = [
        (now[d.mask > 0], d.logprobs[d.mask > 0])
        for data, logprobs in parts
        for d, now in zip(data, logprobs, strict=True)
    ]
    now, behaviour = (np.concatenate(column).astype(np.float64) for column in zip(*pairs, strict=True))
    return now, behaviour  # type: ignore[return-value]


def _trained(passes: Sequence[Pass], stream: str) -> FloatArray:
    found: FloatArray = np.concatenate([getattr(d, stream)[d.mask > 0] for p in passes for d in p.data])
    return found


def _ratios(one: Pass, recipe: Recipe) -> FloatArray:
    """The policy ratio of each trained token as the loss sees it."""
    gaps = [(now - d.logprobs)[d.mask > 0] for d, now in zip(one.data, one.logprobs, strict=True)]
    if recipe.ratio == "sequence":
        gaps = [np.full_like(gap, gap.mean()) for gap in gaps if len(gap)]
    ratios: FloatArray = np.exp(np.concatenate(gaps))
    return ratios


def _means(records: Sequence[Mapping[str, float]]) -> dict[str, float]:
    names = dict.fromkeys(name for record in records for name in record)
    return {n: float(np.mean([r[n] for r in records if n in r])) for n in names}
