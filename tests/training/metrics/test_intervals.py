import math
import random

import pytest

from assay.training.metrics.intervals import mean_ci95, paired_difference_ci95, t_quantile_975, wilson_ci95


@pytest.mark.parametrize(
    ("df", "quantile"),
    [
        (1, 12.706204736432095),
        (2, 4.302652729696142),
        (3, 3.182446305284263),
        (4, 2.7764451051977987),
        (5, 2.570581835636314),
        (10, 2.2281388519649385),
        (29, 2.045229642132703),
        (30, 2.0422724563012373),
        (100, 1.9839715184496334),
        (1000, 1.9623390808264078),
    ],
)
def test_quantiles_of_students_t_equal_the_published_ones(df, quantile):
    assert t_quantile_975(df) == pytest.approx(quantile, rel=1e-8)


def test_the_two_ways_to_a_quantile_meet():
    assert t_quantile_975(200) > t_quantile_975(201) > t_quantile_975(202) > 1.959963984540054
    assert t_quantile_975(200) - t_quantile_975(201) == pytest.approx(
        t_quantile_975(201) - t_quantile_975(202), rel=0.02
    )


def test_a_mean_has_students_interval():
    interval = mean_ci95([1.0, 2.0, 3.0, 4.0])
    assert interval.mean == 2.5
    half = 3.182446305284263 * math.sqrt(5 / 3) / 2
    assert (interval.low, interval.high) == pytest.approx((2.5 - half, 2.5 + half))
    assert interval.half_width == pytest.approx(half)
    assert interval.n == 4


def test_one_task_says_nothing_about_the_spread():
    interval = mean_ci95([0.5])
    assert (interval.mean, interval.low, interval.high) == (0.5, -math.inf, math.inf)


def test_paired_differences_cancel_what_the_tasks_share():
    before, after = [0.0, 10.0, 20.0, 30.0], [1.0, 11.5, 20.5, 31.0]
    paired = paired_difference_ci95(before, after)
    assert paired.mean == 1.0
    assert paired == mean_ci95([1.0, 1.5, 0.5, 1.0])
    assert paired.half_width < mean_ci95(before).half_width / 10


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    [(8, 10, 0.4901625, 0.9433178), (0, 10, 0.0, 0.2775328), (10, 10, 0.7224672, 1.0), (50, 100, 0.4038315, 0.5961685)],
)
def test_proportions_have_wilsons_interval(successes, n, low, high):
    interval = wilson_ci95(successes, n)
    assert (interval.low, interval.high) == pytest.approx((low, high), abs=1e-7)
    assert interval.mean == successes / n


def test_the_interval_covers_the_truth_about_95_times_in_100():
    generator = random.Random(0)
    samples = ([generator.gauss(3, 2) for _ in range(6)] for _ in range(2000))
    covered = sum(interval.low <= 3 <= interval.high for interval in map(mean_ci95, samples))
    assert 0.935 <= covered / 2000 <= 0.965


def test_what_has_no_interval_is_refused():
    with pytest.raises(ValueError, match="at least one"):
        mean_ci95([])
    with pytest.raises(ValueError, match="shorter"):
        paired_difference_ci95([1.0, 2.0], [1.0])
    for successes, n in ((1, 0), (3, 2), (-1, 2)):
        with pytest.raises(ValueError, match="not a proportion"):
            wilson_ci95(successes, n)
    with pytest.raises(ValueError, match="degrees"):
        t_quantile_975(0)
