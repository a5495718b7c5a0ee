"""Groups with equal rewards that count in the divisor without being computed: places in the buffer, and weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from assay.grpo.buffer import BufferedGroup, RolloutBuffer
from assay.grpo.normalise import normalise
from assay.grpo.recipes import Aggregation
from assay.types import Datum, TrajectoryGroup
from support.off_policy import World, a_backend, models, rollouts, update

PENALTY = {"kl_coef": 0.4, "kl_estimator": "k2"}


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def trained(tokens: int) -> Datum:
    """A sequence whose first target is a prompt's and whose others are trained, each with the advantage 1."""
    ids, mask = np.arange(tokens + 1), np.array([0] + [1] * tokens, np.float32)
    return Datum(ids, ids + 1, -mask, mask, mask)


def full(version: int) -> BufferedGroup:
    return BufferedGroup((trained(2),), version, 2)


def equal(version: int) -> BufferedGroup:
    return BufferedGroup((), version, 2, counted=(2, 2))


def held(buffer: RolloutBuffer) -> list[tuple[int, bool]]:
    return [(group.id, bool(group.data)) for group in buffer.fresh]


def test_groups_that_only_count_take_no_place_of_those_that_train(tmp_path: Path) -> None:
    buffer = RolloutBuffer(capacity=2)
    buffer.add([full(0), full(0), *(equal(0) for _ in range(6))])
    assert len(buffer) == 8 and buffer.evicted == 0
    buffer.add([equal(1), full(1), equal(1)])
    assert held(buffer)[:2] == [(1, True), (2, False)] and len(buffer) == 10, "the first of the oldest has gone"
    buffer.add([full(2)])
    assert held(buffer) == [(9, True), (10, False), (11, True)], "with it went those that came before what is kept"
    assert buffer.evicted == 9
    buffer.add([equal(3)])
    assert len(buffer) == 4 and buffer.evicted == 9


def test_a_small_buffer_of_a_batch_with_many_equal_rewards_trains_on_the_others() -> None:
    world = World(models()["policy"])
    differ = [world.group([[1.0], [0.0]]) for _ in range(2)]
    same = [world.group([[0.5], [0.5]]) for _ in range(6)]
    small, large = (
        update(a_backend(), [*differ, *same], {"loss_fn": "grpo"}, rollout_epochs=2, buffer_capacity=capacity)
        for capacity in (2, 1000)
    )
    assert [len(data) for data in small.data] == [4, 4]
    assert small.reports[0].metrics["optimizer_steps"] == 2 and small.reports[0].metrics["rollouts_evicted"] == 0
    for mine, other in zip(small.gradients, large.gradients, strict=True):
        assert torch.equal(mine, other)


@pytest.mark.parametrize(
    ("aggregation", "policy", "penalty"),
    [
        # Sequences of 2 and 4 trained tokens, and three that only count, of 3, 1 and 5.
        ("token", [1 / 15, 1 / 15], [1 / 6, 1 / 6]),
        ("sequence", [1 / 10, 1 / 20], [1 / 4, 1 / 8]),
        ("constant", [1 / 50, 1 / 50], [1 / 20, 1 / 20]),
    ],
)
def test_what_only_counts_is_in_the_divisor_of_the_policy_and_not_in_that_of_penalty_and_bonus(
    aggregation: Aggregation, policy: list[float], penalty: list[float]
) -> None:
    found = normalise([trained(2), trained(4)], aggregation, 10, (3, 1, 5))
    for datum, for_policy, for_penalty in zip(found, policy, penalty, strict=True):
        assert datum.weights is not None
        np.testing.assert_allclose(datum.advantages, for_policy * datum.mask, rtol=1e-6)
        np.testing.assert_allclose(datum.weights, for_penalty * datum.mask, rtol=1e-6)


def terms(groups: list[TrajectoryGroup], case: dict[str, Any], pulls: dict[str, Any]) -> torch.Tensor:
    """What a penalty or a bonus adds to the gradient of one optimizer step."""
    (pulled,), without = (update(a_backend(), groups, {**case, **more}).gradients for more in (pulls, {}))
    return pulled - without[0] if without else pulled  # equal rewards alone are no step


@pytest.mark.parametrize("pulls", [PENALTY, {"entropy_coef": 0.1}], ids=["kl", "entropy"])
@pytest.mark.parametrize(
    "case", [{"loss_fn": "ppo"}, {"loss_fn": "grpo"}, {"loss_fn": "dr_grpo", "constant_length": 12}], ids=str
)
def test_the_pull_of_penalty_and_bonus_is_that_of_a_batch_without_the_groups_that_only_count(
    case: dict[str, Any], pulls: dict[str, Any]
) -> None:
    groups = rollouts(1.0)
    case = {**case, "count_constant_groups": True}
    whole, alone = terms(groups, case, pulls), terms([*groups[:3], *groups[4:]], case, pulls)
    assert alone.norm() > 1e-3, "the pull must not vanish"
    assert (whole - alone).norm() < 1e-4 * alone.norm()


def test_with_the_tokens_of_equal_rewards_the_pull_is_a_mean_over_them_too() -> None:
    groups, pulls = rollouts(1.0), PENALTY
    kept = {"loss_fn": "dr_grpo", "constant_length": 12, "remove_constant_reward_groups": False}
    rest = [*groups[:3], *groups[4:]]
    whole, others, equal_ones = terms(groups, kept, pulls), terms(rest, kept, pulls), terms(groups[3:4], kept, pulls)
    sizes = [len(update(a_backend(), part, kept | pulls).data[0]) for part in (rest, groups[3:4])]
    want = (sizes[0] * others + sizes[1] * equal_ones) / sum(sizes)
    assert (whole - want).norm() < 1e-4 * want.norm() and (whole - others).norm() > 0.01 * want.norm()
