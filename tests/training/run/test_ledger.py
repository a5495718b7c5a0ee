import json
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from assay.errors import RunDirectoryError
from assay.training.run.ledger import Commit, Ledger, metrics_digest, parse_ledger, read_ledger

PATH = Path("ledger.jsonl")
COMMITS = [
    Commit(-1, "start", 0, "start", {"metrics.jsonl": 0}, "a"),
    Commit(0, "sft", 0, None, {"metrics.jsonl": 10}, "b"),
    Commit(1, "rl", 0, "rl_000001", {"metrics.jsonl": 20}, "c"),
    Commit(2, "rl", 1, None, {"metrics.jsonl": 30}, "d"),
]
DATA = b"".join(commit.encode() for commit in COMMITS)


def test_lines_are_read_back_as_they_were_written():
    content = parse_ledger(DATA, PATH)
    assert list(content.commits) == COMMITS
    assert content.ends[-1] == len(DATA)
    assert content.torn == 0
    assert not content.is_complete


@given(st.integers(0, len(DATA)))
@example(len(DATA) - 1)
@example(len(COMMITS[0].encode()) - 1)
def test_a_ledger_cut_anywhere_keeps_every_whole_line(size):
    content = parse_ledger(DATA[:size], PATH)
    whole = DATA[:size].count(b"\n")
    assert list(content.commits) == COMMITS[:whole]
    assert content.torn == size - (content.ends[-1] if whole else 0)


@given(st.binary(max_size=40))
def test_garbage_after_the_last_checkpoint_is_forgiven(garbage):
    content = parse_ledger(DATA + garbage, PATH)
    assert list(content.commits) == COMMITS


def test_an_unreadable_line_before_a_checkpoint_is_damage():
    lines = DATA.splitlines(keepends=True)
    with pytest.raises(RunDirectoryError, match="line 2 is unreadable, but a later line has a checkpoint"):
        parse_ledger(lines[0] + b"{}\n" + lines[2], PATH)


def test_an_unreadable_first_line_is_damage():
    with pytest.raises(RunDirectoryError, match="first line is unreadable"):
        parse_ledger(b"my notes\n", PATH)


def test_a_missing_or_repeated_step_is_damage():
    lines = DATA.splitlines(keepends=True)
    with pytest.raises(RunDirectoryError, match="line 2 is step 1, expected 0"):
        parse_ledger(lines[0] + lines[2], PATH)
    with pytest.raises(RunDirectoryError, match="line 3 is step 0, expected 1"):
        parse_ledger(lines[0] + lines[1] + lines[1], PATH)


def test_a_ledger_of_a_newer_format_is_refused():
    line = {**json.loads(COMMITS[0].encode()), "version": 2}
    with pytest.raises(RunDirectoryError, match="format version 2, newer"):
        parse_ledger(json.dumps(line).encode() + b"\n", PATH)


def test_the_digest_ignores_what_depends_on_the_machine_and_nothing_else():
    digest = metrics_digest(3, "rl", 1, {"loss": 0.5, "perf/step_s": 1.0})
    assert digest == metrics_digest(3, "rl", 1, {"perf/step_s": 2.0, "loss": 0.5})
    assert digest != metrics_digest(3, "rl", 1, {"loss": 0.5000000000000001})
    assert digest != metrics_digest(4, "rl", 1, {"loss": 0.5})
    assert metrics_digest(0, "rl", 0, {"loss": float("nan")}) != metrics_digest(0, "rl", 0, {})


def test_an_open_ledger_drops_what_lies_beyond_its_commits(tmp_path):
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(DATA + b"torn")
    content = read_ledger(path)
    ledger = Ledger(path, content.commits, content.ends[-1])
    assert ledger.next_step == 3
    ledger.append(Commit(3, "end", 0, done=True), durable=True)
    ledger.close()
    ledger.close()
    assert path.read_bytes().startswith(DATA + b'{"version":1,"step":3')
    assert read_ledger(path).is_complete


@pytest.mark.parametrize("field", [{"sinks": {"metrics.jsonl": "10"}}, {"checkpoint": ["start"]}])
def test_a_line_with_a_field_of_another_type_is_unreadable(field):
    lines = DATA.splitlines(keepends=True)
    wrong = json.dumps({**json.loads(lines[1]), **field}).encode() + b"\n"
    with pytest.raises(RunDirectoryError, match="line 2 is unreadable, but a later line has a checkpoint"):
        parse_ledger(lines[0] + wrong + lines[2], PATH)
