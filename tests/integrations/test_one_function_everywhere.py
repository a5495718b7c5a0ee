"""One reward function, unchanged, wherever rewards are wanted: `assay score`, TRL, verl's `compute_score`."""

from __future__ import annotations

import asyncio
import importlib.util
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from assay.cli.main import main
from assay.errors import ConfigError, DataError, RewardError
from assay.integrations.common.scoring import close_all
from assay.integrations.trl import reward_func
from assay.integrations.verl import acompute_score, compute_score
from assay.rewards import FunctionReward

FILE = """
def near(completion, answer, unit="cm", within=1.0):
    if completion == "?":
        return None
    return float(abs(float(completion) - float(answer)) <= within) * (2 if unit == "m" else 1)

def lengths(prompts, completions, **columns):
    return [len(c) / len(p) for p, c in zip(prompts, completions)]

def broken(completion):
    raise KeyError("nothing here")
"""
RESPONSES, ANSWERS, UNITS = ["4", "9", "?"], ["4.5", "4.5", "1"], ["cm", "cm", "m"]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(FILE)
    return path


@pytest.fixture(autouse=True)
def engines_end() -> Iterator[None]:
    yield
    close_all()


def functions_in(file: Path) -> Any:
    """The file as a training script imports it."""
    spec = importlib.util.spec_from_file_location("mine_imported", file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def in_trl(function: Any, completions: list[Any], **columns: Any) -> Any:
    prompts = [f"p{i}" for i in range(len(completions))]
    return asyncio.run(
        function(prompts=prompts, completions=completions, completion_ids=[[1]] * len(completions), **columns)
    )


def test_on_the_command_line(file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        {"response": response, "answer": answer, "unit": unit, "prompt": "pp"}
        for response, answer, unit in zip(RESPONSES, ANSWERS, UNITS, strict=True)
    ]
    source = tmp_path / "said.jsonl"
    source.write_text("\n".join(map(json.dumps, rows)))
    for name, options, expected in [
        ("near", [], [1.0, 0.0, None]),
        ("near", ["options.within=5"], [1.0, 1.0, None]),
        ("lengths", [], [0.5, 0.5, 0.5]),
    ]:
        assert main(["score", f"--input={source}", f"--reward={file}:{name}", *options]) == 0
        scored = [json.loads(line) for line in (tmp_path / "said.scores.jsonl").read_text().splitlines()]
        assert [row["score"] for row in scored] == expected


def test_each_column_of_trl_is_given_under_its_own_name(file: Path) -> None:
    def right(completions: list[str], answer: list[str], data_source: list[str], **columns: Any) -> list[float]:
        return [float((c, s) == (a, "sums")) for c, a, s in zip(completions, answer, data_source, strict=True)]

    columns = {"answer": RESPONSES, "ground_truth": ["other"] * 3, "data_source": ["sums"] * 3}
    expected = right(RESPONSES, **columns)  # type: ignore[arg-type]
    assert in_trl(reward_func(right), RESPONSES, **columns) == expected == [1.0] * 3
    other = reward_func(right, ground_truth="solution")  # said, so that it stands for the answer
    assert in_trl(other, RESPONSES, solution=["no"] * 3, **columns) == [0.0] * 3


@pytest.mark.parametrize("given", ["name", "object"])
def test_in_trl(given: str, file: Path) -> None:
    def reward(name: str, **settings: Any) -> Any:
        return reward_func(f"{file}:{name}" if given == "name" else getattr(functions_in(file), name), **settings)

    columns = {"answer": ANSWERS, "unit": UNITS}
    near = reward("near")
    assert near.__name__ == "near"
    assert in_trl(near, RESPONSES, **columns) == [1.0, 0.0, None]
    assert in_trl(reward("near", options={"within": 5.0}), RESPONSES, **columns) == [1.0, 1.0, None]
    said = [[{"role": "assistant", "content": text}] for text in RESPONSES]
    assert in_trl(near, said, **columns) == [1.0, 0.0, None]
    assert in_trl(reward("lengths"), RESPONSES) == functions_in(file).lengths(["p0", "p1", "p2"], RESPONSES)
    with pytest.raises(DataError, match=r"near.*takes `answer`"):
        in_trl(near, RESPONSES, unit=UNITS)
    assert in_trl(reward("broken"), RESPONSES) == [None] * 3


def test_several_with_weights_in_trl(file: Path) -> None:
    both = reward_func([f"{file}:near", f"{file}:lengths*0.5"])
    assert both.__name__ == "reward"
    assert in_trl(both, ["4", "9", "10"], answer=ANSWERS, unit=UNITS) == [1.25, 0.25, 0.5]


def test_options_of_what_is_made_already_are_refused(file: Path) -> None:
    assert in_trl(reward_func(functions_in(file).near, **{"options.within": 5}), ["9"], answer=["4.5"]) == [1.0]
    with pytest.raises(ConfigError, match="made already"):
        reward_func(FunctionReward(functions_in(file).near), **{"options.within": 1.0})
    with pytest.raises(ConfigError, match="no parameter 'wthin'"):
        reward_func(functions_in(file).near, options={"wthin": 1.0})
    with pytest.raises(ConfigError, match="made already"):
        reward_func(FunctionReward(functions_in(file).near), options={"within": 1.0})


def in_verl(call: Callable[..., Any], file: Path, response: str, answer: str, **more: Any) -> Any:
    extra = {"unit": "m", "index": 3}
    named = {"data_source": "d", "solution_str": response, "ground_truth": answer, "extra_info": extra}
    found = call(**named, reward=f"{file}:near", **more)
    return asyncio.run(found) if asyncio.iscoroutine(found) else found


def test_in_verl(file: Path) -> None:
    assert in_verl(compute_score, file, "4", "4.5") == 2.0
    assert in_verl(compute_score, file, "4", "4.5", details=True)["score"] == 2.0
    assert in_verl(acompute_score, file, "4", "9")["score"] == 0.0
    assert compute_score("4", "4.5", "d", {"unit": "cm"}, reward=f"{file}:near") == 1.0
    with pytest.raises(RewardError, match=r"near \(mine.py\) returned None"):
        in_verl(compute_score, file, "?", "1")
    rows = compute_score(
        solution_strs=["4", "9", "?"],
        ground_truths=["4.5", "4.5", "1"],
        data_sources=["d"] * 3,
        extra_infos=[{"index": 0}] * 3,
        reward=f"{file}:near",
    )
    assert isinstance(rows, list)
    assert [row["score"] for row in rows] == [1.0, 0.0, 0.5]  # the mean of its group, and marked as made up
    assert [row["assay_errored"] for row in rows] == [0.0, 0.0, 1.0]


def test_a_function_of_verls_own_form_is_one_as_well(tmp_path: Path) -> None:
    file = tmp_path / "theirs.py"
    file.write_text(
        "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n"
        "    return float(solution_str == ground_truth) + extra_info['bonus'] * (data_source == 'd')\n"
    )
    assert compute_score("4", "4", "d", {"bonus": 0.5}, reward=f"{file}:compute_score") == 1.5
    assert in_trl(reward_func(f"{file}:compute_score"), ["4"], ground_truth=["5"], bonus=[1.0]) == [0.0]


def test_a_file_that_changes_is_read_again(file: Path) -> None:
    assert compute_score("4", "4.5", "d", {}, reward=f"{file}:near") == 1.0
    file.write_text(FILE.replace("else 1)", "else 10)"))
    assert compute_score("4", "4.5", "d", {}, reward=f"{file}:near") == 10.0
