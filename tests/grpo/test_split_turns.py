"""Baselines by turn where a rewritten history splits a rollout into several training sequences: numbers by hand.

Three rollouts of one prompt (5, 6), rewards discounted by 0.5:

    rollout  turns      rewards  returns   training sequences
    A        (7 8) (4)  1, 3     2.5, 3    two: the second turn's prompt is (5, 9), not the conversation so far
    B        (3) (789)  0, 1     0.5, 1    one: its second prompt goes on from the first turn
    C        (8 8)      2        2         one

    turn 1: returns 2.5, 0.5, 2    less the mean of the other two, 1.25, 2.25, 1.5:   1.25, -1.75, 0.5
    turn 2: returns 3, 1           less the other:                                    2, -2
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from assay.grpo.config import GRPOConfig
from assay.grpo.group_data import advantages_of, group_data
from assay.types import Completion, Datum, Score, Trajectory, TrajectoryGroup, Transition
from support.off_policy import a_backend, update
from support.scripted import task

Turn = tuple[float | None, tuple[int, ...], tuple[int, ...]]
"""Reward, prompt, completion."""

A: list[Turn] = [(1.0, (5, 6), (7, 8)), (3.0, (5, 9), (4,))]
B: list[Turn] = [(0.0, (5, 6), (3,)), (1.0, (5, 6, 3, 2), (7, 8, 9))]
C: list[Turn] = [(2.0, (5, 6), (8, 8))]
BY_TURN: dict[str, Any] = {"loss_fn": "importance_sampling", "baseline": "turn", "gamma": 0.5, "kl_coef": 0.0}
TARGETS = [[6, 7, 8], [9, 4], [6, 3, 2, 7, 8, 9], [6, 8, 8]]
BY_HAND = [[0, 1.25, 1.25], [0, 2], [0, -1.75, 0, -2, -2, -2], [0, 0.5, 0.5]]
"""Of each training sequence: 2, 1, 4 and 2 trained tokens, the first target being the prompt's."""


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def group_of(*rollouts: list[Turn]) -> TrajectoryGroup:
    def turn(reward: float | None, prompt: tuple[int, ...], said: tuple[int, ...]) -> Transition:
        score = Score("errored", None) if reward is None else Score("scored", reward)
        return Transition(prompt, Completion(said, (-1.0,) * len(said), "stop", 0), "", score)

    trajectories = (
        Trajectory(task("a"), tuple(turn(*t) for t in turns), "errored" if turns[-1][0] is None else "done", 0)
        for turns in rollouts
    )
    return TrajectoryGroup(task("a"), tuple(trajectories))


def data_of(group: TrajectoryGroup, **more: Any) -> tuple[Datum, ...]:
    config = GRPOConfig(**{**BY_TURN, **more})
    item = group_data(group, advantages_of(group, config), config)
    assert item is not None
    return item.data


def assert_advantages(data: Sequence[Datum], want: Sequence[Sequence[float]]) -> None:
    for datum, numbers in zip(data, want, strict=True):
        np.testing.assert_allclose(datum.advantages, numbers, rtol=1e-6)


def test_every_part_of_a_split_rollout_has_the_advantages_of_its_own_turns() -> None:
    data = data_of(group_of(A, B, C))
    assert [d.targets.tolist() for d in data] == TARGETS
    assert_advantages(data, BY_HAND)
    for datum in data_of(group_of(C, B, A)):  # in any order of the rollouts
        assert datum.advantages.tolist() in BY_HAND


def test_the_deviation_is_one_of_all_turns_around_their_means() -> None:
    # (5/6)^2 + (7/6)^2 + (1/3)^2 at turn 1, 1 + 1 at turn 2: 25/6 over five returns.
    deviation = math.sqrt(5 / 6)
    data = data_of(group_of(A, B, C), normalize_advantages_by_std=True)
    assert_advantages(data, [[a / deviation for a in row] for row in BY_HAND])


@pytest.mark.parametrize(
    ("aggregation", "divisors"),
    [
        ({"aggregation": "token"}, [9, 9, 9, 9]),
        ({"aggregation": "sequence"}, [4 * 2, 4 * 1, 4 * 4, 4 * 2]),
        ({"aggregation": "constant", "constant_length": 10}, [40, 40, 40, 40]),
    ],
    ids=["token", "sequence", "constant"],
)
def test_each_part_is_a_sequence_of_the_normaliser(aggregation: dict[str, Any], divisors: list[int]) -> None:
    recorder = update(a_backend(), [group_of(A, B, C)], {**BY_TURN, **aggregation})
    ((data,), (report,)) = recorder.data, recorder.reports
    assert_advantages(data, [[a / n for a in row] for row, n in zip(BY_HAND, divisors, strict=True)])
    turns = {place: turn.advantages for place, turn in report.turns.items()}
    want = {(0, 0): [1.25] * 2, (0, 1): [2], (1, 0): [-1.75], (1, 1): [-2] * 3, (2, 0): [0.5] * 2}
    assert {place[1:]: found.tolist() for place, found in turns.items() if found is not None} == want


def test_a_split_turn_that_no_other_reached_has_no_advantage_and_counts() -> None:
    data = data_of(group_of(A, B[:1], C))
    # B's return is 0 now: 2.5 - 1, 0 - 2.25, 2 - 1.25.
    assert_advantages(data, [[0, 1.5, 1.5], [0, 0], [0, -2.25], [0, 0.75, 0.75]])
    assert [int(d.mask.sum()) for d in data] == [2, 1, 1, 2]


def test_a_split_rollout_whose_last_turn_has_no_score_is_excluded_from_the_baseline() -> None:
    unscored: list[Turn] = [A[0], (None, *A[1][1:])]
    data = data_of(group_of(unscored, B, C))
    # At turn 1 there are B's 0.5 and C's 2; B is alone at turn 2.
    assert_advantages(data, [[0, -1.5, 0, 0, 0, 0], [0, 1.5, 1.5]])
