"""What a resumed run may change, and that it computes the same for all that."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import chz
import pytest

from assay.backends.config import LocalBackend
from assay.cli.options import config_of
from assay.config import resolved
from assay.config.record import may_change
from assay.config.schema import settings
from assay.envs.chess.engine.stockfish import StockfishConfig
from assay.errors import RunDirectoryError
from assay.grpo.config import AlgorithmConfig
from assay.grpo.health.config import HealthConfig
from assay.grpo.parity import ParityConfig
from assay.storage.files import encode_json
from assay.training.config import SFTConfig, TrainingConfig, load_config
from assay.training.run.changes import changed_record, changes_after, in_words
from support.tensorboard import scalars
from support.tiny_run import RL_BATCHES, SFT_STEPS, final_weights, kill, metric, outcome, read_lines, run, steps, tiny

TRAINER = "assay.grpo.trainer"
NOTHING_OF_IT = {"wandb_project", "wandb_name", "resume_from_batch", "log_path"}
"""May change too, and is tried elsewhere: it needs an account, or says where the run is."""
RESUMED_FROM = SFT_STEPS + 2
"""The step that the killed run goes on with."""
CHANGES: dict[str, Any] = {
    "eval_every": 2,
    "tensorboard_enabled": False,
    "completion_table_every": 1,
    "tensorboard_log_histograms_every": 1,
    "tensorboard_log_per_level": False,
    "trace_token_groups": 1,
    "max_errored_fraction": 0.5,
    "keep_last": 3,
    "keep_best": 1,
    "best_metric": "reward/mean",
}


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a run that was left alone. Do not change it."""
    path = tmp_path_factory.mktemp("reference") / "run"
    run(tiny(path))
    return path


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a run that was killed in its fourth RL batch. Copy it."""
    path = tmp_path_factory.mktemp("killed") / "run"
    kill(tiny(path), TRAINER, "GRPOTrainer.update", 4)
    return path


def went_on(killed: Path, place: Path, **changes: Any) -> Path:
    """The directory of the run after it went on with changed settings."""
    shutil.copytree(killed, place / "run")
    run(tiny(place / "run", **changes))
    return place / "run"


def trained(path: Path) -> list[dict[str, Any]]:
    """What training measured, without evaluations."""
    kept = [{k: v for k, v in record.items() if not k.startswith("eval/")} for record in outcome(path)["metrics"]]
    return [record for record in kept if record["phase"] != "start"]


CASES = {
    **{f"{name}={value}": {name: value} for name, value in CHANGES.items() if name in ("eval_every", "keep_best")},
    "no evaluation in between": {"eval_every": 0},
    "all that goes together": {k: v for k, v in CHANGES.items() if k != "tensorboard_enabled"},
    "no TensorBoard": {"tensorboard_enabled": False},
    "health report": {"grpo": AlgorithmConfig(health=HealthConfig(report_every=1))},
}


@pytest.mark.parametrize("case", CASES)
def test_a_run_computes_the_same_with_what_it_may_change(
    case: str, reference: Path, killed: Path, tmp_path: Path
) -> None:
    path = went_on(killed, tmp_path, **CASES[case])
    assert final_weights(path) == final_weights(reference)
    assert trained(path) == trained(reference)
    every = CASES[case].get("eval_every", 3)
    after_the_kill = [i for i in range(2, RL_BATCHES) if i + 1 == RL_BATCHES or (every and (i + 1) % every == 0)]
    records = read_lines(path / "metrics.jsonl")
    evaluated = [r["index"] for r in records if r["phase"] == "rl" and "eval/reward/mean" in r]
    assert [i for i in evaluated if i >= 2] == after_the_kill
    assert steps(path) == steps(reference)


def test_every_setting_of_a_run_that_may_change_is_tried_here() -> None:
    free = {name for name, setting in settings(TrainingConfig).items() if setting.may_change}
    assert free == {*CHANGES, *NOTHING_OF_IT, "cache_dir"}, "each with a change that this file tries"


def test_more_threads_are_allowed_and_their_rounding_is_said(
    killed: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "assay")
    path = went_on(killed, tmp_path, max_batches=3, local=LocalBackend(device="cpu", torch_threads=2))
    assert len(metric(path, "train/loss")) == 3
    assert "goes on with local.torch_threads: 1 -> 2, which changes how sums are rounded" in caplog.text


GATE_OFF: dict[str, Any] = {"grpo": AlgorithmConfig(parity=ParityConfig(enabled=False)), "eval_every": 2}


def test_settings_that_a_resume_changed_are_said_and_recorded_with_their_step(
    killed: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "assay")
    changes = {**GATE_OFF, "max_batches": 5, "cache_dir": killed.parent / "cache"}
    path = went_on(killed, tmp_path, **changes)
    said = "eval_every: 3 -> 2, grpo.parity.enabled: true -> false, max_batches: null -> 5"
    assert f"goes on with other settings: {said}. Parity gate: OFF" in caplog.text
    (event,) = [e for e in read_lines(path / "events.jsonl") if e["kind"] == "settings_changed"]
    assert event["step"] == RESUMED_FROM and event["level"] == "warning" and said in event["message"]
    record = json.loads((path / "config.json").read_text())
    assert (record["eval_every"], record["grpo"]["parity"]["enabled"], record["max_batches"]) == (2, False, 5)
    (entry,) = record["changes"]
    assert entry["after_step"] == RESUMED_FROM - 1
    assert entry["settings"]["grpo.parity.enabled"] == {"was": True, "now": False}
    page = (path / "report.html").read_text()
    assert f"<dt>From step {RESUMED_FROM} on</dt><dd>eval_every: 3 -&gt; 2, grpo.parity.enabled" in page
    assert "<dt>Parity gate</dt><dd>OFF" in page and "goes on with other settings" in page
    assert config_of(path, []).eval_every == 2, "the record is read with what it keeps beside"


def test_a_change_that_trained_nothing_leaves_no_trace(killed: Path, tmp_path: Path) -> None:
    shutil.copytree(killed, tmp_path / "run")
    before = (tmp_path / "run/config.json").read_text()
    cache = {"cache_dir": killed.parent / "cache"}
    kill(tiny(tmp_path / "run", **cache, **GATE_OFF), TRAINER, "GRPOTrainer.update", 1)
    assert '"changes"' in (tmp_path / "run/config.json").read_text()
    run(tiny(tmp_path / "run", **cache))
    assert json.loads((tmp_path / "run/config.json").read_text()) == json.loads(before)
    assert "settings_changed" not in (tmp_path / "run/events.jsonl").read_text()


def test_changes_of_several_resumes_are_kept_until_one_goes_back_before_them() -> None:
    begun: dict[str, Any] = {"a": {"b": 1}, "c": 1, "files": {"x": "hash"}, "log_path": "here"}

    def went_on_with(record: dict[str, Any], step: int, **now: Any) -> tuple[list[str], dict[str, Any]]:
        changes = changes_after(record, now, step, lambda key: True)
        return [*map(str, changes)], changed_record(record, now, step, changes)

    said, first = went_on_with(begun, 4, a={"b": 2}, c=1, log_path="there")
    assert said == ["a.b: 1 -> 2"] and first["files"] == {"x": "hash"} and first["log_path"] == "here"
    said, second = went_on_with(first, 9, a={"b": 3}, c=1, d=None, log_path="here")
    assert said == ["a.b: 2 -> 3", "d: absent -> null"]
    assert in_words(second) == ["From step 5 on: a.b: 1 -> 2.", "From step 10 on: a.b: 2 -> 3, d: absent -> null."]
    assert went_on_with(second, 9, a={"b": 2}, c=1, log_path="here") == ([], first), "before the second change"
    said, back = went_on_with(second, 4, a={"b": 7}, c=1, log_path="here")
    assert said == ["a.b: 1 -> 7"] and in_words(back) == ["From step 5 on: a.b: 1 -> 7."]
    assert went_on_with(second, 0, a={"b": 1}, c=1, log_path="here") == ([], begun)


def test_what_decides_the_result_may_not_change(killed: Path, tmp_path: Path) -> None:
    for changes in ({"learning_rate": 1e-3}, {"save_every": 3}, {"sft": SFTConfig(num_steps=6, save_every=2)}):
        with pytest.raises(RunDirectoryError, match="other settings"):
            went_on(killed, tmp_path / str(len(list(tmp_path.iterdir()))), **changes)


def test_events_of_tensorboard_outlive_a_while_without_it(killed: Path, tmp_path: Path) -> None:
    path = tmp_path / "run"
    shutil.copytree(killed, path)
    (file,) = (path / "tensorboard").iterdir()
    before = [(step, tag) for step, tag, _ in scalars(file)]
    kill(tiny(path, tensorboard_enabled=False), TRAINER, "GRPOTrainer.update", 3)
    run(tiny(path))
    found = [(step, tag) for step, tag, _ in scalars(file)]
    kept = [place for place in before if place[0] < RESUMED_FROM]
    assert kept and found[: len(kept)] == kept, "those of the first part"
    last = read_lines(path / "metrics.jsonl")[-1]["step"]
    assert (last, "train/loss") in found and (RESUMED_FROM, "train/loss") not in found, "none while it was off"


def test_the_engines_processes_may_change() -> None:
    config = load_config("chess")
    allowed = may_change(config)
    names = [name for name in settings(StockfishConfig) if allowed(f"dataset_builder.stockfish.{name}")]
    assert names == ["processes", "deadline_s", "cache"]


def test_a_setting_of_an_old_record_that_nothing_reads_stops_no_resume(killed: Path, tmp_path: Path) -> None:
    """Before it was refused, `gamma` could be set for single turns, and is in the record of such a run."""
    path = tmp_path / "run"
    shutil.copytree(killed, path)
    record = resolved(tiny(path))
    record["gamma"], record["grpo"]["kl_estimator"] = 0.9, "k1"
    record["dataset_builder"]["renderer_name"] = "plain"
    (path / "config.json").write_bytes(encode_json(record, indent=2))
    run(tiny(path))
    assert len(metric(path, "train/loss")) == RL_BATCHES


def test_an_old_record_with_settings_that_nothing_reads_is_read_and_that_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = chz.replace(load_config("monitor"), log_path=tmp_path)
    record = resolved(config) | {"gamma": 0.9}
    record["dataset_builder"]["judge"]["model"] = "m"
    (tmp_path / "config.json").write_bytes(encode_json(record, indent=2))
    caplog.set_level(logging.WARNING, "assay")
    assert load_config([str(tmp_path / "config.json")]) == config
    assert "gamma=0.9" in caplog.text and "dataset_builder.judge.model=m" in caplog.text
    assert "is dropped: under" in caplog.text
