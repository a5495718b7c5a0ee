"""An environment in a file of one's own: a whole run of it, from a wheel, in another directory."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from assay.config import resolved
from assay.training.config import TrainingConfig, load_config
from support.tiny_run import assert_same_run, read_lines

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "examples" / "own_env.py"
SETTINGS = [
    "dataset_builder=own_env.py:LargestDigit",
    "dataset_builder.batch_size=4",
    "dataset_builder.group_size=4",
    "model_name=scratch",
    "lora_rank=0",
    "learning_rate=3e-3",
    "scratch.hidden_size=16",
    "scratch.num_layers=1",
    "scratch.num_heads=2",
    "scratch.context_length=16",
    "max_tokens=2",
    "max_batches=8",
    "save_every=2",
    "eval_every=0",
    "eval.samples_per_task=1",
    "local.device=cpu",
]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds Assay as its wheel installs it."""
    folder = tmp_path_factory.mktemp("installed")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps", "--no-index"]
    subprocess.run([*pip, "--no-build-isolation", "--target", str(folder), str(ROOT)], check=True, timeout=100)
    return folder


@pytest.fixture
def place(tmp_path: Path) -> Path:
    shutil.copy(EXAMPLE, tmp_path / "own_env.py")
    return tmp_path


class Assay:
    """The command line of the installed package, in another directory."""

    def __init__(self, installed: Path, place: Path) -> None:
        self.place = place
        self.environment = {**os.environ, "PYTHONPATH": str(installed), "OMP_NUM_THREADS": "1"}

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-P", "-m", "assay", *arguments]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        return subprocess.Popen(command, cwd=self.place, env=self.environment, text=True, **pipes)  # type: ignore[call-overload, no-any-return]

    def __call__(self, *arguments: str, status: int = 0) -> tuple[str, str]:
        process = self.start(*arguments)
        out, err = process.communicate(timeout=100)
        assert process.returncode == status, err
        return out, err


@pytest.fixture
def assay(installed: Path, place: Path) -> Iterator[Assay]:
    yield Assay(installed, place)


def test_the_example_is_short() -> None:
    assert len([line for line in EXAMPLE.read_text().splitlines() if line.strip()]) <= 30


@pytest.mark.timeout(600)
def test_it_is_trained_killed_resumed_evaluated_and_rescored(assay: Assay, place: Path) -> None:
    train = ["train", *SETTINGS, "log_path=run"]
    process = assay.start(*train)
    ledger = place / "run" / "ledger.jsonl"
    while process.poll() is None and not (ledger.exists() and ledger.read_text().count("\n") >= 5):
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    _, err = process.communicate()
    assert process.returncode == -signal.SIGKILL, err
    assert "LargestDigit" in err, "the plan names the environment"

    _, err = assay(*train)
    assert "Resuming after step" in err and "changed" not in err
    rewards = [line["reward/mean"] for line in read_lines(place / "run" / "metrics.jsonl") if "reward/mean" in line]
    assert len(rewards) == 8
    record = json.loads((place / "run" / "config.json").read_text())
    assert record["dataset_builder"]["type"] == f"{place / 'own_env.py'}:LargestDigit"
    assert list(record["files"]) == [str(place / "own_env.py")]

    out, _ = assay("eval", "--run", "run")
    measured = json.loads(out)
    assert 0 <= measured["metrics"]["policy"]["reward"]["mean"] <= 1, measured
    out, _ = assay("score", "--run", "run")
    again = json.loads(out)
    assert again["rollouts"] > 0 and again["changed"] == 0 and again["errored"] == 0

    whole = ["train", *SETTINGS, "log_path=whole"]
    assay(*whole)
    assert_same_run(place / "run", place / "whole")

    text = (place / "own_env.py").read_text()
    (place / "own_env.py").write_text(text.replace("text == task.answer", "text != task.answer"))
    _, err = assay(*train, "resume_from_batch=6")
    assert f"{place / 'own_env.py'}: changed" in err and "Resuming after step" in err
    out, err = assay("score", "--run", "run")
    assert f"{place / 'own_env.py'} has changed since the run began" in err
    assert json.loads(out)["changed"] > 0


@pytest.mark.parametrize(
    ("written", "words"),
    [
        ("own_evn.py:LargestDigit", "own_evn.py, and there is no such file to read. That folder has own_env.py."),
        ("own_env.py:Task", "and Task is a class (Task). It has LargestDigit."),
        ("own_env.py", "which dataset builder of that file? Put its name after a colon: own_env.py:Name."),
        ("own_env.py:LargestDigits", "looked for the dataset builder 'LargestDigits' in "),
        ("raises.py:LargestDigit", "which raises when it is loaded: line 2: ZeroDivisionError: division by zero"),
    ],
)
def test_what_is_no_environment_is_one_clear_line(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], written: str, words: str
) -> None:
    from assay.cli.main import main

    monkeypatch.chdir(place)
    if written.startswith("raises"):
        (place / "raises.py").write_text("x = 1\nx / 0\n")
    assert main(["train", "--dry-run", *SETTINGS, f"dataset_builder={written}"]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"error: dataset_builder={written}: ") and words in err and err.count("\n") == 1


def test_settings_of_an_own_environment_are_held_to_what_they_say(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(place)
    config = load_config(None, [*SETTINGS, "dataset_builder.digits=3"])
    assert config.dataset_builder.digits == 3  # type: ignore[attr-defined]
    assert isinstance(config, TrainingConfig)
    assert resolved(config)["dataset_builder"]["digits"] == 3
    with pytest.raises(ValueError, match=r"Did you mean dataset_builder\.digits"):
        load_config(None, [*SETTINGS, "dataset_builder.digit=3"])
