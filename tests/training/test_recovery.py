"""Runs with everything that has a memory: killed at any moment they end as one left alone; and what alarms do."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import chz
import pytest
import torch

from assay.backends.local import gradient
from assay.envs.base import BuildContext, EnvData, StepResult
from assay.errors import ConfigError, HealthError
from assay.grpo.config import AlgorithmConfig
from assay.grpo.health.config import HealthConfig
from assay.training.config import SFTConfig, TrainingConfig
from assay.training.recovery import may_have_begun
from support.scripted import scored
from support.tiny_run import (
    RL_BATCHES,
    assert_same_run,
    final_weights,
    kill,
    metric,
    outcome,
    read_lines,
    run,
    steps,
    tiny,
)
from support.toy_env import ToyBuilder, ToyDataset

LOOP, TRAINER, TORCH = "assay.training.loop", "assay.grpo.trainer", "assay.backends.local.backend"
SFT = SFTConfig(num_steps=2, batch_size=4, lr_warmup_steps=0)
LR = 5e-3


class YesNoDataset(ToyDataset):
    """Rewards that are often equal throughout a group."""

    def judge(self, text: str, sample: int, turn: int) -> StepResult:
        assert isinstance(self.builder, YesNoBuilder)
        return scored(float(self.builder.wanted in text))


@chz.chz
class YesNoBuilder(ToyBuilder):
    """Whether an answer says what is wanted."""

    wanted: str = "a"
    """What an answer is to say."""

    def build(self, context: BuildContext) -> EnvData:
        data = ToyBuilder.build(self, context)
        assert isinstance(data.train, ToyDataset)
        return replace(data, train=YesNoDataset(data.train.prompts, self, context.max_turns))


def rich(path: Path, **changes: Any) -> TrainingConfig:
    """A run that trains through its buffer, with an adaptive penalty, a moving reference, and further groups."""
    algorithm = AlgorithmConfig(
        kl_target=1e-4,
        ref_refresh_every=3,
        ref_refresh_mix=0.5,
        max_staleness=9,
        tis_cap=2.0,
        entropy_coef=0.01,
        health=HealthConfig(report_every=2, actions={"kl_runaway": "ignore"}),
    )
    settings: dict[str, Any] = {
        "sft": SFT,
        "loss_fn": "grpo",
        "rollout_epochs": 2,
        "num_substeps": 4,
        "kl_penalty_coef": 0.2,
        "dynamic_sampling_rounds": 2,
        "grpo": algorithm,
        "dataset_builder": YesNoBuilder(),
    }
    return tiny(path, **(settings | changes))


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a rich run that was left alone. Do not change it."""
    path = tmp_path_factory.mktemp("reference") / "run"
    run(rich(path))
    return path


def test_everything_that_has_a_memory_is_in_use(reference: Path) -> None:
    assert len(set(metric(reference, "train/kl_coef"))) > 2
    assert metric(reference, "train/rollouts_reused")[-1] > 6
    assert max(metric(reference, "rollout/groups")) > 4, "some batch must have been topped up"
    weights = {c: (reference / "checkpoints" / c / "policy/reference.safetensors").read_bytes() for c in
               ("sft_000002", "rl_000002", "rl_000004")}  # fmt: skip
    assert weights["sft_000002"] == weights["rl_000002"] != weights["rl_000004"], "refreshed after the third batch"


@pytest.mark.parametrize(
    "bombs",
    [
        pytest.param([(TRAINER, "GRPOTrainer.update", 4), (TRAINER, "GRPOTrainer.update", 2)], id="updates"),
        pytest.param([(TRAINER, "GRPOTrainer._optimizer_step", 9)], id="within an epoch"),
        pytest.param([(TORCH, "TorchBackend.refresh_reference", 1)], id="refresh"),
        pytest.param([("assay.grpo.buffer", "RolloutBuffer.save", 4), (LOOP, "_further_problems", 3)], id="buffer"),
        pytest.param([(LOOP, "act_on_alarms", 3), (LOOP, "_finish_step", 2)], id="between batches"),
    ],
)
def test_a_killed_run_ends_as_one_left_alone(
    bombs: list[tuple[str, str, int]], reference: Path, tmp_path: Path
) -> None:
    config = rich(tmp_path / "run")
    for bomb in bombs:
        kill(config, *bomb)
    run(config)
    assert_same_run(config.log_path, reference)


# Reports


