"""Solving a problem earlier is never worth less than solving it later, whatever the baseline and the discount."""

from __future__ import annotations

from typing import Any, get_args

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from assay.config import SettingsError
from assay.envs.kernelbench.rewards import KernelRewardConfig, RewardShapes, pays_lateness, score_of, signals_of
from assay.grpo.advantages import group_advantages, turn_returns
from assay.grpo.recipes import Baseline
from assay.kernels.verdicts import Verdict
from assay.types import Completion, Score, Task, Trajectory, TrajectoryGroup, Transition
from support.kernel_run import builder, kernels

TASK = Task("kernelbench", "1/1", ())
gammas = st.floats(0, 1)
failures = st.sampled_from(
    [None, *(Verdict(kind, "numerics") for kind in ("wrong", "crash", "compile_error", "cheat"))]
)
weights = st.floats(0, 2)
configs = st.builds(
    lambda f, c, k, length, t, mode: KernelRewardConfig(
        reward_format_weight=f,
        reward_compile_weight=c,
        reward_correctness_weight=k,
        reward_length_weight=length,
        reward_thinking_weight=t,
        reward=RewardShapes(mode=mode),
    ),
    *(weights, weights, weights, weights, weights, st.sampled_from(["additive", "gated"])),
)


def rollout(rewards: list[float]) -> Trajectory:
    said = Completion((1,), (0.0,), "stop", 0)
    return Trajectory(TASK, tuple(Transition((), said, "", Score("scored", r)) for r in rewards), "done", 0)


def worth(verdict: Verdict | None, config: KernelRewardConfig, size: int = 10) -> float:
    value = score_of(signals_of(verdict, code="c" * size, thought="t" * (size % 7)), config.rules).value
    assert value is not None
    return value


@given(configs, gammas, st.lists(failures, min_size=1, max_size=4), st.integers(1, 9000))
def test_the_first_turn_of_an_accepted_config_never_earns_more_by_failing_first(
    config: KernelRewardConfig, gamma: float, failed: list[Any], size: int
) -> None:
    assume(not pays_lateness(config, gamma))
    solved = worth(Verdict("ok", "numerics"), config, size)
    for count in range(1, len(failed) + 1):
        late = [*(worth(one, config, size) for one in failed[:count]), solved]
        assert turn_returns(rollout(late), gamma)[0] <= turn_returns(rollout([solved]), gamma)[0] + 1e-9


ends = st.tuples(st.integers(0, 3), st.booleans()).map(lambda end: [*[0.0] * end[0], float(end[1])])
"""Rewards of a rollout that fails so many times, and then solves its problem or fails once more."""


@given(
    st.sampled_from(get_args(Baseline)),
    gammas,
    st.lists(ends, min_size=1, max_size=5),
    st.integers(0, 3),
    st.integers(1, 3),
)
def test_the_advantage_of_the_first_turn_never_grows_by_solving_later(
    baseline: Baseline, gamma: float, others: list[list[float]], early: int, later: int
) -> None:
    def first(failures: int) -> float | None:
        rollouts = [rollout([*[0.0] * failures, 1.0]), *map(rollout, others)]
        group = TrajectoryGroup(TASK, tuple(rollouts))
        found = group_advantages(group, gamma=gamma, normalize_by_std=False, baseline=baseline)
        return None if found is None else found[0][0]

    if baseline == "mean":
        early = 0  # a rollout's own later failures lower the mean that its first turn is compared with
    sooner, afterwards = first(early), first(early + later)
    if early:
        assume(afterwards is not None)  # where all rollouts went alike, nothing is trained: good and bad turns
    assert (sooner or 0.0) >= (afterwards or 0.0) - 1e-9


def test_a_first_turn_that_solves_is_never_worse_off_than_in_a_group_that_is_left_out() -> None:
    late = [0.0, 0.0, 1.0]
    for baseline in get_args(Baseline):
        assert (
            group_advantages(
                TrajectoryGroup(TASK, (rollout(late), rollout(late))),
                gamma=0,
                normalize_by_std=False,
                baseline=baseline,
            )
            is None
        )
        found = group_advantages(
            TrajectoryGroup(TASK, (rollout([1.0]), rollout(late))), gamma=0, normalize_by_std=False, baseline=baseline
        )
        assert found is not None and found[0][0] > 0


@pytest.mark.parametrize(
    ("gamma", "changes", "refused"),
    [
        (0.4, {}, False),
        (1.0, {}, True),
        (1.0, {"early_stop_on_correct": False}, False),
        (1.0, {"reward": RewardShapes(mode="gated")}, False),
        (0.4, {"reward": RewardShapes(partial_correctness=True)}, True),
        (0.0, {"reward": RewardShapes(partial_correctness=True)}, False),
    ],
)
def test_a_run_that_would_pay_for_failing_first_is_refused(
    gamma: float, changes: dict[str, Any], refused: bool, tmp_path: Any
) -> None:
    def make() -> None:
        kernels(tmp_path, mode="multi_turn", max_turns=4, gamma=gamma, dataset_builder=builder(**changes))

    if refused:
        with pytest.raises(SettingsError, match="fails first can earn more than one that solves its problem at once"):
            make()
    else:
        make()
    if gamma != 0.4:
        return
    kernels(tmp_path, dataset_builder=builder(reward=RewardShapes(partial_correctness=True)))
