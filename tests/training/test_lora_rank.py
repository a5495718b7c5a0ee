"""A LoRA rank that a backend does not train is refused when the backend is opened, before anything is sampled."""

from __future__ import annotations

import dataclasses

import pytest

from assay.training.config import load_config
from assay.training.session import beyond
from support.scripted_backend import ScriptedBackend


@pytest.mark.parametrize(("most", "refused"), [(64, True), (256, False), (None, False)])
def test_a_rank_above_the_backends_is_refused(most: int | None, refused: bool) -> None:
    able = dataclasses.replace(
        ScriptedBackend().capabilities, lora=True, losses=frozenset({"importance_sampling"}), max_lora_rank=most
    )
    said = list(beyond(able, load_config("rl_kernelbench_kevin")))
    assert bool(said) == refused
    if refused:
        assert said == [
            "lora_rank=256, but backend=local trains adapters of rank 64 at most for this model. Set lora_rank=64."
        ]
