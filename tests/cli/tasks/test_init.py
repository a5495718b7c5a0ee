"""`assay init`: what it writes is sound and trains as it stands; nothing is written over."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from assay.cli.main import main
from assay.cli.tasks.init import KINDS, class_name

SMALL = [
    "local.device=cpu",
    "max_batches=2",
    "eval.max_tasks=2",
    "eval.samples_per_task=1",
    "tensorboard_enabled=false",
    "dataset_builder.batch_size=2",
    "dataset_builder.group_size=4",
    "scratch.hidden_size=16",
    "scratch.num_layers=1",
]


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_written_passes_the_check_and_trains(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["init", "my_task.py", "--kind", kind]) == 0
    said = capsys.readouterr().out
    check, train = (shlex.split(line)[1:] for line in said.partition("Next:\n")[2].strip().splitlines())
    assert "Wrote my_task.py.\n" in said and check[0] == "check" and train[0] == "train"
    assert main([*check, "--tasks", "6"]) == 0
    assert "Nothing wrong was found." in capsys.readouterr().out
    assert main([*train, *SMALL]) == 0
    rows = [json.loads(line) for line in (tmp_path / "runs/my_task/metrics.jsonl").read_text().splitlines()]
    assert sum("reward/mean" in row for row in rows) == 2
    assert all(row.get("rollout/errored", 0) == 0 for row in rows)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("there.py", "there.py exists and is not overwritten"),
        ("my-task.py", "my-task.py is not the name of a Python file"),
        ("class.py", "class.py is not the name of a Python file"),
        ("task", "task is not the name of a Python file. Give one such as my_task.py."),
        ("no/folder.py", "no/folder.py cannot be written: No such file or directory"),
    ],
)
def test_what_cannot_be_written_is_one_line(
    name: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there.py").write_text("mine = 1\n")
    assert main(["init", name]) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ") and words in err and err.count("\n") == 1
    assert (tmp_path / "there.py").read_text() == "mine = 1\n"


def test_a_table_beside_the_file_is_not_written_over_either(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sums.jsonl").write_text("{}")
    assert main(["init", "sums.py", "--kind", "rows"]) == 2
    assert "sums.jsonl exists" in capsys.readouterr().err and not (tmp_path / "sums.py").exists()


def test_names_of_classes() -> None:
    assert [class_name(stem) for stem in ("my_task", "sums", "_x", "_1")] == ["MyTask", "Sums", "X", "Task1"]
