"""Losses have Tinker's values and gradients, and refuse settings that they would not read."""

from __future__ import annotations

import math

import pytest
import torch

from assay.backends.base import LossSpec
from assay.backends.local.losses import Streams, policy_loss
from assay.errors import ConfigError
from support.losses import named_loss

LOGPROBS = torch.tensor([-1.0, -0.5, -2.0, -0.1], dtype=torch.float64)
BEHAVIOUR = torch.tensor([-1.5, -0.5, -1.0, -0.4], dtype=torch.float64)
ADVANTAGES = torch.tensor([1.0, -2.0, 0.5, -1.0], dtype=torch.float64)


def values_and_gradients(spec: LossSpec) -> tuple[list[float], list[float]]:
    logprobs = LOGPROBS.clone().requires_grad_()
    loss = policy_loss(spec, logprobs, Streams(torch.zeros(4), BEHAVIOUR, ADVANTAGES, torch.zeros(4, dtype=torch.long)))
    loss.sum().backward()
    assert logprobs.grad is not None
    return loss.tolist(), logprobs.grad.tolist()


RATIOS = [math.exp(p - q) for p, q in zip(LOGPROBS.tolist(), BEHAVIOUR.tolist(), strict=True)]


def test_importance_sampling() -> None:
    loss, gradient = values_and_gradients(named_loss("importance_sampling"))
    want = [-r * a for r, a in zip(RATIOS, ADVANTAGES.tolist(), strict=True)]
    assert loss == pytest.approx(want) and gradient == pytest.approx(want)


def test_ppo_clips_only_what_moved_the_way_it_was_pushed() -> None:
    loss, gradient = values_and_gradients(named_loss("ppo"))
    # 1: ratio 1.65 with A > 0 is clipped at 1.2; 3: 0.37 with A > 0 is not; 4: 1.35 with A < 0 is not.
    assert loss == pytest.approx([-1.2, 2.0, -0.5 * RATIOS[2], RATIOS[3]])
    assert gradient == pytest.approx([0.0, 2.0, -0.5 * RATIOS[2], RATIOS[3]])


def test_cispo_keeps_the_gradient_of_every_token() -> None:
    loss, gradient = values_and_gradients(named_loss("cispo", clip_high_threshold=1.2))
    weights = [min(r, 1.2) * a for r, a in zip(RATIOS, ADVANTAGES.tolist(), strict=True)]
    assert loss == pytest.approx([-w * p for w, p in zip(weights, LOGPROBS.tolist(), strict=True)])
    assert gradient == pytest.approx([-w for w in weights])


def test_cross_entropy_weights_each_token() -> None:
    loss, gradient = values_and_gradients(named_loss("cross_entropy"))
    assert loss == pytest.approx([-p * a for p, a in zip(LOGPROBS.tolist(), ADVANTAGES.tolist(), strict=True)])
    assert gradient == pytest.approx([-a for a in ADVANTAGES.tolist()])


def test_a_loss_is_computed_under_its_own_name_or_not_at_all() -> None:
    with pytest.raises(ConfigError, match=r"loss 'dro' is not one of cross_entropy, importance_sampling, ppo, "):
        values_and_gradients(LossSpec("dro"))
    with pytest.raises(TypeError, match="'clip_high'"):
        values_and_gradients(named_loss("ppo", clip_high=1.2))
    with pytest.raises(TypeError, match="missing 2 required keyword-only arguments"):
        values_and_gradients(LossSpec("cispo"))


def test_gspo_has_the_ratio_of_the_sequence_and_each_token_answers_for_its_own_advantage() -> None:
    wide = named_loss("gspo", clip_low_threshold=0.1, clip_high_threshold=10.0)
    ratio = math.exp(sum(math.log(r) for r in RATIOS) / 4)
    loss, gradient = values_and_gradients(wide)
    assert loss == pytest.approx([-ratio * a for a in ADVANTAGES.tolist()])
    assert gradient == pytest.approx(loss), "the mean of all advantages would take credit from one turn for another"


def test_gspo_with_one_advantage_has_the_gradient_of_the_ratio_of_the_sequence() -> None:
    logprobs = LOGPROBS.clone().requires_grad_()
    (-0.7 * torch.exp((logprobs - BEHAVIOUR).mean())).backward()
    found = LOGPROBS.clone().requires_grad_()
    data = Streams(torch.zeros(4), BEHAVIOUR, torch.full_like(BEHAVIOUR, 0.7 / 4), torch.zeros(4, dtype=torch.long))
    wide = named_loss("gspo", clip_low_threshold=0.1, clip_high_threshold=10.0)
    policy_loss(wide, found, data).sum().backward()
    torch.testing.assert_close(found.grad, logprobs.grad)
