"""From a scored group to what the buffer holds and the trainer trains on: data with raw advantages. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from assay.grpo.advantages import group_advantages
from assay.grpo.buffer import BufferedGroup
from assay.grpo.config import GRPOConfig
from assay.grpo.datum import trajectory_data
from assay.types import Datum, TrajectoryGroup


def group_data(group: TrajectoryGroup, config: GRPOConfig) -> BufferedGroup | None:
    """The data of a group; None where it has nothing to teach.

    With `remove_constant_reward_groups` off, constant groups keep their tokens with advantages of exactly 0: they count
    in the normaliser and, where there is one, bear the KL penalty.
    """
    recipe = config.recipe
    advantages = group_advantages(group, gamma=config.gamma, normalize_by_std=recipe.by_std, baseline=recipe.baseline)
    if advantages is None:
        if config.remove_constant_reward_groups:
            return None
        advantages = [[] if t.errored else [0.0] * len(t.transitions) for t in group.trajectories]
    chosen = [(t, turns) for t, turns in zip(group.trajectories, advantages, strict=True) if turns]
    data = [
        d
        for trajectory, turns in chosen
        for d in trajectory_data(trajectory, turns, mask_truncated=config.mask_truncated)
        if d.mask.any()
    ]
    versions = [turn.completion.policy_version for trajectory, _ in chosen for turn in trajectory.transitions]
    return BufferedGroup(tuple(data), min(versions), len(chosen)) if data else None


def flat(groups: Sequence[BufferedGroup]) -> list[Datum]:
    """The data of all groups, in order."""
    return [datum for group in groups for datum in group.data]


def with_data(groups: Sequence[BufferedGroup], data: Sequence[Datum]) -> list[BufferedGroup]:
    """The groups with their data replaced, in the order of `flat`."""
    remaining = iter(data)
    return [replace(group, data=tuple(next(remaining) for _ in group.data)) for group in groups]


def without_reference(group: BufferedGroup) -> BufferedGroup:
    """The group with its reference log-probabilities forgotten."""
    return replace(group, data=tuple(replace(d, ref_logprobs=None) for d in group.data))
