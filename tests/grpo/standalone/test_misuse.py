"""A trainer by itself, called with what it cannot use, or with settings that do nothing: one clear sentence each."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import chz
import pytest
import torch

from assay import GRPOConfig, GRPOTrainer, Rollout, RolloutGroup, StepData
from assay.errors import ConfigError, DataError, ModelError
from support.off_policy import MADE_UP
from support.own_rollouts import made_up
from support.tiny_models import tiny_model

PLAIN = GRPOConfig(kl_coef=0.0, parity=MADE_UP)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (lambda: ("gpt2",), r"model='gpt2' is not a model. Load it.*GRPOTrainer\(model, ref_model, config\)"),
        (lambda: (tiny_model("gpt2"), GRPOConfig()), r"ref_model is a GRPOConfig.*GRPOTrainer\(model, None, config\)"),
        (lambda: (GRPOConfig(),), r"model is a GRPOConfig"),
        (lambda: (tiny_model("gpt2"), "gpt2"), r"ref_model='gpt2' is not a model"),
        (lambda: (tiny_model("gpt2"), None, {"kl_coef": 0}), r"config=\{'kl_coef': 0\} is not a GRPOConfig"),
    ],
)
def test_wrong_arguments_are_named_with_the_right_call(arguments: Any, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        GRPOTrainer(*arguments())


def test_a_discount_that_nothing_reads_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"gamma=0.5 would have no effect: a rollout of step data has one turn"):
        GRPOTrainer(tiny_model("gpt2"), None, GRPOConfig(gamma=0.5))


@pytest.mark.parametrize("given", [RolloutGroup([3], [Rollout([5], 1.0)]), [Rollout([5], 1.0)], "data", 3])
def test_a_step_takes_groups(given: Any) -> None:
    trainer = GRPOTrainer(tiny_model("gpt2"), None, PLAIN)
    for step in (trainer.training_step, trainer.training_step_with_rollout_epochs):
        with pytest.raises(DataError, match="takes StepData or a list of RolloutGroup"):
            step(given)


def test_weights_that_were_frozen_later_are_named() -> None:
    model = tiny_model("gpt2")
    trainer = GRPOTrainer(model, None, PLAIN)
    data = made_up(model, size=2)
    first = next(name for name, _ in model.named_parameters())
    for frozen in ([next(iter(model.parameters()))], list(model.parameters())):
        for parameter in frozen:
            parameter.requires_grad_(False)
        with pytest.raises(
            ModelError, match=rf"^{len(frozen)} of \d+ trained weights no longer .*{first} is the first"
        ):
            trainer.training_step(data)
    model.requires_grad_(True)
    assert trainer.training_step(data)["optimizer_steps"] == 1


def test_settings_without_effect_are_said_once(caplog: pytest.LogCaptureFixture) -> None:
    model = tiny_model("gpt2")
    trainer = GRPOTrainer(model, None, chz.replace(PLAIN, max_staleness=9, num_substeps=9))
    data = made_up(model, size=2)
    trainer.training_step(data)
    trainer.training_step(data)
    assert caplog.text.count("max_staleness=9 has no effect in training_step") == 1
    assert caplog.text.count("num_substeps=9, but a step has only 4 groups") == 1
    caplog.clear()
    enough = GRPOTrainer(tiny_model("gpt2"), None, chz.replace(PLAIN, max_staleness=9, num_substeps=4))
    enough.training_step_with_rollout_epochs(data)
    assert "max_staleness" not in caplog.text and "num_substeps" not in caplog.text


def test_k1_in_the_loss_is_said_to_regularise_nothing(caplog: pytest.LogCaptureFixture) -> None:
    said = "kl_estimator=k1 in the loss regularises nothing"
    GRPOTrainer(tiny_model("gpt2"), None, GRPOConfig(kl_estimator="k1"))
    assert said in caplog.text
    caplog.clear()
    for other in ({"kl_unbiased": True}, {"kl_placement": "reward"}):
        GRPOTrainer(tiny_model("gpt2"), None, GRPOConfig(kl_estimator="k1", **other))
    assert said not in caplog.text


GOOD = Rollout([5, 6], 1.0, [-1.0, -2.0])
WHY = {
    "no rollout has a reward": [replace(GOOD, reward=None), replace(GOOD, reward=None)],
    "all completions are empty": [Rollout([], 1.0, []), Rollout([], 0.0, [])],
    "no group has two rollouts with a reward": [GOOD],
    "the rewards were equal within every group": [GOOD, GOOD],
    "no group with differing rewards has tokens": [GOOD, replace(GOOD, reward=0.0)],
}


@pytest.mark.parametrize("why", WHY)
def test_the_reason_why_nothing_was_trained_is_the_real_one(why: str, caplog: pytest.LogCaptureFixture) -> None:
    config = chz.replace(PLAIN, mask_truncated=True)
    rollouts = [replace(r, truncated=why.startswith("no group with")) for r in WHY[why]]
    caplog.set_level(logging.WARNING)
    GRPOTrainer(tiny_model("gpt2"), None, config).training_step(StepData([RolloutGroup([3, 4], rollouts)]))
    assert f"No optimizer step: {why}" in caplog.text


@pytest.mark.parametrize("counted", [True, False])
def test_counting_groups_that_are_trained_on_is_no_choice(counted: bool) -> None:
    said = f"count_constant_groups={str(counted).lower()} would do nothing"
    with pytest.raises(ConfigError, match=said):
        GRPOConfig(count_constant_groups=counted, remove_constant_reward_groups=False)
