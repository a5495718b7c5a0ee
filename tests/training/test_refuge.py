"""Where a run goes when it rolls back, what happens where it cannot, and what it says of runs that learn nothing."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import chz
import pytest

from assay.envs.base import BuildContext, EnvData, StepResult
from assay.errors import HealthError
from assay.grpo import trainer
from assay.grpo.config import AlgorithmConfig
from assay.grpo.health.config import HealthConfig
from assay.training.config import SFTConfig, TrainingConfig
from assay.training.report.charts import MINUS
from assay.training.report.remarks import remarks
from assay.training.run.reader import HeldoutTask, Measurement, RunRecords
from support.scripted import scored
from support.tiny_run import kill, metric, outcome, read_lines, run, tiny
from support.toy_env import ToyBuilder, ToyDataset

SFT = SFTConfig(num_steps=2, batch_size=4, lr_warmup_steps=0)
CALM = [0.1] * 22
GROWTH = [0.2, 0.4, 0.7, 0.9, 1.2]
"""The alarm comes with the fourth; the first is the KL of the policy after 22 updates."""


def long(path: Path, **changes: Any) -> TrainingConfig:
    """A run of 30 batches with a checkpoint after each."""
    settings = {"sft": SFT, "save_every": 1, "eval_every": 0, "kl_penalty_coef": 0.01, "trace_token_groups": 0}
    builder = ToyBuilder(num_train=120)
    return tiny(path, **(settings | {"dataset_builder": builder, "grpo": AlgorithmConfig()} | changes))


def scripted_kl(monkeypatch: pytest.MonkeyPatch, values: Sequence[float]) -> None:
    """What is measured of the KL, by training step of this process; the last value stays. The reward is flat."""
    original, of_rollouts = trainer.sampled_metrics, trainer.rollout_metrics
    place = -1

    async def sampled_metrics(*args: Any, **kwargs: Any) -> dict[str, float]:
        nonlocal place
        place += 1
        kl = values[min(place, len(values) - 1)]
        return await original(*args, **kwargs) | {"sampled_kl": kl, "sampled_kl_95pct": 2 * kl}

    flat = {"reward/mean": 0.5, "reward/std": 0.1, "reward/min": 0.0, "reward/max": 1.0}
    monkeypatch.setattr(trainer, "sampled_metrics", sampled_metrics)
    monkeypatch.setattr(trainer, "rollout_metrics", lambda groups: of_rollouts(groups) | flat)


def events(path: Path, kind: str) -> list[str]:
    return [event["message"] for event in read_lines(path / "events.jsonl") if event["kind"] == kind]


def weights(path: Path, checkpoint: str) -> bytes:
    return (path / "checkpoints" / checkpoint / "policy/model/model.safetensors").read_bytes()


def test_a_rollback_goes_to_before_the_growth_and_not_to_the_newest_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scripted_kl(monkeypatch, [*CALM, *GROWTH, *CALM])
    path = tmp_path / "run"
    run(long(path))
    (message,) = events(path, "rollback")
    assert "checkpoint rl_000020 (after 20 RL batches; the trouble may have begun with batch 22)" in message
    assert "learning rate is now 0.25 times" in message
    assert weights(path, "rl_000026") == weights(path, "rl_000020") != weights(path, "rl_000025")
    few = tmp_path / "few"
    scripted_kl(monkeypatch, [*CALM, *GROWTH, *CALM])
    run(long(few, keep_last=1))
    assert events(few, "rollback") == [message]
    assert outcome(few)["metrics"] == outcome(path)["metrics"], "what is kept decides nothing"


def test_trouble_that_comes_again_goes_further_back_and_then_stops_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    early = [0.0, 2.0, 2.0, 2.0]
    scripted_kl(monkeypatch, [*CALM, *GROWTH[:4], *early])
    path = tmp_path / "run"
    health = HealthConfig(max_rollbacks=1)
    with pytest.raises(HealthError, match=r"stopped after step 31\. It went back 1 times, and the trouble came again"):
        run(long(path, grpo=AlgorithmConfig(health=health)))
    scripted_kl(monkeypatch, [*CALM, *GROWTH[:4], *early, *CALM])
    run(long(tmp_path / "two"))
    first, second = events(tmp_path / "two", "rollback")
    assert "rl_000020" in first and "sft_000002 (from before the first RL batch" in second


@pytest.mark.parametrize("action", ["pause", "warn", "ignore"])
def test_a_run_that_ends_before_it_recovered_ends_as_its_rule_says(
    action: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    scripted_kl(monkeypatch, [*[0.1] * 5, *GROWTH[2:], 2.0, *CALM])
    config = long(
        tmp_path / "run",
        save_every=30,
        dataset_builder=ToyBuilder(num_train=80),
        grpo=AlgorithmConfig(health=HealthConfig(actions={"not_recovered": action})),
    )
    with caplog.at_level(logging.WARNING):
        if action == "pause":
            with pytest.raises(HealthError, match="is whole, but its policy has not recovered"):
                run(config)
        else:
            run(config)
    assert events(tmp_path / "run", "rollback") and len(metric(tmp_path / "run", "reward/mean")) == 20
    assert any("has not learned on" in line.getMessage() for line in caplog.records) == (action == "warn")


def test_a_damaged_refuge_is_said_and_passed_over_and_without_any_the_run_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run"
    scripted_kl(monkeypatch, [0.1])  # in the killed process too, which is a fork
    kill(long(path), "assay.grpo.trainer", "GRPOTrainer.update", 22)
    for name in ("rl_000020", "rl_000015"):
        (path / "checkpoints" / name / "policy/model/model.safetensors").write_bytes(b"")
    scripted_kl(monkeypatch, [0.1, *GROWTH, *CALM])
    run(long(path))
    passed_over = events(path, "damaged_checkpoint")
    assert passed_over and all("rl_000020" in message or "rl_000015" in message for message in passed_over)
    assert "checkpoint rl_000010" in events(path, "rollback")[0]

    path = tmp_path / "none"
    kill(long(path), "assay.grpo.trainer", "GRPOTrainer.update", 4)
    for name in ("start", "sft_000002"):
        (path / "checkpoints" / name / "policy/model/model.safetensors").write_bytes(b"")
    scripted_kl(monkeypatch, [0.0, 2.0, 2.0, 2.0, 2.0, 2.0])
    with pytest.raises(HealthError, match="There is no whole checkpoint to go back to, not even that of the start"):
        run(long(path))


@dataclass(frozen=True)
class FlatDataset(ToyDataset):
    """Every answer earns the same."""

    def judge(self, text: str, sample: int, turn: int) -> StepResult:
        return scored(0.5)


@chz.chz
class FlatBuilder(ToyBuilder):
    """Tasks from which nothing can be learned."""

    def build(self, context: BuildContext) -> EnvData:
        data = ToyBuilder.build(self, context)
        assert isinstance(data.train, ToyDataset)
        return replace(data, train=FlatDataset(data.train.prompts, self, context.max_turns))


def measured(*rewards: float) -> Measurement:
    return Measurement(0, "rl", 0, tuple(HeldoutTask(i, str(i), (), {"reward": r}) for i, r in enumerate(rewards)))


def records(rewards: Sequence[float], *ends: Measurement | None, steps: Sequence[float] = ()) -> RunRecords:
    rows = [{"phase": "rl", "index": i, "reward/mean": r} for i, r in enumerate(rewards)]
    rows += [{"phase": "rl", "index": i, "train/optimizer_steps": s} for i, s in enumerate(steps)]
    return RunRecords(Path("run"), {}, {}, rows, [], *(ends or (None, None)))


def test_a_run_that_ends_worse_than_it_began_says_so() -> None:
    better, worse = measured(0.5, 0.6, 0.7, 0.6), measured(0.2, 0.3, 0.4, 0.2)
    (said,) = remarks(records([], better, worse))
    assert said.startswith("The policy ended WORSE than it began: held-out reward 0.600 before RL, 0.275 at its end (")
    assert f"{MINUS}0.325" in said
    assert remarks(records([], worse, better)) == remarks(records([], better, measured(0.1, 0.9, 0.7, 0.6))) == []
    falling = [0.5 + 0.01 * (i % 3) - 0.02 * i for i in range(20)]
    (said,) = remarks(records(falling))
    assert "in the first 10 batches" in said and "in the last 10" in said
    assert remarks(records(falling[::-1])) == remarks(records(falling[:6])) == []


def test_a_run_most_of_whose_batches_trained_nothing_says_so() -> None:
    (said,) = remarks(records([], steps=[1.0] + [0.0] * 39))
    assert said.startswith("39 of 40 RL batches trained NOTHING")
    assert remarks(records([], steps=[1.0, 0.0] * 20)) == []


def test_the_last_line_of_a_run_and_its_report_say_how_it_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("assay.training.report.report.remarks", lambda records: ["It ended <b>WORSE</b>."])
    path = tmp_path / "run"
    run(tiny(path, sft=SFT, max_batches=1))
    last = [record for record in caplog.records if record.name.startswith("assay")][-1]
    assert last.levelno == logging.WARNING and last.getMessage() == f"Done: {path}. It ended <b>WORSE</b>."
    page = (path / "report.html").read_text(encoding="utf-8")
    assert "It ended &lt;b&gt;WORSE" in page


def test_a_run_whose_groups_are_all_constant_shows_its_kl_and_pauses(tmp_path: Path) -> None:
    path = tmp_path / "run"
    health = HealthConfig(no_gradient_steps=4)
    builder = FlatBuilder(num_train=120)
    with pytest.raises(HealthError, match=r"paused after step 5, .*The last 4 steps took no optimizer step"):
        run(long(path, grpo=AlgorithmConfig(health=health), dataset_builder=builder))
    assert metric(path, "train/optimizer_steps") == [0] * 4
    assert len(metric(path, "train/sampled_kl")) == len(metric(path, "train/sampled_entropy")) == 4
    assert max(map(abs, metric(path, "train/sampled_kl"))) < 1e-6 < min(metric(path, "train/sampled_entropy"))
    assert not metric(path, "train/kl_div")
