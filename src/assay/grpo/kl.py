"""KL penalty against a reference policy, placed in the advantages.

With d_t = log pi(a_t) - log ref(a_t) on sampled tokens, each token's advantage gains coef * (mean(d) - d_t), where the
mean runs over all trained tokens of the batch. In expectation this is the gradient of -coef * KL(pi || ref); centring
only lowers the variance. With a discount, a token also answers for the penalties of the tokens after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from assay.types import Datum, FloatArray


def add_penalty(
    data: Sequence[Datum], reference: Sequence[FloatArray], coef: float, discount: float
) -> tuple[list[Datum], float]:
    """Data with the penalty added to their advantages, and the mean of d over trained tokens (the KL estimate k1).

    Args:
        reference: the reference policy's log-probability of every target, one array [T] per datum.
        coef: weight of the penalty.
        discount: 0 charges a token its own penalty only; towards 1, those of all later tokens too.
    """
    differences = [(d.logprobs - ref) * d.mask for d, ref in zip(data, reference, strict=True)]
    count = sum(float(d.mask.sum()) for d in data)
    mean = sum(float(x.sum()) for x in differences) / max(1.0, count)
    penalised = []
    for datum, difference, ref in zip(data, differences, reference, strict=True):
        charge = coef * datum.mask * (mean - difference)
        charge = discounted_sum(charge, discount) * datum.mask
        penalised.append(replace(datum, advantages=(datum.advantages + charge).astype(np.float32), ref_logprobs=ref))
    return penalised, mean


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
