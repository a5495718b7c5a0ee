"""Token losses with Tinker's semantics: a sum over tokens, no normalisation of its own.

With p the learner's log-probability of a sampled token, q the behaviour policy's, A the advantage (which carries the
batch's normaliser) and r = exp(p - q):

    cross_entropy         -p * A                      A are Tinker's `weights`
    importance_sampling   -r * A
    ppo                   -min(r * A, clip(r, lo, hi) * A)          lo = 0.8, hi = 1.2
    cispo                 -stop_gradient(clip(r, lo, hi)) * p * A   lo = 0.0, hi = 4.0

Source: Tinker's documentation of losses. Thresholds are absolute ratios.
"""

from __future__ import annotations

import torch
from torch import Tensor

from assay.backends.base import LossSpec
from assay.backends.config import loss_settings


def token_loss(spec: LossSpec, logprobs: Tensor, behaviour: Tensor, advantages: Tensor) -> Tensor:
    """Loss of each token.

    Args:
        logprobs: [N] the learner's log-probabilities, with gradient.
        behaviour: [N] the behaviour policy's log-probabilities (unused by cross_entropy).
        advantages: [N] advantages, or weights for cross_entropy.

    Returns:
        [N] losses; their sum is what is minimised.
    """
    config = loss_settings(spec)
    if spec.name == "cross_entropy":
        return -logprobs * advantages
    ratio = torch.exp(logprobs - behaviour)
    if spec.name == "importance_sampling":
        return -ratio * advantages
    clipped = ratio.clamp(config["clip_low_threshold"], config["clip_high_threshold"])
    if spec.name == "ppo":
        return -torch.minimum(ratio * advantages, clipped * advantages)
    return -clipped.detach() * logprobs * advantages
