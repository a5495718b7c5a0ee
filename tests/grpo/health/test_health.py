from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.grpo.health.config import ACTIONS, DEFAULT_ACTIONS, HealthConfig
from assay.grpo.health.monitor import HealthMonitor, decide
from assay.grpo.health.report import health_report, reward_histogram
from assay.grpo.health.rules import Finding
from support.health_series import CALM, FAILURES, RULES_OF, Step, failing, healthy, steady

DEFAULT = HealthConfig()


def spoken(monitor: HealthMonitor, series: Sequence[Step]) -> list[tuple[int, Finding]]:
    return [(i, finding) for i, step in enumerate(series) for finding in monitor.observe(step)]


@pytest.mark.parametrize("seed", range(3))
def test_healthy_runs_raise_no_alarm(seed: int) -> None:
    assert spoken(HealthMonitor(DEFAULT), healthy(1000 + seed, 400)) == []


@pytest.mark.parametrize("kind", FAILURES)
def test_failing_runs_raise_theirs_and_none_before(kind: str) -> None:
    series, onset = failing(kind, 1000)
    said = spoken(HealthMonitor(DEFAULT), series)
    assert RULES_OF[kind] & {finding.rule for _, finding in said}
    assert min(step for step, _ in said) >= onset


METRICS = st.dictionaries(
    st.sampled_from([*CALM, "approx_entropy", "nan_skip", "loss", "reward/std", "part/a", "part/b"]),
    st.floats(allow_nan=True, allow_infinity=True, width=32) | st.sampled_from([0.0, 1.0]),
)


@settings(max_examples=100, deadline=None)
@given(st.lists(METRICS, max_size=30))
def test_any_metrics_are_judged_without_failing(history: list[Step]) -> None:
    monitor = HealthMonitor(DEFAULT)
    for step in history:
        for finding in monitor.observe(step):
            assert finding.action == DEFAULT_ACTIONS[finding.rule]
    assert monitor.report({"task": [1.0, math.nan]}).isascii()


LOW, HIGH = {"entropy": 0.01}, {"entropy": 1.0}


def test_a_rule_speaks_once_and_again_after_it_was_quiet() -> None:
    monitor = HealthMonitor(HealthConfig(quiet_steps=3))
    low = [LOW] * 5
    assert [i for i, _ in spoken(monitor, [*low, *[HIGH] * 2, *low])] == [0]  # medians of three delay both edges
    monitor = HealthMonitor(HealthConfig(quiet_steps=3))
    assert [i for i, _ in spoken(monitor, [*low, *[HIGH] * 5, *low])] == [0, 11]
    assert monitor.active == ("entropy_floor",)


def test_decide_takes_the_most_severe_action() -> None:
    def finding(action: Any) -> Finding:
        return Finding("kl_tail", action, "", "kl_div_95pct", 5.0, 4.0)

    assert decide([], 0, 3) == "ignore"
    assert [decide([finding(a)], 0, 3) for a in ACTIONS] == list(ACTIONS)
    assert decide([finding("warn"), finding("rollback"), finding("pause")], 2, 3) == "rollback"
    assert decide([finding("rollback")], 3, 3) == "stop"
    assert decide([finding("pause")], 3, 3) == "pause"
    assert decide([finding("rollback")], 0, 0) == "stop"


def test_rollbacks_are_counted_and_forget_what_was_undone() -> None:
    monitor = HealthMonitor(HealthConfig(max_rollbacks=2, rollback_lr_factor=0.1))
    actions = []
    for _ in range(3):
        actions.append(monitor.decide(monitor.observe({"loss": math.nan})))
        assert not monitor.healthy
        monitor.rolled_back()
        assert monitor.healthy and monitor.history == () and monitor.active == ()
    assert actions == ["rollback", "rollback", "stop"]
    assert monitor.rollbacks == 3 and monitor.learning_rate_factor == pytest.approx(1e-3)


def test_a_warning_leaves_a_run_healthy_and_a_pause_does_not() -> None:
    monitor = HealthMonitor(DEFAULT)
    monitor.observe(LOW)
    assert monitor.active == ("entropy_floor",) and monitor.healthy
    monitor.observe({"ratio_error": 1.0})
    assert monitor.active == ("entropy_floor", "mismatch") and not monitor.healthy


