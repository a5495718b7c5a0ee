"""Converts scored groups to the data that the buffer holds, and maps back what each turn trained with. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from assay.grpo.advantages import group_advantages, has_constant_rewards
from assay.grpo.buffer import BufferedGroup
from assay.grpo.config import GRPOConfig
from assay.grpo.datum import TurnSpan, is_masked, trained_tokens, trajectory_data, turn_spans
from assay.grpo.step_metrics import Pass
from assay.types import Datum, FloatArray, TrajectoryGroup

TurnPlace = tuple[int, int, int]
"""(group, sample, turn) within a batch."""
Removed = Literal["errored", "constant", "truncated", "skipped", "failed"]
"""Why a turn trained nothing: its rollout could not be scored; its group's rewards do not differ; it ran into the
length limit (`mask_truncated`); no optimizer step was taken on it; the training step failed before any was."""


@dataclass(frozen=True, slots=True)
class TurnTraining:
    """What a turn trained with when it was first trained on; one value per sampled token, NaN for one without prompt.

    Arrays are None where the turn was removed.
    """

    removed: Removed | None = None
    advantages: FloatArray | None = None
    """Before importance weights and the normaliser of the optimizer step; a KL penalty in the reward is in them."""
    log_ratios: FloatArray | None = None
    """The trained policy's log-probability minus the behaviour policy's, before the optimizer step."""


def advantages_of(group: TrajectoryGroup, config: GRPOConfig) -> list[list[float]] | None:
    """The advantages of a group's turns, from their discounted returns; None where its rewards are all equal."""
    recipe = config.recipe
    return group_advantages(group, gamma=config.gamma, normalize_by_std=recipe.by_std, baseline=recipe.baseline)


def group_data(
    group: TrajectoryGroup, advantages: Sequence[Sequence[float]] | None, config: GRPOConfig
) -> BufferedGroup | None:
    """The data of a group with these advantages; None if it says nothing to the optimizer step.

    Constant groups have advantages of exactly 0. With `remove_constant_reward_groups` off they keep their tokens, and
    bear a KL penalty and entropy bonus; with it on, only the sizes of their sequences are kept, where the recipe counts
    them.
    """
    removed = advantages is None and config.remove_constant_reward_groups
    if removed and not config.recipe.count_constant_groups:
        return None
    if advantages is None:
        advantages = [[] if t.errored else [0.0] * len(t.transitions) for t in group.trajectories]
    chosen = [(t, turns) for t, turns in zip(group.trajectories, advantages, strict=True) if turns]
    data = [
        d
        for trajectory, turns in chosen
        for d in trajectory_data(trajectory, turns, mask_truncated=config.mask_truncated)
        if d.mask.any()
    ]
    versions = [turn.completion.policy_version for trajectory, _ in chosen for turn in trajectory.transitions]
    if not data:
        return None
    if removed:
        return BufferedGroup((), min(versions), len(chosen), counted=tuple(trained_tokens([d]) for d in data))
    return BufferedGroup(tuple(data), min(versions), len(chosen))


def flat(groups: Sequence[BufferedGroup]) -> list[Datum]:
    """The data of all groups, in order."""
    return [datum for group in groups for datum in group.data]


def split_evenly(groups: Sequence[BufferedGroup], parts: int) -> list[Sequence[BufferedGroup]]:
    """The groups in order, in so many parts that differ by at most one in size."""
    bounds = [round(i * len(groups) / parts) for i in range(parts + 1)]
    return [groups[a:b] for a, b in itertools.pairwise(bounds)]


def with_data(groups: Sequence[BufferedGroup], data: Sequence[Datum]) -> list[BufferedGroup]:
    """The groups with their data replaced, in the order of `flat`."""
    remaining = iter(data)
    return [replace(group, data=tuple(next(remaining) for _ in group.data)) for group in groups]


def without_reference(group: BufferedGroup) -> BufferedGroup:
    """The group with its reference log-probabilities forgotten."""
    return replace(group, data=tuple(replace(d, ref_logprobs=None) for d in group.data))


def turn_training(
    groups: Sequence[TrajectoryGroup], numbers: Mapping[int, int], passes: Sequence[Pass], *, mask_truncated: bool
) -> dict[TurnPlace, TurnTraining]:
    """What every turn of a batch trained with in a training step.

    Args:
        groups: the batch.
        numbers: `BufferedGroup.id` of each group that was computed -> its place in the batch.
        passes: the optimizer steps; the first that was taken on a group counts.
    """
    used: dict[int, list[tuple[FloatArray, FloatArray]]] = {}
    for one in passes:
        gaps = (now - datum.logprobs for datum, now in zip(one.data, one.logprobs, strict=True))
        rows = iter(zip(one.advantages, gaps, strict=True))
        for group in one.groups:
            streams = [next(rows) for _ in group.data]
            if one.stepped and group.id in numbers:
                used.setdefault(numbers[group.id], streams)
    admitted = set(numbers.values())
    return {
        (g, *place): found
        for g, group in enumerate(groups)
        for place, found in _turns(group, used.get(g), mask_truncated, g in admitted)
    }


def _turns(
    group: TrajectoryGroup,
    streams: Sequence[tuple[FloatArray, FloatArray]] | None,
    mask_truncated: bool,
    admitted: bool,
) -> Iterator[tuple[tuple[int, int], TurnTraining]]:
    """What each (sample, turn) of a group trained with; `streams` are None where no step was taken on the group."""
    spans = {} if streams is None else _spans(group, mask_truncated)
    untaken: Removed | None = None
    for s, rollout in enumerate(group.trajectories):
        for t, turn in enumerate(rollout.transitions):
            if rollout.errored:
                yield (s, t), TurnTraining("errored")
            elif is_masked(turn, mask_truncated):
                yield (s, t), TurnTraining("truncated")
            elif streams is None or (s, t) not in spans:
                if untaken is None:
                    untaken = "skipped" if admitted and not has_constant_rewards(group) else "constant"
                yield (s, t), TurnTraining(untaken)
            else:
                span = spans[s, t]
                yield (s, t), TurnTraining(None, *(_cut(stream, span) for stream in streams[span.datum]))


def _spans(group: TrajectoryGroup, mask_truncated: bool) -> dict[tuple[int, int], TurnSpan]:
    """Where each trained (sample, turn) is in `group_data`, which drops the sequences in which nothing is trained."""
    found: dict[tuple[int, int], TurnSpan] = {}
    before = 0
    for s, rollout in enumerate(group.trajectories):
        if rollout.errored:
            continue
        numbers: dict[int, int] = {}
        for t, span in enumerate(turn_spans(rollout)):
            if span.stop > max(span.start, 0) and not is_masked(rollout.transitions[t], mask_truncated):
                number = numbers.setdefault(span.datum, before + len(numbers))
                found[s, t] = TurnSpan(number, span.start, span.stop)
        before += len(numbers)
    return found


def _cut(stream: FloatArray, span: TurnSpan) -> FloatArray:
    found = stream[max(span.start, 0) : span.stop]
    return found if span.start >= 0 else np.concatenate([np.full(1, np.nan, np.float32), found])
