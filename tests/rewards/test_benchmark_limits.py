"""The physical limits that the reward benchmark compares with, worked out by hand."""

from __future__ import annotations

import pytest
from benchmarks.common.judge_behaviour import Behaviour
from benchmarks.common.judge_runs import Regime, mean_limit, medians, physical_limit, record

FOUND = {"seconds": 10.0, "cpu_s": 0.5, "lost": 0, "wrong": 0, "peak_rss_mb": 50.0, "counters": {}}
STATS = {
    "requests": 110,
    "answered": 100,
    "paid_twice": 0,
    "refused": {"concurrency": 10},
    "max_in_flight": 20,
    "cpu_s": 0.1,
    "limits": [(0.0, 80), (6.0, 40), (14.0, 120)],
    "last_answer_s": 20.0,
}


def test_a_limit_that_moves_is_averaged_over_the_run() -> None:
    log = [(0.0, 80), (6.0, 40), (14.0, 120)]
    assert mean_limit(log, 20.0) == pytest.approx((6 * 80 + 8 * 40 + 6 * 120) / 20)
    assert mean_limit(log, 8.0) == pytest.approx((6 * 80 + 2 * 40) / 8)
    assert mean_limit([(0.0, 80)], 3.0) == 80


def test_the_limit_is_places_over_latency_or_a_rate() -> None:
    steady = Regime(Behaviour(latency_s=2.0), 100, in_flight=60)
    assert physical_limit(steady, "engine", STATS) == 30
    moving = Regime(Behaviour(latency_s=1.0, max_in_flight=80), 100)
    assert physical_limit(moving, "engine", STATS) == pytest.approx(76)
    rated = Regime(Behaviour(latency_s=1.0, requests_per_minute=3000), 100)
    assert physical_limit(rated, "engine", STATS) == 50


def test_faults_take_places_and_answer_nobody() -> None:
    faults = {"http_500": 0.1, "drip": 0.1}
    faulty = Regime(Behaviour(latency_s=1.0, drip_s=2.0, faults=faults), 100, in_flight=60)
    assert physical_limit(faulty, "engine", STATS) == pytest.approx(60 / 1.2 * 0.9)


def test_lost_samples_count_for_nothing_but_time() -> None:
    regime = Regime(Behaviour(), 100)
    row = record(regime, FOUND | {"lost": 20}, STATS, 16.0)
    assert row["samples_per_s"] == 8 and row["fraction_of_limit"] == 0.5 and row["lost"] == 20
    assert row["client_cpu_ms_per_call"] == pytest.approx(500 / 110)
    with pytest.raises(RuntimeError, match="another sample's verdict"):
        record(regime, FOUND | {"wrong": 1}, STATS, 16.0)


def test_medians_keep_the_worst_loss_and_the_spread() -> None:
    regime = Regime(Behaviour(), 100)
    rows = [record(regime, FOUND | {"seconds": s, "lost": n}, STATS, None) for s, n in ((10.0, 0), (20.0, 3), (5.0, 0))]
    found = medians(rows)
    assert found["seconds"] == 10 and found["lost"] == 3 and found["spread"]["seconds"] == [5, 20]
    assert found["limit_per_s"] is None