def test_an_acknowledged_rule_stays_silent_until_it_has_cleared() -> None:
    bad, good = {"ratio_error": 1.0}, {"ratio_error": 0.0}
    monitor = HealthMonitor(HealthConfig(quiet_steps=2))
    assert monitor.decide(monitor.observe(bad)) == "pause"
    restarted = HealthMonitor(HealthConfig(quiet_steps=2))
    restarted.load(json.loads(json.dumps(monitor.state())))
    restarted.acknowledge()
    assert restarted.healthy
    assert spoken(restarted, [bad] * 20) == [] and restarted.healthy
    assert spoken(restarted, [good] * 4) == []
    assert [i for i, _ in spoken(restarted, [bad] * 5)] == [1] and not restarted.healthy


@pytest.mark.parametrize("kind", FAILURES)
def test_a_restored_monitor_goes_on_as_if_nothing_had_been(kind: str) -> None:
    series, onset = failing(kind, 5)
    whole, part = HealthMonitor(DEFAULT), HealthMonitor(DEFAULT)
    for i, step in enumerate(series):
        if i % 7 == 3 or i in (onset, onset + 1):
            state = json.loads(json.dumps(part.state(), allow_nan=False))
            part = HealthMonitor(DEFAULT)
            part.load(state)
            part.observe({})
            part.load(state)
        assert repr(whole.observe(step)) == repr(part.observe(step))
        assert (whole.active, whole.healthy, whole.report_due) == (part.active, part.healthy, part.report_due)
    assert whole.report({}) == part.report({})
    assert json.dumps(whole.state()) == json.dumps(part.state())


def test_the_memory_is_bounded_and_rules_that_are_gone_are_forgotten() -> None:
    monitor = HealthMonitor(HealthConfig(window=12, sustained_steps=15))
    spoken(monitor, steady(100, **CALM))
    assert len(monitor.history) == 15
    monitor.load(monitor.state() | {"quiet": {"of_an_older_version": 0}, "acknowledged": ["of_an_older_version"]})
    assert monitor.active == () and monitor.healthy


def test_the_report_says_what_was_measured() -> None:
    history = steady(
        10,
        **CALM,
        reward__std=0.25,
        approx_entropy=1.1,
        rollout_buffer_size=7,
        rollout__errored_fraction=0.02,
        nan_skip=[0] * 9 + [1],
    )
    histograms = {"P": [0.0] * 5 + [1.0] * 5, "A": [0.5, 0.25, 0.75, 0.5]}
    lines = health_report(history, histograms, ["kl_tail"]).splitlines()
    assert lines == [
        "health            10 steps",
        "KL to reference   0.1 mean  0.4 95 %",
        "reward            0.400 +- 0.250  25/50/75 %: 0.000 0.500 1.000",
        "clipped tokens    5.0%",
        "entropy           1 exact  1.1 sampled",
        "mismatch          1e-05 largest |ratio - 1|  1e-06 nats/token",
        "gradient norm     0.5 mean  0.5 largest",
        "skipped steps     1 for a non-finite gradient",
        "constant groups   30.0%",
        "truncated         10.0%",
        "errored           2.0%",
        "rollout buffer    7 groups",
        "task A            share 29%  reward 0.5  25/50/75 %: 0.438 0.500 0.562",
        "                  0.250 |+    @   +| 0.750  counts 1 0 0 0 0 2 0 0 0 1",
        "task P            share 71%  reward 0.5  25/50/75 %: 0.000 0.500 1.000",
        "                  0.000 |@        @| 1.000  counts 5 0 0 0 0 0 0 0 0 5",
        "alarms            kl_tail",
    ]


def test_what_was_not_measured_is_left_out() -> None:
    assert health_report([{}], {}) == "health            1 step\nalarms            none"
    lines = health_report([{"entropy": 1.0}, {"entropy": math.nan}, {}], {"P": []}).splitlines()
    assert lines[1:-1] == ["entropy           1 exact"]


def test_the_monitor_reports_when_it_is_due() -> None:
    monitor = HealthMonitor(HealthConfig(report_every=4))
    assert not monitor.report_due
    due = []
    for step in [{"reward/mean": float(i)} for i in range(12)]:
        monitor.observe(step)
        due.append(monitor.report_due)
    assert [i for i, is_due in enumerate(due) if is_due] == [3, 7, 11]
    assert monitor.report({}).splitlines()[:2] == ["health            4 steps", "reward            9.500"]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(-1e6, 1e6), max_size=50), st.integers(1, 20))
def test_a_histogram_counts_every_reward(rewards: list[float], bins: int) -> None:
    edges, counts = reward_histogram([*rewards, math.nan], bins)
    assert sum(counts) == len(rewards)
    assert len(edges) == (bins + 1 if rewards else 0) and edges == sorted(edges)
    if rewards:
        assert edges[0] <= min(rewards) and edges[-1] >= max(rewards)


def test_a_histogram_without_bins_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one bin"):
        reward_histogram([1.0], 0)
