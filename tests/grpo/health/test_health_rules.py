from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import chz
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.config.schema import settings as settings_of
from assay.errors import ConfigError
from assay.grpo.health.config import ACTIONS, DEFAULT_ACTIONS, HealthConfig
from assay.grpo.health.rules import RULES, check
from assay.grpo.health.trend import fit_trend
from support.health_series import CALM, Step, steady

DEFAULT = HealthConfig()
WINDOW = DEFAULT.window


def rules(config: HealthConfig, history: Sequence[Step]) -> list[str]:
    return [finding.rule for finding in check(config, history)]


def ramp(first: float, last: float, steps: int = WINDOW, noise: float = 0.0) -> list[float]:
    return list(np.linspace(first, last, steps) + noise * np.random.default_rng(0).normal(size=steps))


SICK: Mapping[str, list[Step]] = {
    "non_finite": [{"loss": math.nan}],
    "kl_runaway": steady(8, kl_div=[0.01, 0.01, 0.02, 0.05, 0.2, 0.7, 0.7, 0.7], kl_div_95pct=[0.05] * 5 + [2.0] * 3),
    "mismatch": [{"ratio_error": 0.3, "mismatch_kl": 0.02}],
    "no_gradient": steady(20, optimizer_steps=0.0),
    "reward_drop": steady(10, reward__mean=0.1, run__first_level=0.1, run__first_spread=0.2, run__best_level=0.5),
    "kl_tail": [{"kl_div_95pct": 4.1}],
    "entropy_floor": [{"entropy": 0.029}],
    "entropy_slope": steady(10, entropy=ramp(1.0, 0.2, 10, noise=0.02)),
    "clip_fraction": steady(10, fraction_clipped=0.31),
    "constant_groups": steady(10, rollout__constant_group_fraction=0.95),
    "restored_reward": [
        {
            "reward/mean": 0.1,
            "reward/std": 0.1,
            "rollout/scored": 32,
            "run/restored_level": 0.1,
            "run/restored_before": 0.5,
        }
    ],
    "not_recovered": steady(10, reward__mean=0.3, run__first_level=0.3, run__sought_level=0.5, run__sought_for=150.0),
    "policy_collapse": steady(10, entropy=0.01, rollout__constant_group_fraction=1.0),
    "reward_shift": steady(
        2,
        reward__mean=[0.5, 2.1],
        run__best_reward=[1.0, 3.0],
        run__worst_reward=0.0,
        run__first_level=0.5,
    ),
    "truncation": steady(10, rollout__truncated_fraction=0.6),
    "grad_norm": [{"grad_norm": 101.0}],
    "part_divergence": steady(
        reward__mean=ramp(0.4, 0.7, noise=0.01),
        reward__std=0.3,
        part__right=ramp(0.3, 0.1, noise=0.01),
        part__polite=ramp(0.1, 0.6, noise=0.01),
    ),
}


NO_ROLLBACK = {rule: "pause" for rule, action in DEFAULT_ACTIONS.items() if action == "rollback"}
BESIDE: Mapping[str, set[str]] = {"policy_collapse": {"entropy_floor", "constant_groups"}}
"""Rules that find, each by itself, a part of what another finds."""


def test_every_rule_has_a_default_action_and_a_case() -> None:
    assert set(RULES) == set(DEFAULT_ACTIONS) == set(SICK)
    assert set(DEFAULT_ACTIONS.values()) <= set(ACTIONS)


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_finds_its_trouble_and_no_other_rule_does(rule: str) -> None:
    found = check(DEFAULT, [{**CALM, **step} for step in SICK[rule]])
    (finding,) = [finding for finding in found if finding.rule not in BESIDE.get(rule, set())]
    assert (finding.rule, finding.action) == (rule, DEFAULT_ACTIONS[rule])
    assert finding.metric in SICK[rule][-1]
    assert finding.message[-1] == "." and len(finding.message) > 100
    assert "kl_coef" not in finding.message, "a run has this setting under another key"


