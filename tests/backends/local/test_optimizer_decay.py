"""Which tensors decay: those that decay in Hugging Face's trainer, and so in TRL."""

from __future__ import annotations

import pytest
from peft import LoraConfig, get_peft_model
from transformers import Trainer

from assay.backends.local.optimizer import adamw
from support.tiny_models import CONFIGS, tiny_model


@pytest.mark.parametrize("adapted", [False, True])
@pytest.mark.parametrize("name", CONFIGS)
def test_matrices_decay_and_embeddings_among_them(name: str, adapted: bool) -> None:
    model = tiny_model(name)
    if adapted:
        model = get_peft_model(model, LoraConfig(r=2, target_modules="all-linear"))
    trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
    names = {id(p): n for n, p in trained.items()}
    found = {names[id(p)] for g in adamw(trained.values(), "auto").param_groups if g["decayed"] for p in g["params"]}
    assert found == set(Trainer.get_decay_parameter_names(None, model)) & set(trained)
    assert adapted or any("wte" in n or "embed" in n for n in found)
    assert adapted or found != set(trained)
