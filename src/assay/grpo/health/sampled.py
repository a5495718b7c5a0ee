"""KL and entropy of everything that was sampled, groups with equal rewards included.

The other metrics of training are those of the tokens that are trained on. A policy that has collapsed to one answer for
each prompt trains on nothing, so they fall silent where they matter most.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from assay.backends.base import Backend
from assay.grpo.admit import behaviour_from_policy, with_reference
from assay.grpo.buffer import BufferedGroup
from assay.grpo.config import GRPOConfig
from assay.grpo.datum import trajectory_data
from assay.grpo.group_data import flat
from assay.grpo.health.rules import SAMPLED_ENTROPY, SAMPLED_KL, SAMPLED_KL_TAIL
from assay.grpo.kl import estimates
from assay.types import Datum, FloatArray, Trajectory, TrajectoryGroup

PROBED = 16
"""Most groups outside the training data from which a rollout is measured against the reference: a bound on the cost."""


async def sampled_metrics(
    backend: Backend,
    config: GRPOConfig,
    groups: Sequence[TrajectoryGroup],
    items: Sequence[BufferedGroup],
    *,
    behaviour_known: bool,
) -> dict[str, float]:
    """`sampled_entropy` (minus the mean log-probability) and, with a reference, `sampled_kl` and `sampled_kl_95pct`.

    The policy is the one that sampled. Of each group without training data (at most `PROBED`, evenly spaced) the first
    scored rollout is measured, and counts for all tokens of such groups.

    Args:
        groups: the batch, as sampled.
        items: the training data made of it; `id` is the place of the group in the batch.
    """
    used = {item.id for item in items if item.data}
    left = [scored for place, group in enumerate(groups) if place not in used and (scored := _scored(group))]
    places = dict.fromkeys(i * len(left) // min(PROBED, len(left)) for i in range(min(PROBED, len(left))))
    rows = tuple(d for place in places for d in _data(left[place][0]))
    probe = [BufferedGroup(rows, backend.policy_version, len(places))] if rows else []
    if not behaviour_known:
        probe = await behaviour_from_policy(backend, config, probe)
    probe = await with_reference(backend, config, probe)
    trained, probed = flat(items), flat(probe)
    if not trained and not probed:
        return {}
    # Tokens that are trained on stand for themselves, those of the probe for all tokens of the groups it is drawn from.
    tokens = sum(len(turn.completion.tokens) for rollouts in left for r in rollouts for turn in r.transitions)
    counts = [sum(int(d.mask.sum()) for d in data) for data in (trained, probed)]
    weights = np.repeat([1.0, tokens / max(1, counts[1])], counts)
    now = _pooled(trained + probed, "logprobs")
    metrics = {SAMPLED_ENTROPY: float(-np.average(now, weights=weights))}
    if config.kl_coef:
        kl = estimates("k3", now, _pooled(trained + probed, "ref_logprobs"))
        metrics |= {
            SAMPLED_KL: float(np.average(kl, weights=weights)),
            SAMPLED_KL_TAIL: weighted_percentile(kl, weights, 95),
        }
    return metrics


def weighted_percentile(values: FloatArray, weights: FloatArray, percent: float) -> float:
    """The smallest of the values [N] with at least so much of the weight [N] at or below it."""
    order = np.argsort(values)
    below = np.cumsum(weights[order])
    place = int(np.searchsorted(below, percent / 100 * below[-1] * (1 - 1e-12)))
    return float(values[order[place]])


def _scored(group: TrajectoryGroup) -> list[Trajectory]:
    return [t for t in group.trajectories if not t.errored and any(turn.completion.tokens for turn in t.transitions)]


def _data(rollout: Trajectory) -> list[Datum]:
    data = trajectory_data(rollout, [0.0] * len(rollout.transitions), mask_truncated=False)
    return [datum for datum in data if datum.mask.any()]


def _pooled(data: Sequence[Datum], stream: str) -> FloatArray:
    found: FloatArray = np.concatenate([getattr(d, stream)[d.mask > 0] for d in data]).astype(np.float64)
    return found
