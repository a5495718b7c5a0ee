"""Rollouts in a general form, for a trainer used by itself: token ids, rewards, and what the sampler said.

    StepData([RolloutGroup(prompt=[5, 9], rollouts=[Rollout(tokens=[7, 2], reward=1.0, logprobs=[-0.1, -0.3]), ...])])
    StepData.from_padded(input_ids, attention_mask, prompt_lengths, rewards, group_ids, logprobs=...)

A group may lack members (None, or simply fewer rollouts) and members may lack a reward (None: it could not be scored).
Such a rollout is excluded from the baseline and the loss; it does not count as 0. A group with fewer than two different
rewards carries no gradient and is counted as constant. A completion without tokens counts in its group's baseline, and
nothing is trained on it.
"""

from __future__ import annotations

import math
import numbers
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from assay.errors import DataError
from assay.types import MAX_REWARD, Completion, Score, Task, Trajectory, TrajectoryGroup, Transition, is_usable_reward

_SHOWN = 60
"""Characters shown of what is not a sequence of token ids."""


@dataclass(frozen=True, slots=True)
class Rollout:
    """One sampled completion of T tokens."""

    tokens: Sequence[int]
    """[T] token ids; the end-of-sequence token that was sampled belongs to them."""
    reward: float | None
    """Finite; None where it could not be found out."""
    logprobs: Sequence[float] | None = None
    """[T] log-probabilities under the distribution that was sampled. All rollouts of a step have them or none has;
    without them the present policy counts as the sampler."""
    ref_logprobs: Sequence[float] | None = None
    """[T] log-probabilities under the reference policy, where they are known already."""
    truncated: bool = False
    """Whether the generation limit ended it."""
    parts: Mapping[str, float] = field(default_factory=dict)
    """Named parts of the reward, for the health report."""


@dataclass(frozen=True, slots=True)
class RolloutGroup:
    """The completions of one prompt of P >= 1 tokens; None is a missing member."""

    prompt: Sequence[int]
    rollouts: Sequence[Rollout | None]
    task: str = "default"
    """Task type that metrics are split by (`P`, `A`)."""
    policy_version: int | None = None
    """Optimizer steps that the policy had taken when it sampled the group (`trainer.policy_version` then); None means
    that the present policy did. Decides staleness, and which tokens show whether sampler and trainer agree."""


@dataclass(frozen=True, slots=True)
class StepData:
    """The rollouts of one training step."""

    groups: Sequence[RolloutGroup]

    @classmethod
    def from_padded(
        cls,
        input_ids: Any,
        attention_mask: Any,
        prompt_lengths: Any,
        rewards: Any,
        group_ids: Any,
        *,
        logprobs: Any = None,
        ref_logprobs: Any = None,
        truncated: Any = None,
        scored: Any = None,
        tasks: Sequence[str] | None = None,
    ) -> StepData:
        """Step data from padded arrays or tensors of N sequences of at most L tokens.

        Args:
            input_ids: [N, L] prompt and completion of each sequence.
            attention_mask: [N, L] 1 on tokens and 0 on padding, on either side.
            prompt_lengths: [N] tokens of each prompt, padding not counted.
            rewards: [N].
            group_ids: [N] equal for sequences of one group, in any order; equal groups must have equal prompts.
            logprobs: [N, L] behaviour log-probabilities, at the place of the token they are of; read on completions.
            ref_logprobs: [N, L] the same for the reference policy.
            truncated: [N] whether the generation limit ended the sequence.
            scored: [N] False where there is no reward (its entry in `rewards` is not read).
            tasks: [N] task types.

        Raises:
            DataError: shapes do not fit together, or sequences of one group have different prompts.
        """
        ids, mask = _array(input_ids, "input_ids", 2), _array(attention_mask, "attention_mask", 2).astype(bool)
        n, length = ids.shape
        if mask.shape != ids.shape:
            raise DataError(f"attention_mask has shape {mask.shape} and input_ids {ids.shape}; they must be equal.")
        per_row = {"prompt_lengths": prompt_lengths, "rewards": rewards, "group_ids": group_ids}
        per_row |= {"truncated": [False] * n if truncated is None else truncated}
        per_row |= {"scored": [True] * n if scored is None else scored}
        rows = {name: _array(value, name, 1) for name, value in per_row.items()}
        names = ["default"] * n if tasks is None else list(tasks)
        for name, count in [*((name, len(column)) for name, column in rows.items()), ("tasks", len(names))]:
            if count != n:
                raise DataError(f"{name} has {count} entries for {n} sequences; give one for each.")
        streams = {"logprobs": logprobs, "ref_logprobs": ref_logprobs}
        matrices = {name: None if value is None else _array(value, name, 2) for name, value in streams.items()}
        for name, matrix in matrices.items():
            if matrix is not None and matrix.shape != (n, length):
                raise DataError(f"{name} has shape {matrix.shape}; it must be that of input_ids, {(n, length)}.")
        groups: dict[Any, list[int]] = {}
        for row, group_id in enumerate(rows["group_ids"].tolist()):
            groups.setdefault(group_id, []).append(row)
        return cls([_group(members, ids, mask, rows, matrices, names) for members in groups.values()])


