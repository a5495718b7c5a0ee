from __future__ import annotations

from pathlib import Path

import chz
import numpy as np
import pytest

from assay.cli.main import main
from assay.cli.runs.eval import measure
from assay.errors import CheckpointError, RunDirectoryError, TrainingError
from assay.training.config import EvalConfig
from support.tiny_run import metric, run, snapshot, tiny


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a complete run. Do not change it."""
    path = tmp_path_factory.mktemp("finished") / "run"
    run(tiny(path))
    return path


def test_a_checkpoint_is_measured_as_the_run_measured_it_and_the_run_is_left_alone(finished: Path) -> None:
    before = snapshot(finished)
    for batch, evaluation in ((0, 0), (None, -1), (6, -1)):
        found = measure(finished, tiny(finished), batch)
        reward = found["metrics"]["policy"]["reward"]
        assert reward["mean"] == metric(finished, "eval/reward/mean")[evaluation]
        half_width = metric(finished, "eval/ci95/reward")[evaluation]
        np.testing.assert_allclose([reward["low"], reward["high"]], reward["mean"] + np.array([-1, 1]) * half_width)
        assert found["checkpoint"] == ("sft_000006" if batch == 0 else "rl_000006")
        assert (found["tasks"], found["samples_per_task"]) == (2, 2)
    assert snapshot(finished) == before


def test_settings_of_evaluation_may_differ(finished: Path) -> None:
    config = chz.replace(tiny(finished), eval=EvalConfig(samples_per_task=5, max_tasks=1), seed=3)
    found = measure(finished, config, 2)
    assert (found["checkpoint"], found["tasks"], found["samples_per_task"]) == ("rl_000002", 1, 5)


def test_a_checkpoint_that_is_not_there_is_refused(finished: Path, tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError, match=r"no checkpoint of RL batch 3; it has 0, 2, 4, 6"):
        measure(finished, tiny(finished), 3)
    with pytest.raises(RunDirectoryError, match="is not a run with a checkpoint"):
        measure(tmp_path, tiny(tmp_path / "x"), None)


def test_a_damaged_checkpoint_is_refused(tmp_path: Path) -> None:
    config = tiny(tmp_path / "run", max_batches=0)
    run(config)
    (file,) = (config.log_path / "checkpoints/sft_000006/policy/model").glob("*.safetensors")
    file.write_bytes(file.read_bytes()[:1000])
    with pytest.raises(CheckpointError, match=r"model\.safetensors has 1 kB instead of 6\d\.\d kB"):
        measure(config.log_path, config, None)


def test_a_broken_verifier_is_no_measurement(finished: Path, tmp_path: Path) -> None:
    outage = tmp_path / "outage"
    outage.write_text("no engine")
    config = tiny(finished)
    builder = chz.replace(config.dataset_builder, outage=outage)
    with pytest.raises(TrainingError, match="None of the 4 rollouts"):
        measure(finished, chz.replace(config, dataset_builder=builder), None)


@pytest.mark.parametrize("setting", ["learning_rate=1", "grpo.kl_estimator=k2", "sft.num_steps=3", "wandb_project=p"])
def test_settings_of_training_are_refused(setting: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", "--run", str(tmp_path), setting]) == 2
    assert f"{setting.partition('=')[0]} would have no effect: an evaluation trains nothing" in capsys.readouterr().err
