"""`dataset_builder=rows`: tables of every kind become tasks, rewards judge answers, and what is wrong is named."""

from __future__ import annotations

import asyncio
import csv
import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from assay.config import build
from assay.config.record import changed_files, resolved
from assay.config.sources import Layer
from assay.envs import BuildContext, EnvData, Score, StepResult, Task, iter_builders
from assay.envs.base import build_data
from assay.envs.rows import RowsDatasetBuilder, fill
from assay.errors import ConfigError, DataError
from assay.storage.records import records_of
from assay.training.config import load_config

REWARDS = """
def correct(completion, answer):
    return completion.strip() == answer

def short(completion, level):
    return 1.0 if len(completion) <= int(level) else 0.0

def crooked(completion):
    return "1.0"
"""
ROWS = [{"prompt": f"{n}+1=", "answer": str(n + 1), "level": str(1 + n % 3)} for n in range(20)]
CONTEXT = BuildContext(seed=0, max_turns=1, cache_dir=Path("cache"))


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rewards.py").write_text(REWARDS)
    write_lines(tmp_path / "rows.jsonl", ROWS)
    return tmp_path


def write_lines(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def rows(**values: Any) -> RowsDatasetBuilder:
    given = {"path": "rows.jsonl", "reward": "rewards.py:correct", **values}
    return build(RowsDatasetBuilder, [Layer("test", {key.replace("__", "."): value for key, value in given.items()})])


def tasks_of(data: EnvData) -> list[Task]:
    return [builder.task for side in (data.train, data.heldout) for builder in iter_builders(side)]


def judged(builder: RowsDatasetBuilder, text: str, prompt: str = "4+1=") -> StepResult:
    async def play() -> StepResult:
        data = build_data(builder, CONTEXT)
        try:
            groups = [*iter_builders(data.train), *iter_builders(data.heldout)]
            (env,) = await next(g for g in groups if g.task.text == prompt).make(1)
            await env.reset()
            return await env.step(text)
        finally:
            await data.close()

    return asyncio.run(play())


def test_rows_become_tasks_and_a_function_judges_them(place: Path) -> None:
    data = build_data(rows(), CONTEXT)
    assert (len(list(iter_builders(data.train))), len(list(iter_builders(data.heldout)))) == (18, 2)
    assert {(t.text, t.answer, t.env) for t in tasks_of(data)} == {(r["prompt"], r["answer"], "rows") for r in ROWS}
    right, wrong = judged(rows(), " 5\n"), judged(rows(), "6")
    assert (right.score.value, right.done, wrong.score.value) == (1.0, True, 0.0)
    assert load_config(None, ["dataset_builder=rows", "dataset_builder.path=rows.jsonl",
                              "dataset_builder.reward=rewards.py:correct"]).active_builder == rows()  # fmt: skip


def test_several_rewards_are_a_weighted_sum_and_take_columns(place: Path) -> None:
    builder = rows(reward="rewards.py:correct,rewards.py:short*0.5")
    found = judged(builder, "5")
    assert found.score.value == 1.5 and dict(found.score.parts) == dict(found.metrics) == {"correct": 1.0, "short": 1.0}
    assert judged(builder, "5   ").score.value == 1.0


def test_a_table_made_for_verl_trains_as_it_is(place: Path) -> None:
    from pyarrow import Table, parquet

    (place / "scores.py").write_text(
        "def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n"
        "    assert (data_source, extra_info['split']) == ('sums', 'train')\n"
        "    return float(solution_str == ground_truth)\n"
    )
    made = [
        {"data_source": "sums", "prompt": [{"role": "user", "content": row["prompt"]}], "ability": "math",
         "reward_model": {"style": "rule", "ground_truth": row["answer"]},
         "extra_info": {"split": "train", "index": n, "answer": "the long way"}}
        for n, row in enumerate(ROWS)
    ]  # fmt: skip
    parquet.write_table(Table.from_pylist(made), place / "verl.parquet")
    given = {"path": "verl.parquet", "reward": "scores.py:compute_score", "answer_column": "reward_model.ground_truth"}
    assert judged(rows(**given), "5").score.value == 1.0 and judged(rows(**given), "6").score.value == 0.0
    told = rows(**given, template="{ability}: {extra_info.answer}", tag_columns=("extra_info.split",))
    assert {(task.text, task.tags) for task in tasks_of(build_data(told, CONTEXT))} == {
        ("math: the long way", ("train",))
    }
    for lost in ("reward_model.truth", "prompt.role", "reward_model.ground_truth.x"):
        with pytest.raises(DataError, match=f"no column '{lost}'"):
            build_data(rows(**{**given, "answer_column": lost}), CONTEXT)


def test_a_reward_that_returns_text_is_errored_with_its_name(place: Path) -> None:
    score = judged(rows(reward="rewards.py:crooked"), "5").score
    assert score.status == "errored" and "crooked (rewards.py) returned '1.0' (str)" in score.evidence["message"]


def as_csv(path: Path, delimiter: str = ",") -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(ROWS[0]), delimiter=delimiter)
        writer.writeheader()
        writer.writerows(ROWS)


