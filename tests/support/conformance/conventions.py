"""The conventions in which Assay, TRL and verl differ."""

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
    "a group of one": Convention(
        "Assay",
        "verl takes a lone rollout's reward for its advantage (a baseline of 0); it has nothing to be compared with.",
    ),
}
