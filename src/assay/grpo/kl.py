"""KL penalty against a reference policy: its place in the reward, and the controllers of its coefficient.

With k_t the chosen estimate of the KL divergence on sampled token t (`backends.losses.kl_estimate`), placing the
penalty in the reward gives each token's advantage coef * (mean(k) - k_t), where the mean runs over all trained tokens
of the step: centring only lowers the variance. With k1 this is in expectation the gradient of -coef * KL(policy ||
reference). With a discount, a token is also charged for the penalties of later tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np

from assay.backends.base import KLEstimator
from assay.types import Datum, FloatArray

KL_COEF_RANGE = (1e-3, 1.0)
"""Where the `threshold` controller keeps the coefficient."""


def estimates(estimator: KLEstimator, logprobs: FloatArray, reference: FloatArray) -> FloatArray:
    """Estimate of each token from two arrays of log-probabilities of the same shape."""
    # Imported here, because a run's settings are checked without torch.
    import torch

    from assay.backends.local.losses import kl_estimate

    difference = torch.from_numpy(logprobs.astype(np.float64) - reference.astype(np.float64))
    found: FloatArray = kl_estimate(estimator, difference).numpy()
    return found


def add_penalty(data: Sequence[Datum], coef: float, estimator: KLEstimator, discount: float) -> list[Datum]:
    """Data (with `ref_logprobs`) of one optimizer step with the penalty added to their advantages.

    Args:
        coef: weight of the penalty.
        discount: 0 charges a token its own penalty only; towards 1, those of all later tokens too.
    """
    penalties = []
    for datum in data:
        assert datum.ref_logprobs is not None, "the trainer computes reference log-probabilities first"
        penalties.append(estimates(estimator, datum.logprobs, datum.ref_logprobs) * datum.mask)
    count = sum(float(d.mask.sum()) for d in data)
    mean = sum(float(p.sum()) for p in penalties) / max(1.0, count)
    penalised = []
    for datum, penalty in zip(data, penalties, strict=True):
        charge = discounted_sum(coef * datum.mask * (mean - penalty), discount) * datum.mask
        penalised.append(replace(datum, advantages=(datum.advantages + charge).astype(np.float32)))
    return penalised


def discounted_sum(values: FloatArray, discount: float) -> FloatArray:
    """S_t = v_t + discount * S_{t+1} over the array [T]."""
    if discount == 0:
        return values
    out = np.zeros_like(values)
    following = 0.0
    for t in range(len(values) - 1, -1, -1):
        following = float(values[t]) + discount * following
        out[t] = following
    return out


def adapt(
    coef: float, kl: float, target: float, *, controller: Literal["threshold", "ziegler"], rollouts: int, horizon: int
) -> float:
    """The KL coefficient after a training step.

    Args:
        kl: mean KL of the step, nats per token; an estimate that is never negative.
        rollouts: rollouts of the step.
        horizon: rollouts over which `ziegler` corrects an error.

    Source of `ziegler`: Ziegler et al. 2019, arXiv 1909.08593, section 2.2.
    """
    if controller == "ziegler":
        error = min(0.2, max(-0.2, kl / target - 1))
        return coef * (1 + error * rollouts / horizon)
    factor = 1.1 if kl > 1.5 * target else 0.9 if kl < 0.5 * target else 1.0
    low, high = KL_COEF_RANGE
    return min(max(high, coef), max(min(low, coef), coef * factor))
