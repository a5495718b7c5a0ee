"""What a training step says of each turn: the advantages and ratios that it trained with, or why it trained nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from assay.backends.base import AdamParams
from assay.errors import NonFiniteGradientError
from assay.grpo.advantages import group_advantages, has_constant_rewards
from assay.grpo.config import GRPOConfig
from assay.grpo.group_data import TurnPlace, TurnTraining
from assay.grpo.trainer import GRPOTrainer
from assay.types import TrajectoryGroup
from support.off_policy import MADE_UP, World, a_backend, distributions, models, rollouts

SETTINGS: dict[str, Any] = {"learning_rate": 0.01, "loss_fn": "grpo", "parity": MADE_UP}


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def trained(
    groups: Sequence[TrajectoryGroup], *, reuse: bool = False, trainer: GRPOTrainer | None = None, **settings: Any
) -> dict[TurnPlace, TurnTraining]:
    trainer = trainer or GRPOTrainer.over(a_backend(), GRPOConfig(**{**SETTINGS, **settings}))
    return dict(asyncio.run(trainer.update(groups, reuse=reuse)).turns)


def by_hand(groups: Sequence[TrajectoryGroup], config: GRPOConfig) -> dict[TurnPlace, tuple[float, list[float]] | str]:
    """Advantage and log-ratios of each turn, or why it trains nothing, each turn computed by itself."""
    policy = models()["policy"]
    found: dict[TurnPlace, tuple[float, list[float]] | str] = {}
    for g, group in enumerate(groups):
        recipe = config.recipe
        advantages = group_advantages(
            group, gamma=config.gamma, normalize_by_std=recipe.by_std, baseline=recipe.baseline
        )
        for s, rollout in enumerate(group.trajectories):
            for t, turn in enumerate(rollout.transitions):
                said, prompt = turn.completion.tokens, turn.prompt_tokens
                if rollout.errored:
                    found[g, s, t] = "errored"
                elif config.mask_truncated and turn.completion.stop_reason == "length":
                    found[g, s, t] = "truncated"
                elif advantages is None:
                    found[g, s, t] = "constant"
                else:
                    with torch.no_grad():
                        table = distributions(policy, [*prompt, *said], 1.0)
                    now = [float(table[len(prompt) - 1 + i, token]) for i, token in enumerate(said)]
                    gaps = [a - b for a, b in zip(now, turn.completion.logprobs, strict=True)]
                    found[g, s, t] = (advantages[s][t], gaps)
    return found


@pytest.mark.parametrize("reuse", [False, True])
@pytest.mark.parametrize("mask_truncated", [False, True])
def test_turns_trained_with_the_advantages_and_ratios_computed_by_hand(reuse: bool, mask_truncated: bool) -> None:
    groups = rollouts(1.0)
    settings: dict[str, Any] = {"mask_truncated": mask_truncated}
    found = trained(groups, reuse=reuse, **settings, **({"rollout_epochs": 2} if reuse else {}))
    wanted = by_hand(groups, GRPOConfig(**SETTINGS, **settings))
    assert found.keys() == wanted.keys()
    assert {"errored", "constant"} <= {value for value in wanted.values() if isinstance(value, str)}
    for place, value in wanted.items():
        turn = found[place]
        if isinstance(value, str):
            assert (turn.removed, turn.advantages, turn.log_ratios) == (value, None, None)
            continue
        assert turn.removed is None and turn.advantages is not None and turn.log_ratios is not None
        np.testing.assert_allclose(turn.advantages, value[0], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(turn.log_ratios, value[1], rtol=1e-3, atol=1e-4)


def test_a_group_that_only_a_lone_turn_tells_apart_trains_nothing_and_counts_as_constant() -> None:
    groups = [*rollouts(1.0), World(models()["policy"]).group([[0.5, 0.5, 7.0], [0.5, 0.5]])]
    settings: dict[str, Any] = {"baseline": "turn", "gamma": 0.0}
    found, wanted = trained(groups, **settings), by_hand(groups, GRPOConfig(**SETTINGS, **settings))
    assert not has_constant_rewards(groups[5])
    assert {wanted[5, s, t] for s, t in ((0, 0), (0, 1), (0, 2), (1, 0), (1, 1))} == {"constant"}
    reasons = {place: value if isinstance(value, str) else None for place, value in wanted.items()}
    assert {place: turn.removed for place, turn in found.items()} == reasons


def test_a_penalty_in_the_reward_is_in_the_advantages_token_by_token() -> None:
    groups = rollouts(1.0)
    plain = trained(groups)
    charged = trained(groups, kl_coef=0.5, kl_placement="reward")
    spread = [np.ptp(turn.advantages) for turn in charged.values() if turn.advantages is not None]
    assert max(spread) > 0.01
    total = [
        float((turn.advantages - plain[place].advantages).sum())
        for place, turn in charged.items()
        if turn.advantages is not None
    ]
    assert abs(sum(total)) < 1e-3  # the penalty is centred over the step


def test_the_first_use_of_a_group_counts_and_later_ones_are_of_earlier_batches() -> None:
    trainer = GRPOTrainer.over(a_backend(), GRPOConfig(**SETTINGS, rollout_epochs=2))
    groups = [group for group in rollouts(1.0) if not has_constant_rewards(group)]
    first = trained(groups, reuse=True, trainer=trainer)
    again = trained(groups[:1], reuse=True, trainer=trainer)
    assert {place[0] for place in again} == {0}
    place = next(place for place, turn in again.items() if turn.removed is None)
    assert not np.allclose(again[place].log_ratios, first[place].log_ratios)  # type: ignore[arg-type]


def test_constant_groups_that_are_kept_train_with_advantages_of_zero() -> None:
    groups = rollouts(1.0)
    kept = trained(groups, remove_constant_reward_groups=False)
    zero = [
        turn
        for place, turn in kept.items()
        if has_constant_rewards(groups[place[0]]) and turn.removed is None and turn.advantages is not None
    ]
    assert zero and not any(turn.advantages.any() for turn in zero)  # type: ignore[union-attr]


def test_a_step_that_was_not_taken_trained_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    backend = a_backend()

    async def broken(params: AdamParams) -> Any:
        raise NonFiniteGradientError("the gradient is not finite")

    monkeypatch.setattr(backend, "optim_step", broken)
    found = trained(rollouts(1.0), trainer=GRPOTrainer.over(backend, GRPOConfig(**SETTINGS)))
    assert {turn.removed for turn in found.values()} == {"errored", "constant", "skipped"}
