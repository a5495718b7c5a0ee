"""The learning half of a training step: scored groups in, an improved policy and its metrics out.

groups -> advantages per turn -> data with per-token streams -> KL penalty -> one normaliser for the whole optimizer
step -> forward_backward -> optim_step. The normaliser is the number of trained tokens, so a loss is a mean over the
tokens of the step, however it is padded, ordered or cut into micro-batches.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from assay.backends.base import AdamParams, Backend, LossSpec
from assay.grpo.advantages import group_advantages
from assay.grpo.datum import trained_tokens, trajectory_data
from assay.grpo.kl import add_penalty
from assay.types import Datum, FloatArray, TrajectoryGroup

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class UpdateSettings:
    """What the update needs to know of the run's config; the names are those of `TrainingConfig`."""

    loss: LossSpec
    gamma: float = 1.0
    normalize_advantages_by_std: bool = False
    remove_constant_reward_groups: bool = True
    num_substeps: int = 1
    kl_penalty_coef: float = 0.0
    kl_discount_factor: float = 0.0


async def update(
    backend: Backend, groups: Sequence[TrajectoryGroup], settings: UpdateSettings, adam: AdamParams
) -> dict[str, float]:
    """Improve the policy on scored groups; returns metrics named `train/...`.

    A substep whose advantages are all 0 is left out, since Adam would move the weights even by a gradient of 0; a batch
    without any informative group takes no optimizer step at all.
    """
    data_by_group, constant = group_data(groups, settings)
    metrics = {"train/constant_groups": constant / max(1, len(groups)), "train/groups": float(len(data_by_group))}
    if settings.kl_penalty_coef and data_by_group:
        data_by_group, metrics["train/kl_reference"] = await _penalise(backend, data_by_group, settings)
    substeps = [part for part in _split_evenly(data_by_group, settings.num_substeps) if _informative(part)]
    outputs: list[Mapping[str, float]] = []
    for part in substeps:
        data = normalise([d for group in part for d in group])
        output = await backend.forward_backward(data, settings.loss)
        step = await backend.optim_step(adam)
        outputs.append(
            {"loss": output.metrics["loss:sum"], "entropy": output.metrics["entropy:mean"]}
            | dict(step)
            | drift(data, output.logprobs)
            | {"tokens": float(trained_tokens(data))}
        )
    if not substeps:
        logger.warning("No group of this batch had differing rewards: nothing to learn from, no optimizer step taken.")
    metrics["train/optimizer_steps"] = float(len(substeps))
    metrics |= _mean(outputs)
    if outputs:
        # Later substeps are off-policy on purpose; only the first can tell whether sampler and trainer agree.
        metrics["train/ratio_error"] = outputs[0]["ratio_error"]
        metrics["train/tokens"] = sum(output["tokens"] for output in outputs)
    return metrics


def group_data(groups: Sequence[TrajectoryGroup], settings: UpdateSettings) -> tuple[list[list[Datum]], int]:
    """Training data of each informative group, and the number of groups whose rewards were all equal.

    With `remove_constant_reward_groups` off, constant groups keep their tokens with advantages of exactly 0: they
    count in the normaliser and change nothing else.
    """
    kept: list[list[Datum]] = []
    constant = 0
    for group in groups:
        valid = [t for t in group.trajectories if not t.errored and t.transitions]
        advantages = group_advantages(
            group, gamma=settings.gamma, normalize_by_std=settings.normalize_advantages_by_std
        )
        if advantages is None:
            constant += 1
            if settings.remove_constant_reward_groups or not valid:
                continue
            advantages = [[0.0] * len(t.transitions) if not t.errored else [] for t in group.trajectories]
        pairs = zip(group.trajectories, advantages, strict=True)
        kept.append([d for t, turns in pairs if turns for d in trajectory_data(t, turns)])
    return kept, constant


def normalise(data: Sequence[Datum]) -> list[Datum]:
    """Divide all advantages by the number of trained tokens of the whole optimizer step."""
    count = max(1, trained_tokens(data))
    return [replace(d, advantages=(d.advantages / count).astype(np.float32)) for d in data]


def drift(data: Sequence[Datum], logprobs: Sequence[FloatArray]) -> dict[str, float]:
    """How far the learner is from the behaviour policy before its step, over trained tokens.

    `kl_behaviour` is the k3 estimate of KL(behaviour || learner); `ratio_error` is max |ratio - 1|, which is rounding
    error on the first optimizer step of a batch and grows with later ones.
    """
    gaps = [(now - d.logprobs)[d.mask > 0] for d, now in zip(data, logprobs, strict=True)]
    gap = np.concatenate(gaps).astype(np.float64) if gaps else np.zeros(0)
    if not len(gap):
        return {}
    return {"kl_behaviour": float(np.mean(np.expm1(gap) - gap)), "ratio_error": float(np.max(np.abs(np.expm1(gap))))}


async def _penalise(
    backend: Backend, groups: list[list[Datum]], settings: UpdateSettings
) -> tuple[list[list[Datum]], float]:
    flat = [d for group in groups for d in group]
    reference = await backend.logprobs(flat, temperature=settings.loss.temperature, reference=True)
    penalised, kl = add_penalty(flat, reference, settings.kl_penalty_coef, settings.kl_discount_factor)
    remaining = iter(penalised)
    return [[next(remaining) for _ in group] for group in groups], kl


def _split_evenly(groups: list[list[Datum]], parts: int) -> list[list[list[Datum]]]:
    bounds = [round(i * len(groups) / parts) for i in range(parts + 1)]
    return [groups[a:b] for a, b in itertools.pairwise(bounds)]


def _informative(groups: list[list[Datum]]) -> bool:
    return any(bool(datum.advantages.any()) for group in groups for datum in group)


def _mean(outputs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    names = dict.fromkeys(name for output in outputs for name in output)
    return {f"train/{n}": float(np.mean([o[n] for o in outputs if n in o])) for n in names}