@pytest.mark.parametrize("rule", RULES)
def test_an_ignored_rule_is_silent(rule: str) -> None:
    assert set(rules(HealthConfig(actions={rule: "ignore"}), SICK[rule])) == BESIDE.get(rule, set())


@pytest.mark.parametrize("rule", RULES)
def test_the_action_of_a_finding_is_the_chosen_one(rule: str) -> None:
    actions = {f.rule: f.action for f in check(HealthConfig(actions={rule: "stop"}), SICK[rule])}
    assert actions[rule] == "stop" and actions.keys() == {rule} | BESIDE.get(rule, set())


def test_steady_metrics_and_no_metrics_are_no_alarm() -> None:
    assert rules(DEFAULT, steady(**CALM)) == []
    assert rules(DEFAULT, [{}] * WINDOW) == []
    assert rules(DEFAULT, []) == []


@pytest.mark.parametrize("rule", RULES)
def test_what_the_last_step_did_not_measure_is_not_judged(rule: str) -> None:
    assert rule not in rules(DEFAULT, [*SICK[rule], {"learning_rate": 1e-4}])


@pytest.mark.parametrize(
    "rule",
    [
        *("kl_runaway", "entropy_slope", "clip_fraction", "constant_groups", "truncation", "part_divergence"),
        *("policy_collapse", "no_gradient", "reward_drop", "reward_shift"),
    ],
)
def test_trends_and_means_need_history(rule: str) -> None:
    least = {"kl_runaway": 8, "no_gradient": 20, "reward_shift": 2}.get(rule, 10)
    for steps in range(1, least):
        assert rule not in rules(DEFAULT, SICK[rule][-steps:])


@pytest.mark.parametrize("odd", [{"kl_div_95pct": 50.0}, {"ratio_error": 50.0, "mismatch_kl": 50.0}])
def test_one_odd_batch_is_no_alarm_once_there_are_others(odd: Step) -> None:
    assert rules(DEFAULT, [*steady(2, **CALM), {**CALM, **odd}]) == []
    assert rules(DEFAULT, [{**CALM, **odd}]) != []


@pytest.mark.parametrize(
    ("ratio", "kl", "found"),
    [(0.9, 1e-4, False), (50.0, 0.009, False), (0.19, 0.5, False), (0.21, 0.011, True)],
)
def test_a_mismatch_needs_both_the_ratio_and_the_kl(ratio: float, kl: float, found: bool) -> None:
    """A mixture of experts in bfloat16 sends a few tokens elsewhere: large ratios, at a KL of 1e-4."""
    assert ("mismatch" in rules(DEFAULT, [{"ratio_error": ratio, "mismatch_kl": kl}] * 5)) == found
    assert rules(DEFAULT, [{"ratio_error": ratio}]) == rules(DEFAULT, [{"mismatch_kl": kl}]) == []


def test_what_was_measured_on_everything_that_was_sampled_is_what_is_judged() -> None:
    calm = {"kl_div_95pct": 0.1, "entropy": 1.0}
    assert rules(DEFAULT, [calm | {"sampled_kl_95pct": 9.0, "sampled_entropy": 0.5}]) == ["kl_tail"]
    assert rules(DEFAULT, [calm | {"sampled_kl_95pct": 0.1, "sampled_entropy": 0.01}]) == ["entropy_floor"]


def test_the_mean_kl_alone_is_no_runaway_where_its_tail_stays() -> None:
    """Single tokens decide the mean of k3; measured on the chess preset."""
    mean = [0.3] * 10 + [0.4, 0.7, 1.5, 1.2, 1.4]
    assert rules(DEFAULT, steady(15, kl_div=mean)) == ["kl_runaway"]
    assert rules(DEFAULT, steady(15, kl_div=mean, kl_div_95pct=[1.3] * 10 + [1.2, 1.5, 1.4, 1.3, 1.5])) == []
    assert rules(DEFAULT, steady(15, kl_div=mean, kl_div_95pct=[0.4] * 10 + [1.2, 1.5, 1.4, 1.3, 1.5])) == [
        "kl_runaway"
    ]


