"""What verl makes of a batch: its registered policy losses, `agg_loss`, `kl_penalty` and advantage estimators.

Runs in verl's environment, which has no TRL: python -m support.conformance.verl_side QUESTIONS ANSWERS, two files of
`torch.save`. A question is a batch, its advantages and what to call.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from verl.trainer.config.algorithm import RolloutCorrectionConfig
from verl.trainer.ppo.core_algos import agg_loss, get_adv_estimator_fn, get_policy_loss_fn, kl_penalty
from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_weights
from verl.workers.config import ActorConfig, PolicyLossConfig


def answer(case: Mapping[str, Tensor], call: Mapping[str, Any], advantages: Tensor | None = None) -> dict[str, Tensor]:
    """`advantages` [B] of an estimator; or `loss`, `logprobs` and `entropies`, as `assay_side.Found`.

    Args:
        call: the arguments of `estimated`; or `mode`, a policy loss, with ActorConfig's fields, and `kl` (its form and
            coefficient), `entropy_coeff`, `tis` (arguments of the correction), `correction` (of `bypass_mode`),
            `advantages` (arguments of `estimated`, in place of the given ones).
        advantages: [B], of a loss.
    """
    given, mask = dict(call), case["mask"]
    if "estimator" in given:
        return {"advantages": estimated(case, **given)[:, 0]}
    assert advantages is not None
    own = given.pop("advantages", None)
    every = (advantages[:, None] * mask).double() if own is None else estimated(case, **own)
    now, entropies = (case[name].clone().requires_grad_() for name in ("now", "entropy"))
    kl, tis, mode = given.pop("kl", None), given.pop("tis", None), given.pop("mode")
    correction = RolloutCorrectionConfig(**given.pop("correction", {}))
    config = ActorConfig(
        **{
            "strategy": "fsdp",
            "rollout_n": 1,
            "ppo_micro_batch_size_per_gpu": 1,
            "policy_loss": PolicyLossConfig(mode, rollout_correction=correction),
        },
        **given,
    )
    config.global_batch_info["loss_scale_factor"] = config.loss_scale_factor
    weights = None
    if tis is not None:
        gap = case["behaviour"] - case["sampler"]
        weights, _ = compute_rollout_correction_weights(gap, mask, **tis)
    loss, _ = get_policy_loss_fn(mode)(
        *(case["behaviour"], now, every, mask, config.loss_agg_mode), config=config, rollout_is_weights=weights
    )

    def mean(values: Tensor) -> Tensor:
        found: Tensor = agg_loss(values, mask, config.loss_agg_mode, loss_scale_factor=config.loss_scale_factor)
        return found

    # As verl.workers.utils.losses.ppo_loss adds them.
    if config.entropy_coeff:
        loss = loss - config.entropy_coeff * mean(entropies)
    if kl is not None:
        form, coefficient = kl
        loss = loss + coefficient * mean(kl_penalty(now, case["reference"], form))
    loss.backward()
    gradients = [torch.zeros_like(x) if x.grad is None else x.grad for x in (now, entropies)]
    return dict(zip(("loss", "logprobs", "entropies"), (loss.detach(), *gradients), strict=True))


def estimated(
    case: Mapping[str, Tensor],
    *,
    estimator: str,
    penalty: tuple[str, float] | None = None,
    charged_to_tokens: bool = False,
    **further: Any,
) -> Tensor:
    """Advantages [B, T] of an estimator.

    Args:
        penalty: the form and coefficient of a KL penalty in the reward.
        charged_to_tokens: take it off the advantages instead, each token's from its own, centred over the batch.
        further: arguments of the estimator.
    """
    mask = case["mask"].double()
    rewards = torch.zeros_like(case["now"])
    rewards[torch.arange(len(mask)), case["mask"].sum(1) - 1] = case["rewards"]
    charge = torch.zeros_like(rewards)
    if penalty is not None:
        form, coefficient = penalty
        charge = coefficient * kl_penalty(case["behaviour"], case["reference"], form) * mask
    if not charged_to_tokens:  # as verl.trainer.ppo.ray_trainer.apply_kl_penalty
        rewards = rewards - charge
    index = np.array([f"group {g}" for g in case["group"].tolist()], dtype=object)
    found: Tensor = get_adv_estimator_fn(estimator)(rewards, mask, index=index, **further)[0]
    return found - (charge - charge.sum() / mask.sum()) * mask if charged_to_tokens else found


if __name__ == "__main__":
    questions, answers = sys.argv[1:]
    asked = torch.load(questions, weights_only=True)
    torch.save([answer(*question) for question in asked], answers)
