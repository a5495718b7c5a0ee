from __future__ import annotations

import fcntl
import json
import re
import shutil
import subprocess
import sys
import time
from argparse import Namespace
from pathlib import Path

import pytest
import torch

from assay.cli.demo import command as demo
from assay.cli.demo.control import Control, control_config, control_steps, is_foreseeable
from assay.cli.demo.outcome import Outcome, cost_notes
from assay.cli.demo.progress import MetricsFile, Story, is_told
from assay.errors import ConfigError, RunDirectoryError, TrainingError
from assay.training.config import load_config
from assay.training.run.ledger import read_ledger
from assay.training.run.reader import RunRecords, read_run

POSITIONS, SFT_STEPS, BATCHES = 10, 12, 3


def settings(root: Path, cache: Path, **changes: object) -> list[str]:
    """A demo that takes seconds: everything is small."""
    chosen = {
        "log_path": root,
        "cache_dir": cache,
        "max_batches": BATCHES,
        "eval_every": 0,
        "learning_rate": 0.0005,
        "sft.num_steps": SFT_STEPS,
        "sft.batch_size": 8,
        "sft.lr_warmup_steps": 2,
        "scratch.hidden_size": 32,
        "scratch.num_layers": 1,
        "local.device": "cpu",
        "eval.samples_per_task": 2,
        "dataset_builder.num_train": 24,
        "dataset_builder.num_heldout": POSITIONS,
        "dataset_builder.batch_size": 4,
        "dataset_builder.group_size": 4,
        "dataset_builder.stockfish.nodes": 50,
        "tensorboard_enabled": "false",
    }
    return [f"{key}={value}" for key, value in (chosen | changes).items()]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The folder of a finished demo, and its cache."""
    root, cache = tmp_path_factory.mktemp("demo") / "runs", tmp_path_factory.mktemp("cache")
    torch.set_num_threads(1)
    assert demo.run(Namespace(), settings(root, cache)) == 0
    return root, cache


def rows(cpu_s: dict[str, list[float]], eval_cpu_s: float = 0.0) -> list[dict[str, object]]:
    return [
        {"phase": phase, "index": i, "perf/cpu_s": value, **({"perf/eval_cpu_s": eval_cpu_s} if phase == "rl" else {})}
        for phase, values in cpu_s.items()
        for i, value in enumerate(values)
    ]


def ends(root: Path) -> list[bytes]:
    return [(root / name / "ledger.jsonl").read_bytes() for name in (demo.GRPO, demo.CONTROL)]


def test_the_result_has_every_policy_with_its_intervals(finished: tuple[Path, Path]) -> None:
    root, _ = finished
    result = json.loads((root / "result.json").read_text())
    assert list(result["policies"]) == ["random_legal", "warm_up", "same_cpu", "grpo"]
    assert list(result["differences"]) == ["grpo - random_legal", "grpo - warm_up", "grpo - same_cpu"]
    assert (result["tasks"], result["samples_per_task"]) == (POSITIONS, 2)
    for found in result["policies"].values():
        for metric in ("legal", "reward", "best"):
            assert found[metric]["low"] <= found[metric]["mean"] <= found[metric]["high"]
            assert found[metric]["tasks"] == POSITIONS
    assert result["policies"]["random_legal"]["legal"]["mean"] == 1.0
    policies, gaps = result["policies"], result["differences"]
    for other in ("random_legal", "warm_up", "same_cpu"):
        gap = policies["grpo"]["reward"]["mean"] - policies[other]["reward"]["mean"]
        assert gaps[f"grpo - {other}"]["reward"]["mean"] == pytest.approx(gap)
    assert len(result["verdicts"]) == 3


def test_the_control_is_warm_up_alone_to_its_own_end(finished: tuple[Path, Path]) -> None:
    root, _ = finished
    control, trained = read_run(root / demo.CONTROL), read_run(root / demo.GRPO)
    result = json.loads((root / "result.json").read_text())
    rates = control.curve("sft/learning_rate", "sft")
    assert len(rates) == result["control_steps"] == control.config["sft"]["num_steps"] > SFT_STEPS
    assert rates[-1][1] < 0.1 * max(rate for _, rate in rates)
    assert not control.curve("reward/mean", "rl")
    assert [t.key for t in control.first.tasks] == [t.key for t in trained.last.tasks]


def test_costs_are_stated_and_stockfish_apart(finished: tuple[Path, Path]) -> None:
    root, _ = finished
    result = json.loads((root / "result.json").read_text())
    trained = read_run(root / demo.GRPO)
    assert result["warm_up_cpu_s"] + result["grpo_cpu_s"] == pytest.approx(trained.training_cpu_s(), abs=0.01)
    assert 0 < result["evaluation_cpu_s"] < result["cpu_s"]
    assert 0 < result["verifier_cpu_s"] < result["cpu_s"]
    trained_s = result["warm_up_cpu_s"] + result["grpo_cpu_s"] + result["control_cpu_s"]
    assert result["cpu_s"] > trained_s + result["evaluation_cpu_s"] + result["verifier_cpu_s"]
    assert result["wall_s"] > 0
    # Each batch's positions are new; the held-out ones are new to the first of three evaluations alone.
    assert (result["verified_prompts"], result["cached_prompts"]) == (4 * BATCHES + POSITIONS, 2 * POSITIONS)


def test_the_report_stands_beside_those_of_the_runs(finished: tuple[Path, Path]) -> None:
    root, _ = finished
    page = (root / "report.html").read_text(encoding="utf-8")
    text = re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", page.partition("</style>")[2]))
    heads = "Random legal mover Warm-up alone Same-CPU warm-up GRPO"
    assert heads in text
    assert all(
        words in text for words in ("Legal moves", "Best moves", "against CPU time", "Control", "Stockfish is not")
    )
    assert page.count('class="chess"') == 12
    assert json.loads((root / "result.json").read_text())["verdicts"][0] in text
    assert all((root / name / "report.html").exists() for name in (demo.GRPO, demo.CONTROL))


def test_the_same_command_shows_a_finished_demo_again(
    finished: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    root, cache = finished
    before, result, page = ends(root), (root / "result.json").read_bytes(), (root / "report.html").read_bytes()
    (root / "result.json").unlink()
    assert demo.run(Namespace(), settings(root, cache)) == 0
    shown = capsys.readouterr().out
    assert (ends(root), (root / "result.json").read_bytes(), (root / "report.html").read_bytes()) == (
        before,
        result,
        page,
    )
    assert "1.000 exact" in shown
    assert "GRPO, against" in shown
    assert str(root / "report.html") in shown


def test_an_interrupted_control_goes_on(finished: tuple[Path, Path], tmp_path: Path) -> None:
    root, cache = finished
    shutil.copytree(root, tmp_path / "runs")
    ledger = tmp_path / "runs" / demo.CONTROL / "ledger.jsonl"
    lines = ledger.read_bytes().splitlines(keepends=True)
    ledger.write_bytes(b"".join(lines[:-1]))  # all but the line that says the run is complete
    assert demo.run(Namespace(), settings(tmp_path / "runs", cache)) == 0
    assert read_ledger(ledger).is_complete
    again = json.loads((tmp_path / "runs" / "result.json").read_text())
    assert again["policies"] == json.loads((root / "result.json").read_text())["policies"]
    sessions = (tmp_path / "runs" / "sessions.jsonl").read_text().splitlines()
    assert len(sessions) == 2


def test_other_settings_are_refused_and_nothing_is_lost(finished: tuple[Path, Path]) -> None:
    root, cache = finished
    before = ends(root)
    with pytest.raises(RunDirectoryError, match=r"learning_rate: 0\.0005 -> 0\.001[\s\S]*Remove .* or set log_path"):
        demo.run(Namespace(), settings(root, cache, learning_rate=0.001))
    assert ends(root) == before


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(RunDirectoryError, match=r"thesis\.tex"):
        demo.run(Namespace(), settings(tmp_path, tmp_path / "cache"))
    assert [entry.name for entry in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize("key", ["sft.num_steps", "max_batches"])
def test_a_demo_without_anything_to_compare_is_refused(tmp_path: Path, key: str) -> None:
    with pytest.raises(ConfigError, match=f"{key.rpartition('.')[2]}=0"):
        demo.run(Namespace(), settings(tmp_path / "runs", tmp_path, **{key: 0}))
    assert not (tmp_path / "runs").exists()


def test_the_control_gets_the_cpu_time_of_warm_up_and_grpo_without_evaluations() -> None:
    # 10 s of warm-up, of which 7 s by one slow step, and 10 batches of 20 s each, 5 s of it for an evaluation.
    measured = rows({"sft": [7.0, 1.0, 1.0, 1.0], "rl": [20.0, 20.0]}, eval_cpu_s=5.0)
    assert control_steps(measured, 10) == 160
    with pytest.raises(TrainingError, match="no warm-up"):
        control_steps(rows({"rl": [1.0]}), 10)


def test_the_control_has_the_settings_of_the_warm_up() -> None:
    config = load_config("chess", ["sft.num_steps=4", "sft.save_every=2", "resume_from_batch=3"])
    control = control_config(config, 40)
    assert (control.sft.num_steps, control.sft.save_every) == (40, 20)
    assert (control.max_batches, control.resume_from_batch) == (0, None)
    assert control.sft.learning_rate == config.sft.learning_rate


@pytest.mark.parametrize(
    ("sft", "rl", "batches", "foreseeable"),
    [(4, 19, 100, False), (4, 20, 100, True), (3, 20, 100, False), (4, 2, 3, False), (4, 3, 3, True)],
)
def test_the_control_waits_for_the_warm_up_and_the_first_batches(
    sft: int, rl: int, batches: int, foreseeable: bool
) -> None:
    config = load_config("chess", ["sft.num_steps=4"])
    assert is_foreseeable(rows({"sft": [1.0] * sft, "rl": [1.0] * rl}), config, batches) is foreseeable


@pytest.mark.parametrize(("given", "told"), [(99.0, False), (90.0, True)])
def test_a_control_that_had_less_cpu_time_is_told_of(tmp_path: Path, given: float, told: bool) -> None:
    trained, control = (
        RunRecords(tmp_path, {}, {}, rows(cpu_s), [], None, None)
        for cpu_s in ({"sft": [50.0], "rl": [50.0]}, {"sft": [given]})
    )
    notes = " ".join(cost_notes(Outcome(trained, control, {}, {}, [])))
    assert ("90% of the CPU time" in notes) is told


def test_constant_groups_are_averaged_over_fifths_of_the_run(tmp_path: Path) -> None:
    measured = [{"phase": "rl", "index": i, "rollout/constant_group_fraction": i / 10} for i in range(10)]
    outcome = Outcome(RunRecords(tmp_path, {}, {}, measured, [], None, None), *[None] * 4)  # type: ignore[arg-type]
    assert outcome.constant_groups == pytest.approx([0.05, 0.25, 0.45, 0.65, 0.85])


def test_metrics_are_read_as_they_are_written(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    metrics = MetricsFile(path)
    assert metrics.new() == []
    path.write_text('{"index": 0}\n{"index": 1}\n{"ind')
    assert metrics.new() == [{"index": 0}, {"index": 1}]
    with path.open("a") as file:
        file.write('ex": 2}\n')
    assert metrics.new() == [{"index": 2}]
    path.write_text('{"index": 0}\n')  # cut back by a run that resumes
    assert metrics.new() == [] and metrics.rows == [{"index": 0}]
    path.write_text('{"index": 0}\n{"index": 1, "again": true}\n')
    assert metrics.new() == [{"index": 1, "again": True}]
    path.write_text('{"index": 0}\n{"index": 1}\n')  # shorter, and another row from the second on
    assert metrics.new() == [{"index": 1}]
    path.write_text('{"index": 0}\n{"index": 11, "longer": "than it was before"}\n')
    assert metrics.new() == [{"index": 11, "longer": "than it was before"}] == metrics.rows[1:]


def test_a_stage_is_told_in_five_lines_the_last_at_its_end() -> None:
    assert [done for done in range(1, 101) if is_told(done, 100)] == [20, 40, 60, 80, 100]
    assert [done for done in range(1, 4) if is_told(done, 3)] == [1, 2, 3]


def test_the_story_of_a_run_is_told_in_words() -> None:
    config, told = load_config("chess", ["sft.num_steps=2"]), []
    story = Story(config, 2, told.append, lambda: {"random_legal": {"reward": [0.5, 0.7], "best": [0.1]}})
    story.begin([])
    story.row({"phase": "sft", "index": 0, "sft/loss": 1.5})
    story.row({"phase": "sft", "index": 1, "sft/loss": 1.25, "eval/reward/mean": 0.4, "eval/env/legal": 0.8})
    for index, reward in enumerate((0.5, 0.75)):
        row = {"phase": "rl", "index": index, "reward/mean": reward, "rollout/constant_group_fraction": 0.25}
        story.row(row)
    assert [text.strip().partition(":")[0] for text in told] == [
        "1. Warm-up",
        "step 1 of 2",
        "step 2 of 2",
        "On held-out positions",
        "For comparison, random legal mover",
        "2. GRPO",
        "batch 1 of 2",
        "batch 2 of 2",
    ]
    assert told[3].endswith("reward 0.400, legal moves 0.800.") and "reward 0.600, best moves 0.100" in told[4]
    assert told[-1].endswith("mean reward 0.750, constant groups 25%")


def test_a_demo_that_goes_on_says_how_far_it_had_come() -> None:
    config, told = load_config("chess", ["sft.num_steps=2"]), []
    Story(config, 3, told.append, dict).begin(rows({"sft": [1.0, 1.0], "rl": [1.0]}))
    assert len(told) == 1 and "2. GRPO: 3 batches, of which 1 are done" in told[0]


def test_a_control_that_fails_is_named_with_its_reason(tmp_path: Path) -> None:
    missing = {"dataset_builder.stockfish.path": tmp_path / "no_engine"}
    config = load_config(demo.PRESET, settings(tmp_path / "run", tmp_path / "cache", **missing))
    control = Control(config, tmp_path / "log")
    with pytest.raises(TrainingError, match=r"no_engine.*is not an executable file[\s\S]*same command goes on"):
        control.wait(60)
    control.stop()


HOLDER = """
import signal, sys, time
from pathlib import Path
from assay.cli.demo.control import Control, control_config
from assay.training.config import load_config

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # as in the background of a script
    control = Control(load_config("chess_pawn", sys.argv[2:]), Path(sys.argv[1]))
    time.sleep(1000)
"""


def test_a_control_ends_with_the_demo_that_was_killed(tmp_path: Path) -> None:
    (tmp_path / "holder.py").write_text(HOLDER)
    run = tmp_path / "run"
    endless = settings(run, tmp_path / "cache", **{"sft.num_steps": 1_000_000})
    holder = subprocess.Popen([sys.executable, str(tmp_path / "holder.py"), str(tmp_path / "log"), *endless])
    while holder.poll() is None and not (run / "ledger.jsonl").exists():
        time.sleep(0.05)
    assert holder.poll() is None
    holder.kill()
    holder.wait()
    with (run / "run.lock").open("rb") as lock:
        for _ in range(600):  # the control holds the lock as long as it lives
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(0.1)
        else:
            pytest.fail("the control goes on after the demo was killed")
