"""Problems: the format, the hash, each source, and what is said about damaged ones."""

from __future__ import annotations

import json
import sys
import types
from collections.abc import Callable
from pathlib import Path

import pytest

from assay.errors import ConfigError, DataError, MissingDependencyError
from assay.kernels.problems.sources import (
    find_checkout,
    find_fault,
    find_problem,
    load_problems,
    make_problem,
    read_problem_file,
)
from support.kernelbench_data import PUBLISHED, TINY, needs_published, shipped


def row(**changes: object) -> dict[str, object]:
    return {"level": 1, "problem_id": 19, "name": "19_ReLU", "code": TINY, **changes}


def jsonl(folder: Path, *rows: object) -> Path:
    path = folder / "problems.jsonl"
    path.write_text("\n".join(json.dumps(r) for r in rows))
    return path


def checkout(root: Path, layout: str) -> Path:
    folder = root / layout.format(level=1)
    folder.mkdir(parents=True)
    (folder / "2_Second.py").write_text(TINY)
    (folder / "1_First.py").write_text(TINY)
    (folder / "notes.txt").write_text("not a problem")
    return root


def test_shipped_problems_are_enough_and_distinct() -> None:
    problems = load_problems("shipped", (1, 2, 3))
    by_level = {level: [p for p in problems if p.level == level] for level in (1, 2, 3)}
    assert all(len(found) >= 8 for found in by_level.values())
    assert all([p.id for p in found] == list(range(1, len(found) + 1)) for found in by_level.values())
    assert len({p.hash for p in problems}) == len(problems) >= 24


def test_the_hash_follows_the_text_and_not_its_line_endings() -> None:
    problem = make_problem(1, 1, "1_Tiny", TINY, "here")
    assert make_problem(9, 9, "other", TINY.replace("\n", "\r\n"), "there").hash == problem.hash
    assert make_problem(1, 1, "1_Tiny", TINY.replace("4096", "4095"), "here").hash != problem.hash
    assert problem.key == "1/1"


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("class Model:\n  def", "line 2"),
        (TINY.replace("class Model(", "class Modell("), "does not define Model"),
        (TINY.replace("def get_inputs", "def get_input"), "does not define get_inputs"),
        ("Model = get_inputs = get_init_inputs = None", "does not define Model, get_inputs, get_init_inputs"),
        ("x = 1\0", "not valid Python"),
        ("(" * 5000, "not valid Python"),
        ("#" * 1_000_001, "1000001 characters"),
    ],
)
def test_what_is_no_problem_is_refused_with_its_fault(code: str, said: str) -> None:
    assert said in str(find_fault(code))
    with pytest.raises(DataError, match="somewhere: problem 1/2"):
        make_problem(1, 2, "2_Bad", code, "somewhere")


def test_jsonl_reads_the_published_columns(tmp_path: Path) -> None:
    path = jsonl(tmp_path, row(), row(problem_id=2), row(level=2))
    problems = load_problems("jsonl", (1,), path)
    assert [p.key for p in problems] == ["1/2", "1/19"]
    assert problems[1].source == f"{path}, line 1"


def test_names_are_one_line_without_commands_and_lines_end_at_line_feeds(tmp_path: Path) -> None:
    path = tmp_path / "problems.jsonl"
    path.write_text(json.dumps(row(name="a\x1b[2J\nok 1/2\u2028"), ensure_ascii=False) + "\n", encoding="utf-8")
    (problem,) = load_problems("jsonl", (1,), path)
    assert problem.name == "a\ufffd[2J ok 1/2\ufffd"


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        (["not an object"], "line 1: a row is an object"),
        ([row(), row(code=None)], "line 2: column 'code' must be text"),
        ([row(problem_id="19")], "column 'problem_id' must be a whole number"),
        ([row(level=True)], "column 'level' must be a whole number"),
        ([row(problem_id=-1)], "must be a whole number from 0"),
        ([row(code="pass")], "does not define Model"),
        ([], "has no problem in it"),
    ],
)
def test_damaged_rows_are_named(tmp_path: Path, rows: list[object], said: str) -> None:
    with pytest.raises(DataError, match=said):
        load_problems("jsonl", (1,), jsonl(tmp_path, *rows))


