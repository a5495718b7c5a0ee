"""The conventions in which Assay, TRL and verl differ, and what Assay has no counterpart of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Convention:
    """Where Assay and a peer mean different things by the same name."""

    right: str
    """Who is right."""
    why: str


CONVENTIONS: Mapping[str, Convention] = {
    "deviation": Convention(
        "either",
        "TRL and verl divide by the sample deviation plus an epsilon (1e-4, 1e-6), Assay by the population's without "
        "one; no paper says which. For a group of n the factor is sqrt(1 - 1/n), which a learning rate absorbs.",
    ),
    "constant groups": Convention(
        "Assay",
        "DAPO's dynamic sampling, which MiniMax-M1 uses too, keeps groups with equal rewards out of the mean. "
        "TRL and verl count their tokens; Assay does so with count_constant_groups=true.",
    ),
    "dual clip": Convention(
        "Assay",
        "verl bounds the loss of tokens with a negative advantage (clip_ratio_c=3, arXiv 1912.09729) in every vanilla "
        "loss; the papers of PPO and GRPO do not. In Assay it is a loss of one's own (docs/grpo.md).",
    ),
    "ratio of a sequence": Convention(
        "either",
        "TRL's RLOO clips the ratio of whole sequences; Assay weights each token by its own. On-policy, where the "
        "paper uses it, gradients are equal; off-policy the product is unbiased until it is clipped, and varies more.",
    ),
    "mean of the entropy": Convention(
        "either",
        "TRL's entropy bonus is a mean over tokens in every loss; Assay's and verl's has the normaliser of the loss.",
    ),
    "k3 within 10": Convention(
        "Assay",
        "verl cuts the k3 estimate of a token at 10 nats, where its gradient vanishes; Schulman's has no such bound.",
    ),
    "KL in the reward": Convention(
        "either",
        "TRL's RLOO and verl take the KL of the whole completion off its reward, before baseline and deviation. Assay "
        "charges each token its own, centred over the step. The first estimates the gradient of the sequence's KL, "
        "and varies more the longer the completion; the second leaves out what a token does to later ones "
        "(kl_discount_factor=1 charges these too).",
    ),
    "weight of a sequence": Convention(
        "either",
        "TRL's default and an option of verl weight all tokens by the product of their sequence's ratios, which is "
        "unbiased until it is cut and varies with the length; Assay's tis_cap weights each token by its own.",
    ),
    "weights that are dropped": Convention(
        "either",
        "TRL's default and verl's IcePop train nothing where a weight is out of bounds; Assay's tis_cap cuts it.",
    ),
    "masked answers": Convention(
        "Assay",
        "With answers that were cut off left out of the loss, TRL's mean over sequences divides by their number too, "
        "so the step shrinks by how many there are; Assay's divides by the sequences that are trained.",
    ),
    "ratio in the KL": Convention(
        "Assay",
        "TRL weights the KL by the ratio of its loss: with GSPO the sequence's. Its own documentation says that only "
        "a token's ratio gives the gradient of KL(policy, reference); Assay's kl_unbiased takes that in every loss.",
    ),
    "a group of one": Convention(
        "Assay",
        "verl takes a lone rollout's reward for its advantage (a baseline of 0); it has nothing to be compared with.",
    ),
}

ABSENT: Mapping[str, Mapping[str, str]] = {
    "trl": {
        "sapo": "a sigmoid gate in place of the clip",
        "vespo": "a gamma-shaped weight of the whole sequence",
    },
    "verl": {
        "clip_cov": "tokens of high covariance between log-probability and advantage are not trained",
        "dppo_kl": "tokens are masked by their KL to the sampler",
        "dppo_tv": "tokens are masked by their total variation to the sampler",
        "dro": "a quadratic penalty on the log-ratio to the sampler",
        "geo_mean": "the geometric mean of clipped token ratios (GMPO)",
        "kl_cov": "tokens of high covariance have a KL penalty to the sampler",
        "sapo": "a sigmoid gate in place of the clip",
    },
    "verl, advantages": {
        "gae": "a critic",
        "gdpo": "each part of the reward divided by a deviation of its own",
        "gpg": "a factor for groups without a reward",
        "grpo_passk": "only a group's best answer has an advantage",
        "opo": "a baseline weighted by lengths",
        "optimal_token_baseline": "a baseline for each token position",
        "reinforce_plus_plus": "no group: whitened over the batch's tokens",
        "reinforce_plus_plus_baseline": "whitened over the batch's tokens",
        "remax": "the reward of the greedy answer as the baseline",
        "tir_optimal_token_baseline": "a baseline for each token position over turns",
    },
}
"""Losses (and advantages) of the peers that no setting of Assay's means: what is different about each."""
