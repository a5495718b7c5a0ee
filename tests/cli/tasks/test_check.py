"""`assay check`: the table, the JSON, the exit status."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from contextlib import redirect_stderr
from pathlib import Path

import pytest

from assay.cli.main import main
from assay.cli.tasks.check import check as run_check
from assay.envs.checks.deadline import deadline
from assay.training.config import load_config
from support.toy_run import in_child

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


@pytest.mark.parametrize(
    "written",
    ["while True: pass", "__import__('re').match('(a+)+$', 'a' * 60 + 'b')", "__import__('time').sleep(1000)"],
)
def test_a_score_that_does_not_end_is_one_line(own: str, written: str, capsys: pytest.CaptureFixture[str]) -> None:
    file = Path("sums.py")
    file.write_text(file.read_text().replace("return self.paid", f"{written}\n        return self.paid"))
    alarm, left = signal.getsignal(signal.SIGALRM), signal.getitimer(signal.ITIMER_REAL)[0]
    assert main(["check", own, "--deadline=1"]) == 3
    err = capsys.readouterr().err
    said = (
        r"error: Playing an answer \(gold\) to '\d+\+1=' was not done after 1 s, so the check was stopped \(.*line 11\)"
    )
    assert re.match(said, err) and err.count("\n") == 1, err
    assert signal.getsignal(signal.SIGALRM) is alarm, "pytest's own alarm is set again"
    assert (signal.getitimer(signal.ITIMER_REAL)[0] > 0) == (left > 0)


@pytest.mark.parametrize(
    ("method", "doing"),
    [
        ("def build(self, context): import time; time.sleep(1000)", "Making the data sets of Sums"),
        ("def gold(self, task): import time; time.sleep(1000)", "Finding a best answer to "),
        (
            "def env(self, task): return self\n"
            "    async def reset(self): import asyncio; await asyncio.get_running_loop().create_future()\n"
            "    async def step(self, text): pass",
            "Playing an answer ",
        ),
    ],
)
def test_whatever_does_not_end_is_named(own: str, method: str, doing: str, capsys: pytest.CaptureFixture[str]) -> None:
    file = Path("sums.py")
    file.write_text(f"{file.read_text()}\n    {method}\n")
    assert main(["check", own, "--deadline=1"]) == 3
    err = capsys.readouterr().err
    assert err.startswith(f"error: {doing}") and err.count("\n") == 1


@pytest.mark.parametrize(
    "stubborn",
    [
        "while True:\n            try: time.sleep(1000)\n            except BaseException: pass",
        "await asyncio.to_thread(threading.Event().wait)",
    ],
)
def test_what_cannot_be_interrupted_is_ended(own: str, stubborn: str, tmp_path: Path) -> None:
    file = Path("sums.py")
    text = file.read_text().replace(
        "def score(self, task, text):", "async def score(self, task, text):\n        " + stubborn
    )
    file.write_text(f"import asyncio, threading, time\n{text}")

    def check() -> None:
        with (tmp_path / "err").open("w") as err, redirect_stderr(err), deadline(1, grace_s=0.2) as begin:
            config = load_config(None, [f"dataset_builder={own}"])
            asyncio.run(run_check(config.active_builder, config.build_context(), 2, begin))

    assert os.waitstatus_to_exitcode(in_child(check)) == 3
    err = (tmp_path / "err").read_text()
    assert err.startswith("error: Playing an answer (gold) to ") and err.count("\n") == 1


def test_a_deadline_is_a_time(own: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["check", own, "--deadline=0"])
    assert "argument --deadline: above 0" in capsys.readouterr().err
