"""Token losses with Tinker's semantics: a sum over tokens, no normalisation of its own.

With p the learner's log-probability of a sampled token, q the behaviour policy's, A the advantage (which carries the
batch's normaliser) and r = exp(p - q):

    cross_entropy         -p * A                      A are Tinker's `weights`
    importance_sampling   -r * A
    ppo                   -min(r * A, clip(r, lo, hi) * A)          lo = 0.8, hi = 1.2
    cispo                 -stop_gradient(clip(r, lo, hi)) * p * A   lo = 0.0, hi = 4.0
    gspo                  as ppo, with r = exp(mean over the sequence of p - q) for all its tokens; for the gradient,
                          r * exp(p - stop_gradient(p))

Thresholds are absolute ratios. Where all tokens of a sequence have one advantage, gspo has the gradient of the ratio of
the sequence; where they differ (turns, a penalty in the reward), each token still answers for its own. Sources:
Tinker's documentation of losses; arXiv 2507.18071, section 4.3 (GSPO-token), for gspo.

Two terms may be added, each weighted per token by `Datum.weights` (the batch's normaliser): a KL penalty and an entropy
bonus. With d = p - log ref, the estimators of KL(policy || reference) and what their plain gradient is on-policy:

    k1 = d              no gradient in expectation: as a loss it regularises nothing
    k2 = d^2 / 2        the gradient of KL(policy || reference)
    k3 = e^-d - 1 + d   the gradient of KL(reference || policy)
    abs = |d|           of no KL divergence

The unbiased form of k1 and k3 multiplies by r with its gradient, that of k2 by r without: each then has the gradient of
KL(policy || reference), also for samples of an older policy (arXiv 2510.01555, 2512.02556).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from assay.backends.base import KLEstimator, KLTerm, LossSpec, LossTerm
from assay.backends.config import loss_settings


@dataclass(frozen=True)
class Streams:
    """What a loss needs of N trained tokens, each [N]; `weights` and `reference` where the data have them.

    `sequences` numbers the sequence that each token belongs to, from 0.
    """

    targets: Tensor
    behaviour: Tensor
    advantages: Tensor
    sequences: Tensor
    weights: Tensor | None = None
    reference: Tensor | None = None


def token_losses(spec: LossSpec, logprobs: Tensor, entropies: Tensor, data: Streams) -> dict[LossTerm, Tensor]:
    """The terms of the loss of each token: `policy`, and `kl` and `entropy` where the spec asks for them.

    Args:
        logprobs: [N] the learner's log-probabilities, with gradient.
        entropies: [N] entropies of the learner's distributions, with gradient where `entropy_coef` is not 0.

    Returns:
        [N] each; the sum of all is what is minimised.

    Raises:
        ValueError: a term is asked for and the data lack `weights` or `reference`.
    """
    terms: dict[LossTerm, Tensor] = {"policy": policy_loss(spec, logprobs, data)}
    if spec.kl is not None:
        if data.reference is None or data.weights is None:
            raise ValueError("a KL term needs data with ref_logprobs and weights")
        terms["kl"] = data.weights * kl_penalty(spec.kl, logprobs, data.behaviour, data.reference)
    if spec.entropy_coef:
        if data.weights is None:
            raise ValueError("an entropy bonus needs data with weights")
        terms["entropy"] = -spec.entropy_coef * data.weights * entropies
    return terms


def policy_loss(spec: LossSpec, logprobs: Tensor, data: Streams) -> Tensor:
    """The surrogate of each token, [N]; see the module."""
    config = loss_settings(spec)
    if spec.name == "cross_entropy":
        return -logprobs * data.advantages
    log_ratio = logprobs - data.behaviour
    if spec.name == "gspo":
        log_ratio = sequence_mean(log_ratio.detach(), data.sequences) + (logprobs - logprobs.detach())
    ratio = torch.exp(log_ratio)
    if spec.name == "importance_sampling":
        return -ratio * data.advantages
    clipped = ratio.clamp(config["clip_low_threshold"], config["clip_high_threshold"])
    if spec.name == "cispo":
        return -clipped.detach() * logprobs * data.advantages
    return -torch.minimum(ratio * data.advantages, clipped * data.advantages)


def sequence_mean(values: Tensor, sequences: Tensor) -> Tensor:
    """The mean of [N] values over the tokens of each sequence, given to each of its tokens."""
    count = int(sequences.max()) + 1 if len(sequences) else 0
    sums = values.new_zeros(count).index_add(0, sequences, values)
    sizes = torch.bincount(sequences, minlength=count).to(values.dtype)
    return (sums / sizes).index_select(0, sequences)


def kl_penalty(term: KLTerm, logprobs: Tensor, behaviour: Tensor, reference: Tensor) -> Tensor:
    """`coef` times the estimate of each token, [N], with the gradient that the term's form gives it."""
    value = kl_estimate(term.estimator, logprobs - reference)
    if term.unbiased:
        ratio = torch.exp(logprobs - behaviour)
        value = value * (ratio.detach() if term.estimator == "k2" else ratio)
    return term.coef * value


def kl_estimate(estimator: KLEstimator, difference: Tensor) -> Tensor:
    """The estimate of each token from d = log policy - log reference on sampled tokens.

    Source: Schulman, "Approximating KL divergence" (2020), whose k1, k2 and k3 these are.
    """
    if estimator == "k1":
        return difference
    if estimator == "k2":
        return difference.square() / 2
    if estimator == "k3":
        return torch.expm1(-difference) + difference
    return difference.abs()