def rewarded(history: Sequence[Step], rewards: Sequence[float]) -> list[Step]:
    parts = zip(history, rewards, strict=True)
    return [step | {"reward/mean": r, "reward/std": 0.2, "rollout/scored": 32.0} for step, r in parts]


def test_a_kl_that_grows_while_the_reward_rises_is_learning_and_otherwise_a_runaway() -> None:
    sick = SICK["kl_runaway"]
    assert rules(DEFAULT, rewarded(sick, [0.2, 0.2, 0.2, 0.2, 0.3, 0.5, 0.5, 0.5])) == []
    assert rules(DEFAULT, rewarded(sick, [0.2, 0.21, 0.19, 0.2, 0.2, 0.21, 0.2, 0.19])) == ["kl_runaway"]
    assert rules(DEFAULT, rewarded(sick, [0.5, 0.5, 0.5, 0.5, 0.3, 0.2, 0.2, 0.2])) == ["kl_runaway"]


@pytest.mark.parametrize("rule", ["kl_runaway", "kl_tail"])
def test_a_kl_that_grows_at_the_best_level_of_the_reward_is_no_alarm_and_below_it_is_one(rule: str) -> None:
    levels = {"run/first_level": 0.2, "run/best_level": 0.6}
    steps = [{"kl_div_95pct": 4.1}] * 8 if rule == "kl_tail" else SICK[rule]
    flat = rewarded([step | levels for step in steps], [0.58, 0.6, 0.62, 0.6] * 2)
    assert rules(DEFAULT, flat) == []
    assert rules(DEFAULT, [step | {"reward/mean": 0.4} for step in flat]) == [rule]


def test_a_kl_far_beyond_its_limit_is_a_runaway_unless_the_reward_rises() -> None:
    levels = {"run/first_level": 0.2, "run/best_level": 0.6}
    far = [{name: 1.5 * value for name, value in step.items()} | levels for step in SICK["kl_runaway"]]
    assert rules(DEFAULT, rewarded(far, [0.58, 0.6, 0.62, 0.6] * 2)) == ["kl_runaway"]
    assert rules(DEFAULT, rewarded(far, [0.2, 0.2, 0.2, 0.2, 0.3, 0.5, 0.6, 0.6])) == []


def test_a_heavy_tail_passes_while_the_reward_keeps_half_of_its_gain() -> None:
    levels = {"run/first_level": 0.2, "run/best_level": 0.8, "run/first_spread": 0.2}
    for reward, found in ((0.52, []), (0.45, ["kl_tail"])):
        steps = steady(10, kl_div_95pct=5.0, reward__mean=reward)
        assert [r for r in rules(DEFAULT, [step | levels for step in steps]) if r != "reward_drop"] == found
    small = levels | {"run/best_level": 0.22}
    steps = steady(10, kl_div_95pct=5.0, reward__mean=0.205)
    assert rules(DEFAULT, [step | small for step in steps]) == ["kl_tail"], "noise is no gain"


def test_a_kl_that_rises_to_a_low_level_is_no_runaway() -> None:
    assert rules(DEFAULT, steady(kl_div=ramp(0.0, 0.5))) == []


def test_the_sampled_entropy_stands_in_for_the_exact_one() -> None:
    assert rules(DEFAULT, [{"approx_entropy": 0.01}]) == ["entropy_floor"]
    assert rules(DEFAULT, [{"approx_entropy": 0.01, "entropy": 1.0}]) == []


def test_a_fall_that_flattens_before_the_floor_is_no_alarm() -> None:
    series = list(0.5 + 1.0 * np.exp(-np.arange(60) / 10) + 0.01 * np.random.default_rng(0).normal(size=60))
    history = steady(60, entropy=series)
    assert not any(rules(DEFAULT, history[max(0, i - WINDOW) : i]) for i in range(1, 61))


