"""From rollouts to numbers: the metrics of a batch, overall and per tag. Pure.

Names: `reward/...` over rollouts; `env/<metric>` and `part/<part>` as the environment reports them; `tag/<tag>/...` the
same for the tasks that carry a tag; `rollout/...` counts and shares. An errored rollout is counted and is
in no other metric: its reward is unknown, not 0. A metric that no rollout reports is absent, never 0. Nothing here
depends on the machine or on the cache.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import get_args

import numpy as np

from assay.grpo.advantages import has_constant_rewards, lone_turns
from assay.types import EpisodeEnd, ScoreStatus, Task, Trajectory, TrajectoryGroup, Transition

QUARTILES = (25, 75)


def task_type(task: Task) -> str:
    """The type that rewards are gathered by: the first tag (`P` or `A` in chess), else the environment."""
    return task.tags[0] if task.tags else task.env


def rewards_by_task(groups: Sequence[TrajectoryGroup]) -> dict[str, list[float]]:
    """The rewards of all scored rollouts, by task type."""
    found: dict[str, list[float]] = {}
    for group in groups:
        rewards = [t.reward for t in group.trajectories if t.reward is not None]
        found.setdefault(task_type(group.task), []).extend(rewards)
    return {task: found[task] for task in sorted(found) if found[task]}


def rollout_metrics(groups: Sequence[TrajectoryGroup]) -> dict[str, float]:
    """Metrics of a batch of groups.

    `env/` and `part/` values of a rollout are those of its last turn that reports them; their means are over rollouts.
    """
    rollouts = [trajectory for group in groups for trajectory in group.trajectories]
    judged = [trajectory for trajectory in rollouts if not trajectory.errored]
    metrics = {
        **_counts(rollouts),
        **_reward_metrics(judged),
        **_means("env", [_last_values(t.metrics for t in rollout.transitions) for rollout in judged]),
        **_means("part", [_last_values(t.score.parts for t in rollout.transitions) for rollout in judged]),
        **_tag_metrics(judged),
    }
    metrics["rollout/groups"] = float(len(groups))
    constant = [group for group in groups if has_constant_rewards(group)]
    if groups:
        metrics["rollout/constant_group_fraction"] = len(constant) / len(groups)
    if rewards := _rewards([rollout for group in constant for rollout in group.trajectories if not rollout.errored]):
        metrics["rollout/constant_group_reward"] = float(np.mean(rewards))
    alone, turns = (sum(column) for column in zip((0, 0), *map(lone_turns, groups), strict=True))
    if turns > len(judged):
        metrics["rollout/lone_turn_fraction"] = alone / turns
    return metrics


def why_nothing(groups: Sequence[TrajectoryGroup]) -> str:
    """Why no optimizer step was taken on groups, in words."""
    rollouts = [trajectory for group in groups for trajectory in group.trajectories]
    judged = [trajectory for trajectory in rollouts if not trajectory.errored]
    if not judged:
        return "no rollout has a reward (None, or errored)" if rollouts else "no group has a rollout"
    if not any(turn.completion.tokens for trajectory in judged for turn in trajectory.transitions):
        return "all completions are empty"
    if all(map(has_constant_rewards, groups)):
        alone = all(sum(not t.errored for t in group.trajectories) < 2 for group in groups)
        return "no group has two rollouts with a reward" if alone else "the rewards were equal within every group"
    return "no group with differing rewards has tokens that are trained (completions are empty, cut off or too old)"


def _counts(rollouts: Sequence[Trajectory]) -> dict[str, float]:
    metrics = {"rollout/count": float(len(rollouts))}
    if not rollouts:
        return metrics
    statuses = [_status(rollout) for rollout in rollouts]
    for status in get_args(ScoreStatus):
        metrics[f"rollout/{status}"] = float(statuses.count(status))
        metrics[f"rollout/{status}_fraction"] = statuses.count(status) / len(rollouts)
    ends = [rollout.stop_reason for rollout in rollouts]
    for end in get_args(EpisodeEnd):
        metrics[f"rollout/end/{end}_fraction"] = ends.count(end) / len(rollouts)
    turns = [turn for rollout in rollouts for turn in rollout.transitions]
    metrics["rollout/turns"] = len(turns) / len(rollouts)
    return {**metrics, **_turn_metrics(turns)}


def _status(rollout: Trajectory) -> ScoreStatus:
    return "errored" if rollout.errored or not rollout.transitions else rollout.transitions[-1].score.status


def _turn_metrics(turns: Sequence[Transition]) -> dict[str, float]:
    if not turns:
        return {}
    tokens = [len(turn.completion.tokens) for turn in turns]
    return {
        "rollout/prompt_tokens_mean": float(np.mean([len(turn.prompt_tokens) for turn in turns])),
        "rollout/completion_tokens_mean": float(np.mean(tokens)),
        "rollout/completion_tokens_max": float(max(tokens)),
        "rollout/completion_tokens_sum": float(sum(tokens)),
        "rollout/truncated_fraction": float(np.mean([turn.completion.stop_reason == "length" for turn in turns])),
    }


def _reward_metrics(judged: Sequence[Trajectory]) -> dict[str, float]:
    rewards = _rewards(judged)
    if not rewards:
        return {}
    return {
        "reward/mean": float(np.mean(rewards)),
        "reward/std": float(np.std(rewards)),
        "reward/min": float(min(rewards)),
        "reward/max": float(max(rewards)),
        **_quartiles(rewards, ""),
    }


def _rewards(judged: Sequence[Trajectory]) -> list[float]:
    return [rollout.reward for rollout in judged if rollout.reward is not None]


def _quartiles(rewards: Sequence[float], prefix: str) -> dict[str, float]:
    """Percentiles of the pooled rewards: `reward_25pct` and `reward_75pct`."""
    values = np.percentile(rewards, QUARTILES)
    return {f"{prefix}reward_{p}pct": float(v) for p, v in zip(QUARTILES, values, strict=True)}


def _tag_metrics(judged: Sequence[Trajectory]) -> dict[str, float]:
    metrics: dict[str, float] = {}
    for tag in sorted({tag for rollout in judged for tag in rollout.task.tags}):
        tagged = [rollout for rollout in judged if tag in rollout.task.tags]
        values = [_last_values(turn.metrics for turn in rollout.transitions) for rollout in tagged]
        rewards = _rewards(tagged)
        metrics |= _means(f"tag/{tag}", values)
        if rewards:
            metrics[f"tag/{tag}/reward"] = float(np.mean(rewards))
            metrics |= _quartiles(rewards, f"tag/{tag}/")
        metrics[f"tag/{tag}/count"] = float(len(tagged))
    return metrics


def _last_values(turns: Iterable[Mapping[str, float]]) -> dict[str, float]:
    values: dict[str, float] = {}
    for turn in turns:
        values.update(turn)
    return values


def _means(prefix: str, values: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Mean of every name over the mappings that have it, as `prefix/name`."""
    columns: dict[str, list[float]] = {}
    for mapping in values:
        for name, value in mapping.items():
            columns.setdefault(name, []).append(value)
    return {f"{prefix}/{name}": float(np.mean(column)) for name, column in sorted(columns.items())}
