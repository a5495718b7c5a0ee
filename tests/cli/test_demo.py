from __future__ import annotations

import json
import re
import shutil
from argparse import Namespace
from pathlib import Path

import pytest
import torch

from assay.cli import demo
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


def records(path: Path, cpu_s: dict[str, list[float]], eval_cpu_s: float = 0.0) -> RunRecords:
    rows = [
        {"phase": phase, "index": i, "perf/cpu_s": value, **({"perf/eval_cpu_s": eval_cpu_s} if phase == "rl" else {})}
        for phase, values in cpu_s.items()
        for i, value in enumerate(values)
    ]
    return RunRecords(path, {}, {}, rows, [], None, None)


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
    assert 0 < result["evaluation_cpu_s"] < result["wall_s"]
    assert 0 < result["verifier_cpu_s"] < result["wall_s"]
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
    assert [json.loads(line)["run"] for line in sessions] == [demo.GRPO, demo.CONTROL, demo.CONTROL]


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


def test_the_control_gets_the_cpu_time_of_warm_up_and_grpo_without_evaluations(tmp_path: Path) -> None:
    config = load_config("chess", ["sft.num_steps=4", "sft.save_every=2", "resume_from_batch=3"])
    # 10 s of warm-up, of which 7 s by one slow step, and two batches of 20 s, 5 s of each evaluation.
    trained = records(tmp_path, {"sft": [7.0, 1.0, 1.0, 1.0], "rl": [20.0, 20.0]}, eval_cpu_s=5.0)
    control = demo.control_config(config, trained)
    assert (control.sft.num_steps, control.sft.save_every) == (40, 20)
    assert (control.max_batches, control.resume_from_batch) == (0, None)
    assert control.sft.learning_rate == config.sft.learning_rate
    with pytest.raises(TrainingError, match="no warm-up steps"):
        demo.control_config(config, records(tmp_path, {"rl": [1.0]}))