def test_a_spike_counts_against_the_median_and_above_what_is_harmless() -> None:
    assert rules(DEFAULT, steady(12, grad_norm=[0.5] * 10 + [5.1] * 2)) == ["grad_norm"]
    assert rules(DEFAULT, steady(12, grad_norm=[0.5] * 10 + [4.9] * 2)) == []
    assert rules(DEFAULT, steady(12, grad_norm=[0.01] * 10 + [0.9] * 2)) == []
    assert rules(DEFAULT, steady(10, grad_norm=[0.5] * 8 + [50.0] * 2)) == [], "too few to compare with"


def test_a_single_spike_passes_unless_it_is_above_the_absolute_limit() -> None:
    assert rules(DEFAULT, steady(12, grad_norm=[0.5] * 11 + [99.0])) == []
    assert rules(DEFAULT, steady(12, grad_norm=[0.5] * 10 + [99.0, 0.5])) == []
    assert rules(DEFAULT, steady(12, grad_norm=[0.5] * 11 + [101.0])) == ["grad_norm"]


def test_a_skipped_step_is_found_with_and_without_its_numbers() -> None:
    (finding,) = check(DEFAULT, [{"nan_skip": 1.0}])
    assert finding.metric == "nan_skip" and "skipped" in finding.message
    (finding,) = check(DEFAULT, [{"nan_skip": 1.0, "grad_norm": math.inf, "loss": math.nan}])
    assert finding.message.startswith("grad_norm is inf, loss is nan; the optimizer step was skipped.")


def test_the_part_that_rises_at_the_cost_of_another_is_named() -> None:
    (finding,) = check(DEFAULT, SICK["part_divergence"])
    assert finding.metric == "part/polite"
    assert "part/polite rose by" in finding.message and "part/right fell by" in finding.message


def test_the_rest_of_the_reward_counts_where_the_parts_add_up_to_it() -> None:
    """No other part falls clearly by itself; together they do."""
    parts = {f"part__p{i}": ramp(0.2, 0.16, noise=0.001) for i in range(4)} | {
        "part__polite": ramp(0.1, 0.5, noise=0.001)
    }
    total = [sum(column[i] for column in parts.values()) for i in range(WINDOW)]
    (finding,) = check(DEFAULT, steady(reward__mean=total, reward__std=0.4, **parts))
    assert finding.metric == "part/polite" and "the rest of the reward" in finding.message
    assert check(DEFAULT, steady(reward__mean=[t + 0.1 for t in total], reward__std=0.4, **parts)) == []


def test_a_reward_that_rises_while_a_part_falls_names_the_part() -> None:
    history = steady(reward__mean=ramp(0.2, 0.6, noise=0.01), reward__std=0.3, part__safe=ramp(0.5, 0.2, noise=0.01))
    (finding,) = check(DEFAULT, history)
    assert finding.metric == "part/safe" and "the reward rose by" in finding.message


def test_a_small_part_that_is_lost_counts_by_its_own_level() -> None:
    """Measured on the toy environment: the exploited part widens the rewards far beyond what the other is worth."""
    parts = {"part__bonus": ramp(0.4, 4.0, noise=0.05), "part__right": ramp(0.32, 0.1, noise=0.005)}
    wider = ramp(0.6, 1.5)
    (finding,) = check(DEFAULT, steady(reward__std=wider, **parts))
    assert finding.metric == "part/bonus" and "part/right fell" in finding.message
    near_zero = {"part__bonus": ramp(0.4, 4.0, noise=0.05), "part__right": ramp(0.02, 0.0, noise=0.0005)}
    assert check(DEFAULT, steady(reward__std=wider, **near_zero)) == []