def write_as(kind: str, place: Path) -> str:
    if kind in ("csv", "tsv"):
        as_csv(place / f"t.{kind}", "," if kind == "csv" else "\t")
        return f"t.{kind}"
    if kind == "json":
        (place / "t.json").write_text(json.dumps(ROWS))
        return "t.json"
    if kind == "parquet":
        from pyarrow import Table, parquet

        parquet.write_table(Table.from_pylist(ROWS), place / "t.parquet")
        return "t.parquet"
    from datasets import Dataset, DatasetDict

    table = Dataset.from_list(ROWS)
    if kind == "saved":
        table.save_to_disk(str(place / "saved"))
        return "saved"
    if kind == "saved splits":
        DatasetDict({"train": table}).save_to_disk(str(place / "splits"))
        return "splits"
    (place / "hub").mkdir()
    write_lines(place / "hub" / "part.jsonl", ROWS)  # found by load_dataset alone, as a hub data set is
    return "hub"


@pytest.mark.parametrize("kind", ["csv", "tsv", "json", "parquet", "saved", "saved splits", "hub"])
def test_every_kind_of_table_has_the_same_rows(place: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", str(place / "home"))
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    path = write_as(kind, place)
    assert [dict(row) for _, row in records_of(path, "train")] == ROWS
    wanted = {t.key for t in tasks_of(build_data(rows(), CONTEXT))}
    assert {t.key for t in tasks_of(build_data(rows(path=path), CONTEXT))} == wanted


def test_messages_a_system_message_a_template_and_tags(place: Path) -> None:
    chat = [{"prompt": [{"role": "user", "content": f"{n}?"}], "answer": n, "when": "x"} for n in range(9)]
    write_lines(place / "chat.jsonl", chat)
    task = tasks_of(build_data(rows(path="chat.jsonl", system="Be short."), CONTEXT))[0]
    assert [message.role for message in task.prompt] == ["system", "user"] and isinstance(task.answer, int)
    asked = rows(template="{{{level}}} What is {prompt}", tag_columns="level")
    tasks = tasks_of(build_data(asked, CONTEXT))
    assert {t.text for t in tasks} == {f"{{{r['level']}}} What is {r['prompt']}" for r in ROWS}
    assert {t.tags for t in tasks} == {("1",), ("2",), ("3",)}
    assert fill("{a}{{b}}", {"a": "{b}"}, "here") == "{b}{b}", "what was filled in is not looked at again"


def test_held_out_rows_of_their_own(place: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_lines(place / "test.jsonl", [*ROWS[:3], {"prompt": "new", "answer": "n", "level": "1"}])
    caplog.set_level(logging.WARNING)
    data = build_data(rows(test_path="test.jsonl"), CONTEXT)
    assert [t.text for t in (b.task for b in iter_builders(data.heldout))] == ["0+1=", "1+1=", "2+1=", "new"]
    assert len(list(iter_builders(data.train))) == 17
    assert "3 of 20 tasks are held out too" in caplog.text and data.notes
    folder = place / "folder"
    folder.mkdir()
    write_lines(folder / "train.jsonl", ROWS[:15])
    write_lines(folder / "validation.jsonl", ROWS[15:])
    data = build_data(rows(path="folder", test_split="validation"), CONTEXT)
    assert (len(list(iter_builders(data.train))), len(list(iter_builders(data.heldout)))) == (15, 5)


def test_a_held_out_prompt_is_not_trained_on_under_another_number(
    place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_lines(place / "train.jsonl", [{**row, "index": n, "split": "train"} for n, row in enumerate(ROWS)])
    write_lines(place / "test.jsonl", [{**row, "index": n, "split": "test"} for n, row in enumerate(ROWS[:5])])
    data = build_data(rows(path="train.jsonl", test_path="test.jsonl"), CONTEXT)
    train, test = ({b.task.text for b in iter_builders(side)} for side in (data.train, data.heldout))
    assert (len(train), len(test)) == (15, 5) and not train & test
    assert "5 of 20 tasks are held out too" in caplog.text
    for name in ("train", "test"):
        alike = [{"prompt": "Play.", "answer": f"{name}{n}"} for n in range(3)]
        write_lines(place / f"{name}.jsonl", alike)
    data = build_data(rows(path="train.jsonl", test_path="test.jsonl"), CONTEXT)
    assert len(list(iter_builders(data.train))) == len(list(iter_builders(data.heldout))) == 3


def test_a_run_keeps_what_its_rows_were(place: Path) -> None:
    (place / "more" / "data").mkdir(parents=True)
    write_lines(place / "more" / "data" / "test.jsonl", ROWS)
    record = resolved(rows(test_path="more"))
    files = [place / "more" / "data" / "test.jsonl", place / "rewards.py", place / "rows.jsonl"]
    assert sorted(record["files"]) == [str(file.resolve()) for file in files] and changed_files(record) == []
    write_lines(place / "rows.jsonl", ROWS[1:])
    assert changed_files(record) == [str((place / "rows.jsonl").resolve())]


def test_a_byte_order_mark_other_line_ends_and_numbers_that_are_none(place: Path) -> None:
    text = '\ufeff{"prompt": "a", "answer": "1", "x": NaN}\r\n\r\n{"prompt": "b", "answer": "2", "x": 1}\r\n'
    (place / "windows.jsonl").write_bytes(text.encode())
    found = dict(records_of("windows.jsonl", "train"))
    assert found == {
        "windows.jsonl, line 1": {"prompt": "a", "answer": "1", "x": None},
        "windows.jsonl, line 3": {"prompt": "b", "answer": "2", "x": 1},
    }


def test_rows_of_one_prompt_are_on_one_side(place: Path) -> None:
    write_lines(place / "twice.jsonl", [{**row, "id": n} for n, row in enumerate([*ROWS, *ROWS])])
    data = build_data(rows(path="twice.jsonl", test_fraction=0.3), CONTEXT)
    train, test = ({b.task.text for b in iter_builders(side)} for side in (data.train, data.heldout))
    assert len(train) == 14 and len(test) == 6 and not train & test


def test_more_rows_than_wanted_are_not_read_and_that_is_said(place: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    assert len(tasks_of(build_data(rows(max_rows=5), CONTEXT))) == 5
    assert "path=rows.jsonl has more than max_rows=5 train rows; the others are not read." in caplog.messages


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (
            {"prompt_column": "question"},
            "rows.jsonl, line 1 has no column 'question' (prompt_column). It has prompt, a",
        ),
        ({"answer_column": "gold"}, "has no column 'gold' (answer_column). It has prompt, answer, level. Set it, or"),
        ({"tag_columns": "kind"}, "has no column 'kind' (tag_columns=kind)."),
        ({"template": "{quest}"}, "has no column 'quest', which template has in braces. It has prompt, answer, level."),
        ({"path": "row.jsonl"}, "row.jsonl does not exist. That folder has rows.jsonl."),
        ({"path": "rewards.py"}, "rewards.py: .py cannot be read. Give .jsonl, .json, .csv"),
        ({"reward": "rewards.py:corect"}, "looked for the reward 'corect' in"),
        (
            {"test_split": "validation"},
            "test_split=validation is set, but it is read only when held-out rows are read from",
        ),
    ],
)
def test_what_is_not_there_is_one_line(place: Path, values: dict[str, Any], words: str) -> None:
    with pytest.raises((ConfigError, DataError)) as caught:
        build_data(rows(**values), CONTEXT)
    assert words in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"prompt": 3, "answer": "a"}', "bad.jsonl, line 3, column prompt: prompt=3 is neither a text nor a list"),
        ('{"prompt": "a"', "bad.jsonl, line 3 is not valid JSON"),
        ('["prompt"]', "bad.jsonl, line 3 is a list, not an object"),
        ('{"answer": "a"}', "bad.jsonl, line 3 has no column 'prompt'"),
        ('{"prompt": "\\ud800", "answer": "a"}', "bad.jsonl, line 3, column prompt: 'utf-8' codec can't encode"),
        ('{"prompt": [{"role": "boss", "content": "x"}], "answer": ""}', "is not a message: it needs a role"),
    ],
)
def test_a_bad_row_is_named_by_its_line(place: Path, line: str, words: str) -> None:
    (place / "bad.jsonl").write_text('{"prompt": "1", "answer": "1"}\n\n' + line + "\n")
    with pytest.raises(DataError) as caught:
        build_data(rows(path="bad.jsonl"), CONTEXT)
    assert words in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("t.csv", "prompt,answer\na,b\nc\n", "t.csv, line 3 has a different number of fields than the 2 columns"),
        ("t.csv", 'prompt,answer\na,"b\n', "t.csv, after line 1, cannot be read as CSV: unexpected end of data"),
        ("t.csv", "prompt,answer,answer\na,b,c\n", "t.csv has two columns called 'answer'. Rename one of them."),
        ("t.parquet", "no parquet", "t.parquet cannot be read as parquet"),
        ("t.json", '{"a": 1}', "t.json holds a dict, not a list of objects"),
        ("t.jsonl", "", "path=t.jsonl has no train rows"),
    ],
)
def test_a_damaged_file_is_one_line(place: Path, name: str, content: str, words: str) -> None:
    (place / name).write_text(content)
    with pytest.raises(DataError) as caught:
        build_data(rows(path=name), CONTEXT)
    assert words in str(caught.value) and "\n" not in str(caught.value)


