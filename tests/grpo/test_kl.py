from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.grpo.kl import add_penalty, discounted_sum
from assay.types import Datum, FloatArray

STREAM = st.lists(st.floats(-5, 5, width=32), min_size=1, max_size=8)


def datum(logprobs: list[float], mask: list[float] | None = None, advantage: float = 0.0) -> Datum:
    trained = np.array(mask or [1.0] * len(logprobs), np.float32)
    ids = np.zeros(len(logprobs), np.int64)
    streams = (np.array(logprobs, np.float32) * trained, np.full(len(ids), advantage, np.float32) * trained, trained)
    return Datum(ids, ids, *streams)


def array(*values: float) -> FloatArray:
    return np.array(values, np.float32)


def test_the_estimate_is_the_mean_difference_over_trained_tokens() -> None:
    data = [datum([-1.0, -2.0, -3.0], [0, 1, 1]), datum([-1.0])]
    reference = [array(9.0, -2.5, -4.0), array(-0.5)]
    penalised, kl = add_penalty(data, reference, 0.1, 0.0)
    assert kl == pytest.approx((0.5 + 1.0 - 0.5) / 3)
    np.testing.assert_allclose(penalised[0].advantages, [0, 0.1 * (kl - 0.5), 0.1 * (kl - 1.0)], atol=1e-7)
    np.testing.assert_allclose(penalised[1].advantages, [0.1 * (kl + 0.5)], atol=1e-7)
    assert all(np.array_equal(p.ref_logprobs, r) for p, r in zip(penalised, reference, strict=True))


@settings(max_examples=30, deadline=None)
@given(st.lists(STREAM, min_size=1, max_size=4), st.floats(0, 2), st.floats(0, 1))
def test_a_policy_equal_to_its_reference_pays_nothing(
    logprobs: list[list[float]], coef: float, discount: float
) -> None:
    data = [datum(values, advantage=0.75) for values in logprobs]
    penalised, kl = add_penalty(data, [d.logprobs for d in data], coef, discount)
    assert kl == 0
    assert all(np.array_equal(p.advantages, d.advantages) for p, d in zip(penalised, data, strict=True))


@settings(max_examples=30, deadline=None)
@given(st.lists(STREAM, min_size=1, max_size=4), st.floats(0.01, 2))
def test_penalties_cancel_over_the_batch_and_stay_off_untrained_tokens(
    logprobs: list[list[float]], coef: float
) -> None:
    data = [datum(values, [i % 2 for i in range(len(values))]) for values in logprobs]
    penalised, _ = add_penalty(data, [np.full(len(d), -1.0, np.float32) for d in data], coef, 0.0)
    assert abs(sum(float(p.advantages.sum()) for p in penalised)) <= 1e-4
    assert not any(p.advantages[p.mask == 0].any() for p in penalised)


def test_the_expected_gradient_is_that_of_the_kl_divergence() -> None:
    # Every action appears as often as its probability says, so that the batch mean is the expectation.
    counts, reference = [1, 2, 5], torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    logits = torch.log(torch.tensor(counts, dtype=torch.float64) / 8).requires_grad_()
    policy = torch.log_softmax(logits, 0)
    actions = [action for action, count in enumerate(counts) for _ in range(count)]
    data = [datum([float(policy.detach()[a])]) for a in actions]
    penalised, kl = add_penalty(data, [array(float(torch.log(reference[a]))) for a in actions], 0.3, 0.0)
    surrogate = sum(float(p.advantages[0]) / 8 * policy[a] for p, a in zip(penalised, actions, strict=True))
    (ours,) = torch.autograd.grad(surrogate, logits, retain_graph=True)
    exact = (policy.exp() * (policy - torch.log(reference))).sum()
    (want,) = torch.autograd.grad(-0.3 * exact, logits)
    assert kl == pytest.approx(exact.item(), abs=1e-6)
    torch.testing.assert_close(ours, want, atol=1e-6, rtol=1e-5)


def test_with_a_discount_a_token_answers_for_later_ones() -> None:
    assert discounted_sum(array(1, 2, 4), 0.5).tolist() == [3.0, 4.0, 4.0]
    assert discounted_sum(array(1, 2, 4), 0.0).tolist() == [1.0, 2.0, 4.0]
    data = [datum([-1.0, -1.0, -1.0], [1, 0, 1])]
    penalised, kl = add_penalty(data, [array(-1.0, 0.0, -3.0)], 1.0, 0.5)
    assert kl == pytest.approx(1.0)
    own = np.array([1.0 - 0.0, 0.0, 1.0 - 2.0])
    np.testing.assert_allclose(penalised[0].advantages, [own[0] + 0.25 * own[2], 0.0, own[2]], atol=1e-6)
