"""Runs that are given more batches, or fewer: they equal, bit for bit, a run that had that number from the start."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import chz
import pytest

from assay.errors import RunDirectoryError
from assay.grpo.config import AlgorithmConfig
from assay.grpo.health.config import HealthConfig
from assay.training.config import OptimizerConfig, SFTConfig, TrainingConfig
from support.tiny_run import assert_same_run, final_weights, kill, outcome, read_lines, run, snapshot, steps, tiny
from support.toy_env import ToyBuilder

SFT = SFTConfig(num_steps=2, batch_size=4, lr_warmup_steps=0)
VARIANTS: dict[str, dict[str, Any]] = {
    "on policy": {"optimizer": OptimizerConfig(lr_warmup_steps=3)},
    "ahead": {"max_steps_off_policy": 1},
    "two ahead, reused": {
        "max_steps_off_policy": 2,
        "rollout_epochs": 2,
        "kl_penalty_coef": 0.1,
        "grpo": AlgorithmConfig(tis_cap=2.0, max_staleness=8),
    },
}
"""All of six batches, which is the whole data set."""


def short(path: Path, batches: int | None, variant: str = "on policy", **changes: Any) -> TrainingConfig:
    return tiny(path, **({"sft": SFT, "eval_every": 2, "max_batches": batches} | VARIANTS[variant] | changes))


@pytest.fixture(scope="module", params=("on policy", "two ahead, reused"))
def reference(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """A variant, and the directory of its run of six batches. Do not change it."""
    path = tmp_path_factory.mktemp("reference") / "run"
    run(short(path, 6, request.param))
    return request.param, path


def kept_batches(path: Path) -> Any:
    return json.loads((path / "config.json").read_text())["max_batches"]


def test_a_finished_run_that_grows_equals_one_that_had_the_batches_from_the_start(
    reference: tuple[str, Path], tmp_path: Path
) -> None:
    variant, path = reference
    grown = tmp_path / "run"
    run(short(grown, 0, variant))
    for batches in (2, 4, 6):
        run(short(grown, batches, variant))
        assert kept_batches(grown) == batches
    assert_same_run(grown, path)
    assert (grown / "report.html").exists()


BOMBS = {
    "the ledger is cut": ("assay.training.run.resume", "replace_file", 1),
    "the config is written": ("assay.training.run.resume", "replace_file", 2),
    "the first new batch": ("assay.grpo.trainer", "GRPOTrainer.update", 1),
    "the end": ("assay.training.run.directory", "RunDirectory.finish", 1),
}


@pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS)
def test_a_run_killed_while_it_grows_ends_the_same(
    bomb: tuple[str, str, int], reference: tuple[str, Path], tmp_path: Path
) -> None:
    variant, path = reference
    grown = tmp_path / "run"
    run(short(grown, 4, variant))
    kill(short(grown, 6, variant), *bomb)
    run(short(grown, 6, variant))
    assert_same_run(grown, path)
    assert kept_batches(grown) == 6


def test_a_killed_run_may_be_given_more_or_fewer_batches(reference: tuple[str, Path], tmp_path: Path) -> None:
    variant, path = reference
    run(short(tmp_path / "four", 4, variant))
    grown = tmp_path / "run"
    kill(short(grown, 4, variant), "assay.grpo.trainer", "GRPOTrainer.update", 4)
    shutil.copytree(grown, tmp_path / "shorter")
    run(short(grown, 6, variant))
    assert_same_run(grown, path)
    kill(short(tmp_path / "longer", 6, variant), "assay.grpo.trainer", "GRPOTrainer.update", 4)
    run(short(tmp_path / "longer", 4, variant))
    assert_same_run(tmp_path / "longer", tmp_path / "four")


def without_the_old_end(path: Path, batches: int) -> dict[str, Any]:
    """What a run has in common with one that ended after so many batches before it grew."""
    found, step = outcome(path), SFT.num_steps + batches - 1
    name = f"rl_{batches:06d}"
    metrics = [dict(row) for row in found["metrics"]]
    metrics[step + 1] = {k: v for k, v in metrics[step + 1].items() if not k.startswith("eval/")}
    ledger = [dict(line) for line in found["ledger"]]
    del ledger[step + 1]["digest"], ledger[step + 1]["checkpoint"]
    traces = [line for line in read_lines(path / "traces.jsonl") if (line["step"], line["split"]) != (step, "eval")]
    index = [line for line in found["index"].splitlines() if name.encode() not in line]
    checkpoints = {k: v for k, v in found["checkpoints"].items() if f"/{name}/" not in k}
    return found | {
        "metrics": metrics,
        "ledger": ledger,
        "traces": traces,
        "index": index,
        "checkpoints": checkpoints,
    }


def test_an_end_between_evaluations_and_checkpoints_stays_as_a_record_and_changes_nothing_else(tmp_path: Path) -> None:
    grown, path = tmp_path / "run", tmp_path / "whole"
    run(short(path, 6))
    run(short(grown, 3))
    evaluated = read_lines(grown / "metrics.jsonl")[-1]["eval/reward/mean"]
    run(short(grown, 6))
    assert read_lines(grown / "metrics.jsonl")[5]["eval/reward/mean"] == evaluated
    assert (grown / "checkpoints" / "rl_000003").is_dir()
    assert without_the_old_end(grown, 3) == without_the_old_end(path, 3)
    assert final_weights(grown) == final_weights(path)
    assert outcome(grown) != outcome(path)


def test_a_rollback_does_not_go_to_a_checkpoint_that_only_the_old_end_wrote(tmp_path: Path) -> None:
    # The alarm of batch 18 suspects the 10 batches of its window: those of 6 and of 7, the old end, are before them.
    health = HealthConfig(window=10, truncation_limit=1e-9, sustained_steps=18, actions={"truncation": "rollback"})
    settings = {"grpo": AlgorithmConfig(health=health), "save_every": 2, "dataset_builder": ToyBuilder(num_train=80)}
    grown, whole = tmp_path / "grown", tmp_path / "whole"
    run(short(grown, 7, **settings))
    for path in (grown, whole):
        run(short(path, 19, **settings))
    (event,) = (e for e in read_lines(grown / "events.jsonl") if e["kind"] == "rollback")
    assert "checkpoint rl_000006" in event["message"] and event["step"] == SFT.num_steps + 17
    assert without_the_old_end(grown, 7) == without_the_old_end(whole, 7)


def test_a_run_that_samples_ahead_goes_back_to_where_its_batches_are_whole(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    path = tmp_path / "run"
    run(short(path, 4, "ahead"))
    run(short(path, 6, "ahead"))
    assert f"max_batches: 4 -> 6: the run in {path} goes on after step 3." in caplog.text
    assert "Removing 2 steps" in caplog.text
    assert steps(path) == list(range(-1, 8))


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of four batches, one step ahead. Do not change it."""
    path = tmp_path_factory.mktemp("four") / "run"
    run(short(path, 4, "ahead"))
    return path


