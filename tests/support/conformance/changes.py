"""How a convention changes each side of a comparison, so that both then follow it.

Where numbers differ, a convention is put in: as settings of Assay's or of the peer's, as another batch for one side (a
penalty that is part of the reward, say), or as arithmetic on Assay's numbers. It explains the difference only if the
numbers are then equal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from assay.backends.base import KLEstimator
from assay.backends.local.losses import kl_estimate
from support.conformance.assay_side import Found
from support.conformance.cases import Case

Settings = Mapping[str, Any]
Ours = Settings | Sequence[tuple[float, Settings]]
"""Settings of `GRPOConfig`, or several of which the losses are added with these factors."""
Numbers = Found | Tensor
"""A loss with its gradients, or advantages."""


NO_PENALTY: Settings = {"kl_coef": 0.0, "kl_estimator": None, "kl_placement": None, "kl_unbiased": None}


def same(case: Case) -> Case:
    """The batch as it is."""
    return case


@dataclass(frozen=True)
class Change:
    """What a convention changes; see the module."""

    ours: Ours | None = None
    """Settings that go over Assay's (None takes one away), or sums that take their place."""
    theirs: Settings = field(default_factory=dict)
    """Settings that go over the peer's."""
    case: Callable[[Case], Case] = same
    """The batch that both get."""
    our_case: Callable[[Case], Case] = same
    """The batch that Assay alone gets."""
    found: Callable[[Numbers, Case], Numbers] = lambda found, case: found
    """What becomes of Assay's numbers on its batch."""


def sequence_ratio(logprobs: Tensor, behaviour: Tensor, advantages: Tensor, sequences: Tensor) -> Tensor:
    """The clipped loss of each sequence's own ratio, at its first token: what TRL's RLOO means."""
    sums = torch.zeros(int(sequences.max()) + 1, dtype=logprobs.dtype).index_add(0, sequences, logprobs - behaviour)
    first = torch.tensor([int((sequences == s).nonzero()[0]) for s in range(len(sums))])
    ratio, a = sums.exp(), advantages[first]
    return torch.zeros_like(logprobs).index_add(0, first, -torch.minimum(ratio * a, ratio.clamp(0.8, 1.2) * a))


def sample_deviation(epsilon: float) -> Change:
    """Advantages divided by the sample deviation plus an epsilon, where they were by the population's.

    A loss and its gradient are linear in the advantages, row by row; the sum over all rows is not changed.
    """

    def change(found: Numbers, case: Case) -> Numbers:
        factors = torch.ones(len(case["group"]), dtype=torch.float64)
        for group in case["group"].unique():
            rows = case["group"] == group
            known = case["rewards"][rows & ~case["rewards"].isnan()]
            if len(known) > 1:
                factors[rows] = known.std(correction=0) / (known.std(correction=1) + epsilon)
        if isinstance(found, Tensor):
            return found * factors
        return Found(found.loss, found.logprobs * factors[:, None], found.entropies)

    return Change(found=change)


def lone_reward(found: Numbers, case: Case) -> Tensor:
    """Advantages where a lone rollout has its reward."""
    assert isinstance(found, Tensor)
    alone = torch.bincount(case["group"])[case["group"]] == 1
    return torch.where(alone, case["rewards"], found)


def charged_to_rewards(estimator: KLEstimator, coef: float) -> Change:
    """The penalty of the whole rollout taken off its reward, before any baseline, and none besides."""

    def change(case: Case) -> Case:
        penalty = kl_estimate(estimator, case["behaviour"] - case["reference"]) * case["mask"]
        return {**case, "rewards": case["rewards"] - coef * penalty.sum(1)}

    return Change(NO_PENALTY, our_case=change)


def weight_of_sequence(other: str, base: str) -> Change:
    """Each token's log-ratio of the policy `base` to the policy `other` is the sum over its sequence."""

    def change(case: Case) -> Case:
        total = ((case[base] - case[other]) * case["mask"]).sum(1, keepdim=True)
        return {**case, other: (case[base] - total) * case["mask"]}

    return Change(our_case=change)


def dropped_outside(low: float, high: float) -> Change:
    """The sampler's log-probability is out of reach where the weight is not between these: a weight of exp(-20)."""

    def change(case: Case) -> Case:
        weight = (case["behaviour"] - case["sampler"]).exp()
        return {**case, "sampler": torch.where((weight >= low) & (weight <= high), case["sampler"], 1000.0)}

    return Change(our_case=change)


def masked_are_counted(found: Numbers, case: Case) -> Found:
    """A mean over all sequences, those without a trained token among them."""
    assert isinstance(found, Found)
    return found.times(1 - float(case["cut"].double().mean()))


def sequence_ratio_in_kl(coef: float) -> Change:
    """k3 of each token times the ratio of its sequence (the geometric mean), in a mean over sequences."""

    def change(found: Numbers, case: Case) -> Found:
        assert isinstance(found, Found)
        mask, now = case["mask"].double(), case["now"].clone().requires_grad_()
        sizes = mask.sum(1)
        ratio = (((now - case["behaviour"]) * mask).sum(1) / sizes).exp()
        loss = coef * ((kl_estimate("k3", now - case["reference"]) * mask).sum(1) / sizes * ratio).mean()
        (gradient,) = torch.autograd.grad(loss, now)
        return found + Found(loss.detach(), gradient, torch.zeros_like(gradient))

    return Change(NO_PENALTY, found=change)
