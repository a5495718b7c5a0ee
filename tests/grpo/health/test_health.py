from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.grpo.health.config import ACTIONS, DEFAULT_ACTIONS, STANDING, HealthConfig
from assay.grpo.health.finding import Finding
from assay.grpo.health.monitor import HealthMonitor, decide
from assay.grpo.health.report import health_report, reward_histogram
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
    fell = Finding("reward_drop", "rollback", "", "reward/mean", 0.1, 0.2)
    assert decide([fell], 2, 3) == "rollback" and decide([fell, finding("warn")], 3, 3) == "pause"
    assert decide([fell], 0, 0) == "pause"
    assert decide([fell, finding("rollback")], 3, 3) == "stop", "not the reward alone"


def test_rollbacks_are_counted_and_forget_what_was_undone() -> None:
    monitor = HealthMonitor(HealthConfig(max_rollbacks=2, rollback_lr_factor=0.1))
    actions = []
    for _ in range(3):
        actions.append(monitor.decide(monitor.observe({"loss": math.nan})))
        assert not monitor.healthy
        monitor.rolled_back()
        assert monitor.healthy and monitor.history == () and monitor.active == ()
    assert actions == ["rollback", "rollback", "stop"]
    assert monitor.rollbacks == 3 and monitor.learning_rate_factor == pytest.approx(1e-5)


MISMATCH = {"ratio_error": 1.0, "mismatch_kl": 0.1}


def test_what_speaks_against_a_policy_makes_a_run_unhealthy_even_as_a_warning() -> None:
    monitor = HealthMonitor(DEFAULT)
    monitor.observe(LOW)
    assert monitor.active == ("entropy_floor",) and DEFAULT.action("entropy_floor") == "warn" and not monitor.healthy
    monitor = HealthMonitor(DEFAULT)
    spoken(monitor, steady(10, rollout__truncated_fraction=0.9, fraction_clipped=0.9))
    assert monitor.active == ("clip_fraction", "truncation") and monitor.healthy, "they say how the run is set up"
    monitor.observe(MISMATCH)
    assert "mismatch" in monitor.active and not monitor.healthy, "its action is graver than a warning"


def test_a_warning_that_a_run_lives_with_does_not_speak_against_its_policy_for_ever() -> None:
    monitor = HealthMonitor(DEFAULT)
    healthy = []
    for _ in range(STANDING + 5):
        monitor.observe(LOW)
        healthy.append(monitor.healthy)
    assert healthy == [False] * STANDING + [True] * 5
    spoken(monitor, [HIGH] * 20)
    spoken(monitor, [LOW] * 3)
    assert not monitor.healthy, "a new one is a sign again"


def test_the_trouble_of_a_runaway_began_with_its_growth_and_not_with_its_alarm() -> None:
    """The update of the step before the first high KL made it high."""
    kl = [0.1] * 30 + [0.12, 0.3, 0.5, 0.8, 0.9, 1.0]
    monitor = HealthMonitor(DEFAULT)
    ((step, finding),) = spoken(monitor, [{"kl_div": value, "kl_div_95pct": 3 * value} for value in kl])
    assert (step, finding.rule, finding.suspect) == (34, "kl_runaway", 4)
    monitor = HealthMonitor(DEFAULT)
    monitor_findings = [monitor.observe({"kl_div": value, "kl_div_95pct": 3 * value}) for value in kl[:35]][-1]
    assert monitor.last_good(monitor_findings) == 30, "30 updates made the policy whose KL was still 0.12"


def test_a_policy_that_its_first_updates_ruin_is_a_runaway_though_nothing_was_calm_before() -> None:
    monitor = HealthMonitor(DEFAULT)
    series = [{"sampled_kl": value, "sampled_kl_95pct": 2 * value} for value in (0.0, 1.5, 1.5, 1.5, 1.5)]
    ((step, finding),) = spoken(monitor, series)
    assert (step, finding.rule, finding.metric, finding.suspect) == (3, "kl_runaway", "sampled_kl", 3)
    rising = [{"kl_div": 0.2 * i, "kl_div_95pct": 0.4 * i} for i in range(9)]
    assert [i for i, _ in spoken(HealthMonitor(DEFAULT), rising)] == [7], "few values need a higher level"


def test_the_fault_of_a_number_is_that_of_its_step_alone() -> None:
    monitor = HealthMonitor(DEFAULT)
    spoken(monitor, steady(7, **CALM))
    findings = monitor.observe({"loss": math.nan})
    assert monitor.last_good(findings) == 7
    assert HealthMonitor(HealthConfig(actions={"entropy_floor": "rollback"})).observe(LOW)[0].suspect == DEFAULT.window


def test_an_acknowledged_rule_stays_silent_until_it_has_cleared() -> None:
    bad, good = MISMATCH, {"ratio_error": 0.0, "mismatch_kl": 0.0}
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
    assert len(monitor.history) == DEFAULT.no_gradient_steps == 20
    monitor.load(monitor.state() | {"quiet": {"of_an_older_version": 0}, "acknowledged": ["of_an_older_version"]})
    assert monitor.active == ()


