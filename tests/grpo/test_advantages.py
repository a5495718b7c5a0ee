from __future__ import annotations

from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.grpo.advantages import group_advantages, has_constant_rewards, is_constant, lone_turns, turn_returns
from assay.grpo.recipes import Baseline
from assay.types import TrajectoryGroup
from support.scripted import group, trajectory

REWARDS = st.floats(-100, 100, allow_nan=False).map(lambda x: round(x, 3))
ROLLOUTS = st.lists(st.lists(REWARDS, min_size=1, max_size=3) | st.just([None]), min_size=1, max_size=6)


def advantages(
    of: TrajectoryGroup, *, gamma: float = 0.5, normalize_by_std: bool = False, baseline: Baseline = "mean"
) -> list[list[float]] | None:
    return group_advantages(of, gamma=gamma, normalize_by_std=normalize_by_std, baseline=baseline)


def test_a_turn_earns_its_reward_and_the_discounted_return_of_the_next() -> None:
    assert turn_returns(trajectory([1.0, 2.0, 4.0]), 0.5) == [3.0, 4.0, 4.0]
    assert turn_returns(trajectory([1.0, 2.0, 4.0]), 0.0) == [1.0, 2.0, 4.0]
    assert turn_returns(trajectory([1.0, 2.0, 4.0]), 1.0) == [7.0, 6.0, 4.0]


def test_rewards_are_centred_on_their_group() -> None:
    assert advantages(group(1.0, 0.0, 0.0, 1.0)) == [[0.5], [-0.5], [-0.5], [0.5]]


def test_the_baseline_is_the_mean_over_all_turns() -> None:
    first, second = advantages(group([0.0, 2.0], [4.0])) or ([], [])
    np.testing.assert_allclose([*first, *second], np.array([1.0, 2.0, 4.0]) - 7 / 3)


@settings(max_examples=30, deadline=None)
@given(ROLLOUTS, st.booleans(), st.floats(0, 1))
def test_advantages_sum_to_zero_and_have_the_order_of_the_returns(
    rollouts: list[list[float | None]], normalize_by_std: bool, gamma: float
) -> None:
    these = group(*rollouts)
    found = advantages(these, gamma=gamma, normalize_by_std=normalize_by_std)
    returns = [r for t in these.trajectories if not t.errored for r in turn_returns(t, gamma)]
    if found is None:
        assert has_constant_rewards(these) or is_constant(returns)
        return
    flat = np.array([a for turns in found for a in turns])
    scale = np.abs(flat).max()
    assert len(flat) == len(returns) and abs(flat.sum()) <= 1e-9 * scale * len(flat)
    assert (np.diff(flat[np.argsort(returns)]) >= 0).all()
    assert [len(turns) for turns in found] == [0 if None in r else len(r) for r in rollouts]
    if normalize_by_std:
        assert flat.std() == pytest.approx(1.0)


@settings(max_examples=30, deadline=None)
@given(st.lists(REWARDS, min_size=2, max_size=6), st.data())
def test_what_could_not_be_scored_leaves_the_baseline(rewards: list[float], data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(rewards)))
    with_failure = advantages(group(*rewards[:place], None, *rewards[place:]))
    without = advantages(group(*rewards))
    if without is None:
        assert with_failure is None
    else:
        assert with_failure == [*without[:place], [], *without[place:]]


@settings(max_examples=30, deadline=None)
@given(st.lists(REWARDS, min_size=5, max_size=5, unique=True), st.permutations(range(5)))
def test_the_order_of_the_samples_does_not_matter(rewards: list[float], order: list[int]) -> None:
    found = advantages(group(*rewards)) or []
    assert advantages(group(*(rewards[i] for i in order))) == [found[i] for i in order]


@settings(max_examples=30, deadline=None)
@given(st.lists(REWARDS, min_size=2, max_size=6, unique=True), st.floats(-50, 50), st.floats(0.1, 10))
def test_scale_and_offset_of_a_reward_vanish_under_std(rewards: list[float], offset: float, scale: float) -> None:
    plain = advantages(group(*rewards), normalize_by_std=True)
    moved = advantages(group(*(scale * r + offset for r in rewards)), normalize_by_std=True)
    assert plain is not None and moved is not None
    np.testing.assert_allclose(moved, plain, atol=1e-6)


@pytest.mark.parametrize(
    "rewards", [[0.3], [0.3, 0.3, 0.3], [0.1 + 0.2, 0.3], [1e9, 1e9 + 1e-6], [None], [None, 0.5], []]
)
def test_equal_returns_say_nothing(rewards: list[float | None]) -> None:
    assert advantages(group(*rewards)) is None
    assert advantages(group(*rewards), normalize_by_std=True) is None


@pytest.mark.parametrize(
    ("rollouts", "constant"),
    [
        ([[0.5, 0.5], [0.5, 0.5]], True),
        ([[0.5], [0.5, 0.5]], True),
        ([[0.0, 1.0], [0.0, 1.0]], True),
        ([[0.0, 1.0], [0.0, 1.0], [None]], True),
        ([[0.0, 1.0], [None]], True),
        ([[0.0, 1.0], [1.0, 0.0]], False),
        ([[0.0, 1.0], [0.0, 1.0], [1.0]], False),
        ([[0.0, 1.0], [0.0]], False),
    ],
)
def test_rollouts_that_earned_the_same_turn_by_turn_cannot_be_told_apart(
    rollouts: list[list[float | None]], constant: bool
) -> None:
    assert has_constant_rewards(group(*rollouts)) is constant
    assert (advantages(group(*rollouts), gamma=0.4) is None) is constant


