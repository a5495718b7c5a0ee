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

from collections.abc import Mapping

import torch
from torch import Tensor

from assay.backends.base import LossSpec
from assay.errors import ConfigError

DEFAULTS: Mapping[str, Mapping[str, float]] = {
    "cross_entropy": {},
    "importance_sampling": {},
    "ppo": {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2},
    "cispo": {"clip_low_threshold": 0.0, "clip_high_threshold": 4.0},
}


def settings(spec: LossSpec) -> dict[str, float]:
    """The loss's settings with defaults filled in.

    Raises:
        ConfigError: an unknown loss, an unknown setting, or thresholds out of order.
    """
    if spec.name not in DEFAULTS:
        raise ConfigError(f"loss {spec.name!r} is not one of {', '.join(DEFAULTS)}.")
    known = DEFAULTS[spec.name]
    unknown = sorted(set(spec.config) - set(known))
    if unknown:
        raise ConfigError(
            f"loss_fn_config sets {', '.join(unknown)}, which {spec.name} does not read, so it would do nothing. "
            f"{spec.name} reads: {', '.join(known) or 'no settings'}."
        )
    merged = {**known, **spec.config}
    if known and not 0 <= merged["clip_low_threshold"] <= merged["clip_high_threshold"]:
        raise ConfigError(f"loss_fn_config {merged} needs 0 <= clip_low_threshold <= clip_high_threshold.")
    return merged


def token_loss(spec: LossSpec, logprobs: Tensor, behaviour: Tensor, advantages: Tensor) -> Tensor:
    """Loss of each token.

    Args:
        logprobs: [N] the learner's log-probabilities, with gradient.
        behaviour: [N] the behaviour policy's log-probabilities (unused by cross_entropy).
        advantages: [N] advantages, or weights for cross_entropy.

    Returns:
        [N] losses; their sum is what is minimised.
    """
    config = settings(spec)
    if spec.name == "cross_entropy":
        return -logprobs * advantages
    ratio = torch.exp(logprobs - behaviour)
    if spec.name == "importance_sampling":
        return -ratio * advantages
    clipped = ratio.clamp(config["clip_low_threshold"], config["clip_high_threshold"])
    if spec.name == "ppo":
        return -torch.minimum(ratio * advantages, clipped * advantages)
    return -clipped.detach() * logprobs * advantages
