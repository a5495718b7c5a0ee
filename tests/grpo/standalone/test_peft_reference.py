"""The reference of a peft model is the policy that training started from, whatever of it is trained."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import peft
import pytest
import torch

from assay import GRPOConfig, GRPOTrainer, HealthConfig, StepData
from assay.backends.local.reference import BelowAdapters, FrozenWeights
from assay.errors import CheckpointError, ModelError
from support.off_policy import MADE_UP
from support.own_rollouts import changed, logprobs, made_up, pairs, same, snapshot
from support.tiny_models import tiny_model

CONFIG = GRPOConfig(
    kl_estimator="k3",
    kl_coef=0.01,
    learning_rate=2e-2,
    health=HealthConfig(report_every=0, actions={"mismatch": "ignore", "kl_runaway": "ignore"}),
    parity=MADE_UP,
)


def lora(name: str = "llama", adapter: str = "default", **settings: Any) -> Any:
    """A tiny model with fresh adapters."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        config = peft.LoraConfig(**{"r": 2, "target_modules": "all-linear", **settings})
        return peft.get_peft_model(tiny_model(name), config, adapter_name=adapter)


def moved(model: Any, *parts: str) -> Any:
    """The model with noise on the parameters whose names have one of these parts."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(2)
        for name, parameter in model.named_parameters():
            if any(part in name for part in parts):
                parameter.add_(0.1 * torch.randn_like(parameter))
    return model


def unfrozen(*parts: str) -> Any:
    model = lora()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(parameter.requires_grad or any(part in name for part in parts))
    return model


def two_adapters(active: list[str]) -> Any:
    """An adapter that was trained before, and a fresh one."""
    model = moved(lora(), "lora_B.default")
    model.add_adapter("second", peft.LoraConfig(r=2, target_modules="all-linear"))
    model.base_model.set_adapter(active)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(f".{active[-1]}." in name)
    return model


def by_transformers() -> Any:
    """Adapters that transformers added itself, without a wrapper that could switch them off."""
    model = tiny_model("llama")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        model.add_adapter(peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"]))
    return model


def loha() -> Any:
    return peft.get_peft_model(tiny_model("llama"), peft.LoHaConfig(r=2, target_modules=["q_proj"]))


def trained_modules_to_save() -> Any:
    """A head that was trained together with earlier adapters, and is now frozen beside a fresh adapter."""
    model = moved(lora(modules_to_save=["lm_head"]), "modules_to_save")
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("lora_" in name)
    return model


VARIANTS: dict[str, tuple[Callable[[], Any], bool]] = {
    "fresh": (lora, True),
    "fresh, through its own module": (lambda: lora("gpt_neox"), True),
    "rslora": (lambda: lora(use_rslora=True), True),
    "lora_bias": (lambda: lora(lora_bias=True), True),
    "embedding": (lambda: lora(target_modules=["embed_tokens", "q_proj"]), True),
    "second of two": (lambda: two_adapters(["second"]), True),
    "another name": (lambda: lora(adapter="policy"), True),
    "bias=all": (lambda: lora("gpt2", bias="all", fan_in_fan_out=True), False),
    "bias=lora_only": (lambda: lora("gpt_neox", bias="lora_only"), False),
    "modules_to_save": (lambda: lora(modules_to_save=["lm_head"]), False),
    "frozen modules_to_save": (trained_modules_to_save, False),
    "norms": (lambda: unfrozen("norm"), False),
    "embeddings": (lambda: unfrozen("embed_tokens"), False),
    "trainable tokens": (lambda: lora(trainable_token_indices=[3, 4, 5, 6, 7]), False),
    "trained before": (lambda: moved(lora(), "lora_B"), False),
    "trained embedding": (lambda: moved(lora(target_modules=["embed_tokens"]), "lora_embedding_A"), False),
    "random": (lambda: lora(init_lora_weights=False), False),
    "pissa": (lambda: lora(init_lora_weights="pissa"), False),
    "dora": (lambda: lora(use_dora=True), False),
    "dora, trained before": (lambda: moved(lora(use_dora=True), "lora_B", "magnitude"), False),
    "both of two": (lambda: two_adapters(["default", "second"]), False),
    "not lora": (
        lambda: peft.get_peft_model(tiny_model("llama"), peft.LoHaConfig(r=2, target_modules=["q_proj"])),
        False,
    ),
}
"""Name -> the model, and whether its start is the base below the adapters and stays it."""


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def k3(data: StepData, policy: Any, reference: Any) -> float:
    """The mean KL estimate by two forward passes of the models themselves."""
    base, now = ([logprobs(m, prompt, r.tokens) for prompt, r in pairs(data)] for m in (reference, policy))
    gap = np.concatenate(base) - np.concatenate(now)
    return float(np.mean(np.expm1(gap) - gap))


def reference_of(trainer: GRPOTrainer) -> Any:
    return trainer.backend._reference  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", VARIANTS)
def test_the_reference_is_the_start_and_a_checkpoint_restores_it(name: str, tmp_path: Path) -> None:
    make, below = VARIANTS[name]
    model = make()
    start, kept = copy.deepcopy(model), snapshot(model)
    data = made_up(model, groups=2, size=3)
    trainer = GRPOTrainer(model, None, CONFIG)
    assert isinstance(reference_of(trainer), BelowAdapters if below else FrozenWeights)
    first = trainer.training_step(data)
    assert first["ratio_error"] < 1e-4, "the trainer computes another model than the library"
    assert first["kl_div"] < 1e-9
    trainer.training_step(data)
    expected = k3(data, model, start)
    trainer.save(tmp_path / "saved")
    there = snapshot(model)
    third = trainer.training_step(data)
    assert expected > 1e-3 and third["kl_div"] == pytest.approx(expected, rel=1e-3)
    frozen = {n for n, p in model.named_parameters() if not p.requires_grad}
    assert all(torch.equal(kept[n], snapshot(model)[n]) for n in frozen)

    again = make()
    resumed = GRPOTrainer(again, None, CONFIG)
    resumed.load(tmp_path / "saved")
    assert same(snapshot(again), there)
    assert resumed.training_step(data) == third and same(snapshot(again), snapshot(model))


def test_a_checkpoint_says_that_the_start_was_the_base(tmp_path: Path) -> None:
    model, data = lora(), made_up(tiny_model("llama"), groups=2, size=3)
    trainer = GRPOTrainer(model, None, CONFIG)
    trainer.training_step(data)
    trainer.save(tmp_path / "saved")
    assert not (tmp_path / "saved/reference.safetensors").exists(), "it costs no room"
    expected = trainer.training_step(data)
    # Who goes on from the saved adapters has a start of their own, until the checkpoint says what it was.
    loaded = peft.PeftModel.from_pretrained(tiny_model("llama"), tmp_path / "saved/model", is_trainable=True)
    resumed = GRPOTrainer(loaded, None, CONFIG)
    assert isinstance(reference_of(resumed), FrozenWeights)
    resumed.load(tmp_path / "saved")
    assert isinstance(reference_of(resumed), BelowAdapters)
    assert resumed.training_step(data) == expected


@pytest.mark.parametrize(("saved", "loaded"), [("norms", "fresh"), ("fresh", "norms"), ("norms", "embeddings")])
def test_a_checkpoint_of_other_trained_weights_is_refused(saved: str, loaded: str, tmp_path: Path) -> None:
    GRPOTrainer(VARIANTS[saved][0](), None, CONFIG).save(tmp_path / "saved")
    model = VARIANTS[loaded][0]()
    before = snapshot(model)
    with pytest.raises(CheckpointError, match="does not fit this model"):
        GRPOTrainer(model, None, CONFIG).load(tmp_path / "saved")
    assert same(before, snapshot(model))


def test_adapters_that_only_rare_tokens_show_are_part_of_the_start() -> None:
    model = lora(target_modules=["embed_tokens"])
    with torch.no_grad():
        model.base_model.model.model.embed_tokens.lora_embedding_A["default"][:, 96] = 1.0
    trainer = GRPOTrainer(model, None, CONFIG)
    assert isinstance(reference_of(trainer), FrozenWeights), "no probe may contain token 96"


def test_adapters_that_do_something_without_factors_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    model = lora()
    monkeypatch.setattr("assay.backends.local.reference._add_nothing", lambda _: True)
    assert isinstance(reference_of(GRPOTrainer(model, None, CONFIG)), BelowAdapters)
    for trained in (moved(lora(), "lora_B"), lora(init_lora_weights="pissa")):
        assert isinstance(reference_of(GRPOTrainer(trained, None, CONFIG)), FrozenWeights)


def test_a_refreshed_reference_of_adapters_is_kept_in_the_checkpoint(tmp_path: Path) -> None:
    config = GRPOConfig(kl_coef=0.01, learning_rate=2e-2, ref_refresh_every=1, health=CONFIG.health, parity=MADE_UP)
    model, data = unfrozen("norm"), made_up(tiny_model("llama"), groups=2, size=3)
    trainer = GRPOTrainer(model, None, config)
    trainer.training_step(data)
    assert trainer.training_step(data)["kl_div"] < 1e-9
    trainer.save(tmp_path / "saved")
    expected = trainer.training_step(data)
    resumed = GRPOTrainer(unfrozen("norm"), None, config)
    resumed.load(tmp_path / "saved")
    assert resumed.training_step(data) == expected
    assert json.loads((tmp_path / "saved/backend.json").read_text()) == {"policy_version": 2}


def test_a_reference_of_its_own_is_none_of_this() -> None:
    model, ref_model = moved(lora(), "lora_B"), changed(tiny_model("gpt2"))
    data = made_up(model, groups=2, size=3)
    expected = k3(data, model, ref_model)
    assert GRPOTrainer(model, ref_model, CONFIG).training_step(data)["kl_div"] == pytest.approx(expected, rel=1e-3)


def test_a_checkpoint_needs_no_adapters_that_are_not_trained(tmp_path: Path) -> None:
    def first_of_two() -> Any:
        model = lora()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            model.add_adapter("second", peft.LoraConfig(r=2, target_modules=["k_proj"]))
        model.set_adapter("default")
        return model

    model, data = first_of_two(), made_up(tiny_model("llama"), groups=2, size=3)
    trainer = GRPOTrainer(model, None, CONFIG)
    trainer.training_step(data)
    trainer.save(tmp_path / "saved")
    resumed = GRPOTrainer(again := first_of_two(), None, CONFIG)
    resumed.load(tmp_path / "saved")
    assert same(snapshot(again), snapshot(model))
    assert resumed.training_step(data) == trainer.training_step(data)


def test_merged_adapters_are_refused_since_they_get_no_gradient() -> None:
    model = moved(lora(), "lora_B")
    model.merge_adapter()
    with pytest.raises(ModelError, match=r"merged into its base weights.*unmerge_adapter\(\)"):
        GRPOTrainer(model, None, CONFIG)
    model.unmerge_adapter()
    assert isinstance(reference_of(GRPOTrainer(model, None, CONFIG)), FrozenWeights)