@pytest.mark.parametrize("spread", [{}, {"reward_std": 0.0}])
def test_where_rewards_have_no_known_spread_the_largest_part_is_the_scale(spread: dict[str, float]) -> None:
    parts = {"part__a": ramp(0.1, 0.6, noise=0.01), "part__b": ramp(0.5, 0.1, noise=0.01)}
    assert rules(DEFAULT, steady(**spread, **parts)) == ["part_divergence"]
    assert rules(DEFAULT, steady(**spread, part__a=0.0, part__b=0.0)) == []


def test_a_divergence_is_seen_within_half_a_window() -> None:
    quick = {"part__a": [0.2] * 10 + ramp(0.2, 0.8, 10, noise=0.01), "part__b": [0.4] * 10 + ramp(0.4, 0.2, 10)}
    assert rules(DEFAULT, steady(reward__std=0.3, **quick)) == ["part_divergence"]


def test_parts_that_move_together_or_a_little_are_no_divergence() -> None:
    both = {"part__a": ramp(0.1, 0.6, noise=0.01), "part__b": ramp(0.2, 0.5, noise=0.01)}
    assert rules(DEFAULT, steady(reward__std=0.3, **both)) == []
    little = {"part__a": ramp(0.1, 0.6, noise=0.01), "part__b": ramp(0.2, 0.17, noise=0.001)}
    assert rules(DEFAULT, steady(reward__std=0.3, **little)) == []


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32 - 1), st.floats(0, 0.8), st.floats(0.01, 0.3))
def test_wandering_noise_is_no_trend(seed: int, correlation: float, size: float) -> None:
    rng = np.random.default_rng(seed)
    wander, series = 0.0, []
    for noise in rng.normal(size=WINDOW):
        wander = correlation * wander + noise
        series.append(1.0 + size * wander)
    trend = fit_trend(range(WINDOW), series)
    assert trend is not None and abs(trend.significance) < 15


def test_a_trend_knows_its_error() -> None:
    """Of straight lines in white noise about as many are told from noise as their significance says."""
    rng = np.random.default_rng(0)
    found = [fit_trend(range(20), rng.normal(size=20)) for _ in range(2000)]
    beyond = [t is not None and abs(t.significance) > 2.1 for t in found]
    assert 0.03 < np.mean(beyond) < 0.08  # 5 % by Student's t with 18 degrees of freedom
    line = fit_trend([0, 2, *range(4, 12)], [1.0, 1.2, *(1.4 + 0.1 * i for i in range(8))])
    assert line is not None and line.slope == pytest.approx(0.1) and line.last == pytest.approx(2.1)
    assert line.change == pytest.approx(1.1) and line.significance > 1e6
    assert fit_trend(range(20), [1.0] * 20) is None and fit_trend(range(9), range(9)) is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"actions": {"kl_tial": "warn"}}, "actions.kl_tial=warn: this rule does not exist. Did you mean kl_tail?"),
        ({"actions": {"kl_tail": "wran"}}, "expected one of ignore, warn, pause, rollback, stop. Did you mean warn?"),
        ({"report_every": -1}, "report_every=-1 must be at least 0."),
        ({"window": 9}, "window=9 must be at least 10."),
        ({"entropy_floor": 0.0}, "entropy_floor=0.0 must be above 0."),
        ({"kl_runaway_factor": 1.0}, "kl_runaway_factor=1.0 must be above 1."),
        ({"truncation_limit": 1.5}, "truncation_limit=1.5 must be at most 1."),
        ({"rollback_lr_factor": 2.0}, "rollback_lr_factor=2.0 must be at most 1."),
        ({"kl_tail_limit": math.nan}, "kl_tail_limit=nan: expected a number."),
        (
            {"kl_tail_limit": 2.0, "actions": {"kl_tail": "ignore"}},
            "kl_tail_limit=2.0 is set, but with actions.kl_tail=ignore nothing reads it.",
        ),
        (
            {"max_rollbacks": 5, "actions": NO_ROLLBACK},
            "max_rollbacks=5 is set, but no rule's action is rollback",
        ),
    ],
)
def test_impossible_settings_are_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        HealthConfig(**changes)
    assert words in str(refusal.value)


