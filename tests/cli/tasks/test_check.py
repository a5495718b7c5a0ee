"""`assay check`: the table, the JSON, the exit status."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from assay.cli.main import main

OWN = """
from assay.envs import Environment, Task

class Sums(Environment):
    paid: float = 1.0

    def tasks(self):
        return [Task.of(f"{n}+1=", answer=n + 1) for n in range(20)]

    def score(self, task, text):
        return self.paid * (text == str(task.answer))
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "sums.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    return "sums.py:Sums"


def test_what_a_score_raises_cannot_steer_the_terminal(own: str, capsys: pytest.CaptureFixture[str]) -> None:
    file = Path("sums.py")
    file.write_text(
        file.read_text().replace("return self.paid", "raise ValueError('\\x1b[2J' + text)\n        return 0")
    )
    assert main(["check", own]) == 3
    out = capsys.readouterr().out
    assert "\x1b" not in out and "ValueError: \u241b[2J" in out


def test_nothing_wrong(own: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", own]) == 0
    out = capsys.readouterr().out
    assert out.startswith("Sums: 18 training tasks, 2 held out. 18 of them were played, each answer twice.\n")
    assert "gold            1.000      1.000      1.000      36        0        0\n" in out
    assert out.endswith("Nothing wrong was found.\n")


def test_problems_have_a_cure_and_a_status(own: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", own, "--tasks", "3", "dataset_builder.paid=0"]) == 3
    out = capsys.readouterr().out
    assert "1. constant: Every answer to every task earned 0, best answers and garbage alike: nothing could be " in out
    assert "   Check how score compares" in out


def test_the_report_for_machines(own: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", own, "--json", "--tasks=3", "dataset_builder.paid=0"]) == 3
    report = json.loads(capsys.readouterr().out)
    assert (report["environment"], report["train"], report["heldout"], report["played"]) == ("Sums", 18, 2, 3)
    assert [problem["kind"] for problem in report["problems"]] == ["constant"]
    assert report["earned"]["gold"]["plays"] == 6


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "Say what to check: `assay check FILE:Name`"),
        (["none.py:Sums"], "none.py, which is not a file that can be read. That folder has sums.py."),
        (["sums.py:Sums", "dataset_builder.piad=1"], "Did you mean dataset_builder.paid"),
        (["sums.py:Sums", "dataset_builder.test_fraction=0.97"], "test_fraction=0.97 must be at most 0.9"),
    ],
)
def test_what_cannot_be_checked_is_one_line(
    own: str, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", *arguments]) == 2
    err = capsys.readouterr().err
    assert words in err and err.count("\n") == 1


@pytest.mark.parametrize("settings", [["monitor"], ["chess", "dataset_builder.task=arbiter"]])
def test_own_tasks_are_sound(settings: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    size = ["dataset_builder.num_train=12", "dataset_builder.num_heldout=6"]
    assert main(["check", *settings, *size, "--tasks", "6"]) == 0
    assert "gold " in capsys.readouterr().out


def test_what_a_reward_raises_cannot_steer_the_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "hostile.py").write_text(OWN.replace("return self.paid *", 'raise ValueError("\\x1b[2J")  #'))
    monkeypatch.chdir(tmp_path)
    assert main(["check", "hostile.py:Sums"]) == 3
    said = capsys.readouterr()
    assert "\x1b" not in said.out + said.err and "ValueError: ␛[2J" in said.out
