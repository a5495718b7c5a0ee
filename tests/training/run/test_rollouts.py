import json
import logging
import re

import pytest

from assay.errors import RunDirectoryError
from assay.storage.files import encode_json
from assay.training.run.reader import measurement
from assay.training.run.rollouts import GroupKey, open_rollouts, read_rollouts
from assay.types import Message
from support.recorded_run import edit, group, record


@pytest.fixture
def run(tmp_path):
    """Two steps; the first has two groups and an evaluation, and only the first group trained."""
    first = [group("a", 0.0, 1.0), group("b", 1.0, 1.0)]
    return record(tmp_path, (0, "train", first), (0, "eval", [group("h", 0.25)]), (1, "train", [group("c", 0.0, 1.0)]))


def test_rollouts_come_back_as_they_were_recorded(run):
    first, second, *_ = read_rollouts(run)
    assert (first.step, first.split, first.group, first.sample, first.task, first.tags) == (
        0,
        "train",
        0,
        0,
        "a",
        ("easy",),
    )
    (said,) = second.turns
    assert said.messages == (Message("user", "say a"),)
    assert (said.text, said.verdict.parts, said.verdict.evidence) == ("a 1.0", {"right": 1.0}, {"why": "because"})
    assert (second.reward, second.advantage, second.length, said.trained, said.removed) == (1.0, 0.5, 2, True, None)
    assert (first.advantage, first.parts, first.errored) == (-0.5, {"right": 0.0}, False)
    rollouts = list(read_rollouts(run))
    assert [(r.task, r.reward) for r in rollouts] == [
        ("a", 0.0),
        ("a", 1.0),
        ("b", 1.0),
        ("b", 1.0),
        ("h", 0.25),
        ("c", 0.0),
        ("c", 1.0),
    ]


def test_a_group_is_found_by_its_place(run):
    rollouts = open_rollouts(run)
    assert rollouts.keys == [(0, "train", 0), (0, "train", 1), (0, "eval", 0), (1, "train", 0)]
    assert [r.task for r in rollouts.group(GroupKey(0, "eval", 0)).rollouts] == ["h"]
    assert [group.key for group in rollouts] == rollouts.keys
    with pytest.raises(KeyError):
        rollouts.group(GroupKey(9, "train", 0))


def test_tokens_are_read_by_group(run):
    rollouts = open_rollouts(run)
    first, second = rollouts.tokens(GroupKey(1, "train", 0))
    assert (first.text, first.logprobs, first.advantages) == (("h", "i"), (-0.5, -0.25), (-0.5, -0.5))
    assert (second.sample, second.log_ratios) == (1, (0.0, 0.0))
    assert rollouts.tokens(GroupKey(0, "train", 1)) == rollouts.tokens(GroupKey(0, "eval", 0)) == []


def test_half_a_last_line_is_left_out_and_said_once(run, caplog):
    whole = list(read_rollouts(run))
    with (run / "traces.jsonl").open("ab") as file:
        file.write(b'{"version":2,"run":"r","st')
    with caplog.at_level(logging.WARNING):
        assert list(read_rollouts(run)) == whole
    assert [re.search(r"half a line \(\d+ bytes\)", r.message) is not None for r in caplog.records] == [True]


def test_only_what_is_committed_is_a_consistent_state(run):
    ledger = (run / "ledger.jsonl").read_bytes().splitlines(keepends=True)
    (run / "ledger.jsonl").write_bytes(b"".join(ledger[:2]))  # of step 1 only the files are there
    assert open_rollouts(run, committed=True).keys == open_rollouts(run).keys[:3]
    assert open_rollouts(run).committed == 0
    assert open_rollouts(run, committed=True).tokens(GroupKey(1, "train", 0)) == []
    (run / "ledger.jsonl").unlink()
    assert open_rollouts(run, committed=True).keys == []
    assert open_rollouts(run).committed is None


