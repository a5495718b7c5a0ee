"""Estimates against what counting every case gives."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from assay.estimates import estimate, pass_at_k, sign_flip_p, usual_ks


def test_pass_at_k_is_the_share_of_all_choices_of_k_samples_that_hold_a_pass() -> None:
    for n in range(1, 8):
        for passed in range(n + 1):
            flags = [True] * passed + [False] * (n - passed)
            for k in range(1, n + 1):
                choices = list(itertools.combinations(flags, k))
                assert pass_at_k(n, passed, k) == pytest.approx(sum(map(any, choices)) / len(choices), abs=1e-12)


def test_pass_at_k_of_impossible_counts_is_refused() -> None:
    for n, c, k in ((3, 4, 1), (3, -1, 1), (3, 1, 0), (3, 1, 4)):
        with pytest.raises(ValueError, match="not defined"):
            pass_at_k(n, c, k)


def test_intervals_hold_the_mean_of_the_population_as_often_as_they_say() -> None:
    draw = np.random.default_rng(5)
    held = 0
    for _ in range(150):
        found = estimate(list(draw.beta(2, 3, 60)))
        assert found is not None and found.low is not None and found.high is not None
        held += found.low <= 0.4 <= found.high
    assert 0.89 <= held / 150 <= 0.99


def test_an_interval_is_none_where_resampling_says_nothing() -> None:
    assert estimate([]) is None
    for values in ([0.5], [1.0, 1.0, 1.0]):
        found = estimate(values)
        assert found is not None and (found.mean, found.low, found.high) == (values[0], None, None)


def test_the_permutation_test_counts_signs() -> None:
    differences = [0.5, 0.25, -0.1, 0.3, 0.2, 0.0]
    nonzero = [d for d in differences if d]
    sums = [
        abs(sum(s * d for s, d in zip(signs, nonzero, strict=True))) for signs in itertools.product((1, -1), repeat=5)
    ]
    assert sign_flip_p(differences) == sum(one >= sum(nonzero) - 1e-12 for one in sums) / 32
    assert sign_flip_p([0.0, 0.0]) == 1.0
    assert sign_flip_p([1.0] * 40) == pytest.approx(1 / 10_001)
    assert sign_flip_p([1.0, -1.0] * 20) == pytest.approx(1.0)


def test_the_usual_k_are_powers_of_two_and_all_samples() -> None:
    assert [usual_ks(n) for n in (1, 2, 5, 8)] == [(1,), (1, 2), (1, 2, 4, 5), (1, 2, 4, 8)]