def test_a_state_of_an_older_version_is_taken_over() -> None:
    monitor = HealthMonitor(DEFAULT)
    spoken(monitor, [LOW] * 5)
    new = {"rolled_back_at", "refuge", "records", "began"}
    restored = HealthMonitor(DEFAULT)
    restored.load({key: value for key, value in monitor.state().items() if key not in new})
    assert restored.active == ("entropy_floor",) and not restored.healthy and restored.rolled_back_at == 0


def solving(rewards: Sequence[float], steps: int, first: float = 0.0) -> list[Step]:
    """A run whose batches stop to teach: the mean reward of each step without an optimizer step."""
    taught = {"optimizer_steps": 1.0, "reward/mean": first + 0.2, "reward/min": first, "reward/max": 1.0}
    stuck = {"optimizer_steps": 0.0}
    tail = [stuck | {"reward/mean": r, "reward/min": r, "reward/max": r} for r in rewards]
    return [taught] * steps + tail


def test_a_state_of_an_older_version_keeps_its_rate_and_what_was_solved() -> None:
    """The first versions held the number of rollbacks alone, later ones not what the policy had explored."""
    monitor = HealthMonitor(DEFAULT)
    spoken(monitor, solving([], 150))
    state = monitor.state()
    first = {name: state[name] for name in ("steps", "quiet", "acknowledged", "history")} | {"rollbacks": 3}
    records = {name: state["records"][name] for name in ("extremes", "first", "spreads", "last", "best")}
    for old in (first, first | {"records": records | {"before": 0.5}}):
        restored = HealthMonitor(DEFAULT)
        restored.load(old)
        assert (restored.rollbacks, restored.learning_rate_factor) == (3, DEFAULT.rollback_lr_factor**5)
        assert restored.decide([Finding("non_finite", "rollback", "", "loss", 0.0, 0.0)]) == "stop"
        said = spoken(restored, [CONSTANT] * 25)
        assert "no_gradient" in {f.rule for _, f in said}
        assert {f.action for _, f in said} == {"warn"}, "it had solved its task"


CONSTANT = {"optimizer_steps": 0.0, "rollout/constant_group_fraction": 1.0, "entropy": 0.01, "reward/mean": 1.0}


def test_a_run_without_a_gradient_pauses_and_one_that_solved_its_task_is_only_told() -> None:
    ((step, finding),) = spoken(HealthMonitor(DEFAULT), solving([0.2] * 25, 5))
    assert (step, finding.rule, finding.action) == (24, "no_gradient", "pause")
    assert "collapsed to one answer" in finding.message
    ((step, finding),) = spoken(HealthMonitor(DEFAULT), solving([0.2] * 30, 0))
    assert (step, finding.action) == (19, "pause"), "also where every group was constant from the first step on"
    ((_, finding),) = spoken(HealthMonitor(DEFAULT), solving([1.0] * 25, 30))
    assert finding.action == "warn" and "it has solved these tasks" in finding.message
    asked = HealthMonitor(HealthConfig(actions={"no_gradient": "stop"}))
    assert [f.action for _, f in spoken(asked, solving([1.0] * 25, 30))] == ["stop"]
    assert spoken(HealthMonitor(DEFAULT), [*solving([0.2] * 19, 0), *solving([0.2] * 19, 1)]) == []


def test_answers_that_are_all_alike_are_trouble_only_where_they_are_not_the_best() -> None:
    def found(reward: float) -> set[str]:
        calm = {"reward/mean": reward, "reward/min": 0.0, "reward/max": 1.0, "entropy": 2.0, "grad_norm": 0.1}
        alike = {"entropy": 0.001, "rollout/constant_group_fraction": 1.0, "rollout/truncated_fraction": 1.0}
        steps = [calm] * 30 + [calm | alike | {"grad_norm": 5.0}] * 15
        return {finding.rule for _, finding in spoken(HealthMonitor(DEFAULT), steps)}

    assert found(0.95) <= {"entropy_slope"}
    assert found(0.5) >= {"entropy_floor", "constant_groups", "truncation", "grad_norm"}


def noisy_levels(seed: int, *levels: tuple[int, float]) -> list[Step]:
    rng = np.random.default_rng(seed)
    means = [level for steps, level in levels for _ in range(steps)]
    return [{"reward/mean": mean + rng.normal(0, 0.04), "reward/std": 0.3} for mean in means]


