"""Baselines where the policy decides when to stop, against the exact gradient: every group of a size is enumerated."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from assay.grpo.advantages import group_advantages
from assay.grpo.recipes import Baseline
from support.stopping import Path, as_group, exact_gradient, moments, paths, reached, returns

TURNS, SIZE = 3, 3


def estimate(every: Sequence[Path], baseline: Baseline) -> np.ndarray:
    def advantages(group: Sequence[Path]) -> list[list[float]] | None:
        return group_advantages(as_group(group), gamma=1.0, normalize_by_std=False, baseline=baseline)

    return moments(every, SIZE, advantages)[0]


def test_the_enumeration_is_complete_and_its_gradient_that_of_the_expected_reward() -> None:
    every = paths(TURNS, 0.3)
    assert sum(p.probability for p in every) == pytest.approx(1)
    # All logits move together: a change of `stop`.
    worth = [
        sum(p.probability * returns(p.rewards)[0] for p in paths(TURNS, stop)) for stop in (0.3 - 1e-5, 0.3 + 1e-5)
    ]
    assert exact_gradient(every).sum() == pytest.approx((worth[1] - worth[0]) / 2e-5 * 0.3 * 0.7, rel=1e-6)


@pytest.mark.parametrize("stop", [0.2, 0.7])
def test_comparing_with_the_same_turn_shrinks_late_turns_by_the_chance_of_company_and_does_nothing_else(
    stop: float,
) -> None:
    every = paths(TURNS, stop)
    found, want = (x.reshape(TURNS, 2) for x in (estimate(every, "turn"), exact_gradient(every)))
    company = [1 - (1 - reached(every, t)) ** (SIZE - 1) for t in range(TURNS)]
    assert company[0] == 1 and company[2] < 0.95
    np.testing.assert_allclose(found, want * np.array(company)[:, None], atol=1e-12)


def test_the_mean_of_the_group_is_biased_where_the_length_is_the_policys_choice() -> None:
    every = paths(TURNS, 0.7)
    want = exact_gradient(every)
    biases = {b: np.linalg.norm(estimate(every, b) - want) / np.linalg.norm(want) for b in ("mean", "leave_one_out")}  # type: ignore[arg-type]
    assert biases["mean"] > 5 * biases["leave_one_out"]