def test_a_line_that_is_no_json_and_a_number_given_twice_are_refused(tmp_path: Path) -> None:
    path = jsonl(tmp_path, row())
    path.write_text(path.read_text() + "\n{")
    with pytest.raises(DataError, match="line 2: not JSON"):
        load_problems("jsonl", (1,), path)
    with pytest.raises(DataError, match="problem 1/19 appears twice"):
        load_problems("jsonl", (1,), jsonl(tmp_path, row(), row(name="again")))


@pytest.mark.parametrize("layout", ["KernelBench/level{level}", "level{level}", "src/kernelbench/level_{level}"])
def test_a_checkout_is_read_in_each_layout(tmp_path: Path, layout: str) -> None:
    problems = load_problems("local", (1,), checkout(tmp_path, layout))
    assert [(p.id, p.name) for p in problems] == [(1, "1_First"), (2, "2_Second")]


def test_a_checkout_is_found_by_variable_or_beside(tmp_path: Path) -> None:
    named = checkout(tmp_path / "elsewhere", "KernelBench/level{level}")
    beside = checkout(tmp_path / "KernelBench", "KernelBench/level{level}")
    here = tmp_path / "project"
    here.mkdir()
    assert find_checkout({"KERNELBENCH_ROOT": str(named)}, here) == named
    assert find_checkout({}, here).resolve() == beside
    with pytest.raises(DataError, match="KERNELBENCH_ROOT is not set"):
        find_checkout({}, tmp_path / "nowhere" / "at" / "all")


def test_a_wrong_root_and_a_missing_level_are_said(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="not a checkout of KernelBench"):
        load_problems("local", (1,), tmp_path)
    with pytest.raises(DataError, match="no problem of level 2"):
        load_problems("local", (1, 2), checkout(tmp_path, "level{level}"))


def test_impossible_combinations_are_refused() -> None:
    with pytest.raises(ConfigError, match="does not read one"):
        load_problems("shipped", (1,), "x")
    with pytest.raises(ConfigError, match="revision"):
        load_problems("shipped", (1,), revision="main")
    with pytest.raises(ConfigError, match="path"):
        load_problems("jsonl", (1,))
    with pytest.raises(ConfigError, match="level"):
        load_problems("shipped", ())
    with pytest.raises(ConfigError, match="unknown"):
        load_problems("hub", (1,))  # type: ignore[arg-type]


def fake_datasets(monkeypatch: pytest.MonkeyPatch, load: Callable[..., object]) -> None:
    module = types.ModuleType("datasets")
    module.load_dataset = load  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", module)


def test_the_published_data_set_is_read_split_by_split(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def load(name: str, split: str, revision: str | None) -> list[dict[str, object]]:
        asked.append((name, split, revision))
        return [row(level=int(split[-1]))]

    fake_datasets(monkeypatch, load)
    problems = load_problems("huggingface", (1, 2), revision="abc")
    assert [p.key for p in problems] == ["1/19", "2/19"]
    assert asked == [("ScalingIntelligence/KernelBench", f"level_{n}", "abc") for n in (1, 2)]


def test_a_data_set_that_cannot_be_fetched_is_no_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*_: object, **__: object) -> object:
        raise ConnectionError("offline")

    fake_datasets(monkeypatch, load)
    with pytest.raises(DataError, match="offline"):
        load_problems("huggingface")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingDependencyError, match=r"\.\[data\]"):
        load_problems("huggingface")


def test_a_file_of_its_own_takes_its_number_from_its_path(tmp_path: Path) -> None:
    checkout(tmp_path, "level{level}")
    problem = read_problem_file(tmp_path / "level1" / "2_Second.py")
    assert (problem.level, problem.id, problem.name) == (1, 2, "2_Second")
    with pytest.raises(DataError, match="cannot read the problem file"):
        read_problem_file(tmp_path / "missing.py")
    (tmp_path / "binary.py").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match="not UTF-8"):
        read_problem_file(tmp_path / "binary.py")


def test_a_problem_that_is_not_there_says_which_are() -> None:
    problems = list(shipped().values())
    assert find_problem(problems, 2, 3).key == "2/3"
    with pytest.raises(DataError, match=r"problem 2/99 does not exist: level 2 has 1-10"):
        find_problem(problems, 2, 99)
    with pytest.raises(DataError, match="no problems of level 7"):
        find_problem(problems, 7, 1)


@needs_published
def test_published_problems_are_all_read() -> None:
    problems = load_problems("jsonl", (1, 2, 3), PUBLISHED)
    assert [sum(p.level == level for p in problems) for level in (1, 2, 3)] == [80, 80, 40]
