"""The statistics of `benchmarks/kernel_learning.py`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))
from common.kernel_learning import lift, pass_at, rates, turn_shares

SOLVED = [[1, 1, None, 2], [None, None, None, None], [1, 2, 2, None]]


def test_rates_and_turns() -> None:
    assert rates(SOLVED, 1) == [0.5, 0.0, 0.25]
    assert rates(SOLVED, 2) == [0.75, 0.0, 0.75]
    assert turn_shares(SOLVED, 2) == {"1": 3 / 12, "2": 3 / 12, "never": 6 / 12}


def test_pass_at_k_draws_without_replacement() -> None:
    # Of four first turns two are right: one of the six pairs has none.
    assert pass_at(SOLVED, 2) == pytest.approx([5 / 6, 0.0, 0.5])
    assert pass_at(SOLVED, 1) == rates(SOLVED, 1)


def test_the_interval_of_a_lift_is_paired_and_draws_variants_together() -> None:
    before, after = [0.0, 0.5] * 50, [0.25, 0.75] * 50
    assert lift(before, after) == {"mean": 0.25, "low": 0.25, "high": 0.25}, "equal differences have no spread"
    noisy = [float(n % 3 == 0) for n in range(99)]
    apart, together = lift([0.0] * 99, noisy), lift([0.0] * 99, noisy, group=3)
    assert apart["low"] < 0.27 and apart["high"] > 0.4
    assert together["low"] == pytest.approx(1 / 3), "each block of variants has one"
