"""KL estimators have the values and gradients that the literature gives them, in the loss and in the reward."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from assay.backends.base import KLEstimator, KLTerm
from assay.backends.local.losses import kl_estimate, kl_penalty
from assay.grpo.config import GRPOConfig, canonical_estimator
from assay.grpo.kl import adapt, add_penalty, discounted_sum, estimates
from assay.types import Datum, FloatArray

STREAM = st.lists(st.floats(-5, 5, width=32), min_size=1, max_size=8)

# The test vector of the reference: five actions, KL(pi || ref) = 0.0631189, KL(ref || pi) = 0.0797151.
POLICY = torch.tensor([0.5, 0.25, 0.15, 0.07, 0.03], dtype=torch.float64)
REFERENCE = torch.tensor([0.4, 0.2, 0.2, 0.1, 0.1], dtype=torch.float64)
EXACT = [0.0800, 0.0400, -0.0526, -0.0294, -0.0380]
"""Logit gradient of KL(pi || ref)."""
FORWARD = [0.10, 0.05, -0.05, -0.03, -0.07]
"""Logit gradient of KL(ref || pi), which the plain k3 has."""
NONE = [0.0] * 5


def expected_gradient(term: KLTerm, behaviour: Tensor = POLICY) -> list[float]:
    """Logit gradient of the penalty in expectation over actions of `behaviour`, which are not differentiated."""
    logits = torch.log(POLICY).requires_grad_()
    logprobs = torch.log_softmax(logits, 0)
    loss = (behaviour * kl_penalty(term, logprobs, torch.log(behaviour), torch.log(REFERENCE))).sum()
    (gradient,) = torch.autograd.grad(loss, logits)
    found: list[float] = gradient.tolist()
    return found


@pytest.mark.parametrize(
    ("estimator", "mean", "deviation"),
    [("k1", 0.0631189, 0.3133), ("k2", 0.0510753, 0.1190), ("k3", 0.0631189, 0.1880)],
)
def test_values(estimator: KLEstimator, mean: float, deviation: float) -> None:
    values = kl_estimate(estimator, torch.log(POLICY) - torch.log(REFERENCE))
    found = float((POLICY * values).sum())
    assert found == pytest.approx(mean, abs=1e-7)
    assert float((POLICY * (values - found) ** 2).sum().sqrt()) == pytest.approx(deviation, abs=5e-5)


def test_abs_is_the_mean_distance() -> None:
    values = kl_estimate("abs", torch.tensor([-0.5, 0.0, 2.0]))
    assert values.tolist() == [0.5, 0.0, 2.0]


@pytest.mark.parametrize(("estimator", "want"), [("k1", NONE), ("k2", EXACT), ("k3", FORWARD)])
def test_gradients_of_the_plain_forms(estimator: KLEstimator, want: list[float]) -> None:
    assert expected_gradient(KLTerm(1.0, estimator)) == pytest.approx(want, abs=6e-5)


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_the_unbiased_forms_have_the_exact_gradient_on_and_off_policy(estimator: KLEstimator) -> None:
    older = torch.tensor([0.2, 0.3, 0.1, 0.3, 0.1], dtype=torch.float64)
    for behaviour in (POLICY, older):
        assert expected_gradient(KLTerm(1.0, estimator, unbiased=True), behaviour) == pytest.approx(EXACT, abs=6e-5)
    assert expected_gradient(KLTerm(0.3, estimator, unbiased=True)) == pytest.approx([0.3 * g for g in EXACT], abs=6e-5)


def test_the_plain_forms_are_biased_off_policy() -> None:
    older = torch.tensor([0.2, 0.3, 0.1, 0.3, 0.1], dtype=torch.float64)
    assert expected_gradient(KLTerm(1.0, "k2"), older) != pytest.approx(EXACT, abs=1e-2)


def test_names_of_the_specification_are_aliases_of_what_it_describes() -> None:
    difference = torch.linspace(-1, 1, 9, dtype=torch.float64)
    described = {"kl1": difference, "kl2": torch.exp(-difference) - 1 + difference, "kl3": difference**2 / 2}
    for name, want in described.items():
        torch.testing.assert_close(kl_estimate(canonical_estimator(name), difference), want)
        assert GRPOConfig(kl_estimator=name).loss.kl == KLTerm(0.01, canonical_estimator(name))
    assert GRPOConfig().estimator == "k2"


def datum(logprobs: list[float], mask: list[float] | None = None, advantage: float = 0.0) -> Datum:
    trained = np.array(mask or [1.0] * len(logprobs), np.float32)
    ids = np.zeros(len(logprobs), np.int64)
    streams = (np.array(logprobs, np.float32) * trained, np.full(len(ids), advantage, np.float32) * trained, trained)
    return Datum(ids, ids, *streams)


def array(*values: float) -> FloatArray:
    return np.array(values, np.float32)


def against(data: list[Datum], reference: list[FloatArray]) -> list[Datum]:
    return [replace(d, ref_logprobs=r) for d, r in zip(data, reference, strict=True)]


def test_in_the_reward_a_token_pays_what_it_differs_by_beyond_the_mean() -> None:
    data = against([datum([-1.0, -2.0, -3.0], [0, 1, 1]), datum([-1.0])], [array(9.0, -2.5, -4.0), array(-0.5)])
    penalised = add_penalty(data, 0.1, "k1", 0.0)
    mean = (0.5 + 1.0 - 0.5) / 3
    np.testing.assert_allclose(penalised[0].advantages, [0, 0.1 * (mean - 0.5), 0.1 * (mean - 1.0)], atol=1e-7)
    np.testing.assert_allclose(penalised[1].advantages, [0.1 * (mean + 0.5)], atol=1e-7)


@settings(max_examples=30, deadline=None)
@given(st.lists(STREAM, min_size=1, max_size=4), st.floats(0, 2), st.floats(0, 1), st.sampled_from(["k1", "k2", "k3"]))
def test_a_policy_equal_to_its_reference_pays_nothing(
    logprobs: list[list[float]], coef: float, discount: float, estimator: KLEstimator
) -> None:
    data = [datum(values, advantage=0.75) for values in logprobs]
    penalised = add_penalty(against(data, [d.logprobs for d in data]), coef, estimator, discount)
    assert all(np.array_equal(p.advantages, d.advantages) for p, d in zip(penalised, data, strict=True))


@settings(max_examples=30, deadline=None)
@given(st.lists(STREAM, min_size=1, max_size=4), st.floats(0.01, 2))
def test_penalties_cancel_over_the_batch_and_stay_off_untrained_tokens(
    logprobs: list[list[float]], coef: float
) -> None:
    data = [datum(values, [i % 2 for i in range(len(values))]) for values in logprobs]
    penalised = add_penalty(against(data, [np.full(len(d), -1.0, np.float32) for d in data]), coef, "k1", 0.0)
    assert abs(sum(float(p.advantages.sum()) for p in penalised)) <= 1e-4
    assert not any(p.advantages[p.mask == 0].any() for p in penalised)


def test_in_the_reward_k1_has_the_expected_gradient_of_the_kl_divergence() -> None:
    # Every action appears as often as its probability says, so that the batch mean is the expectation.
    counts = [50, 25, 15, 7, 3]
    logits = torch.log(POLICY).requires_grad_()
    policy = torch.log_softmax(logits, 0)
    actions = [action for action, count in enumerate(counts) for _ in range(count)]
    data = [datum([float(policy.detach()[a])]) for a in actions]
    references = [array(float(torch.log(REFERENCE[a]))) for a in actions]
    penalised = add_penalty(against(data, references), 1.0, "k1", 0.0)
    surrogate = sum(float(p.advantages[0]) / 100 * policy[a] for p, a in zip(penalised, actions, strict=True))
    (gradient,) = torch.autograd.grad(surrogate, logits)
    assert (-gradient).tolist() == pytest.approx(EXACT, abs=6e-5)


def test_with_a_discount_a_token_answers_for_later_ones() -> None:
    assert discounted_sum(array(1, 2, 4), 0.5).tolist() == [3.0, 4.0, 4.0]
    assert discounted_sum(array(1, 2, 4), 0.0).tolist() == [1.0, 2.0, 4.0]
    data = against([datum([-1.0, -1.0, -1.0], [1, 0, 1])], [array(-1.0, 0.0, -3.0)])
    penalised = add_penalty(data, 1.0, "k1", 0.5)
    own = np.array([1.0 - 0.0, 0.0, 1.0 - 2.0])
    np.testing.assert_allclose(penalised[0].advantages, [own[0] + 0.25 * own[2], 0.0, own[2]], atol=1e-6)


def test_estimates_of_arrays_are_those_of_the_loss() -> None:
    now, reference = array(-1.0, -2.0, -0.1), array(-1.5, -1.0, -0.1)
    for name in ("k1", "k2", "k3", "abs"):
        want = kl_estimate(name, torch.tensor([0.5, -1.0, 0.0], dtype=torch.float64))  # type: ignore[arg-type]
        np.testing.assert_allclose(estimates(name, now, reference), want.numpy(), atol=1e-7)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kl", "want"), [(0.2, 0.011), (0.07, 0.01), (0.05, 0.01), (0.03, 0.01), (0.02, 0.009), (0.0, 0.009)]
)
def test_the_threshold_controller_of_the_specification(kl: float, want: float) -> None:
    assert adapt(0.01, kl, 0.05, controller="threshold", rollouts=8, horizon=1) == pytest.approx(want)


def test_the_threshold_controller_stays_within_its_range() -> None:
    high = low = 0.01
    for _ in range(200):
        high = adapt(high, 1.0, 0.05, controller="threshold", rollouts=8, horizon=1)
        low = adapt(low, 0.0, 0.05, controller="threshold", rollouts=8, horizon=1)
    assert (high, low) == (1.0, 1e-3)
    # A start outside the range is kept, and may come back in.
    assert adapt(5.0, 1.0, 0.05, controller="threshold", rollouts=8, horizon=1) == 5.0
    assert adapt(5.0, 0.0, 0.05, controller="threshold", rollouts=8, horizon=1) == pytest.approx(4.5)


def test_zieglers_controller_clips_the_error_and_goes_by_rollouts() -> None:
    for kl, error in ((0.055, 0.1), (9.0, 0.2), (0.0, -0.2), (0.05, 0.0)):
        coef = adapt(0.01, kl, 0.05, controller="ziegler", rollouts=100, horizon=1000)
        assert coef == pytest.approx(0.01 * (1 + error * 0.1))
