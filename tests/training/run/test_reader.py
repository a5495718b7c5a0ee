from __future__ import annotations

import json
from pathlib import Path

import pytest

from assay.errors import RunDirectoryError
from assay.storage.files import encode_json
from assay.training.metrics.traces import trace_records
from assay.training.run.reader import Answer, read_run
from assay.types import Completion, Message, Score, Task, Trajectory, TrajectoryGroup, Transition


def turn(text: str, score: Score, **metrics: float) -> Transition:
    return Transition((1, 2), Completion((3,), (-0.5,), "stop", 0), text, score, metrics)


def rollout(task: Task, *turns: Transition, end: str = "done") -> Trajectory:
    return Trajectory(task, turns, end, seed=0)


def task_of(name: str) -> Task:
    return Task("toy", name, (Message("user", name),))


def evaluation(step: int, *groups: list[Trajectory], split: str = "eval") -> list[bytes]:
    made = [TrajectoryGroup(g[0].task, tuple(g)) for g in groups]
    records = trace_records(made, run_id="r", step=step, phase="rl", index=step, split=split, decode=str)
    return [encode_json(record) + b"\n" for record in records]


def simple(step: int, value: float, split: str = "eval") -> list[bytes]:
    return evaluation(step, [rollout(task_of("a"), turn(f"step {step}", Score("scored", value)))], split=split)


def write(path: Path, traces: list[bytes] = [], metrics: list[dict] = []) -> Path:  # noqa: B006
    """A run that has committed everything that is in its files."""
    (path / "config.json").write_text("{}")
    (path / "traces.jsonl").write_bytes(b"".join(traces))
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in metrics))
    commit(path)
    return path


def commit(path: Path) -> None:
    sinks = {name: (path / name).stat().st_size for name in ("traces.jsonl", "metrics.jsonl")}
    start = {"version": 1, "step": -1, "phase": "start", "index": 0, "checkpoint": None, "sinks": sinks, "digest": ""}
    (path / "ledger.jsonl").write_text(json.dumps(start) + "\n")


def test_the_first_and_the_last_evaluation_are_kept(tmp_path: Path) -> None:
    steps = [3, 5, 9]
    records = read_run(write(tmp_path, [line for s in steps for line in (*simple(s, 0.5), *simple(s + 1, 1, "train"))]))
    assert (records.first.step, records.last.step) == (3, 9)
    assert [a.text for t in records.last.tasks for a in t.answers] == ["step 9"]


def test_one_evaluation_is_the_first_and_not_the_last(tmp_path: Path) -> None:
    records = read_run(write(tmp_path, simple(4, 1.0)))
    assert records.first is not None
    assert records.last is None
    assert read_run(write(tmp_path)).first is None


def test_a_text_that_spells_a_record_is_no_record(tmp_path: Path) -> None:
    forged = turn('"split":"eval"', Score("scored", 1.0))
    records = read_run(write(tmp_path, evaluation(2, [rollout(task_of("a"), forged)], split="train")))
    assert records.first is None


def test_answers_to_a_task_are_averaged_and_errored_ones_left_out(tmp_path: Path) -> None:
    a, b = task_of("a"), task_of("b")
    lost = Score("errored", None)
    lines = evaluation(
        1,
        [
            rollout(a, turn("good", Score("scored", 1.0, {"best": 0.5}), legal=1.0)),
            rollout(a, turn("bad", Score("invalid", -0.5), legal=0.0)),
            rollout(a, turn("lost", lost), end="errored"),
        ],
        [rollout(b, end="errored")],
    )
    first, second = read_run(write(tmp_path, lines)).first.tasks
    assert first.values == {"reward": 0.25, "legal": 0.5}
    assert (first.name, first.prompt) == ("a", "a")
    assert first.answers == (
        Answer("good", "scored", 1.0, {"best": 0.5}),
        Answer("bad", "invalid", -0.5),
        Answer("lost", "errored", None),
    )
    assert (second.place, second.key, second.values) == (1, b.key, {})
    assert second.answers == (Answer("", "errored", None),)


def test_a_rollout_of_several_turns_counts_its_whole_reward_and_its_last_metrics(tmp_path: Path) -> None:
    turns = [turn("no", Score("invalid", -1.0), tries=1.0), turn("yes", Score("scored", 3.0), tries=2.0)]
    (found,) = read_run(write(tmp_path, evaluation(1, [rollout(task_of("a"), *turns)]))).first.tasks
    assert found.values == {"reward": 2.0, "tries": 2.0}
    assert found.answers == (Answer("yes", "scored", 2.0, turns=(("", "no"), ("(1, 2)", "yes"))),)


def test_curves_and_totals_are_of_a_phase(tmp_path: Path) -> None:
    rows = [
        {"step": -1, "phase": "start", "index": 0, "perf/cpu_s": 1.0},
        {"step": 0, "phase": "sft", "index": 0, "loss": 3.0, "perf/cpu_s": 4.0, "perf/eval_cpu_s": 1.5},
        {"step": 1, "phase": "rl", "index": 0, "loss": None, "perf/cpu_s": 8.0, "perf/eval_cpu_s": 2.0},
        {"step": 2, "phase": "rl", "index": 1, "loss": 5.0, "perf/cpu_s": 16.0},
    ]
    records = read_run(write(tmp_path, metrics=rows))
    assert records.curve("loss", "rl") == [(2.0, 5.0)]
    assert records.curve("loss", "sft") == [(1.0, 3.0)]
    assert [records.training_cpu_s(phase) for phase in ("sft", "rl", None)] == [2.5, 22.0, 25.5]


def test_what_is_not_committed_never_happened(tmp_path: Path) -> None:
    write(tmp_path, simple(1, 0.5), [{"step": 1, "phase": "rl", "index": 0}])
    with (tmp_path / "traces.jsonl").open("ab") as file:
        file.write(b"".join(simple(2, 0.75))[:-10])
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 2')
    records = read_run(tmp_path)
    assert (records.first.step, records.last, len(records.metrics), records.complete) == (1, None, 1, False)
    (tmp_path / "ledger.jsonl").unlink()
    assert (read_run(tmp_path).first, read_run(tmp_path).metrics) == (None, [])


def test_damage_is_named(tmp_path: Path) -> None:
    write(tmp_path, metrics=[{"step": 0, "phase": "rl", "index": 0}])
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write("{broken\n")
    commit(tmp_path)
    with pytest.raises(RunDirectoryError, match=r"metrics\.jsonl, line 2"):
        read_run(tmp_path)
    with pytest.raises(RunDirectoryError, match="is not a run"):
        read_run(tmp_path / "nowhere")