def _array(value: Any, name: str, dimensions: int) -> np.ndarray[Any, Any]:
    if hasattr(value, "detach"):
        value = value.detach().cpu()
        value = value.float() if value.dtype.itemsize == 2 and value.is_floating_point() else value
    array = np.asarray(value)
    if array.ndim != dimensions:
        raise DataError(f"{name} must have {dimensions} dimension{'s' * (dimensions > 1)}; its shape is {array.shape}.")
    return array


def _group(
    members: Sequence[int],
    ids: np.ndarray[Any, Any],
    mask: np.ndarray[Any, Any],
    rows: Mapping[str, np.ndarray[Any, Any]],
    matrices: Mapping[str, np.ndarray[Any, Any] | None],
    tasks: Sequence[str],
) -> RolloutGroup:
    prompts, rollouts = [], []
    for row in members:
        tokens, cut = ids[row][mask[row]].tolist(), int(rows["prompt_lengths"][row])
        if not 0 < cut <= len(tokens):
            raise DataError(
                f"prompt_lengths[{row}]={cut} of a sequence of {len(tokens)} tokens; a prompt has at least 1."
            )
        streams = {k: None if m is None else m[row][mask[row]][cut:].tolist() for k, m in matrices.items()}
        prompts.append(tokens[:cut])
        reward = float(rows["rewards"][row]) if rows["scored"][row] else None
        known, reference = streams["logprobs"], streams["ref_logprobs"]
        rollouts.append(Rollout(tokens[cut:], reward, known, reference, bool(rows["truncated"][row])))
    if any(prompt != prompts[0] for prompt in prompts) or len({tasks[row] for row in members}) > 1:
        raise DataError(
            f"Group {rows['group_ids'][members[0]].item()!r} has sequences of different prompts or tasks, so their "
            "rewards cannot be compared. Give each prompt a group id of its own."
        )
    return RolloutGroup(prompts[0], rollouts, tasks[members[0]])


def checked_rate(learning_rate: object) -> float:
    """The learning rate of a step.

    Raises:
        DataError: it is not a finite number of at least 0.
    """
    if isinstance(learning_rate, bool) or not isinstance(learning_rate, numbers.Real):
        raise DataError(f"learning_rate={learning_rate!r} is not a number. Give one of at least 0, or None.")
    rate = float(learning_rate)
    if not (math.isfinite(rate) and rate >= 0):
        raise DataError(
            f"learning_rate={rate} would spoil the weights or climb instead of descend. Give a finite number "
            "of at least 0, or None for the config's."
        )
    return rate


def knows_behaviour(data: StepData) -> bool:
    """Whether the rollouts come with behaviour log-probabilities.

    Raises:
        DataError: some do and some do not.
    """
    known = {r.logprobs is not None for g in data.groups for r in g.rollouts if r is not None and len(r.tokens)}
    if len(known) > 1:
        raise DataError(
            "Some rollouts of the step have behaviour log-probabilities and some have none, so the ratios of the "
            "others would be made up. Give them for all rollouts, or for none (the present policy then counts as the "
            "sampler)."
        )
    return known != {False}


def trajectory_groups(data: StepData, policy_version: int, vocabulary: int, context: int) -> list[TrajectoryGroup]:
    """The records that the trainer works with, checked.

    Args:
        vocabulary: token ids lie below it.
        context: most tokens of a prompt and a completion together.

    Raises:
        DataError: there are no groups; or a prompt is empty, a stream has the wrong length, a number is not finite, a
            token is unknown, or a sequence is too long. The message names the group and the rollout.
    """
    if not data.groups:
        raise DataError("The step has no groups, so there is nothing to train on. Give at least one RolloutGroup.")
    groups = [_trajectory_group(place, group, policy_version) for place, group in enumerate(data.groups)]
    for place, group in enumerate(data.groups):
        _check_tokens(f"The prompt of group {place}", group.prompt, vocabulary)
        for i, rollout in enumerate(group.rollouts):
            if rollout is None:
                continue
            _check_tokens(f"Rollout {i} of group {place}", rollout.tokens, vocabulary)
            length = len(group.prompt) + len(rollout.tokens)
            if length > context:
                raise DataError(
                    f"Rollout {i} of group {place} has {length} tokens with its prompt, and the model's context is "
                    f"{context}. Sample shorter completions, or leave the rollout out (None)."
                )
    return groups


