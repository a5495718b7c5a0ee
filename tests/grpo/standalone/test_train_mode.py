"""Dropout never acts in a pass of the trainer, and the caller's modules keep the mode they are in."""

from __future__ import annotations

import asyncio
from typing import Any

import peft
import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config, GPTNeoXConfig

from assay import GRPOConfig, GRPOTrainer, HealthConfig
from assay.backends.config import LocalBackend
from assay.backends.local.backend import TorchBackend
from assay.types import SamplingParams
from support.off_policy import MADE_UP
from support.own_rollouts import made_up, same, snapshot
from support.tiny_models import SPECIAL, WIDE, tiny_model

HALF = 0.5
"""Dropout that nobody could overlook."""
CONFIG = GRPOConfig(
    learning_rate=1e-3,
    kl_coef=0.05,
    kl_estimator="k3",
    health=HealthConfig(actions={"mismatch": "ignore"}),
    parity=MADE_UP,
)


def with_dropout(name: str) -> Any:
    """A model whose forward pass is another one in train mode."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        if name == "lora":
            config = peft.LoraConfig(r=2, target_modules="all-linear", lora_dropout=HALF, init_lora_weights=False)
            return peft.get_peft_model(tiny_model("llama"), config)
        shapes = {
            "gpt_neox": lambda: GPTNeoXConfig(**WIDE, hidden_dropout=HALF, initializer_range=0.2, **SPECIAL),
            "gpt2": lambda: GPT2Config(
                n_embd=32, n_layer=2, n_head=4, n_positions=64, resid_pdrop=HALF, embd_pdrop=HALF, **SPECIAL
            ),
        }
        return AutoModelForCausalLM.from_config(shapes[name]())


@pytest.mark.parametrize("name", ["gpt_neox", "gpt2", "lora"])
@pytest.mark.parametrize("reference", ["start", "own"])
def test_train_mode_between_steps_changes_nothing(name: str, reference: str) -> None:
    found = []
    for trains in (False, True):
        model = with_dropout(name)
        ref_model = with_dropout("gpt_neox") if reference == "own" else None
        data = made_up(model, groups=2, size=3)
        trainer = GRPOTrainer(model, ref_model, CONFIG)
        for _ in range(2):
            for each in (model, ref_model) if trains else ():
                if each is not None:
                    each.train()
            metrics = trainer.training_step_with_rollout_epochs(data)
            assert all(m.training is trains for m in model.modules()), "the caller's mode is the caller's"
            assert ref_model is None or all(m.training is trains for m in ref_model.modules())
        found.append((metrics, snapshot(model)))
    assert found[0][0] == found[1][0] and same(found[0][1], found[1][1])


def test_the_first_step_sees_the_policy_without_dropout() -> None:
    model = with_dropout("gpt_neox")
    data = made_up(model, groups=2, size=3)
    trainer = GRPOTrainer(model, None, CONFIG)
    assert not model.training, "so that rollouts sampled by hand have no dropout either"
    model.train()
    assert trainer.training_step(data)["ratio_error"] < 1e-4


def test_modules_in_either_mode_stay_so() -> None:
    model = with_dropout("gpt_neox")
    trainer = GRPOTrainer(model, None, CONFIG)
    layer = model.base_model.layers[0]
    layer.train()
    modes = {name: module.training for name, module in model.named_modules()}
    assert len(set(modes.values())) == 2
    trainer.training_step(made_up(groups=2, size=3))
    assert {name: module.training for name, module in model.named_modules()} == modes


def test_a_step_that_fails_restores_the_mode_too(monkeypatch: pytest.MonkeyPatch) -> None:
    model = with_dropout("gpt_neox")
    trainer = GRPOTrainer(model, None, CONFIG)
    model.train()
    monkeypatch.setattr("assay.backends.local.gradient.token_losses", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        trainer.training_step(made_up(groups=2, size=3))
    assert all(m.training for m in model.modules())


@pytest.mark.parametrize("name", ["gpt_neox", "lora"])
def test_sampling_has_no_dropout(name: str) -> None:
    model = with_dropout(name)
    backend = TorchBackend(model, None, LocalBackend(device="cpu", torch_threads=1))
    params = SamplingParams(max_tokens=6, stop=(0,))
    prompts, seeds = [(5, 6, 7), (8, 9)], [1, 2]
    expected = asyncio.run(backend.sample(prompts, params, seeds))
    model.train()
    assert asyncio.run(backend.sample(prompts, params, seeds)) == expected
    assert model.training
