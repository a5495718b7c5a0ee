"""The defaults of a run on kernels, its three published presets, and that each key of several turns is its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from assay.cli.main import main
from assay.config import resolved
from assay.envs.kernelbench.dataset import MultiTurnKernelBenchDatasetBuilder
from assay.presets import FOLLOWS, presets
from assay.training.config import TrainingConfig, load_config

RUN: dict[str, Any] = {
    "model_name": "Qwen/Qwen2.5-Coder-7B-Instruct",
    "lora_rank": 32,
    "learning_rate": 1e-4,
    "max_tokens": 4096,
    "temperature": 1.0,
    "mode": "single_turn",
    "max_turns": 4,
    "gamma": 0.4,
    "num_substeps": 1,
    "loss_fn": "importance_sampling",
    "kl_penalty_coef": 0.0,
    "kl_discount_factor": 0.0,
    "remove_constant_reward_groups": True,
    "log_path": Path("runs/kernel_rl"),
    "save_every": 10,
    "eval_every": 10,
    "wandb_project": None,
    "wandb_name": None,
    # TensorBoard's files are written where its writer is installed.
    "tensorboard_enabled": None,
    "tensorboard_log_histograms_every": 5,
    "tensorboard_log_per_level": True,
    "base_url": None,
    "load_checkpoint_path": None,
    "resume_from_batch": None,
    "multiturn_dataset_builder": None,
}

ALL_PRESETS: dict[str, Any] = {
    "model_name": "Qwen/Qwen3-30B-A3B",
    "temperature": 1.0,
    "loss_fn": "importance_sampling",
    "kl_penalty_coef": 0.0,
    "remove_constant_reward_groups": True,
    "eval_every": 10,
    "wandb_project": None,
    "dataset_builder.level": 1,
    "dataset_builder.start_problem": None,
    "dataset_builder.end_problem": None,
    "dataset_builder.backend": "triton",
    "dataset_builder.dataset_src": "huggingface",
    "dataset_builder.shuffle": True,
    "dataset_builder.num_correct_trials": 5,
    "dataset_builder.test_fraction": 0.1,
    "dataset_builder.renderer_name": "qwen3",
    "dataset_builder.prompt_option": "raicl",
    "dataset_builder.rag_index_path": "kernel_rag_index",
    "dataset_builder.raicl_k": 3,
    "dataset_builder.use_modal": True,
    "dataset_builder.modal_gpu_type": "A100",
    "dataset_builder.modal_timeout": 60.0,
}
IN_TURNS: dict[str, Any] = {
    **ALL_PRESETS,
    "learning_rate": 2e-6,
    "max_tokens": 16384,
    "mode": "multi_turn",
    "max_turns": 4,
    "gamma": 0.4,
    "num_substeps": 2,
    "save_every": 1,
    "dataset_builder.batch_size": 8,
    "dataset_builder.group_size": 16,
    "dataset_builder.measure_performance": True,
    "dataset_builder.reward_format_weight": 0.0,
    "dataset_builder.reward_compile_weight": 0.0,
    "dataset_builder.reward_correctness_weight": 0.3,
    "dataset_builder.reward_speed_weight": 1.0,
    "dataset_builder.reward_length_weight": 0.0,
    "dataset_builder.reward_thinking_weight": 0.0,
}
PRESETS: dict[str, dict[str, Any]] = {
    "rl_kernelbench": {**IN_TURNS, "lora_rank": 64, "log_path": "runs/kernel_rl", "dataset_builder.num_epochs": 22},
    "rl_kernelbench_kevin": {
        **IN_TURNS,
        "lora_rank": 256,
        "log_path": "runs/kernel_rl_kevin",
        "dataset_builder.num_epochs": 1,
    },
    "rl_kernelbench_raicl": {
        **ALL_PRESETS,
        "lora_rank": 256,
        "learning_rate": 1e-4,
        "max_tokens": 4096,
        "mode": "single_turn",
        "num_substeps": 1,
        "log_path": "runs/kernel_rl_raicl",
        "save_every": 10,
        "dataset_builder.batch_size": 4,
        "dataset_builder.group_size": 8,
        "dataset_builder.num_epochs": 1,
        "dataset_builder.measure_performance": False,
        "dataset_builder.reward_format_weight": 0.1,
        "dataset_builder.reward_compile_weight": 0.2,
        "dataset_builder.reward_correctness_weight": 1.0,
        "dataset_builder.reward_speed_weight": 0.0,
        "dataset_builder.reward_length_weight": 0.05,
        "dataset_builder.reward_thinking_weight": 0.1,
    },
}

SEVERAL: dict[str, Any] = {
    "level": 2,
    "start_problem": 2,
    "end_problem": 9,
    "backend": "cuda",
    "dataset_src": "shipped",
    "batch_size": 3,
    "group_size": 5,
    "num_epochs": 2,
    "shuffle": False,
    "max_turns": 3,
    "early_stop_on_correct": False,
    "speedup_threshold": 1.5,
    "num_correct_trials": 7,
    "measure_performance": True,
    "reward_format_weight": 0.3,
    "reward_compile_weight": 0.4,
    "reward_correctness_weight": 0.5,
    "reward_speed_weight": 0.6,
    "reward_length_weight": 0.7,
    "reward_thinking_weight": 0.8,
    "renderer_name": "plain",
    "test_fraction": 0.5,
    "prompt_option": "raicl",
    "rag_index_path": Path("index"),
    "raicl_k": 1,
    "modal_gpu_type": "H100",
    "modal_timeout": 30.0,
}


def test_the_defaults_of_a_run() -> None:
    config = TrainingConfig()
    assert {key: getattr(config, key) for key in RUN} == RUN


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_has_the_published_settings(name: str) -> None:
    record = resolved(load_config(name))
    found = {}
    for key in PRESETS[name]:
        node, _, field = key.rpartition(".")
        found[key] = (record[node] if node else record)[field]
    assert found == PRESETS[name]


def test_each_key_of_several_turns_is_set_by_itself() -> None:
    keys = [f"multiturn_dataset_builder.{key}={value}" for key, value in SEVERAL.items()]
    config = load_config(None, ["mode=multi_turn", *keys, "multiturn_dataset_builder.grader.scale=none"])
    own = config.active_builder
    assert isinstance(own, MultiTurnKernelBenchDatasetBuilder) and own is config.multiturn_dataset_builder
    assert {key: getattr(own, key) for key in SEVERAL} == SEVERAL and config.build_context().max_turns == 3
    assert resolved(config)["dataset_builder"] == resolved(TrainingConfig())["dataset_builder"]
    local = ["multiturn_dataset_builder.use_modal=false", "multiturn_dataset_builder.prompt_option=one_shot"]
    assert load_config(None, ["mode=multi_turn", *local]).active_builder.grading().run_on == "local"


def test_a_stage_that_is_to_go_on_says_so_where_it_would_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert {*FOLLOWS, *FOLLOWS.values()} <= presets().keys()
    (file := tmp_path / "file").write_text("no run")
    command = ["train", "--config", "rl_kernelbench_stage2", "--dry-run", f"log_path={file}"]
    assert main(command) != 0
    assert "Note: rl_kernelbench_stage2 goes on from the weights that rl_kernelbench_stage1 trained" in (
        capsys.readouterr().err
    )
    assert main([*command, "load_checkpoint_path=runs/one/checkpoints/last"]) != 0
    assert "Note:" not in capsys.readouterr().err
