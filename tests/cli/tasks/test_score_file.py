from __future__ import annotations

import json
from pathlib import Path

import pytest
from benchmarks.common.judge_behaviour import Behaviour
from benchmarks.common.judge_server import JudgeServer

from assay.cli.main import main
from assay.cli.tasks.score_file import read_samples


def write(path: Path, rows: list[object]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def read(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_file_is_scored_in_order_and_scored_again_offline_for_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write(tmp_path / "said.jsonl", [{"response": f"answer {i}", "ground_truth": "4"} for i in range(40)])
    grades = Behaviour(replies=("<score>7</score>", "<score>3</score>"), latency="uniform", latency_s=0.02, spread=0.02)
    with JudgeServer(grades) as judge:
        command = ["score", "--input", str(source), "--reward", "judge", f"judge.base_url={judge.base_url}"]
        command += ["judge.api_key_env=", f"engine.cache_path={tmp_path / 'cache.sqlite'}"]
        assert main(command) == 0
        online = json.loads(capsys.readouterr().out)
        first = read(tmp_path / "said.scores.jsonl")
    assert (online["samples"], online["scored"], online["calls"]) == (40, 40, 40)
    assert [row["index"] for row in first] == list(range(40))
    assert {row["score"] for row in first} == {0.3, 0.7}
    again = tmp_path / "again.jsonl"
    assert main([*command, "engine.offline=true", f"--output={again}"]) == 0
    offline = json.loads(capsys.readouterr().out)
    assert (offline["cached"], offline["calls"], offline["mean"]) == (40, 0, online["mean"])
    assert [row["score"] for row in read(again)] == [row["score"] for row in first]


def test_what_is_not_in_the_cache_is_errored_offline(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write(tmp_path / "said.jsonl", [{"response": "4"}])
    options = ["engine.offline=true", f"engine.cache_path={tmp_path / 'cache.sqlite'}"]
    assert main(["score", f"--input={source}", "--reward=judge", *options]) == 1
    said = capsys.readouterr()
    found = json.loads(said.out)
    assert (found["errored"], found["failures"], found["calls"]) == (1, {"not_cached": 1}, 0)
    assert isinstance(found["calls"], int)
    assert "None of the 1 samples could be scored (1 not_cached)" in said.err and "holds no reply" in said.err
    (row,) = read(tmp_path / "said.scores.jsonl")
    assert row["score"] is None and row["evidence"]["failure"] == "not_cached"  # type: ignore[index]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("no json", "line 2 has no `response`"),
        ({"text": "4"}, "line 2 has no `response`"),
        ({"response": "4", "level": 1, "extra_info": {"level": 2}}, "'level' twice"),
        ({"response": "4", "prompt": [{"role": "user"}]}, "is not a message: it needs a role"),
        ({"response": "4", "prompt": [{"role": "boss", "content": "?"}]}, "is not a message: it needs a role"),
        ({"response": "4", "extra_info": "x"}, "extra_info"),
    ],
)
def test_bad_lines_are_named(row: object, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write(tmp_path / "said.jsonl", [{"response": "4"}, row])
    options = ["engine.offline=true", f"engine.cache_path={tmp_path / 'cache.sqlite'}"]
    assert main(["score", f"--input={source}", "--reward=judge", *options]) == 1
    assert said in capsys.readouterr().err


def test_nothing_is_overwritten_and_no_policy_ignored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write(tmp_path / "said.jsonl", [{"response": "4"}])
    before = source.read_text()
    assert main(["score", f"--input={source}", f"--output={source}", "--reward=judge", "engine.offline=true"]) == 1
    assert "would overwrite" in capsys.readouterr().err and source.read_text() == before
    assert main(["score", f"--input={source}", "--reward=judge", "engine.offline=true", "engine.on_failure=raise"]) == 2
    assert "would have no effect" in capsys.readouterr().err
    assert main(["score", f"--input={tmp_path / 'nothing'}", "--reward=judge", "engine.offline=true"]) == 1
    assert "The file" in capsys.readouterr().err


def test_options_that_would_do_nothing_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["score", "--run", str(tmp_path), "--reward", "judge"]) == 2
    assert "--reward goes with --input" in capsys.readouterr().err
    assert main(["score", "--run", str(tmp_path)]) == 1
    assert "is not a run" in capsys.readouterr().err


def test_a_failed_attempt_leaves_earlier_scores_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write(tmp_path / "said.jsonl", [{"response": f"answer {i}"} for i in range(40)])
    with JudgeServer(Behaviour(replies=("<score>7</score>",))) as judge:
        command = ["score", f"--input={source}", "--reward=judge", "judge.api_key_env=", "engine.cache=false"]
        assert main([*command, f"judge.base_url={judge.base_url}"]) == 0
        before = (tmp_path / "said.scores.jsonl").read_bytes()
        assert main([*command, f"judge.base_url={judge.base_url.removesuffix('/v1')}"]) == 1
        assert "most end in /v1" in capsys.readouterr().err
    assert (tmp_path / "said.scores.jsonl").read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["said.jsonl", "said.scores.jsonl"]


def test_answer_is_the_ground_truth_of_a_line_without_one(tmp_path: Path) -> None:
    source = write(
        tmp_path / "said.jsonl",
        [{"response": "a", "answer": "7"}, {"response": "a", "ground_truth": "8", "answer": "9"}],
    )
    assert [sample.ground_truth for sample in read_samples(source)] == ["7", "8"]


@pytest.mark.parametrize(("given", "said"), [("missing.jsonl", "does not exist"), ("latin.jsonl", "not UTF-8")])
def test_files_that_cannot_be_read_are_one_line(
    given: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "latin.jsonl").write_bytes(b'{"response": "caf\xe9"}\n')
    options = ["engine.offline=true", f"engine.cache_path={tmp_path / 'cache.sqlite'}"]
    assert main(["score", f"--input={tmp_path / given}", "--reward=judge", *options]) == 1
    assert said in capsys.readouterr().err


def test_a_file_needs_a_reward(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["score", f"--input={tmp_path / 'said.jsonl'}"]) == 2
    assert "module:name, or math, judge, chess, kernelbench, monitor" in capsys.readouterr().err


FUNCTIONS = """
def right(completion, answer):
    return completion.strip() == answer

def short(completion, limit=3):
    return None if completion == "?" else float(len(completion) <= limit)

def broken(completion):
    return 1 / 0

def words(completion):
    return "many"
"""


def test_a_function_scores_a_file_whose_keys_are_columns(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mine.py"
    file.write_text(FUNCTIONS)
    rows = [{"completion": " 4", "answer": "4", "level": 1}, {"response": "12345", "extra_info": {"answer": "5"}}]
    source = write(tmp_path / "said.jsonl", rows)
    assert main(["score", f"--input={source}", f"--reward={file}:right"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["mean"], found["scored"], found["calls"], found["usd"]) == (0.5, 2, 0, 0.0)
    both = ["--reward", f"{file}:right,{file}:short*0.5", "options.short.limit=5"]
    assert main(["score", f"--input={source}", *both]) == 0
    assert [row["score"] for row in read(tmp_path / "said.scores.jsonl")] == [1.5, 0.5]
    assert json.loads(capsys.readouterr().out)["parts"] == {"right": 0.5, "short": 1.0}
    assert read(tmp_path / "said.scores.jsonl")[0]["parts"] == {"right": 1.0, "short": 1.0}
    assert main(["score", f"--input={source}", f"--reward={file}:right", f"--reward={file}:short"]) == 0
    assert [row["score"] for row in read(tmp_path / "said.scores.jsonl")] == [2.0, 0.0]


def test_failures_are_counted_and_the_first_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "mine.py"
    file.write_text(FUNCTIONS)
    source = write(tmp_path / "said.jsonl", [{"response": "?"}, {"response": "4"}])
    assert main(["score", f"--input={source}", f"--reward={file}:short"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["errored"], found["mean"], found["failures"]) == (1, 1.0, {"unscored": 1})
    for name, line in [
        ("broken", f"(2 reward): ZeroDivisionError: division by zero ({file}, line 9)."),
        ("words", "words (mine.py) returned 'many' (str)"),
    ]:
        assert main(["score", f"--input={source}", f"--reward={file}:{name}"]) == 1
        error = capsys.readouterr().err
        assert line in error and error.count("\n") == 1
    assert main(["score", f"--input={source}", f"--reward={file}:right"]) == 1
    assert "right (mine.py) takes `answer`, which a sample does not have" in capsys.readouterr().err


def test_a_wrong_setting_is_one_of_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write(tmp_path / "said.jsonl", [{"response": "4"}])
    assert main(["score", f"--input={source}", "--reward=judge", "foo=1"]) == 2
    error = capsys.readouterr().err
    assert "command line" in error and "reward keywords" not in error
