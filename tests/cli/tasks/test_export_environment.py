"""`assay export-data` and `assay export-env`: what is written is what another process plays."""

from __future__ import annotations

import json
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from pyarrow import parquet

from assay.cli.main import main
from assay.integrations.environments import Prepared, TaskReference, close_environments
from assay.integrations.verl.agent_check import check_agent_loop

OWN = """
dataset_builder: {type: %s, renderer_name: plain, group_size: 4, batch_size: 8}
max_tokens: 24
"""
ENVIRONMENT = """
from assay.envs import Environment, Task

class Digits(Environment):
    def tasks(self):
        return [Task.of(f"{n} ${{data}}", answer="the secret answer") for n in range(6)]

    def score(self, task, text):
        return text == task.answer
"""


@pytest.fixture(scope="module", autouse=True)
def environments_end() -> Iterator[None]:
    yield
    close_environments()


@pytest.fixture
def own(tmp_path: Path) -> Path:
    (tmp_path / "digits.py").write_text(ENVIRONMENT)
    (tmp_path / "digits.yaml").write_text(OWN % f"{tmp_path}/digits.py:Digits")
    return tmp_path / "digits.yaml"


def test_verls_files_hold_tasks_and_how_they_are_played(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = own.parent / "data"
    assert main(["export-data", str(own), "--verl", str(folder), "temperature=0.7"]) == 0
    said = capsys.readouterr().out
    assert "algorithm.adv_estimator=assay" in said and "rollout.n=4" in said and "rollout.temperature=0.7" in said
    overrides = (folder / "overrides.txt").read_text().splitlines()
    assert len(overrides) > 9 and all(override in said for override in overrides)
    (loop,) = yaml.safe_load((folder / "agent_loop.yaml").read_text())
    one = Prepared.from_json(loop["prepared"])
    assert (one.playing.params.max_tokens, one.playing.params.temperature, one.group_size) == (24, 0.7, 4)
    assert "${" not in loop["prepared"], "OmegaConf would take it for a reference"
    rows = parquet.read_table(folder / "train.parquet").to_pylist()
    assert {row["agent_name"] for row in rows} == {loop["name"]} and {row["data_source"] for row in rows} == {
        "assay/Digits"
    }
    assert [row["extra_info"]["index"] for row in rows] == list(range(len(rows)))
    references = [TaskReference.from_json(row["extra_info"]["assay_task"]) for row in rows]
    assert {reference.environment for reference in references} == {one.environment}
    assert "the secret answer" not in json.dumps(rows)


def test_what_was_written_passes_the_check_and_other_settings_do_not(own: Path) -> None:
    folder = own.parent / "data"
    assert main(["export-data", str(own), "--verl", str(folder)]) == 0
    agent = {
        "agent_loop_config_path": str(folder / "agent_loop.yaml"),
        "agent_loop_manager_class": "assay.integrations.verl.agent_manager.AssayAgentLoopManager",
    }
    good = {
        "actor_rollout_ref": {"rollout": {"agent": agent, "n": 4}},
        "algorithm": {"adv_estimator": "assay"},
        "trainer": {"use_v1": True, "v1": {"sampler": {"sync_refill_failed_groups": True}}},
    }
    assert list(check_agent_loop(good)) == []
    filtered = {"adv_estimator": "assay", "filter_groups": {"enable": True, "metric": "acc"}}
    (finding,) = check_agent_loop({**good, "algorithm": filtered})
    assert finding.key == "algorithm.filter_groups.metric"
    (folder / "agent_loop.yaml").write_text("- {name: other, _target_: x.Y}")
    (finding,) = check_agent_loop(good)
    assert "none of its entries" in finding.message


def test_a_plugin_holds_tasks_code_and_settings(own: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = own.parent / "plugin"
    assert main(["export-env", str(own), "--verifiers", str(folder)]) == 0
    assert "assay-digits" in capsys.readouterr().out
    toml = tomllib.loads((folder / "prime_rl.toml").read_text())
    (source,) = toml["orchestrator"]["train"]["source"]
    assert source["env"]["taskset"]["id"] == "assay-digits" and source["env"]["agent"]["max_turns"] == 1
    assert source["sampling"] == {"max_completion_tokens": 24, "temperature": 1.0} and source["group_size"] == 4
    assert set(toml["orchestrator"]) == {"batch_size", "train"} and toml["orchestrator"]["batch_size"] == 32
    assert tomllib.loads((folder / "pyproject.toml").read_text())["project"]["name"] == "assay-digits"
    compile((folder / "assay_digits" / "__init__.py").read_text(), "plugin", "exec")
    tasks = [json.loads(line) for line in (folder / "assay_digits" / "tasks.jsonl").read_text().splitlines()]
    assert {task["split"] for task in tasks} <= {"train", "heldout"} and len(tasks) == 6
    assert "the secret answer" not in json.dumps(tasks)
    Prepared.from_json((folder / "assay_digits" / "environment.json").read_text())


def test_a_missing_package_is_said_first(own: Path, monkeypatch: pytest.MonkeyPatch, capfd: Any) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    assert main(["export-data", str(own), "--verl", str(own.parent / "none")]) == 1
    assert ".[data]" in capfd.readouterr().err and not (own.parent / "none").exists()


def test_an_environment_of_ones_own_is_named_by_its_file(own: Path) -> None:
    folder = own.parent / "mine"
    said = ["export-env", f"{own.parent}/digits.py:Digits", "--verifiers", str(folder), "dataset_builder.group_size=3"]
    assert main(said) == 0
    one = Prepared.from_json((folder / "assay_digits" / "environment.json").read_text())
    assert one.group_size == 3 and "digits.py:Digits" in one.environment.record


@pytest.mark.parametrize("command", [["export-data", "--verl"], ["export-env", "--verifiers"]])
def test_a_source_that_is_not_there_is_said(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command[0], "no-such-preset", command[1], str(tmp_path / "x")]) == 2
    assert "no-such-preset" in capsys.readouterr().err
    assert not (tmp_path / "x").exists()