def test_a_threshold_of_two_rules_is_of_use_while_one_is_on() -> None:
    config = HealthConfig(entropy_floor=0.1, actions={"entropy_floor": "ignore"})
    assert config.action("entropy_floor") == "ignore" and config.action("entropy_slope") == "warn"
    with pytest.raises(ConfigError, match="entropy_floor=ignore, actions"):
        HealthConfig(
            entropy_floor=0.1,
            actions=dict.fromkeys(("entropy_floor", "entropy_slope", "policy_collapse"), "ignore"),
        )


def test_every_setting_is_documented() -> None:
    assert all(setting.doc.endswith(".") for setting in settings_of(HealthConfig).values())


SLOW_FALL = steady(entropy=ramp(1.0, 0.6, noise=0.01))
CASES: Mapping[str, tuple[Any, list[Step]]] = {
    "window": (60, steady(60, kl_div=[0.1] * 20 + [0.3] * 20 + [0.7] * 20)),
    "sustained_steps": (5, steady(5, rollout__truncated_fraction=0.6)),
    "kl_tail_limit": (1.0, [{"kl_div_95pct": 2.0}]),
    "no_gradient_steps": (5, steady(5, optimizer_steps=0.0)),
    "reward_drop_share": (
        0.2,
        steady(10, reward__mean=0.4, run__first_level=0.1, run__first_spread=0.2, run__best_level=0.5),
    ),
    "recovery_steps": (
        20,
        steady(10, reward__mean=0.3, run__sought_level=0.5, run__sought_for=50.0),
    ),
    "kl_runaway_level": (0.2, steady(8, kl_div=[0.01] * 5 + [0.4] * 3)),
    "kl_runaway_factor": (1.5, steady(8, kl_div=[0.4] * 5 + [0.8] * 3)),
    "entropy_floor": (0.5, [{"entropy": 0.4}]),
    "entropy_horizon": (50, SLOW_FALL),
    "trend_significance": (1.5, steady(entropy=ramp(0.2, 0.05, noise=0.08))),
    "clip_fraction_limit": (0.1, steady(fraction_clipped=0.2)),
    "constant_groups_limit": (0.5, steady(rollout__constant_group_fraction=0.6)),
    "truncation_limit": (0.2, steady(rollout__truncated_fraction=0.3)),
    "mismatch_ratio_limit": (0.01, [{"ratio_error": 0.1, "mismatch_kl": 0.5}]),
    "mismatch_kl_limit": (0.001, [{"ratio_error": 0.5, "mismatch_kl": 0.005}]),
    "grad_norm_limit": (10.0, [{"grad_norm": 50.0}]),
    "grad_norm_spike_factor": (3.0, steady(12, grad_norm=[1.0] * 10 + [5.0] * 2)),
    "grad_norm_harmless": (0.1, steady(12, grad_norm=[0.01] * 10 + [0.9] * 2)),
    "part_divergence_share": (
        0.05,
        steady(reward__std=0.3, part__a=ramp(0.1, 0.6, noise=0.001), part__b=ramp(0.2, 0.16, noise=0.001)),
    ),
}
"""Setting -> a value with which the rules find something in a history that is no alarm by default."""


@pytest.mark.parametrize("name", CASES)
def test_a_threshold_decides(name: str) -> None:
    value, history = CASES[name]
    assert rules(DEFAULT, history) == []
    assert rules(chz.replace(DEFAULT, **{name: value}), history) != []


def test_every_setting_changes_something() -> None:
    """Those that no rule reads are tested above, in test_health.py."""
    of_monitor = {"report_every", "actions", "max_rollbacks", "rollback_lr_factor", "lr_recovery_steps", "quiet_steps"}
    assert set(CASES) | of_monitor == set(settings_of(HealthConfig))