def test_different_rewards_with_equal_returns_are_not_blown_up_by_their_rounding_error() -> None:
    assert turn_returns(trajectory([0.6, 1.0]), 0.4) == [1.0, 1.0]
    assert advantages(group([0.6, 1.0], [1.0]), gamma=0.4, normalize_by_std=True) is None


@pytest.mark.parametrize(
    "rewards", [[0.3, 0.3 + 1e-12], [1e-6, 0.0], [1e-300, 0.0], [-2e6, -2e6 + 1], [1e13, 1e13 - 1]]
)
def test_small_differences_say_something_at_any_scale_and_offset(rewards: list[float]) -> None:
    assert advantages(group(*rewards)) is not None
    first, second = advantages(group(*rewards), normalize_by_std=True) or ([], [])
    assert sorted([*first, *second]) == pytest.approx([-1.0, 1.0])
    assert (advantages(group(*([r] for r in rewards)), baseline="turn", normalize_by_std=True) or [])[0][0] != 0


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(1e-3, 1e3), min_size=2, max_size=33), st.randoms(use_true_random=False))
def test_sums_of_the_same_parts_in_another_order_are_equal(parts: list[float], random: Random) -> None:
    assert is_constant([sum(parts), sum(random.sample(parts, len(parts)))])


def test_equal_rewards_at_different_turns_differ_by_their_discount() -> None:
    assert advantages(group([0.0, 1.0], [1.0]), gamma=0.4) is not None


# The others at the same turn


def test_a_turn_is_compared_with_the_others_at_the_same_turn() -> None:
    these = group([1.0, 4.0], [0.0, 2.0], [5.0])
    assert advantages(these, gamma=1.0, baseline="turn") == [[5 - 3.5, 2.0], [2 - 5.0, -2.0], [5 - 3.5]]


def test_a_turn_that_no_other_rollout_reached_gets_no_advantage() -> None:
    these = group([1.0, 1.0, 9.0], [0.0, 2.0], [0.0, 0.0, None])
    assert advantages(these, gamma=0.0, baseline="turn") == [[1.0, -1.0, 0.0], [-1.0, 1.0], []]
    assert lone_turns(these) == (1, 5)
    assert lone_turns(group([1.0, 1.0], [None])) == (2, 2) and lone_turns(group([None])) == (0, 0)


@settings(max_examples=30, deadline=None)
@given(ROLLOUTS, st.booleans(), st.floats(0, 1))
def test_advantages_of_a_turn_sum_to_zero_and_scale_with_the_reward(
    rollouts: list[list[float | None]], normalize_by_std: bool, gamma: float
) -> None:
    these = group(*rollouts)
    found = advantages(these, gamma=gamma, normalize_by_std=normalize_by_std, baseline="turn")
    returns = [[] if t.errored else turn_returns(t, gamma) for t in these.trajectories]
    columns = [[turns[t] for turns in returns if t < len(turns)] for t in range(3)]
    if found is None:
        assert has_constant_rewards(these) or all(len(c) < 2 or is_constant(c) for c in columns)
        return
    assert [len(turns) for turns in found] == [len(turns) for turns in returns]
    for t, column in enumerate(columns):
        mine = np.array([turns[t] for turns in found if t < len(turns)])
        assert abs(mine.sum()) <= 1e-9 * max(1.0, np.abs(mine).max(initial=0)) * 6
        if len(column) < 2 or is_constant(column):
            assert not mine.any(), "nothing tells these rollouts apart, and rounding must not"
        elif not normalize_by_std:
            np.testing.assert_allclose(
                mine, (np.array(column) - np.mean(column)) * len(column) / (len(column) - 1), atol=1e-9
            )
    if normalize_by_std:
        tripled = group(*([None if r is None else 3 * r for r in turns] for turns in rollouts))
        again = advantages(tripled, gamma=gamma, normalize_by_std=True, baseline="turn") or []
        np.testing.assert_allclose(np.concatenate(again), np.concatenate(found), atol=1e-6)


@settings(max_examples=30, deadline=None)
@given(st.lists(REWARDS, min_size=2, max_size=6), st.booleans())
def test_with_one_turn_each_it_is_leave_one_out_to_the_bit(rewards: list[float], normalize_by_std: bool) -> None:
    of: list[Baseline] = ["turn", "leave_one_out"]
    turn, others = (advantages(group(*rewards), normalize_by_std=normalize_by_std, baseline=b) for b in of)
    assert turn == others


def test_rollouts_that_are_equal_turn_by_turn_but_for_a_lone_turn_say_nothing() -> None:
    these = group([0.5, 0.5, 7.0], [0.5, 0.5])
    assert not has_constant_rewards(these)
    assert advantages(these, gamma=0.0, baseline="turn") is None
    assert advantages(these, gamma=0.0) is not None
