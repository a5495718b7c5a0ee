"""The learning rate of a trainer used by itself: the config's, a step's own, and less after going back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from assay import GRPOConfig, GRPOTrainer, HealthConfig
from assay.errors import DataError
from support.own_rollouts import made_up, same, snapshot
from support.tiny_models import tiny_model

RATE = 1e-3
CONFIG = GRPOConfig(
    learning_rate=RATE, health=HealthConfig(actions={"mismatch": "ignore", "kl_runaway": "ignore"}, report_every=0)
)
FACTOR = CONFIG.health.rollback_lr_factor


def trainer_of(**changes: Any) -> tuple[Any, GRPOTrainer]:
    model = tiny_model("gpt2")
    return model, GRPOTrainer(
        model, None, GRPOConfig(**{**{"health": CONFIG.health, "learning_rate": RATE}, **changes})
    )


@pytest.mark.parametrize("epochs", [False, True])
def test_a_step_of_its_own_rate_is_one_of_a_config_with_that_rate(epochs: bool) -> None:
    (given, by_step), (set_, by_config) = trainer_of(), trainer_of(learning_rate=5e-3)
    for trainer, rate in ((by_step, 5e-3), (by_config, None)):
        step = trainer.training_step_with_rollout_epochs if epochs else trainer.training_step
        assert step(made_up(), learning_rate=rate)["learning_rate"] == 5e-3
    assert same(snapshot(given), snapshot(set_))
    assert by_step.training_step(made_up())["learning_rate"] == RATE, "it was of one step"


@pytest.mark.parametrize("epochs", [False, True])
def test_every_way_back_lowers_the_rate_and_a_checkpoint_remembers_it(epochs: bool, tmp_path: Path) -> None:
    model, trainer = trainer_of()

    def rate(of: GRPOTrainer, **given: float) -> float:
        step = of.training_step_with_rollout_epochs if epochs else of.training_step
        return step(made_up(), **given)["learning_rate"]

    trainer.save(tmp_path / "start")
    start = snapshot(model)
    assert rate(trainer) == RATE
    trainer.roll_back(tmp_path / "start")
    assert same(snapshot(model), start)
    assert rate(trainer) == RATE * FACTOR and rate(trainer, learning_rate=0.1) == 0.1 * FACTOR
    trainer.roll_back(tmp_path / "start")
    assert rate(trainer) == RATE * FACTOR**3, "by the factor twice"
    trainer.save(tmp_path / "later")
    _, restored = trainer_of()
    restored.load(tmp_path / "later")
    assert rate(restored) == RATE * FACTOR**3
    trainer.load(tmp_path / "start")
    assert rate(trainer) == RATE, "as it was when that was saved"


@pytest.mark.parametrize("rate", [None, 3e-3])
@pytest.mark.parametrize("epochs", [False, True])
def test_the_lowered_rate_is_the_one_that_the_optimizer_takes(epochs: bool, rate: float | None, tmp_path: Path) -> None:
    model, trainer = trainer_of(kl_coef=0.0, weight_decay=0.0, rollout_epochs=1)
    step = trainer.training_step_with_rollout_epochs if epochs else trainer.training_step
    trainer.save(tmp_path / "start")
    before = snapshot(model)
    step(made_up(seed=1), learning_rate=rate)
    whole = {n: t - before[n] for n, t in snapshot(model).items()}
    assert sum(float(t.abs().sum()) for t in whole.values()) > 0
    for back in (1, 2):
        trainer.roll_back(tmp_path / "start")
        step(made_up(seed=1), learning_rate=rate)
        for name, now in snapshot(model).items():
            torch.testing.assert_close(now - before[name], whole[name] * FACTOR ** (2 * back - 1), atol=1e-6, rtol=1e-3)


@pytest.mark.parametrize("rate", [-1e-3, float("nan"), float("inf"), "1e-3", True])
def test_a_rate_that_is_none_is_refused_before_anything_changes(rate: Any) -> None:
    model, trainer = trainer_of()
    before = snapshot(model)
    with pytest.raises(DataError, match=r"learning_rate=.*Give"):
        trainer.training_step(made_up(), learning_rate=rate)
    assert same(before, snapshot(model)) and trainer.steps == 0 == trainer.policy_version


def test_numbers_of_other_libraries_are_rates() -> None:
    _, trainer = trainer_of()
    assert trainer.training_step(made_up(), learning_rate=np.float32(0.5))["learning_rate"] == 0.5  # type: ignore[arg-type]