def test_a_folder_with_a_damaged_file_is_one_line(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", str(place / "home"))
    monkeypatch.setenv("HF_DATASETS_OFFLINE", "1")
    (place / "folder").mkdir()
    (place / "folder" / "part.jsonl").write_text('{"prompt": "a", "answer"')
    with pytest.raises(DataError, match=r"folder holds a file that cannot be read: .*JSON"):
        build_data(rows(path="folder"), CONTEXT)


def test_a_hub_that_cannot_be_reached_is_one_line(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets.config
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    with pytest.raises(DataError, match=r"^nobody/nothing is not a file here, and cannot be loaded from the Hugging"):
        build_data(rows(path="nobody/nothing"), CONTEXT)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"path": ""}, "path is not set, so there are no rows"),
        ({"reward": ()}, "reward is not set, so answers would have no reward"),
        ({"test_path": "a.jsonl", "test_fraction": 0.3}, "test_fraction would have no effect"),
        ({"engine__on_failure": "raise"}, "engine.on_failure=raise"),
    ],
)
def test_settings_that_cannot_go_together(place: Path, values: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        build_data(rows(**values), CONTEXT)


def test_a_judge_without_a_key_is_refused_before_sampling(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(ConfigError, match="OPENAI_API_KEY"):
        build_data(rows(reward="judge"), CONTEXT)


def test_scores_are_whole_records(place: Path) -> None:
    assert isinstance(judged(rows(), "5").score, Score)
