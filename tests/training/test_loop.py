"""Whole runs: what they leave behind, that a killed one ends as one left alone, and how they stop."""

from __future__ import annotations

import gc
import json
import logging
import os
import shutil
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from assay.backends.config import ScratchModel
from assay.envs.chess.dataset import ChessDatasetBuilder
from assay.envs.chess.engine.stockfish import StockfishConfig
from assay.errors import ConfigError, ModelError, RunDirectoryError, TrainingError
from assay.grpo.config import AlgorithmConfig
from assay.training.config import SFTConfig, TrainingConfig
from assay.training.loop import _fixed_objects
from support.frozen import counted_anew
from support.tensorboard import scalars
from support.tiny_run import (
    RL_BATCHES,
    SFT_STEPS,
    assert_same_run,
    final_weights,
    kill,
    metric,
    outcome,
    read_lines,
    run,
    snapshot,
    steps,
    tiny,
)
from support.toy_env import ToyBuilder

NO_SFT = SFTConfig(num_steps=0)


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a run that was left alone. Do not change it."""
    path = tmp_path_factory.mktemp("reference") / "run"
    run(tiny(path))
    return path


# What a run leaves behind


def test_a_run_is_recorded_step_by_step(reference: Path) -> None:
    metrics = read_lines(reference / "metrics.jsonl")
    places = [(m["step"], m["phase"], m["index"]) for m in metrics]
    sft = [(i, "sft", i) for i in range(SFT_STEPS)]
    rl = [(SFT_STEPS + i, "rl", i) for i in range(RL_BATCHES)]
    assert places == [(-1, "start", 0), *sft, *rl]
    ledger = read_lines(reference / "ledger.jsonl")
    assert [(c["step"], c["phase"], c["index"]) for c in ledger] == [*places, (SFT_STEPS + RL_BATCHES, "end", 0)]
    saved = ["start", "sft_000003", "sft_000006", "rl_000002", "rl_000004", "rl_000006"]
    assert [c["checkpoint"] for c in ledger if c["checkpoint"]] == saved
    assert sorted(p.name for p in (reference / "checkpoints").iterdir()) == sorted(saved)
    evaluated = [m["step"] for m in metrics if "eval/reward/mean" in m]
    assert evaluated == [SFT_STEPS - 1, SFT_STEPS + 2, SFT_STEPS + 5]


def test_a_run_trains_on_policy_at_the_rates_that_were_set(reference: Path) -> None:
    assert metric(reference, "train/optimizer_steps") == [1.0] * RL_BATCHES
    assert max(metric(reference, "train/ratio_error")) < 1e-5
    assert metric(reference, "train/learning_rate") == [5e-3] * RL_BATCHES
    np.testing.assert_allclose(
        metric(reference, "sft/learning_rate"), [2e-3 * w * (1 - i / 6) for i, w in enumerate([0.5, 1, 1, 1, 1, 1])]
    )
    losses = metric(reference, "sft/loss")
    assert losses[-1] < losses[0]
    assert read_lines(reference / "checkpoints/rl_000006/policy/backend.json") == [{"policy_version": 12}]


def test_every_rollout_is_traced(reference: Path) -> None:
    traces = read_lines(reference / "traces.jsonl")
    train = [t for t in traces if t["split"] == "train"]
    assert len(train) == RL_BATCHES * 4 * 4
    assert len([t for t in traces if t["split"] == "eval"]) == 3 * 2 * 2
    first = [t for t in train if t["index"] == 0]
    assert [(t["group"], t["sample"]) for t in first] == [(g, s) for g in range(4) for s in range(4)]
    rewards = read_lines(reference / "metrics.jsonl")[SFT_STEPS + 1]["reward/mean"]
    assert np.mean([t["reward"] for t in first]) == pytest.approx(rewards)
    assert all(t["score"]["parts"]["value"] == t["reward"] for t in train)
    assert {t["policy_version"] for t in train} == {6, 7, 8, 9, 10, 11}
    assert len({t["seed"] for t in train}) == len(train)


def test_tensorboard_has_the_scalars_of_every_step(reference: Path) -> None:
    (file,) = (reference / "tensorboard").iterdir()
    shown = {(step, tag): value for step, tag, value in scalars(file)}
    for record in read_lines(reference / "metrics.jsonl"):
        for name, value in record.items():
            if name not in ("version", "step", "phase", "index"):
                assert shown[record["step"], name] == pytest.approx(value, rel=1e-6)


def test_tensorboard_can_be_turned_off(tmp_path: Path) -> None:
    run(tiny(tmp_path / "run", max_batches=1, sft=NO_SFT, tensorboard_enabled=False))
    assert not (tmp_path / "run" / "tensorboard").exists()


def test_the_config_of_the_run_is_kept(reference: Path) -> None:
    record = json.loads((reference / "config.json").read_text())
    assert record["learning_rate"] == 5e-3 and record["dataset_builder"]["type"] == "support.toy_env:ToyBuilder"


def test_a_complete_run_is_left_alone_without_building_anything(
    reference: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def build(*_: object) -> None:
        raise AssertionError("a complete run needs no data")

    before = snapshot(reference)
    monkeypatch.setattr(ToyBuilder, "build", build)
    caplog.set_level(logging.INFO, "assay")
    run(tiny(reference))
    assert f"The run in {reference} is complete after {RL_BATCHES} RL batches; nothing was done." in caplog.text
    assert snapshot(reference) == before
    with pytest.raises(RunDirectoryError, match=r"other settings.*\n  learning_rate: 0.005 -> 0.1"):
        run(tiny(reference, learning_rate=0.1))
    assert snapshot(reference) == before


def test_the_plan_is_told_before_the_first_step(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "assay")
    run(tiny(tmp_path / "run", max_batches=1))
    plan = next(r for r in caplog.records if "RL: 1 batch of 4 problems x 4 rollouts = 16 samples" in r.message)
    assert caplog.records.index(plan) < next(i for i, r in enumerate(caplog.records) if "sft" in r.message.lower()[:4])


def test_equal_configs_give_equal_runs_and_another_seed_another(reference: Path, tmp_path: Path) -> None:
    run(tiny(tmp_path / "again"))
    assert_same_run(tmp_path / "again", reference)
    run(tiny(tmp_path / "other", seed=1))
    assert final_weights(tmp_path / "other") != final_weights(reference)


# Killed and resumed

LOOP, LEDGER, TORCH = "assay.training.loop", "assay.training.run.ledger", "assay.backends.local.backend"
TRAINER, AHEAD = "assay.grpo.trainer", "assay.training.pipeline"


@pytest.mark.parametrize(
    "bombs",
    [
        pytest.param([(TORCH, "TorchBackend.optim_step", 2), (TORCH, "TorchBackend.optim_step", 5)], id="sft"),
        pytest.param(
            [(AHEAD, "run_groups", 2), (TRAINER, "GRPOTrainer.update", 2), (LOOP, "_finish_step", 3)], id="rl"
        ),
        pytest.param([(LOOP, "evaluate", 1), (LOOP, "evaluate", 3)], id="evaluation"),
        pytest.param([("torch", "save", 3), ("torch", "save", 2)], id="half a checkpoint"),
        pytest.param(
            [(LEDGER, "Ledger.append", 4), ("assay.training.run.directory", "RunDirectory._append_index", 3)],
            id="checkpoint beside the ledger",
        ),
        pytest.param([("assay.training.run.directory", "RunDirectory.finish", 1)], id="before the end"),
    ],
)
def test_a_killed_run_ends_as_one_left_alone(
    bombs: list[tuple[str, str, int]], reference: Path, tmp_path: Path
) -> None:
    config = tiny(tmp_path / "run")
    for bomb in bombs:
        kill(config, *bomb)
    run(config)
    assert_same_run(config.log_path, reference)


def test_a_kill_leaves_a_checkpoint_that_was_being_written_unfinished(tmp_path: Path) -> None:
    config = tiny(tmp_path / "run")
    kill(config, "torch", "save", 3)
    assert [p.name for p in (config.log_path / "checkpoints").iterdir() if p.name.endswith(".tmp")]


VARIANTS: dict[str, dict[str, Any]] = {
    "kl": {"kl_penalty_coef": 0.2},
    "kl-in-reward": {
        "kl_penalty_coef": 0.2,
        "kl_discount_factor": 0.5,
        "grpo": AlgorithmConfig(kl_estimator="k1", kl_placement="reward"),
    },
    "ppo": {"loss_fn": "ppo", "num_substeps": 2, "temperature": 0.8, "normalize_advantages_by_std": True},
    "multi-turn": {"mode": "multi_turn", "max_turns": 3},
    "llama": {"scratch": ScratchModel(architecture="llama", hidden_size=32, num_layers=1, context_length=64)},
}


@pytest.mark.parametrize("variant", ["kl-in-reward", "ppo", "multi-turn", "llama"])
def test_every_kind_of_run_resumes_exactly(variant: str, tmp_path: Path) -> None:
    changes = VARIANTS[variant]
    run(tiny(tmp_path / "reference", **changes))
    config = tiny(tmp_path / "run", **changes)
    kill(config, TRAINER, "GRPOTrainer.update", 4)
    run(config)
    assert_same_run(config.log_path, tmp_path / "reference")
    versions = read_lines(config.log_path / "checkpoints/rl_000006/policy/backend.json")
    assert versions[0]["policy_version"] == SFT_STEPS + RL_BATCHES * config.num_substeps


def test_the_penalty_is_measured_against_the_policy_that_rl_started_from(tmp_path: Path) -> None:
    run(tiny(tmp_path / "run", **VARIANTS["kl"]))
    kl = metric(tmp_path / "run", "train/kl_div")
    assert abs(kl[0]) < 1e-5 and max(map(abs, kl)) > 1e-3
    policies = [
        tmp_path / "run/checkpoints" / name / "policy" for name in ("start", "sft_000006", "rl_000002", "rl_000006")
    ]
    references = [p / "reference.safetensors" for p in policies]
    assert not references[0].exists()
    assert len({r.read_bytes() for r in references[1:]}) == 1


def test_several_turns_are_played_in_training_and_evaluation(tmp_path: Path) -> None:
    run(tiny(tmp_path / "run", max_batches=1, **VARIANTS["multi-turn"]))
    assert metric(tmp_path / "run", "rollout/turns") == [3.0]
    assert metric(tmp_path / "run", "eval/rollout/turns") == [3.0, 3.0]


# Going back, starting from elsewhere, stopping early


def test_a_run_goes_back_to_a_batch_and_ends_the_same(reference: Path, tmp_path: Path) -> None:
    path = tmp_path / "run"
    shutil.copytree(reference, path)
    kill(tiny(path, resume_from_batch=2), TRAINER, "GRPOTrainer.update", 1)
    assert steps(path) == list(range(-1, SFT_STEPS + 2))
    run(tiny(path))
    assert_same_run(path, reference)
    with pytest.raises(RunDirectoryError, match="Batches with a checkpoint: 0 to 6 by 2"):
        run(tiny(path, resume_from_batch=3))


def test_a_run_can_start_from_the_weights_of_another(reference: Path, tmp_path: Path) -> None:
    start = reference / "checkpoints" / "rl_000006"
    run(tiny(tmp_path / "run", load_checkpoint_path=start, sft=NO_SFT, max_batches=2))
    assert metric(tmp_path / "run", "eval/reward/mean")[0] == metric(reference, "eval/reward/mean")[-1]
    assert read_lines(tmp_path / "run/checkpoints/start/policy/backend.json") == [{"policy_version": 0}]
    weights = "policy/model/model.safetensors"
    assert (tmp_path / "run/checkpoints/start" / weights).read_bytes() == (start / weights).read_bytes()
    config = tiny(tmp_path / "again", load_checkpoint_path=start, sft=NO_SFT, max_batches=2)
    kill(config, TRAINER, "GRPOTrainer.update", 2)
    run(config)
    assert_same_run(config.log_path, tmp_path / "run")


def test_no_batches_means_supervised_steps_alone(reference: Path, tmp_path: Path) -> None:
    run(tiny(tmp_path / "run", max_batches=0))
    assert [m["phase"] for m in read_lines(tmp_path / "run" / "metrics.jsonl")] == ["start"] + ["sft"] * SFT_STEPS
    weights = "checkpoints/sft_000006/policy/model/model.safetensors"
    assert final_weights(tmp_path / "run") == (reference / weights).read_bytes()
    assert read_lines(tmp_path / "run" / "ledger.jsonl")[-1]["done"]


def test_without_supervised_steps_the_start_is_evaluated(tmp_path: Path) -> None:
    run(tiny(tmp_path / "run", sft=NO_SFT, max_batches=1, eval_every=0))
    evaluated = [m["step"] for m in read_lines(tmp_path / "run" / "metrics.jsonl") if "eval/reward/mean" in m]
    assert evaluated == [-1, 0]
    assert sorted(p.name for p in (tmp_path / "run/checkpoints").iterdir()) == ["rl_000001", "start"]


def test_supervised_steps_without_examples_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"sft\.num_steps=6, but this environment has no supervised examples"):
        run(tiny(tmp_path / "run", dataset_builder=ToyBuilder(supervised=False)))
    assert not (tmp_path / "run").exists()
    run(tiny(tmp_path / "run", dataset_builder=ToyBuilder(supervised=False), sft=NO_SFT, max_batches=1))


@pytest.mark.parametrize("architecture", ["gpt2", "llama"])
def test_examples_longer_than_the_context_are_refused(architecture: Any, tmp_path: Path) -> None:
    small = ScratchModel(architecture=architecture, hidden_size=32, num_layers=1, context_length=32, vocab_size=40)
    with pytest.raises(ModelError, match=r"has \d+ tokens and the model's context is 32.*scratch\.context_length"):
        run(tiny(tmp_path / "run", scratch=small, dataset_builder=ToyBuilder(longest=80)))


# A verifier that fails


def test_an_outage_stops_the_run_and_the_same_command_goes_on_when_it_is_over(reference: Path, tmp_path: Path) -> None:
    outage = tmp_path / "outage"
    config = tiny(tmp_path / "run", dataset_builder=ToyBuilder(outage=outage))
    run(tiny(tmp_path / "reference", dataset_builder=ToyBuilder(outage=outage)))
    kill(config, TRAINER, "GRPOTrainer.update", 4)
    outage.write_text("the engine is out")
    for _ in range(2):
        with pytest.raises(TrainingError, match=r"the engine is out\. None of the 16 rollouts of RL batch 3"):
            run(config)
    assert steps(config.log_path)[-1] == SFT_STEPS + 1, "the failed batch is not committed"
    outage.unlink()
    run(config)
    assert_same_run(config.log_path, tmp_path / "reference")
    assert final_weights(config.log_path) == final_weights(reference)


def test_an_evaluation_that_cannot_be_scored_is_no_result(tmp_path: Path) -> None:
    outage = tmp_path / "outage"
    outage.write_text("the engine is out")
    config = tiny(tmp_path / "run", dataset_builder=ToyBuilder(outage=outage), max_batches=1)
    with pytest.raises(TrainingError, match=r"the engine is out\. None of the 4 rollouts of the evaluation"):
        run(config)
    outage.unlink()
    run(config)
    assert len(metric(config.log_path, "eval/reward/mean")) == 2


def test_a_run_that_tolerates_outages_trains_on_nothing_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    outage = tmp_path / "outage"
    outage.write_text("the engine is out")
    builder = ToyBuilder(outage=outage)
    run(tiny(tmp_path / "run", dataset_builder=builder, sft=NO_SFT, max_batches=2, max_errored_fraction=1.0))
    path = tmp_path / "run"
    assert metric(path, "rollout/errored_fraction") == [1.0, 1.0]
    assert metric(path, "train/optimizer_steps") == [0.0, 0.0]
    assert metric(path, "reward/mean") == []
    assert final_weights(path) == (path / "checkpoints/start/policy/model/model.safetensors").read_bytes()
    assert "nothing to learn from" in caplog.text


def chess(path: Path, **changes: Any) -> TrainingConfig:
    """A run on real positions with the real engine."""
    executable = changes.pop("executable", None)
    settings: dict[str, Any] = {
        "scratch": ScratchModel(hidden_size=48, num_layers=1, context_length=96),
        "max_tokens": 10,
        "sft": SFTConfig(num_steps=150, save_every=75, lr_warmup_steps=5, learning_rate=1e-2),
        "max_batches": 3,
        "dataset_builder": ChessDatasetBuilder(
            num_train=8,
            num_heldout=2,
            batch_size=2,
            group_size=8,
            stockfish=StockfishConfig(nodes=200, path=executable and str(executable)),
        ),
    }
    return tiny(path, **(settings | changes))


def test_a_policy_is_trained_against_the_real_engine_and_resumes_after_the_engine_is_mended(tmp_path: Path) -> None:
    engine = tmp_path / "engine"
    real = shutil.which("stockfish", path=f"{os.environ['PATH']}:/usr/games")
    assert real is not None
    engine.write_text(f'#!/bin/sh\nexec "{real}"\n')
    engine.chmod(engine.stat().st_mode | stat.S_IXUSR)
    config = chess(tmp_path / "run", executable=engine)
    kill(config, TRAINER, "GRPOTrainer.update", 1)
    shutil.rmtree(config.cache_dir)
    sound = engine.read_text()
    engine.write_text("#!/bin/sh\nexit 3\n")
    with pytest.raises(
        TrainingError, match=r"engine .*did not start.* code: 3.* None of the 16 rollouts of RL batch 1"
    ):
        run(config)
    engine.write_text(sound)
    run(config)
    run(chess(tmp_path / "reference", executable=engine))
    assert_same_run(config.log_path, tmp_path / "reference")
    traces = read_lines(config.log_path / "traces.jsonl")
    assert len({t["score"]["verifier"] for t in traces}) == 1 and traces[0]["score"]["verifier"]
    assert max(t["reward"] for t in traces) > 0, "some sampled move must be legal"
    assert sum(metric(config.log_path, "train/optimizer_steps")) >= 1


def test_chess_answers_may_be_corrected_in_a_second_turn(tmp_path: Path) -> None:
    builder = ChessDatasetBuilder(task="arbiter", num_train=4, num_heldout=2, batch_size=2, group_size=4)
    config = chess(
        tmp_path / "run",
        dataset_builder=builder,
        mode="multi_turn",
        max_turns=2,
        sft=NO_SFT,
        scratch=ScratchModel(hidden_size=32, num_layers=1, context_length=512),
    )
    run(config)
    traces = [t for t in read_lines(config.log_path / "traces.jsonl") if t["split"] == "train"]
    assert {t["turn"] for t in traces} == {0, 1}
    assert all("Invalid answer" in t["observation"] for t in traces if t["turn"] == 1)
    assert metric(config.log_path, "rollout/turns") == [2.0, 2.0]


# Other models, other sinks


def test_adapters_over_a_saved_model_train_and_resume_exactly(reference: Path, tmp_path: Path) -> None:
    base = tmp_path / "base"
    shutil.copytree(reference / "checkpoints" / "sft_000006" / "policy" / "model", base)
    before = snapshot(base)
    changes: dict[str, Any] = {"model_name": str(base), "lora_rank": 4, "scratch": ScratchModel(), "sft": NO_SFT}
    run(tiny(tmp_path / "reference", **changes))
    config = tiny(tmp_path / "run", **changes)
    kill(config, TRAINER, "GRPOTrainer.update", 4)
    run(config)
    assert_same_run(config.log_path, tmp_path / "reference")
    assert metric(config.log_path, "eval/reward/mean")[0] == metric(reference, "eval/reward/mean")[0]
    assert max(metric(config.log_path, "train/grad_norm")) > 0
    assert snapshot(base) == before
    saved = {p.name for p in (config.log_path / "checkpoints/rl_000006/policy/model").iterdir()}
    assert "adapter_model.safetensors" in saved and "model.safetensors" not in saved


def test_weights_and_biases_offline_changes_nothing_else(
    reference: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wandb", reason="Weights & Biases is not installed")
    monkeypatch.setenv("WANDB_MODE", "offline")
    run(tiny(tmp_path / "run", wandb_project="tiny", wandb_name="offline"))
    assert list((tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb"))
    assert outcome(tmp_path / "run")["checkpoints"] == outcome(reference)["checkpoints"]


def test_a_run_keeps_objects_out_of_garbage_collection_unless_its_program_does() -> None:
    with counted_anew():
        with _fixed_objects():
            assert gc.get_freeze_count() > 1000
        assert gc.get_freeze_count() == 0
        gc.freeze()
        there = gc.get_freeze_count()
        with _fixed_objects():
            pass
        assert gc.get_freeze_count() > there / 2, "what the program froze stays frozen"
