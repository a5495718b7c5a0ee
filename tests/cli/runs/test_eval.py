from __future__ import annotations

import json
from pathlib import Path

import chz
import pytest

from assay.cli.main import main
from assay.cli.runs.eval import measure
from assay.cli.runs.eval_table import table
from assay.cli.runs.measured import kernels_measured, measured_of
from assay.envs.kernelbench.evaluation.outcomes import KernelEvaluation, Outcome, ProblemOutcomes
from assay.errors import CheckpointError, RunDirectoryError, TrainingError
from assay.training.config import EvalConfig
from assay.training.evaluate import Evaluation, per_task_means
from assay.types import Completion, Score, Task, Trajectory, TrajectoryGroup, Transition
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
        assert reward["mean"] == pytest.approx(metric(finished, "eval/reward/mean")[evaluation], rel=1e-12)
        assert reward["n"] == 2
        assert found["checkpoint"] == ("sft_000006" if batch == 0 else "rl_000006")
        assert (found["tasks"], found["samples_per_task"]) == (2, 2)
    assert snapshot(finished) == before


def test_in_a_terminal_the_main_figures_follow_as_a_table(
    finished: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["eval", "--run", str(finished)]) == 0
    out, err = capsys.readouterr()
    report = json.loads(out)
    assert "pass@1" not in err
    assert f"{report['metrics']['policy']['reward']['mean']:.3g}" in table(report).splitlines()[0]
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    assert main(["eval", "--run", str(finished)]) == 0
    again, err = capsys.readouterr()
    assert again == out and err.endswith(f"{table(report)}\n")


def test_a_table_of_kernels_has_a_column_for_each_level() -> None:
    right, wrong = Outcome("ok", True, {"eager": 1.5}), Outcome("wrong", True)
    one = ProblemOutcomes(1, 1, "a", ((right,), (wrong,)))
    report = kernels_measured({}, tiny(Path("x")), KernelEvaluation((one,), ("eager",)), ()).report
    lines = table(report).splitlines()
    assert lines[0].split() == ["all"] and lines[1].split() == ["pass@1", "0.5"], "one level is all"
    assert "fast_1 (eager)" in table(report) and "fast_1 (compile)" not in table(report)
    both = KernelEvaluation((one, ProblemOutcomes(2, 1, "b", ((wrong,), (wrong,)))), ("eager",))
    lines = table(kernels_measured({}, tiny(Path("x")), both, ()).report).splitlines()
    assert lines[0].split() == ["all", "level1", "level2"]
    assert lines[1].split() == ["pass@1", "0.25", "(0", "to", "0.5)", "0.5", "0"], "a share stays in [0, 1]"
    assert lines[-1].startswith("Note: Speed was not measured against torch.compile")


def test_a_rate_has_an_interval_within_0_and_1() -> None:
    task = Task("toy", "t", ())

    def answered(right: float) -> TrajectoryGroup:
        done = Transition((), Completion((1,), (0.0,), "stop", 0), "x", Score("scored", right), {"correct": right})
        return TrajectoryGroup(task, (Trajectory(task, (done,), "done", 0),))

    groups = [answered(right) for right in (1.0, *[0.0] * 9)]
    found = Evaluation(groups, per_task_means(groups), {})
    report = measured_of({}, tiny(Path("x")), found, {"policy": found.per_task}, ()).report
    correct = report["metrics"]["policy"]["correct"]
    assert correct["mean"] == 0.1 and 0 <= correct["low"] < 0.1 < correct["high"] <= 1


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
    assert f"{setting.partition('=')[0]} would have no effect on this evaluation" in capsys.readouterr().err
