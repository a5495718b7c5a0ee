"""An environment in a file of one's own: a whole run of it, in another directory."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from assay.config import resolved
from assay.training.config import TrainingConfig, load_config
from support.tiny_run import assert_same_run, kill, read_lines

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


@pytest.fixture
def place(tmp_path: Path) -> Path:
    shutil.copy(EXAMPLE, tmp_path / "own_env.py")
    return tmp_path


def test_the_example_is_short() -> None:
    assert len([line for line in EXAMPLE.read_text().splitlines() if line.strip()]) <= 30


def test_it_is_trained_killed_resumed_evaluated_and_rescored(
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Commands in this process; `test_front_door.py` gives each a process of its own."""
    from assay.cli.main import main

    monkeypatch.chdir(place)

    def assay(*arguments: str) -> tuple[str, str]:
        """What a command prints, and what it logs."""
        caplog.clear()
        assert main(arguments) == 0, capsys.readouterr().err
        said = capsys.readouterr()
        return said.out, said.err + caplog.text

    train = ["train", *SETTINGS, "log_path=run"]
    kill(load_config(None, train[1:]), "assay.grpo.trainer", "GRPOTrainer.update", 6)
    _, err = assay(*train)
    assert "LargestDigit" in err, "the plan names the environment"
    assert "Resuming after step 3" in err and "changed" not in err
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

    assay("train", *SETTINGS, "log_path=whole")
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
        ("own_evn.py:LargestDigit", "own_evn.py, which is not a file that can be read. That folder has own_env.py."),
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


def test_the_examples_pass_their_check(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from assay.cli.main import main

    monkeypatch.chdir(EXAMPLE.parent)
    for task in ("own_env.py:LargestDigit", "multi_turn.py:GuessTheDigit"):
        assert main(["check", task, "--tasks", "8"]) == 0, capsys.readouterr().out
    monkeypatch.chdir(EXAMPLE.parent / "rows")
    assert main(["check", "--config", "sums.yaml", "--tasks", "8"]) == 0, capsys.readouterr().out


SMALL = [
    "max_batches=2",
    "eval_every=0",
    "eval.max_tasks=2",
    "eval.samples_per_task=1",
    "tensorboard_enabled=false",
    "local.device=cpu",
    "scratch.hidden_size=16",
    "scratch.num_layers=1",
    "dataset_builder.batch_size=4",
    "dataset_builder.group_size=4",
]


@pytest.mark.parametrize("task", ["multi_turn.py:GuessTheDigit", "rows"])
def test_the_examples_train(task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from assay.cli.main import main

    given = ["--config", "sums.yaml"] if task == "rows" else [f"dataset_builder={task}"]
    monkeypatch.chdir(EXAMPLE.parent / "rows" if task == "rows" else EXAMPLE.parent)
    assert main(["train", *given, *SMALL, f"log_path={tmp_path}/run"]) == 0
    lines = read_lines(tmp_path / "run" / "metrics.jsonl")
    rows = [line for line in lines if "reward/mean" in line]
    assert len(rows) == 2 and all(row["rollout/errored"] == 0 for row in rows)
    turns = [line["turn"] for line in read_lines(tmp_path / "run" / "traces.jsonl")]
    assert max(turns) == (2 if task != "rows" else 0)


def test_the_example_learns_from_its_first_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `benchmarks/own_environment.py` measures at length."""
    from assay.cli.main import main

    monkeypatch.chdir(EXAMPLE.parent)
    few = ["max_batches=32", "eval_every=0", "eval.max_tasks=1", "eval.samples_per_task=1", "tensorboard_enabled=false"]
    own = "dataset_builder=own_env.py:LargestDigit"
    assert main(["train", own, *few, "local.device=cpu", f"log_path={tmp_path}/run"]) == 0
    rewards = [line["reward/mean"] for line in read_lines(tmp_path / "run" / "metrics.jsonl") if "reward/mean" in line]
    assert sum(rewards[:4]) / 4 < 0.15 and sum(rewards[-4:]) / 4 > 0.3


BROKEN = """
from assay.envs import Environment, Message, Score, StepResult, Task

class Broken(Environment):
    batch_size = 2

    def tasks(self):
        return [Task.of(f"{n}=", answer=str(n)) for n in range(100)]

    def score(self, task, text):
        SCORE
MORE
"""
ENV = "    def env(self, task): return"


@pytest.mark.parametrize(
    ("score", "more", "words"),
    [
        ("return {}[text]", "", r"KeyError: '.*' \(.*broken\.py, line 11\)\. None of the "),
        ("return '1'", "", r"Broken\.score \(.*broken\.py, line 10\) returned '1' \(str\)"),
        ("", f"{ENV} Own('reset', 'hello')", r"TypeError: Own\.reset\(\) returned 'hello', not a list of Message"),
        ("", f"{ENV} Own('step', 1.0)", r"TypeError: Own\.step\(\) returned 1\.0, not a StepResult"),
        ("", f"{ENV} 3", r"TypeError: Broken\.env\(\) returned 3, which has no `async def reset`"),
        ("", "    def build(self): pass", r"Broken\.build\(\): too many positional arguments\. Define build"),
        ("", "    renderer_name = 'broken.py:Broken'", r"renderer_name=broken\.py:Broken"),
    ],
)
def test_mistakes_of_a_user_s_file_are_said_first_and_on_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    score: str,
    more: str,
    words: str,
) -> None:
    from assay.cli.main import main

    own = """
class Own:
    def __init__(self, wrong, value): self.wrong, self.value = wrong, value
    async def reset(self): return self.value if self.wrong == "reset" else [Message("user", "1=")]
    async def step(self, text): return self.value
"""
    (tmp_path / "broken.py").write_text(BROKEN.replace("SCORE", score or "return 0").replace("MORE", more + own))
    monkeypatch.chdir(tmp_path)
    given = ["dataset_builder=broken.py:Broken", "model_name=scratch", "lora_rank=0", "max_tokens=2"]
    assert main(["train", *given, *SMALL, "scratch.context_length=16", "log_path=run"]) != 0
    err = capsys.readouterr().err
    assert "Traceback" not in err
    assert re.search(f"^error: {words}", err, re.MULTILINE), err


def test_a_change_of_a_file_that_the_environment_imports_is_said_at_resume(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from assay.config import resolved as record
    from assay.config.record import changed_files

    (tmp_path / "helper_of_own.py").write_text("DIGITS = 2\n")
    text = EXAMPLE.read_text().replace("from assay", "import helper_of_own  # noqa\nfrom assay", 1)
    (tmp_path / "own_env.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    kept = record(load_config(None, SETTINGS))
    assert [Path(file).name for file in kept["files"]] == ["own_env.py", "helper_of_own.py"]
    (tmp_path / "helper_of_own.py").write_text("DIGITS = 3\n")
    assert changed_files(kept) == [str(tmp_path / "helper_of_own.py")]