@pytest.mark.parametrize("seed", range(5))
def test_a_reward_that_loses_what_it_gained_or_falls_below_its_start_goes_back(seed: int) -> None:
    def found(*levels: tuple[int, float]) -> list[tuple[str, str]]:
        return [(f.rule, f.action) for _, f in spoken(HealthMonitor(DEFAULT), noisy_levels(seed, *levels))]

    assert found((20, 0.3), (40, 0.6), (20, 0.4)) == [("reward_drop", "rollback")]
    assert found((20, 0.4), (20, 0.2)) == [("reward_drop", "rollback")]
    assert found((20, 0.3), (40, 0.6), (40, 0.52)) == [], "less than half of its gain"
    assert found((300, 0.4)) == []


def test_rewards_in_another_unit_pause_and_a_first_success_does_not() -> None:
    def found(*rows: tuple[int, float, float, float]) -> list[str]:
        names = ("reward/min", "reward/mean", "reward/max")
        series = [dict(zip(names, row, strict=True)) for steps, *row in rows for _ in range(steps)]
        return [f.rule for _, f in spoken(HealthMonitor(DEFAULT), series)]

    assert found((20, 0.0, 0.4, 1.0), (1, 0.0, 2.5, 5.0)) == ["reward_shift"]
    assert found((20, 0.0, 0.4, 1.0), (1, -9.0, -1.1, 0.0))[-1:] == ["reward_shift"]
    assert found((20, 0.0, 0.0, 0.0), (1, 0.0, 0.1, 1.0)) == [], "nothing had differed before"
    assert found((20, 0.0, 0.4, 1.0), (1, 0.0, 1.5, 5.0)) == []


@pytest.mark.parametrize(("reward", "said"), [(0.6, []), (0.2, ["restored_reward"])])
def test_a_restored_policy_that_earns_less_than_it_did_is_not_at_fault(reward: float, said: list[str]) -> None:
    monitor = HealthMonitor(DEFAULT)
    steps = noisy_levels(0, (20, 0.3), (40, 0.6), (12, 0.1))
    assert [f.rule for _, f in spoken(monitor, steps)] == ["reward_drop"]
    monitor.rolled_back(50)
    again = HealthMonitor(DEFAULT)
    again.load(json.loads(json.dumps(monitor.state())))
    scored = {"reward/mean": reward, "reward/std": 0.1, "rollout/scored": 64.0}
    for one in (monitor, again):
        assert [f.rule for f in one.observe(scored)] == said
        assert one.observe(scored) == [], "said once"


def test_a_policy_that_collapsed_before_it_looked_round_goes_back_and_one_that_looked_has_solved_its_task() -> None:
    def found(looking: int, constant: float) -> list[str]:
        seen = {"reward/mean": 0.3, "reward/min": 0.0, "reward/max": 0.5, "entropy": 1.0}
        seen |= {"rollout/constant_group_fraction": constant, "optimizer_steps": 1.0}
        stuck = {"reward/mean": 0.5, "reward/min": 0.5, "reward/max": 0.5, "entropy": 0.001}
        stuck |= {"rollout/constant_group_fraction": 1.0, "optimizer_steps": 0.0}
        monitor = HealthMonitor(DEFAULT)
        return [f.action for _, f in spoken(monitor, [seen] * looking + [stuck] * 12) if f.rule == "policy_collapse"]

    assert found(8, 0.0) == ["rollback"]
    assert found(40, 0.0) == [], "nothing better in 40 steps of all different groups"
    assert found(40, 0.75) == ["rollback"], "steps in which answers hardly differed are no search"


def test_what_was_gained_before_a_rollback_is_no_measure_of_what_came_after() -> None:
    monitor = HealthMonitor(DEFAULT)
    spoken(monitor, noisy_levels(0, (20, 0.3), (40, 0.6)))
    monitor.rolled_back(10)
    assert (monitor.rolled_back_at, monitor.refuge) == (60, 10)
    assert spoken(monitor, noisy_levels(1, (30, 0.3))) == []


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


@pytest.mark.parametrize("far", [-10.0, 100.0])
def test_a_single_reward_far_away_does_not_hide_what_befalls_the_others(far: float) -> None:
    usual = {"reward/mean": 0.35, "reward/std": 0.25, "reward/min": 0.0, "reward/max": 1.0, "optimizer_steps": 1.0}
    odd = usual | {"reward/min": min(far, 0.0), "reward/max": max(far, 1.0)}
    lost = usual | {"reward/mean": -0.1}
    said = spoken(HealthMonitor(DEFAULT), [*[usual] * 20, odd, *[usual] * 20, *[lost] * 15])
    assert [finding.rule for _, finding in said] == ["reward_drop"]


def test_rewards_far_away_are_no_loss_of_the_others() -> None:
    usual = {"reward/mean": 0.35, "reward/std": 0.25, "reward/min": 0.0, "reward/max": 1.0, "optimizer_steps": 1.0}
    odd = usual | {"reward/mean": -0.9, "reward/std": 3.0, "reward/min": -10.0}
    assert spoken(HealthMonitor(DEFAULT), [*[usual] * 20, *[odd, *[usual] * 4] * 10]) == []
