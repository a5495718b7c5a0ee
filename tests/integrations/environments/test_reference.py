"""Tasks as data: what travels, what does not, and what is refused."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from assay.errors import AssayError, ConfigError, DataError
from assay.integrations.environments import EnvironmentReference, Prepared, TaskReference, prepared
from assay.integrations.environments.rebuilt import Environments
from support.hosts import PLAYS, prepared_play

OWN = """
from assay.envs import Environment, Task

BUILT = []

class Sums(Environment):
    def tasks(self):
        BUILT.append(1)
        return [Task.of(f"{n}+1=", answer=str(n + 1), id=f"sum {n}") for n in range(OFFSET, OFFSET + 9)]

    def score(self, task, text):
        return text == task.answer
"""


def reference(environment: EnvironmentReference, place: int = 0) -> TaskReference:
    builders = Environments().rebuilt(environment).builders("train")
    task = list(builders.values())[place].task
    return TaskReference(environment, "train", task.key, task.id)


def sums(folder: Path, offset: int = 0) -> EnvironmentReference:
    file = folder / "sums.py"
    file.write_text(OWN.replace("OFFSET", str(offset)))
    return prepared(None, [f"dataset_builder={file}:Sums", "dataset_builder.renderer_name=plain"]).environment


def test_a_task_comes_back_from_its_text() -> None:
    one = reference(prepared_play(PLAYS["chess"]).environment)
    text = one.to_json()
    assert TaskReference.from_json(text) == one
    assert TaskReference.from_json(text).to_json() == text
    assert TaskReference.from_json(text).environment is TaskReference.from_json(text).environment
    assert Environments().rebuilt(one.environment).builder(one).task.key == one.key


def test_no_secret_travels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGES_KEY", "sk-the-judges-own-key")
    settings = ["dataset_builder=monitor", "dataset_builder.num_train=2", "dataset_builder.num_heldout=1"]
    judge = [
        *("dataset_builder.judge.api_key_env=JUDGES_KEY", "dataset_builder.renderer_name=plain"),
        "dataset_builder.reward.train_with_monitor=true",
    ]
    text = reference(prepared(None, [*settings, *judge]).environment).to_json()
    assert "JUDGES_KEY" in text
    assert "sk-the-judges-own-key" not in text


def test_a_task_that_changed_or_is_not_there_is_named(tmp_path: Path) -> None:
    environment = sums(tmp_path)
    one = reference(environment)
    rebuilt = Environments().rebuilt(environment)
    with pytest.raises(DataError, match=r"task sum \d has changed since it was written.*Write the tasks anew"):
        rebuilt.builder(TaskReference(environment, "train", "0" * 16, one.id))
    with pytest.raises(DataError, match=r"no task sum 99 .*among the \d of the split train"):
        rebuilt.builder(TaskReference(environment, "train", "0" * 16, "sum 99"))


def test_code_that_changed_is_refused(tmp_path: Path) -> None:
    environment = sums(tmp_path)
    (tmp_path / "sums.py").write_text(OWN.replace("OFFSET", "5"))
    with pytest.raises(ConfigError, match=r"sums\.py changed.*posed and scored in another way"):
        environment.config()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "a NoneType"),
        ("{", "not valid JSON"),
        ("[" * 100_000, "not valid JSON"),
        ("[]", "a JSON object"),
        ('{"version": 2}', "version 2, and this Assay reads 1"),
        ('{"version": 1, "environment": {}, "split": "test", "key": "k", "id": "i"}', "a split"),
        ('{"version": 1, "environment": {}, "split": "train", "key": "", "id": "i"}', "a key and an id"),
        (json.dumps("x" * 1_000_001), "at most 1000000 characters"),
    ],
)
def test_what_is_no_task_is_refused(text: object, said: str) -> None:
    with pytest.raises(DataError, match=said):
        TaskReference.from_json(text)


def test_settings_that_cannot_be_read_are_refused() -> None:
    record = {"dataset_builder": {"type": "chess", "num_train": "many"}}
    with pytest.raises(AssayError, match="num_train"):
        EnvironmentReference(json.dumps(record)).config()


def test_many_threads_build_an_environment_once(tmp_path: Path) -> None:
    environment, environments = sums(tmp_path), Environments()
    config = environment.config()
    import sys

    built = sys.modules[type(config.dataset_builder).__module__].BUILT
    before, found = len(built), []
    threads = [threading.Thread(target=lambda: found.append(environments.rebuilt(environment))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({id(one) for one in found}) == 1 and len(found) == 8
    assert len(built) == before + 1


def test_the_tokenizer_decides_how_prompts_are_written() -> None:
    with pytest.raises(ConfigError, match="none was given"):
        prepared(None, ["dataset_builder=chess"])
    assert prepared(None, ["dataset_builder=chess"], messages=True).renderer_name == "chat"


def test_a_prepared_environment_comes_back_from_its_text() -> None:
    for play in PLAYS.values():
        one = prepared_play(play)
        assert Prepared.from_json(one.to_json()) == one
    record = json.loads(one.to_json())
    for broken in ({"gamma": 2}, {"max_tokens": "8"}, {"baseline": "median"}, {"temperature": 0}, {"version": 9}):
        with pytest.raises(DataError, match=f"no usable {next(iter(broken))}"):
            Prepared.from_json(json.dumps({**record, **broken}))
