"""`assay settings`: every setting can be found, by key and by word, also those of code of one's own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from assay.cli import main as cli
from assay.config.help import nodes
from assay.config.schema import settings
from assay.training.config import TrainingConfig

OWN = '''
import chz
from assay.envs.base import DatasetBuilder


@chz.chz
class Mine(DatasetBuilder):
    """Counting sheep."""

    sheep: int = 12
    """Sheep to count."""
'''


def said(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> str:
    capsys.readouterr()
    assert cli.main(["settings", *arguments]) == status
    out, err = capsys.readouterr()
    assert "Traceback" not in err
    return out if status == 0 else err


def listed(text: str) -> list[str]:
    return re.findall(r"^  ([a-z_.0-9]+)(?:=.*)?\n {6}\S", text, re.MULTILINE)


def test_every_setting_is_shown_below_its_group(capsys: pytest.CaptureFixture[str]) -> None:
    overview = said(capsys)
    for node in nodes(TrainingConfig):
        assert node.cls is not None
        if not node.key:
            assert all(name in overview for name in settings(node.cls))
            continue
        assert f"  {node.key}" in overview
        text = said(capsys, node.key)
        assert {f"{node.key}.{name}" for name in settings(node.cls)} <= set(listed(text))
        assert all(key == node.key or key.startswith(f"{node.key}.") for key in listed(text))


def test_a_setting_has_type_default_and_meaning(capsys: pytest.CaptureFixture[str]) -> None:
    assert "  learning_rate=0.0001\n      Adam learning rate of RL. (a number, at least 0)" in said(
        capsys, "learning_rate"
    )
    names = "one of importance_sampling, ppo, cispo, grpo, dr_grpo, dapo, gspo, rloo, or module:Name or file.py:Name"
    assert names in " ".join(said(capsys, "loss_fn").split())
    assert "(one of token, sequence, constant or null)" in " ".join(said(capsys, "grpo.aggregation").split())


def test_words_are_looked_for_in_keys_and_meanings(capsys: pytest.CaptureFixture[str]) -> None:
    found = listed(said(capsys, "kl"))
    assert {"kl_penalty_coef", "grpo.kl_target", "grpo.health.kl_tail_limit"} <= set(found)
    assert "local.torch_threads" not in found
    both = listed(said(capsys, "learning", "warm-up"))
    assert "optimizer.lr_schedule" in both and "learning_rate" not in both


def test_those_of_a_chosen_environment_alone(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(OWN)
    own = said(capsys, "dataset_builder", f"dataset_builder={tmp_path}/mine.py:Mine")
    assert "Counting sheep." in own and "  dataset_builder.sheep=12\n      Sheep to count. (a whole number)" in own
    assert "dataset_builder.stockfish" not in own
    assert "dataset_builder.sheep" in said(capsys, "sheep", f"dataset_builder={tmp_path}/mine.py:Mine")
    preset = said(capsys, "dataset_builder", "--config", "monitor")
    assert "dataset_builder.engine.offline" in preset and "dataset_builder.stockfish" not in preset


def test_other_commands_have_settings_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert "  engine.offline=false" in said(capsys, "engine", "--of", "score")
    assert "  num_correct_trials=6" in said(capsys, "num_correct_trials", "--of", "grade")
    assert "  dataset_builder.num_correct_trials=5" in said(capsys, "num_correct_trials")
    for asked in ("endpoint", "endpoint.*"):
        found = said(capsys, asked)
        assert found.startswith("Of `assay eval`, not of a run:") and "\n  endpoint.budget_usd=null\n" in found
    assert "  stop_s=" in said(capsys, "stop_s") and "  port=8177" in said(capsys, "port", "--of", "grade-server")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["learnig_rate"], "No setting has 'learnig_rate' in its key or meaning. Did you mean learning_rate"),
        (["seed", "seed=3"], "seed has no effect on which settings there are"),
        (["seed", "--config", "ches"], "'ches' is neither a preset nor a file. Did you mean chess?"),
        (["seed", "dataset_builder=no.py:X"], "dataset_builder=no.py:X"),
    ],
)
def test_what_is_not_there_is_one_line(capsys: pytest.CaptureFixture[str], arguments: list[str], message: str) -> None:
    error = said(capsys, *arguments, status=2)
    assert message in error and error.count("\n") == 1


# What to train on


@pytest.mark.parametrize("arguments", [[], ["learning_rate=1e-5", "--dry-run"], ["--config", "seed.yaml"]])
def test_training_on_nothing_says_what_to_give(
    capsys: pytest.CaptureFixture[str], arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "seed.yaml").write_text("seed: 3\n")
    assert cli.main(["train", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: Nothing says what to train on")
    for given in ("--config chess ", "--config monitor ", "dataset_builder=chess ", "dataset_builder=mine.py:Mine"):
        assert f"\n  {given}" in error
    assert ("no config names" in error) == ("--config" in arguments)
    assert [p.name for p in tmp_path.iterdir()] == ["seed.yaml"]
