"""Truncated importance sampling for rollouts whose sampler differs from the trainer (Yao et al. 2025).

A separate inference engine gives slightly different probabilities than the model that is trained, even with the same
weights. Each token's advantage is weighted by min(trainer / sampler, cap), detached, and the trainer's own
log-probabilities replace the sampler's in the policy ratio. So for fresh rollouts the mismatch and the effect of later
passes are corrected separately (for rollouts of an older policy one weight holds both). The weights are kept apart from
the advantages until the normaliser, because a KL penalty in the reward is part of the advantage too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from assay.backends.base import LOG_RATIO_LIMIT
from assay.types import Datum, FloatArray


def importance_weights(data: Sequence[Datum], trainer: Sequence[FloatArray], cap: float) -> tuple[list[Datum], float]:
    """The data with `importance` and the trainer's log-probabilities, and the mean weight of a trained token.

    Args:
        data: with the sampler's log-probabilities.
        trainer: the trainer's log-probabilities under the weights that sampled, one array [T] per datum.
        cap: largest weight.
    """
    corrected, total, count = [], 0.0, 0.0
    for datum, logprobs in zip(data, trainer, strict=True):
        gap = np.clip(logprobs - datum.logprobs, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
        weights = np.minimum(np.exp(gap), cap) * datum.mask
        corrected.append(replace(datum, logprobs=logprobs, importance=weights.astype(np.float32)))
        total, count = total + float(weights.sum()), count + float(datum.mask.sum())
    return corrected, total / max(1.0, count)
