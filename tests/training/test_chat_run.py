"""Whole runs of a chat model: the renderer is chosen, recorded, and held to when the run goes on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from assay.backends.config import ScratchModel
from assay.config import resolved
from assay.envs.chat import ChatConfig
from assay.errors import ConfigError, RunDirectoryError
from assay.training.config import SFTConfig, TrainingConfig
from assay.training.settle import settle
from support.chat_templates import OPENED, chat_model
from support.tiny_run import assert_same_run, kill, read_lines, run, tiny
from support.toy_env import ToyBuilder


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return chat_model(tmp_path_factory.mktemp("model"), "qwen3")


def config(path: Path, model: Path, **changes: object) -> TrainingConfig:
    """Two batches of two turns over a chat model."""
    settings = {
        "model_name": str(model),
        "scratch": ScratchModel(),
        "mode": "multi_turn",
        "max_turns": 2,
        "max_batches": 2,
        "save_every": 1,
        "eval_every": 0,
        "sft": SFTConfig(num_steps=2, save_every=2, batch_size=2),
        **changes,
    }
    return tiny(path, **settings)


def test_a_chat_model_is_spoken_to_by_its_template_and_a_killed_run_goes_on(model: Path, tmp_path: Path) -> None:
    run(config(tmp_path / "whole", model))
    record = json.loads((tmp_path / "whole/config.json").read_text())
    assert record["dataset_builder"]["renderer_name"] == "chat"
    second = [r for r in read_lines(tmp_path / "whole/traces.jsonl") if r["turn"] == 1]
    assert second and all("<|im_start|>assistant\n" in r["observation"] for r in second)

    cut = config(tmp_path / "cut", model)
    kill(cut, "assay.grpo.trainer", "GRPOTrainer.update", 2)
    run(cut)
    assert_same_run(tmp_path / "cut", tmp_path / "whole")


def test_a_run_does_not_go_on_under_another_template(tmp_path: Path) -> None:
    model = chat_model(tmp_path / "model", "qwen3")
    begun = config(tmp_path / "run", model, sft=SFTConfig())
    kill(begun, "assay.grpo.trainer", "GRPOTrainer.update", 2)
    template = model / "chat_template.jinja"
    own = template.read_text()
    template.write_text(OPENED)
    with pytest.raises(RunDirectoryError, match=r"prompts were written in another way \(template: \w+ -> \w+\)"):
        run(begun)
    template.unlink()
    with pytest.raises(RunDirectoryError, match=r'dataset_builder\.renderer_name: "chat" -> "plain"'):
        run(begun)
    template.write_text(own)
    run(begun)


def test_what_auto_stands_for_is_settled_before_a_run_begins(model: Path, tmp_path: Path) -> None:
    settled = settle(config(tmp_path, model))
    assert settled.dataset_builder.renderer_name == "chat" and settled.build_context().chat
    assert settle(settled) is settled
    several = config(tmp_path, model, multiturn_dataset_builder=ToyBuilder(num_train=8))
    assert settle(several).active_builder.renderer_name == "chat"
    assert settle(several).dataset_builder.renderer_name == "auto"
    scratch = settle(tiny(tmp_path))
    assert scratch.dataset_builder.renderer_name == "plain" and not scratch.build_context().chat
    thoughtful = ToyBuilder(chat=ChatConfig(thinking="none"))
    with pytest.raises(ConfigError, match="the tokenizer of scratch has no chat template, so it would have no effect"):
        settle(tiny(tmp_path, dataset_builder=thoughtful))
    kept = settle(config(tmp_path, model, dataset_builder=thoughtful))
    assert resolved(kept)["dataset_builder"]["chat"]["thinking"] == "none"
