"""Log-probabilities that lie far apart: finite gradients, and the same bits wherever they are not far apart."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from assay import GRPOConfig, GRPOTrainer, HealthConfig, Recipe, StepData
from assay.backends.base import LOG_RATIO_LIMIT, KLEstimator, KLTerm, LossSpec
from assay.backends.local.losses import SURROGATES, Streams, kl_estimate, sequence_mean, token_losses, within_limit
from assay.grpo.correction import importance_weights
from assay.grpo.recipes import RECIPES, clip
from assay.grpo.step_metrics import clipped, mismatch
from assay.types import Datum
from support.losses import named_loss
from support.off_policy import MADE_UP
from support.own_rollouts import made_up, same, snapshot
from support.tiny_models import tiny_model

ESTIMATORS: tuple[KLEstimator, ...] = get_args(KLEstimator)
POLICY = [name for name in SURROGATES if name != "cross_entropy"]
FAR = st.one_of(st.floats(0, 30), st.floats(0, 1e4))
"""How far below 0 a log-probability lies."""


def own(logprobs: Tensor, behaviour: Tensor, advantages: Tensor, sequences: Tensor) -> Tensor:
    """A surrogate as a user writes it, without a thought of overflow."""
    return -torch.exp(logprobs - behaviour) * advantages


def loss_of(name: str) -> LossSpec:
    return LossSpec(own) if name == "own" else named_loss(name)


def evaluate(spec: LossSpec, logprobs: Tensor, data: Streams) -> tuple[dict[Any, Tensor], Tensor]:
    """The terms, and the gradient of their sum."""
    now = logprobs.clone().requires_grad_()
    terms = token_losses(spec, now, torch.zeros(len(now)), data)
    torch.stack(list(terms.values())).sum().backward()
    assert now.grad is not None
    return {n: t.detach() for n, t in terms.items()}, now.grad


def streams(behaviour: Tensor, reference: Tensor, advantages: Tensor, sequences: Tensor) -> Streams:
    count = len(behaviour)
    return Streams(torch.zeros(count), behaviour, advantages, sequences, torch.full((count,), 1 / count), reference)


@pytest.mark.parametrize("name", [*POLICY, "own"])
@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    tokens=st.lists(st.tuples(st.floats(0, 30), FAR, FAR, st.sampled_from([-2.0, 0.0, 0.7])), min_size=1, max_size=6),
    estimator=st.sampled_from(ESTIMATORS),
)
def test_gradients_are_finite_however_far_the_behaviour_policy_was(
    name: str, tokens: list[tuple[float, float, float, float]], estimator: KLEstimator
) -> None:
    now, behaviour, reference, advantages = torch.tensor(tokens, dtype=torch.float32).T
    data = streams(-behaviour, -reference, advantages, torch.arange(len(tokens)) // 2)
    for unbiased in (False, True) if estimator != "abs" else (False,):
        spec = replace(loss_of(name), kl=KLTerm(0.1, estimator, unbiased))
        terms, gradient = evaluate(spec, -now, data)
        assert all(bool(torch.isfinite(t).all()) for t in terms.values()), terms
        assert bool(torch.isfinite(gradient).all()), gradient
        # Far from overflow, too: norms square it.
        assert bool(torch.isfinite(gradient.square().sum()))


def plain(name: str, p: Tensor, q: Tensor, advantages: Tensor, sequences: Tensor) -> Tensor:
    """The surrogates as papers write them."""
    low, high = RECIPES[name].thresholds.values() if RECIPES[name].thresholds else (0.0, math.inf)
    if name == "gspo":
        ratio = torch.exp(sequence_mean((p - q).detach(), sequences) + (p - p.detach()))
    else:
        ratio = torch.exp(p - q)
    if name == "cispo":
        return -ratio.clamp(low, high).detach() * p * advantages
    if name == "importance_sampling":
        return -ratio * advantages
    return -torch.minimum(ratio * advantages, ratio.clamp(low, high) * advantages)


def sane(count: int = 4000) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    p, q = (-18 * torch.rand(count, generator=generator) for _ in range(2))
    return p, q, torch.randn(count, generator=generator), torch.arange(count) // 7


@pytest.mark.parametrize("name", POLICY)
def test_nearer_than_the_limit_every_bit_is_that_of_the_loss_without_one(name: str) -> None:
    p, q, advantages, sequences = sane()
    terms, gradient = evaluate(named_loss(name), p, streams(q, q, advantages, sequences))
    now = p.clone().requires_grad_()
    expected = plain(name, now, q, advantages, sequences)
    expected.sum().backward()
    assert torch.equal(terms["policy"], expected) and torch.equal(gradient, now.grad)  # type: ignore[arg-type]


def test_nearer_than_the_limit_estimates_weights_and_behaviour_keep_every_bit() -> None:
    p, q, *_ = sane()
    assert torch.equal(kl_estimate("k3", p - q), torch.expm1(-(p - q)) + (p - q))
    assert torch.equal(within_limit(p, q), q)
    ones = np.ones(len(p), np.float32)
    datum = Datum(np.arange(len(p)), np.arange(len(p)), q.numpy(), ones, ones)
    [corrected], _ = importance_weights([datum], [p.numpy()], 2.0)
    np.testing.assert_array_equal(corrected.importance, np.minimum(np.exp(p.numpy() - q.numpy()), 2.0))


def test_a_token_beyond_the_limit_gives_no_gradient_through_its_ratio_and_the_others_keep_theirs() -> None:
    p, advantages = torch.tensor([-1.0, -2.0]), torch.tensor([-1.0, -1.0])
    for far in (-200.0, -1e4):
        data = streams(torch.tensor([far, -2.5]), p, advantages, torch.arange(2))
        _, gradient = evaluate(named_loss("importance_sampling"), p, data)
        assert gradient.tolist() == pytest.approx([0.0, math.exp(0.5)])
    limit = math.exp(LOG_RATIO_LIMIT)
    terms, _ = evaluate(LossSpec(own), p, streams(torch.tensor([-200.0, 19.5]), p, advantages, torch.arange(2)))
    assert terms["policy"].tolist() == pytest.approx([limit, 1 / limit], rel=1e-5), "on both sides"


def test_a_token_that_the_policy_hardly_knows_has_a_finite_k3() -> None:
    difference = torch.tensor([-200.0, -19.0], requires_grad=True)
    value = kl_estimate("k3", difference)
    value.sum().backward()
    assert float(value[0]) == pytest.approx(math.expm1(LOG_RATIO_LIMIT) - LOG_RATIO_LIMIT)
    assert difference.grad is not None
    assert difference.grad.tolist() == [0, pytest.approx(1 - math.exp(19))]


def test_a_policy_far_from_its_reference_is_still_pulled_back() -> None:
    for estimator in ESTIMATORS:
        difference = torch.tensor([5.0, 30.0, 300.0], requires_grad=True)
        kl_estimate(estimator, difference).sum().backward()
        assert difference.grad is not None and bool((difference.grad > 0.9).all()), estimator


@pytest.mark.parametrize(
    "setting",
    [
        *({"loss_fn": name} for name in RECIPES),
        {"loss_fn": Recipe(own)},
        {"loss_fn": "grpo", "kl_estimator": "k3", "kl_unbiased": True},
        {"loss_fn": "ppo", "tis_cap": 2.0},
        {"loss_fn": "ppo", "kl_placement": "reward", "kl_estimator": "k3"},
    ],
    ids=lambda s: "-".join(str(getattr(v, "name", v)) for v in s.values()),
)
def test_one_impossible_log_probability_costs_a_step_nothing_but_its_token(
    setting: dict[str, Any], recwarn: pytest.WarningsRecorder
) -> None:
    far = -200.0
    model = tiny_model("gpt2")
    data = made_up(model)
    for name in ("logprobs", "ref_logprobs"):
        for group in data.groups[:2]:  # of either sign: every rollout of the group
            for i, rollout in enumerate(group.rollouts):
                assert rollout is not None and rollout.logprobs is not None
                known = getattr(rollout, name) or rollout.logprobs
                group.rollouts[i] = replace(rollout, **{name: [far, *known[1:]]})  # type: ignore[index]
    length = {"constant_length": 6} if setting["loss_fn"] in ("dr_grpo", "rloo") else {}
    health = HealthConfig(actions={"mismatch": "warn", "kl_runaway": "warn"})
    config = GRPOConfig(**setting, **length, health=health, parity=MADE_UP)
    before = snapshot(model)
    metrics = GRPOTrainer(model, tiny_model("llama"), config).training_step(StepData(data.groups))
    assert metrics["nan_skip"] == 0 and metrics["optimizer_steps"] == 1 and not same(before, snapshot(model))
    assert {n: v for n, v in metrics.items() if not math.isfinite(v)} == {}
    assert not [w for w in recwarn if "overflow" in str(w.message)]
    assert metrics["tis_weight" if "tis_cap" in setting else "ratio_error"] > 0
    if "tis_cap" not in setting:
        assert metrics["ratio_error"] == pytest.approx(math.expm1(LOG_RATIO_LIMIT)), "and it is seen"


def test_the_disagreement_of_sampler_and_trainer_stays_a_number() -> None:
    found = mismatch(np.array([-1.0, -2.0]), np.array([-1e4, -2.0]))
    assert found["ratio_error"] == pytest.approx(math.exp(20), rel=1e-6) and math.isfinite(found["mismatch_kl"])


# Which tokens are clipped


def gradient_of(recipe: str, log_ratio: float, advantage: float) -> float:
    """Of a token alone in its sequence, by the loss itself."""
    spec = named_loss(recipe, **clip(0.8, 1.2))
    data = streams(torch.zeros(1), torch.zeros(1), torch.tensor([advantage]), torch.zeros(1, dtype=torch.long))
    return float(evaluate(spec, torch.tensor([log_ratio]), data)[1])


@pytest.mark.parametrize("advantage", [-0.5, 0.0, 0.5])
@pytest.mark.parametrize("log_ratio", [-30.0, -1.0, -0.1, 0.0, 0.1, 1.0, 30.0])
def test_a_clipped_token_is_one_whose_gradient_the_clip_changes(log_ratio: float, advantage: float) -> None:
    def counts(name: str) -> bool:
        ratio = np.exp(np.array([np.clip(log_ratio, -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)], np.float32))
        return bool(clipped(replace(RECIPES[name], thresholds=clip(0.8, 1.2)), ratio, np.array([advantage]))[0])

    outside = abs(log_ratio) > math.log(1.2)
    for name in ("ppo", "gspo"):
        stopped = outside and advantage != 0 and gradient_of(name, log_ratio, advantage) == 0
        if abs(log_ratio) < LOG_RATIO_LIMIT:
            assert counts(name) == stopped
        else:
            assert counts(name) == (log_ratio * advantage > 0), "beyond the limit no token has a gradient"
    weight = min(1.2, max(0.8, math.exp(log_ratio)))
    assert gradient_of("cispo", log_ratio, advantage) == pytest.approx(-weight * advantage)
    assert counts("cispo") == (weight != math.exp(log_ratio))
