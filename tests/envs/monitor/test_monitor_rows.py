import json
import sys
from types import SimpleNamespace

import pytest

from assay.envs.monitor.rows import MonitorRow, Source, read_source, rows_of
from assay.errors import DataError, MissingDependencyError


def record(number, **changes):
    return {
        "text": f"problem {number}",
        "measurements": [True, number % 2 == 0, True],
        "is_correct": number % 3 == 0,
        "is_clean": True,
        "difficulty": number % 4,
        **changes,
    }


def write(path, records):
    path.write_text("".join(json.dumps(r) + "\n" for r in records))
    return path


def keys(rows):
    return {row.key for row in rows}


def test_a_file_of_json_lines_is_split_by_text(tmp_path):
    file = write(tmp_path / "rows.jsonl", [record(n % 150) for n in range(300)])
    source = read_source(str(file), "diamonds-seed0")
    splits = {split: source.rows(split) for split in ("train", "validation", "final")}
    assert sum(map(len, splits.values())) == 150, "rows of equal text are one problem"
    assert len(set.union(*map(keys, splits.values()))) == 150, "no text is on two sides"
    assert 5 <= len(splits["validation"]) <= 30 and 5 <= len(splits["final"]) <= 30
    first = next(row for row in splits["train"] if row.text == "problem 3")
    assert first == MonitorRow("problem 3", (True, False, True), True, True, 3)


@pytest.mark.parametrize("name", ["train.jsonl", "data/train-00000-of-00001.jsonl"])
def test_a_folder_with_a_file_per_split_keeps_them_apart(tmp_path, name):
    (tmp_path / "data").mkdir()
    write(tmp_path / name, [record(n) for n in range(40)])
    write(tmp_path / name.replace("train", "validation"), [record(n) for n in range(30, 60)])
    source = read_source(str(tmp_path), "diamonds-seed0")
    validation, final = source.rows("validation"), source.rows("final")
    assert keys(validation) | keys(final) == {MonitorRow(f"problem {n}", (), True).key for n in range(30, 60)}
    assert not keys(validation) & keys(final)
    assert len(source.rows("train")) == 30, "held-out texts are dropped from training"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"measurements": None}, "true measurements 'None' are not a list"),
        ({"measurements": []}, "not a list of True and False"),
        ({"is_correct": "True"}, "is_correct is 'True' and not True or False"),
        ({"is_clean": 3}, "is_clean is 3"),
        ({"text": " "}, "the problem is empty"),
    ],
)
def test_values_that_are_none_are_refused_with_their_row(change, message):
    with pytest.raises(DataError, match=f"here, row 2: .*{message}"):
        list(rows_of([record(1), record(2, **change)], "here"))


def test_missing_columns_are_named_and_so_are_those_that_exist():
    with pytest.raises(DataError, match="row 1 has no column measurements and no is_correct; there are text, label"):
        list(rows_of([{"text": "t", "label": 1}], "here"))


def test_columns_that_only_some_data_have_may_be_missing():
    (row,) = rows_of([{"text": "t", "measurements": [0, 1], "is_correct": 1}], "here")
    assert row == MonitorRow("t", (False, True), True, None, None)


def test_damaged_lines_are_refused_with_their_number(tmp_path):
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps(record(1)) + "\n\n{broken\n")
    with pytest.raises(DataError, match="line 3 is not valid JSON"):
        read_source(str(file), "function_correctness")
    file.write_text("[1]\n")
    with pytest.raises(DataError, match="line 1 is not a JSON object"):
        read_source(str(file), "function_correctness")


def test_sources_that_do_not_exist_are_refused(tmp_path):
    with pytest.raises(DataError, match="is neither a file nor a folder"):
        read_source(str(tmp_path / "nothing"), "function_correctness")
    with pytest.raises(DataError, match=r"has neither train\.jsonl"):
        read_source(str(tmp_path), "function_correctness")
    (tmp_path / "rows.csv").write_text("text\n")
    with pytest.raises(DataError, match=r"only \.jsonl and \.parquet"):
        read_source(str(tmp_path / "rows.csv"), "function_correctness")


def test_a_side_without_rows_is_refused():
    with pytest.raises(DataError, match="here has no final rows"):
        Source("here", [MonitorRow("a", (True,), True)]).rows("final")


@pytest.mark.parametrize(("kind", "package"), [("parquet", "pyarrow"), ("saved", "datasets"), ("hub", "datasets")])
def test_a_missing_package_is_named_with_its_extra(monkeypatch, tmp_path, kind, package):
    monkeypatch.setitem(sys.modules, package, None)
    (tmp_path / "rows.parquet").write_bytes(b"")
    (tmp_path / "state.json").write_text("{}")
    source = {"parquet": str(tmp_path / "rows.parquet"), "saved": str(tmp_path), "hub": "huggingface"}[kind]
    with pytest.raises(MissingDependencyError, match=rf"read with {package}.*\.\[data\]"):
        read_source(source, "function_correctness")


def test_the_hub_is_asked_for_the_published_data(monkeypatch):
    """Through a stand-in for the `datasets` package: there is no hub here."""
    asked = []

    def load_dataset(name):
        asked.append(name)
        if "seed9" in name:
            raise ConnectionError("no route")
        return {"train": [record(1), record(2)], "validation": [record(3)], "train_for_val": [record(4)]}

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    source = read_source("huggingface", "diamonds-seed4")
    assert asked == ["redwoodresearch/diamonds-seed4"]
    assert (len(source.train), len(source.heldout)) == (2, 1)
    with pytest.raises(DataError, match="diamonds-seed9 cannot be loaded from the hub: no route"):
        read_source("huggingface", "diamonds-seed9")


def test_parquet_files_and_saved_data_sets_are_read(tmp_path):
    datasets = pytest.importorskip("datasets")
    train = datasets.Dataset.from_list([record(n) for n in range(30)])
    heldout = datasets.Dataset.from_list([record(n) for n in range(30, 45)])
    train.to_parquet(tmp_path / "rows.parquet")
    assert len(read_source(str(tmp_path / "rows.parquet"), "diamonds-seed0").train) == 30
    datasets.DatasetDict({"train": train, "validation": heldout}).save_to_disk(tmp_path / "saved")
    source = read_source(str(tmp_path / "saved"), "diamonds-seed0")
    assert (len(source.train), len(source.heldout)) == (30, 15)
    train.save_to_disk(tmp_path / "one")
    assert read_source(str(tmp_path / "one"), "diamonds-seed0").train == source.train


def test_damaged_parquet_files_are_refused(tmp_path):
    pytest.importorskip("pyarrow")
    (tmp_path / "rows.parquet").write_bytes(b"nonsense")
    with pytest.raises(DataError, match="cannot be read as parquet"):
        read_source(str(tmp_path / "rows.parquet"), "function_correctness")
