import json
import re

import pytest

from assay.cli.main import main
from assay.envs.kernelbench.rewards import evaluation
from assay.kernels.verdicts import Verdict
from assay.types import Message, Task, Trajectory, TrajectoryGroup
from support.recorded_run import edit, group, record, turn

EVIL = "\x1b[2J\x1b]0;owned\x07 good\rbad \u202ebackwards <script>alert(1)</script>"


@pytest.fixture
def run(tmp_path):
    first = [group("a", 0.0, 1.0), group("b", 1.0, 1.0)]
    return record(
        tmp_path / "run",
        (0, "train", first),
        (0, "eval", [group("h", 0.25)]),
        (1, "train", [group("c", 0.0, 1.0), group("d", 0.5, None)]),
    )


def show(run, capsys, *options):
    assert main(["show", str(run), *options]) == 0
    return capsys.readouterr().out


def test_what_was_thought_is_shown_beside_the_answer(run, capsys):
    edit(run, "traces.jsonl", 6, {"thought": "first I\x1b[2J try"})
    lines = show(run, capsys).splitlines()
    at = lines.index("    thought:")
    assert lines[at + 1] == "      first I\u241b[2J try" and lines[at + 2].startswith("    \u2502 ")


def test_the_last_step_is_shown_group_by_group(run, capsys):
    text = show(run, capsys)
    assert "step 1 (rl 2), train, group 0 · toy c [easy]" in text
    assert "say c" in text and "c 1.0" in text and "step 0" not in text
    assert re.search(r"#1  reward 1  right 1  advantage \+0\.5  2 tokens", text)
    assert re.search(r"#0  reward 0\.5  right 0\.5  not trained \(failed\)", text)
    assert re.search(r"#1  could not be scored  not trained \(errored\)", text)
    assert "why: because" in text and "error: the verifier broke" in text
    assert "2 of 2 groups shown." in text


def test_groups_are_chosen_by_step_group_task_and_split(run, capsys):
    assert re.findall(r"toy (\w)", show(run, capsys, "--step", "0", "--split", "train")) == ["a", "b"]
    assert re.findall(r"toy (\w)", show(run, capsys, "--step=0", "--group=1")) == ["b"]
    assert re.findall(r"toy (\w)", show(run, capsys, "--split", "eval")) == ["h"]
    assert re.findall(r"toy (\w)", show(run, capsys, "--task", "a")) == ["a"]
    assert "No answers of task nothing in 4 groups (steps 0 to 1)." in show(run, capsys, "--task", "nothing")


def test_errors_are_looked_for_in_the_whole_run(run, capsys):
    text = show(run, capsys, "--errors")
    assert re.findall(r"toy (\w)", text) == ["d"] and "c 1.0" not in text
    assert "No answers that could not be scored" in show(run, capsys, "--errors", "--step", "0")


def test_the_best_or_worst_come_first(run, capsys):
    options = ["--step", "0", "--split", "train", "--sort", "advantage"]
    assert re.findall(r"  #(\d)", show(run, capsys, *options, "--limit", "1")) == ["1", "0"]
    assert re.findall(r"  #(\d)", show(run, capsys, *options, "--limit", "1", "--ascending")) == ["0", "1"]


def test_json_is_one_object_per_rollout(run, capsys):
    rows = [json.loads(line) for line in show(run, capsys, "--json").splitlines()]
    assert [(row["task"], row["sample"], row["reward"]) for row in rows] == [
        ("c", 0, 0.0),
        ("c", 1, 1.0),
        ("d", 0, 0.5),
        ("d", 1, None),
    ]
    assert rows[1]["turns"][0]["advantage"] == 0.5


@pytest.mark.parametrize("options", [[], ["--full"], ["--json"]])
def test_what_a_model_said_cannot_steer_the_terminal(tmp_path, capsys, options):
    made = group("a", 0.0, 1.0, text=EVIL, prompt=EVIL)
    text = show(record(tmp_path / "run", (0, "train", [made])), capsys, *options)
    assert not set(text) & set("\x1b\x07\r\u202e")
    assert "owned" in text and "script" in text


def test_long_texts_are_cut_to_the_terminal_unless_all_is_wanted(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    long = "\n".join("x" * 200 for _ in range(50))
    run = record(tmp_path / "run", (0, "train", [group("a", *([0.5] * 12), text=long)]))
    lines = show(run, capsys).splitlines()
    assert max(map(len, lines)) <= 60
    assert any("and 44 more lines" in line for line in lines)
    assert any("and 4 more answers" in line for line in lines)
    whole = show(run, capsys, "--full").splitlines()
    assert sum("x" * 200 in line for line in whole) == 12 * 50


def test_a_step_that_is_not_committed_is_named(run, capsys):
    lines = (run / "ledger.jsonl").read_bytes().splitlines(keepends=True)
    (run / "ledger.jsonl").write_bytes(b"".join(lines[:-1]))
    assert "step 1 is not committed: it is under way, or failed" in show(run, capsys)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--step", "7"], "Step 7 has no rollouts. Steps with rollouts: 0 to 1."),
        (["--step", "1", "--split", "eval"], "Step 1 has no rollouts of eval. Steps with rollouts of eval: 0."),
        (["--group", "5"], "The run has no group 5."),
        (["--limit", "0"], "--limit=0 shows nothing"),
        (["seed=1"], "`assay show` has no settings"),
    ],
)
def test_what_is_not_there_is_said_with_what_is(run, capsys, options, message):
    assert main(["show", str(run), *options]) != 0
    out, err = capsys.readouterr()
    assert message in err and out == ""


def test_a_missing_run_is_one_line(tmp_path, capsys):
    assert main(["show", str(tmp_path / "none")]) != 0
    assert "is not a run" in capsys.readouterr().err


@pytest.mark.parametrize("options", [[], ["--full"]])
def test_why_a_kernel_failed_is_read_whole_and_the_kernel_shown_once(tmp_path, capsys, options):
    why = "the first call differs: element 3 is 0.5 and should be 0.25, which is more than the tolerance of 1e-4 allows"
    told = evaluation(Verdict("wrong", "numerics", why, tests_total=1), "def kernel(): ...")
    said = turn("Here:\ndef kernel(): ...", 0.0, {"kernel": "def kernel(): ...", "eval_result": told})
    task = Task("kernelbench", "1/1:a", (Message("user", "say a"),))
    made = TrajectoryGroup(task, (Trajectory(task, (said,), "done", 0),))
    text = show(record(tmp_path / "run", (0, "train", [made])), capsys, *options)
    assert "verdict: wrong (numerics): the first call differs" in text and "\u2026" not in text.split("eval_result")[0]
    assert " ".join(text.split("verdict: ")[1].split("eval_result")[0].split()) == f"wrong (numerics): {why}"
    assert text.count("def kernel(): ...") == 1