@pytest.mark.parametrize("junk", [b"garbage\n", b'{"a":1}\n', b"\n", b'{"version":2,"run":"r"\n'])
def test_garbage_in_the_middle_is_an_error_that_names_the_line(run, junk):
    lines = (run / "traces.jsonl").read_bytes().splitlines(keepends=True)
    (run / "traces.jsonl").write_bytes(b"".join([*lines[:2], junk, *lines[2:]]))
    with pytest.raises(RunDirectoryError, match=r"traces\.jsonl, line 3 is damaged"):
        open_rollouts(run)


def test_a_line_damaged_behind_its_beginning_is_named_when_it_is_read(run):
    lines = (run / "traces.jsonl").read_bytes().splitlines(keepends=True)
    lines[1] = lines[1][:-20] + b"\n"
    (run / "traces.jsonl").write_bytes(b"".join(lines))
    rollouts = open_rollouts(run)
    with pytest.raises(RunDirectoryError, match="line 2 is damaged"):
        rollouts.group(rollouts.keys[0])
    assert rollouts.group(rollouts.keys[1])


def test_records_without_a_field_are_damage_too(run):
    lines = [json.loads(line) for line in (run / "traces.jsonl").read_bytes().splitlines()]
    del lines[0]["task"]
    (run / "traces.jsonl").write_bytes(b"".join(encode_json(line) + b"\n" for line in lines))
    rollouts = open_rollouts(run)
    with pytest.raises(RunDirectoryError, match=r"cannot be read: TypeError.*task"):
        rollouts.group(rollouts.keys[0])


@pytest.mark.parametrize(
    "change",
    [
        {"reward": "x"},
        {"reward": [1.0]},
        {"text": 5},
        {"messages": [{"role": "user", "content": None}]},
        {"messages": ["hello"]},
        {"score": {"status": "fine", "value": 1.0}},
        {"score": {"status": "scored", "value": 1.0, "parts": {"right": "x"}}},
        {"score": {"status": "scored", "value": 1.0, "evidence": ["x"]}},
        {"task": {"env": "toy", "id": "a", "key": "k", "tags": [1]}},
        {"metrics": {"legal": "x"}},
        {"completion_tokens": "two"},
        {"sample": None},
    ],
)
def test_a_field_of_another_type_is_damage(run, change):
    edit(run, "traces.jsonl", 1, change)
    rollouts = open_rollouts(run)
    with pytest.raises(RunDirectoryError, match=r"line 1 is damaged.*cannot be read"):
        rollouts.group(rollouts.keys[0])


def test_numbers_that_are_not_finite_are_damage(run):
    text = (run / "traces.jsonl").read_text().replace('"reward":0.0', '"reward":NaN', 1)
    (run / "traces.jsonl").write_text(text)
    with pytest.raises(RunDirectoryError, match="not finite"):
        next(read_rollouts(run))


def test_a_metric_that_was_not_finite_is_not_known(run):
    edit(run, "traces.jsonl", 5, {"metrics": {"legal": None}})  # as it is recorded
    assert dict(measurement(open_rollouts(run), 0).tasks[0].values) == {"reward": 0.25}


@pytest.mark.parametrize("change", [{"tokens": ["h", 5]}, {"logprobs": ["x", 1.0]}, {"advantages": 5}])
def test_a_damaged_line_of_tokens_is_named(run, change):
    edit(run, "tokens.jsonl", 1, change)
    rollouts = open_rollouts(run)
    with pytest.raises(RunDirectoryError, match=r"tokens\.jsonl, line 1 is damaged"):
        rollouts.tokens(rollouts.keys[0])


def test_a_newer_format_is_refused(run):
    text = (run / "traces.jsonl").read_text().replace('"version":2', '"version":3', 1)
    (run / "traces.jsonl").write_text(text)
    with pytest.raises(RunDirectoryError, match="format version 3, newer than this Assay reads"):
        open_rollouts(run)


def test_what_is_no_run_is_refused(tmp_path):
    with pytest.raises(RunDirectoryError, match="holds no run"):
        open_rollouts(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(RunDirectoryError, match=r"no traces\.jsonl"):
        open_rollouts(tmp_path)