def _check_tokens(name: str, tokens: Sequence[int], vocabulary: int) -> None:
    bad = next((int(t) for t in tokens if not 0 <= int(t) < vocabulary), None)
    if bad is not None:
        raise DataError(
            f"{name} has token {bad}, and the model knows tokens 0 to {vocabulary - 1}: it was made with another "
            "tokenizer, or padding (such as -100) was not removed. Give the ids of the tokens that were sampled."
        )


def _trajectory_group(place: int, group: RolloutGroup, version: int) -> TrajectoryGroup:
    prompt = _token_ids(f"The prompt of group {place}", group.prompt)
    if not prompt:
        raise DataError(
            f"Group {place} has an empty prompt, so its first token has no context. Give at least one token."
        )
    version = version if group.policy_version is None else _past(place, group.policy_version, version)
    task = Task("external", f"group {place}", (), {"prompt": list(prompt)}, (group.task,))
    trajectories = tuple(
        _trajectory(f"Rollout {i} of group {place}", task, prompt, rollout, version)
        for i, rollout in enumerate(group.rollouts)
        if rollout is not None
    )
    return TrajectoryGroup(task, trajectories)


def _token_ids(name: str, tokens: Sequence[int]) -> tuple[int, ...]:
    """Tokens as ids.

    Raises:
        DataError: they are a text, or anything else than whole numbers.
    """
    try:
        return tuple(operator.index(t) for t in tokens)
    except TypeError:  # of a text, too
        pass
    shown = repr(tokens)
    raise DataError(
        f"{name} is {shown if len(shown) <= _SHOWN else f'{shown[:_SHOWN]}...'}, and not a sequence of token ids "
        "(whole "
        'numbers). Give the tokens that the model saw: tokenizer(text)["input_ids"].'
    )


def _past(place: int, given: int, now: int) -> int:
    """The version of the policy that sampled a group.

    Raises:
        DataError: no version of the policy up to now is that.
    """
    if isinstance(given, bool) or given not in range(now + 1):
        raise DataError(
            f"Group {place} has policy_version={given!r}, and the policy is at version {now}: it is the value of "
            "trainer.policy_version when the group was sampled, a whole number from 0 to the present one (after a "
            "rollback, rollouts of the discarded policy cannot be used). Give that, or None for the present policy."
        )
    return int(given)


def _trajectory(name: str, task: Task, prompt: tuple[int, ...], rollout: Rollout, version: int) -> Trajectory:
    tokens = _token_ids(name, rollout.tokens)
    reward = None if rollout.reward is None else _reward(name, rollout.reward)
    for part, value in rollout.parts.items():
        if not is_usable_reward(value):
            raise DataError(
                f"{name} has {part}={value:g} among the parts of its reward, which would spoil their means. Give "
                f"finite parts of at most {MAX_REWARD:g} in size, or leave the part out where it is unknown."
            )
    logprobs = _stream(name, "logprobs", rollout.logprobs, len(tokens))
    reference = _stream(name, "ref_logprobs", rollout.ref_logprobs, len(tokens))
    completion = Completion(
        tokens, logprobs or (0.0,) * len(tokens), "length" if rollout.truncated else "stop", version, reference
    )
    score = Score("errored" if reward is None else "scored", reward, parts=rollout.parts)
    return Trajectory(task, (Transition(prompt, completion, "", score),), "done", 0)


def _reward(name: str, reward: float) -> float:
    """The reward of a rollout.

    Raises:
        DataError: it cannot be used.
    """
    if not is_usable_reward(reward):
        raise DataError(
            f"{name} has reward {reward:g}, which would spoil the baseline of its whole group. Give a finite reward of "
            f"at most {MAX_REWARD:g} in size, or None where it is unknown."
        )
    return float(reward)


def _stream(name: str, stream: str, values: Sequence[float] | None, length: int) -> tuple[float, ...] | None:
    if values is None:
        return None
    found = tuple(float(v) for v in values)
    if len(found) != length:
        raise DataError(f"{name} has {length} tokens and {len(found)} {stream}; give one for each token.")
    bad = next((v for v in found if not (math.isfinite(v) and v <= 1e-6)), None)
    if bad is not None:
        raise DataError(f"{name} has {bad} among its {stream}; log-probabilities are finite and at most 0.")
    return found