@pytest.mark.parametrize(
    ("batches", "changes", "message"),
    [
        (3, {}, r"max_batches: 4 -> 3: 4 batches of the run in .* are done, and cannot be undone by going on\. Set "
                r"max_batches=4 or more, or .*resume_from_batch=N .*\(available: 0, 2\)"),
        (6, {"resume_from_batch": 4}, r"max_batches: 4 -> 6: .* no checkpoint of RL batch 4 from which .*"
                                      r"Batches from which it can: 0, 2\. .*leave max_batches=4"),
        (2, {"resume_from_batch": 2}, r"Batches from which it can: 0\."),
        (6, {"optimizer": OptimizerConfig(lr_schedule="linear")}, r"optimizer\.lr_schedule: .constant. -> .linear."),
    ],
)  # fmt: skip
def test_what_would_be_another_run_is_refused(four: Path, batches: int, changes: dict[str, Any], message: str) -> None:
    before = snapshot(four)
    with pytest.raises(RunDirectoryError, match=message):
        run(short(four, batches, "ahead", **changes))
    assert snapshot(four) == before


def test_a_schedule_over_all_batches_is_the_reason_not_to_grow(tmp_path: Path) -> None:
    config = short(tmp_path / "run", 2, optimizer=OptimizerConfig(lr_schedule="cosine"))
    run(config)
    reason = r"max_batches: 2 -> 4 \(optimizer\.lr_schedule=cosine spreads the learning rate over all batches"
    with pytest.raises(RunDirectoryError, match=reason):
        run(chz.replace(config, max_batches=4))


def test_going_back_and_ending_earlier_go_together(four: Path, tmp_path: Path) -> None:
    path = tmp_path / "run"
    shutil.copytree(four, path)
    run(short(path, 2, "ahead", resume_from_batch=0))
    run(short(tmp_path / "two", 2, "ahead"))
    assert_same_run(path, tmp_path / "two")


def test_a_complete_run_says_how_it_can_go_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    path = tmp_path / "run"
    for batches, said in ((6, "Raise max_batches to go on."), (9, ""), (12, "Its data set has no more tasks.")):
        caplog.clear()
        run(short(path, batches))
        run(short(path, batches))
        assert said in caplog.text and "complete after 6 RL batches" in caplog.text
