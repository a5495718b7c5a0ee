"""What follows a rollback: the learning rate, and the reward that has to come back."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import pytest

from assay.grpo.health.config import HealthConfig
from assay.grpo.health.monitor import HealthMonitor

DEFAULT = HealthConfig()
F = DEFAULT.rollback_lr_factor
CALM_STEPS = DEFAULT.lr_recovery_steps
ALARM = {"entropy": 0.01}


def step(reward: float, **more: float) -> dict[str, float]:
    """A step whose rewards are known."""
    return {
        "entropy": 1.0,
        "reward/mean": reward,
        "reward/std": 0.1,
        "reward/min": 0.0,
        "reward/max": 1.0,
        "rollout/scored": 32.0,
        "rollout/constant_group_fraction": 0.0,
        "optimizer_steps": 1.0,
    } | {name.replace("__", "/"): value for name, value in more.items()}


COLLAPSED = {"entropy": 0.01, "rollout/constant_group_fraction": 1.0, "reward/std": 0.0}


def observed(monitor: HealthMonitor, rewards: Sequence[float]) -> list[tuple[int, str]]:
    """(Step, rule) of all findings."""
    return [(i, f.rule) for i, reward in enumerate(rewards, 1) for f in monitor.observe(step(reward))]


def test_a_rollback_lowers_the_rate_a_second_one_by_more_and_calm_steps_give_a_part_back() -> None:
    monitor = HealthMonitor(DEFAULT)
    for first, ceiling in ((F, F**0.5), (F**2.5, F)):
        monitor.rolled_back()
        factors = []
        for _ in range(5 * CALM_STEPS):
            factors.append(monitor.learning_rate_factor)
            monitor.observe(step(0.5))
        expected = [min(first * 2**doubled, ceiling) for doubled in range(5)]
        assert factors[::CALM_STEPS] == pytest.approx(expected)
        assert all(len(set(factors[i : i + CALM_STEPS])) == 1 for i in range(0, len(factors), CALM_STEPS))
        assert factors[-1] == ceiling, "never above half of the rate at which trouble came"


def test_only_calm_steps_in_a_row_raise_the_rate() -> None:
    monitor = HealthMonitor(HealthConfig(quiet_steps=1, actions={"entropy_floor": "warn"}))
    monitor.rolled_back()
    monitor.rolled_back()
    for _ in range(5):
        observed(monitor, [0.5] * (CALM_STEPS - 4))
        for _ in range(3):  # a median of three
            monitor.observe(step(0.5, **ALARM))
    assert monitor.learning_rate_factor == F**3
    observed(monitor, [0.5] * (CALM_STEPS + 2))
    assert monitor.learning_rate_factor == 2 * F**3


def test_a_reward_that_does_not_come_back_pauses_the_run() -> None:
    monitor = HealthMonitor(DEFAULT)
    observed(monitor, [0.5] * 20)
    monitor.rolled_back(5)
    said = observed(monitor, [0.45] + [0.3] * 170)
    assert said == [(DEFAULT.recovery_steps, "not_recovered")]
    unrecovered = monitor.unrecovered
    assert unrecovered is not None and "it was 0.5 before" in unrecovered.message
    assert DEFAULT.action("not_recovered") == "pause"


@pytest.mark.parametrize(("reward", "recovers"), [(0.58, True), (0.5, False)])
def test_a_policy_that_learns_on_is_a_recovery_and_stays_one(reward: float, recovers: bool) -> None:
    monitor = HealthMonitor(DEFAULT)
    observed(monitor, [0.5] * 20)
    monitor.rolled_back(5)
    assert monitor.unrecovered is None, "nothing was measured yet"
    observed(monitor, [0.45] + [0.3] * 12)
    assert monitor.unrecovered is not None
    observed(monitor, [*np.linspace(0.3, reward, 30), *[reward] * 20])
    assert (monitor.unrecovered is None) == recovers
    assert ("not_recovered" in {rule for _, rule in observed(monitor, [0.5] * 200)}) == (not recovers)


def collapse(monitor: HealthMonitor, reward: float) -> list[str]:
    """Twelve steps of one answer for each prompt."""
    return [f.rule for _ in range(12) for f in monitor.observe(step(reward) | COLLAPSED)]


def test_the_same_reward_is_no_recovery_unless_there_is_hardly_a_better_one() -> None:
    for reward, recovers in ((0.5, False), (0.7, False), (0.8, True)):
        monitor = HealthMonitor(DEFAULT)
        assert "policy_collapse" in collapse(monitor, reward)
        monitor.rolled_back(0)
        observed(monitor, [reward] * (DEFAULT.window - 1))
        assert monitor.unrecovered is not None, "the policy has not looked for a better one"
        observed(monitor, [reward])
        assert (monitor.unrecovered is None) == recovers
        observed(monitor, [reward] * DEFAULT.recovery_steps)
        assert ("not_recovered" in monitor.active) == (not recovers)


def test_a_policy_that_was_solving_the_task_is_not_collapsed_however_sure_it_is() -> None:
    monitor = HealthMonitor(DEFAULT)
    observed(monitor, [0.3] * 5 + [0.8] * 20)
    assert "policy_collapse" not in collapse(monitor, 0.8)
    assert "policy_collapse" in collapse(HealthMonitor(DEFAULT), 0.8), "it has not looked for a better one"
    unsolved = HealthMonitor(DEFAULT)
    observed(unsolved, [0.3] * 25)
    assert "policy_collapse" in collapse(unsolved, 0.5), "it has seen better"


def test_rollbacks_in_a_row_are_limited_and_a_run_that_learned_on_has_them_all_again() -> None:
    monitor = HealthMonitor(HealthConfig(max_rollbacks=2))
    broken = {"loss": float("nan")}
    observed(monitor, [0.5] * 20)
    for _ in range(2):
        assert monitor.decide(monitor.observe(broken)) == "rollback"
        monitor.rolled_back(10)
        observed(monitor, [0.5] * 15)
    assert monitor.decide(monitor.observe(broken)) == "stop", "the same reward is no progress"
    monitor.rolled_back(10)
    observed(monitor, [0.7] * 15)
    assert monitor.decide(monitor.observe(broken)) == "rollback"
    before = monitor.learning_rate_factor
    monitor.rolled_back(10)
    assert monitor.learning_rate_factor == before * F and monitor.rollbacks == 4, "by the factor once"


def test_what_a_restored_policy_earns_is_compared_beyond_the_noise_between_steps() -> None:
    """Rewards that a whole step shares, such as its tasks' difficulty, vary more than those within it."""
    rng = np.random.default_rng(0)
    for noise, found in ((0.01, True), (0.1, False)):
        monitor = HealthMonitor(DEFAULT)
        observed(monitor, list(0.5 + noise * rng.normal(size=30)))
        monitor.rolled_back(25)
        assert (("restored_reward") in {f.rule for f in monitor.observe(step(0.3))}) == found