def test_health_reports_come_at_their_cadence(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "assay")
    path = tmp_path / "run"
    run(rich(path, rollout_epochs=1, grpo=AlgorithmConfig(health=HealthConfig(report_every=3))))
    reports = [e for e in read_lines(path / "events.jsonl") if e["kind"] == "health_report"]
    assert [e["step"] for e in reports] == [4, 7] and {e["level"] for e in reports} == {"info"}
    assert all("3 steps" in e["message"] and "KL to reference" in e["message"] for e in reports)
    assert len([r for r in caplog.records if "KL to reference" in r.message]) == 2
    run(rich(tmp_path / "none", rollout_epochs=1, grpo=AlgorithmConfig(health=HealthConfig(report_every=0))))
    assert not [e for e in read_lines(tmp_path / "none/events.jsonl") if e["kind"] == "health_report"]


# Alarms


def alarmed(path: Path, action: str, **health: Any) -> TrainingConfig:
    """A run whose policy is never unsure enough."""
    settings = HealthConfig(entropy_floor=50.0, actions={"entropy_floor": action}, **health)
    return tiny(path, sft=SFT, grpo=AlgorithmConfig(health=settings))


def events(path: Path) -> list[tuple[Any, Any]]:
    return [(e["step"], e["kind"]) for e in read_lines(path / "events.jsonl")]


def weights(path: Path, checkpoint: str) -> bytes:
    return (path / "checkpoints" / checkpoint / "policy/model/model.safetensors").read_bytes()


def test_a_warning_is_recorded_and_the_run_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "run"
    run(alarmed(path, "warn"))
    assert events(path) == [(2, "entropy_floor")], "once, while it stays active"


def test_a_pause_is_a_checkpoint_that_the_same_command_goes_on_from(tmp_path: Path) -> None:
    path, config = tmp_path / "run", alarmed(tmp_path / "run", "pause")
    with pytest.raises(HealthError, match=r"paused after step 2, which has a checkpoint\. The entropy .*same command"):
        run(config)
    assert steps(path)[-1] == 2 and read_lines(path / "checkpoints.jsonl")[-1]["name"] == "rl_000001"
    assert events(path) == [(2, "entropy_floor"), (2, "pause")]
    assert HealthError.exit_code == 3
    run(config)
    assert steps(path)[-1] == 1 + RL_BATCHES and events(path) == [(2, "entropy_floor"), (2, "pause")]

    again = alarmed(tmp_path / "again", "pause")
    kill(again, TRAINER, "GRPOTrainer.update", 1)
    with pytest.raises(HealthError):
        run(again)
    kill(again, TRAINER, "GRPOTrainer.update", 1)
    kill(again, TRAINER, "GRPOTrainer.update", 4)
    run(again)
    assert_same_run(again.log_path, path)


@pytest.mark.parametrize("save_every", [1, 2])
def test_a_stop_ends_the_run_at_the_same_place_each_time(save_every: int, tmp_path: Path) -> None:
    path = tmp_path / "run"
    config, again = (chz.replace(alarmed(p, "stop"), save_every=save_every) for p in (path, tmp_path / "again"))
    for _ in range(2):
        with pytest.raises(HealthError, match=r"stopped after step 2\. The entropy .*checkpoints are intact"):
            run(config)
        assert steps(path)[-1] == 2 and events(path) == [(2, "entropy_floor"), (2, "stop")]
    kill(again, TRAINER, "GRPOTrainer.update", 1)
    with pytest.raises(HealthError):
        run(again)
    assert outcome(again.log_path) == outcome(path)


def test_rollbacks_restore_the_last_healthy_policy_at_a_lower_rate_and_then_stop(tmp_path: Path) -> None:
    path = tmp_path / "run"
    config = alarmed(path, "rollback", max_rollbacks=3, rollback_lr_factor=0.1)
    with pytest.raises(HealthError, match="stopped after step 5"):
        run(config)
    assert [kind for _, kind in events(path)] == ["entropy_floor", "rollback"] * 3 + ["entropy_floor", "stop"]
    assert metric(path, "train/learning_rate") == pytest.approx([LR, LR * 1e-1, LR * 1e-3, LR * 1e-5])
    messages = [e["message"] for e in read_lines(path / "events.jsonl") if e["kind"] == "rollback"]
    assert "checkpoint sft_000002" in messages[0] and "rollback 1 of at most 3 in a row" in messages[0]
    assert weights(path, "rl_000002") == weights(path, "sft_000002") == final_weights(path)
    evaluations = metric(path, "eval/reward/mean")
    assert evaluations[1] == evaluations[0], "what is evaluated is the policy that was gone back to"

    again = alarmed(tmp_path / "again", "rollback", max_rollbacks=3, rollback_lr_factor=0.1)
    for moment in (2, 1):
        kill(again, TRAINER, "GRPOTrainer.update", moment)
    kill(again, LOOP, "_finish_step", 4)
    with pytest.raises(HealthError, match="stopped after step 5"):
        run(again)
    assert_same_run(again.log_path, path)