@pytest.mark.parametrize("at", [3, 21, 35, 70])
def test_a_restored_monitor_goes_on_as_the_one_that_was_saved(at: int) -> None:
    rewards = list(0.5 + 0.02 * np.random.default_rng(1).normal(size=230))
    rewards[40:] = [0.3] * 190

    def course(reload_at: int | None) -> list[object]:
        monitor, seen = HealthMonitor(DEFAULT), []
        for i, reward in enumerate(rewards):
            if i in (20, 32):
                monitor.rolled_back(i - 5)
            if i == reload_at:
                state = json.loads(json.dumps(monitor.state()))
                monitor = HealthMonitor(DEFAULT)
                monitor.load(state)
            found = [f.rule for f in monitor.observe(step(reward))]
            seen.append((found, monitor.learning_rate_factor, monitor.rollbacks, monitor.unrecovered is None))
        return seen

    whole = course(None)
    assert course(at) == whole and any(found for found, *_ in whole)  # type: ignore[misc]


def unrecovered(**actions: str) -> HealthMonitor:
    """A monitor of a run that earns less since it went back."""
    monitor = HealthMonitor(HealthConfig(actions=actions))
    observed(monitor, [0.5] * 20)
    monitor.rolled_back(5)
    observed(monitor, [0.45] + [0.3] * DEFAULT.recovery_steps)
    return monitor


def test_a_run_does_not_end_on_what_is_ignored_or_was_read() -> None:
    assert unrecovered(not_recovered="ignore").unrecovered is None
    warned = unrecovered(not_recovered="warn").unrecovered
    assert warned is not None and warned.action == "warn"
    paused = unrecovered()
    assert paused.unrecovered is not None
    paused.acknowledge()
    observed(paused, [0.3] * 50)
    assert paused.unrecovered is None, "a person has read it and gone on"
    observed(paused, [0.6] * 30)
    paused.rolled_back(5)
    observed(paused, [0.45] + [0.3] * 20)
    assert paused.unrecovered is not None, "new trouble"


@pytest.mark.parametrize("undone", [0, 5, 130])
def test_a_policy_has_explored_before_a_rollback_however_far_that_goes_back(undone: int) -> None:
    monitor = HealthMonitor(DEFAULT)
    observed(monitor, [0.3] * 5 + [0.8] * 195)
    monitor.rolled_back(200 - undone)
    observed(monitor, [0.8] * 3)
    assert "policy_collapse" not in collapse(monitor, 0.8), "it had solved the task"