def poison(monkeypatch: pytest.MonkeyPatch, calls: set[int]) -> None:
    """Losses that are NaN in these forward passes of the policy-gradient loss, counted from 1."""
    original, count = gradient.token_losses, 0

    def token_losses(spec: Any, *args: Any) -> Any:
        nonlocal count
        count += spec.name != "cross_entropy"
        terms = original(spec, *args)
        broken = spec.name != "cross_entropy" and count in calls
        return {n: v * float("nan") for n, v in terms.items()} if broken else terms

    monkeypatch.setattr(gradient, "token_losses", token_losses)


def test_a_gradient_that_is_not_finite_is_skipped_and_leaves_the_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    poison(monkeypatch, {1})
    path = tmp_path / "run"
    health = HealthConfig(actions={"non_finite": "warn"})
    run(tiny(path, sft=SFT, max_batches=2, save_every=1, grpo=AlgorithmConfig(health=health)))
    assert weights(path, "rl_000001") == weights(path, "sft_000002") != weights(path, "rl_000002")
    assert metric(path, "train/nan_skip") == [1, 0] and metric(path, "train/optimizer_steps") == [0, 1]
    assert metric(path, "train/loss")[0] is None
    assert (2, "non_finite") in events(path) and (2, "non_finite_metric") in events(path)
    assert all(torch.isfinite(torch.tensor(v)) for v in metric(path, "train/grad_norm"))


def test_a_gradient_that_is_not_finite_goes_back_to_a_good_checkpoint_by_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    poison(monkeypatch, {2})
    path = tmp_path / "run"
    run(tiny(path, sft=SFT, max_batches=3))
    assert [e for e in events(path) if e[1] == "rollback"] == [(3, "rollback")]
    assert metric(path, "train/learning_rate") == pytest.approx([LR, LR, LR / 4])
    assert weights(path, "rl_000002") == weights(path, "sft_000002") != weights(path, "rl_000003")


# Further groups in place of those that teach nothing


def test_a_batch_is_topped_up_until_enough_groups_teach_something(tmp_path: Path) -> None:
    runs = {}
    for rounds in (0, 3):
        path = tmp_path / str(rounds)
        run(tiny(path, sft=SFT, dynamic_sampling_rounds=rounds, dataset_builder=YesNoBuilder()))
        runs[rounds] = path
    groups, taught = metric(runs[3], "rollout/groups"), metric(runs[3], "train/groups")
    assert metric(runs[0], "rollout/groups") == [4] * RL_BATCHES
    assert sum(taught) > sum(metric(runs[0], "train/groups")) and max(taught) == 4
    for count, used, equal in zip(groups, taught, metric(runs[3], "rollout/constant_group_fraction"), strict=True):
        assert used == round(count * (1 - equal)), "all groups that were sampled are counted"
        assert used == 4 or count > 4 + 3 - 1, "it gives up after the rounds, not before"
    traces = [t for t in read_lines(runs[3] / "traces.jsonl") if t["split"] == "train"]
    assert len(traces) == sum(groups) * 4


def test_further_groups_come_up_to_the_cap_where_nothing_teaches(tmp_path: Path) -> None:
    path = tmp_path / "run"
    builder = YesNoBuilder(wanted="never said")
    run(tiny(path, sft=SFT, dynamic_sampling_rounds=2, max_batches=2, dataset_builder=builder))
    assert metric(path, "rollout/groups") == [12, 12]
    assert metric(path, "train/optimizer_steps") == [0, 0]
    assert final_weights(path) == weights(path, "sft_000002")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"grpo": AlgorithmConfig(buffer_capacity=5)}, r"grpo\.buffer_capacity=5 is set, but .* rollout_epochs=1"),
        ({"grpo": AlgorithmConfig(max_staleness=5)}, r"grpo\.max_staleness=5 is set, but .* rollout_epochs=1"),
        (
            {
                "model_name": "x",
                "lora_rank": 2,
                "kl_penalty_coef": 0.1,
                "grpo": AlgorithmConfig(ref_refresh_every=1, ref_refresh_mix=0.5),
            },
            r"grpo\.ref_refresh_mix=0\.5 with lora_rank=2.*Set grpo\.ref_refresh_mix=1 or lora_rank=0",
        ),
    ],
)
def test_a_run_refuses_settings_that_would_do_nothing_or_wrong(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TrainingConfig(**changes)


@pytest.mark.parametrize(("limit", "batch"), [(-6, 1), (0, 1), (11, 12)])
def test_no_trouble_is_said_to_have_begun_before_the_first_batch(limit: int, batch: int) -> None:
    assert may_have_begun(limit).endswith(f"begun with batch {batch}")
