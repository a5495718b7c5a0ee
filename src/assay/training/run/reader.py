"""A run directory read back: what the run was, what each step measured, and its first and last held-out evaluation.

Only files are read, so a report can be made at any time, and made again. `traces.jsonl` may be far larger than memory:
it is streamed, and of its rollouts only those of two evaluations are kept.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from statistics import fmean

from assay.errors import RunDirectoryError
from assay.storage.files import read_object
from assay.training.run.ledger import Commit, live_checkpoints, read_ledger
from assay.types import Json, ScoreStatus

_EVALUATION = b'"split":"eval"'
"""In every line of an evaluation, and never in a text, where its quotes are escaped."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One rollout of a held-out task: what was said last, the verdict on it, and what the whole rollout earned."""

    text: str
    status: ScoreStatus
    reward: float | None


@dataclass(frozen=True, slots=True)
class HeldoutTask:
    """A held-out task as evaluated: its place in the data set and key, the answers, and each metric's mean over them.

    `values` are empty where no answer could be scored.
    """

    place: int
    key: str
    answers: tuple[Answer, ...]
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Measurement:
    """One evaluation: the step after which it was made, and its tasks in data set order."""

    step: int
    phase: str
    index: int
    tasks: tuple[HeldoutTask, ...]


@dataclass(frozen=True)
class RunRecords:
    """Everything a report needs of a run."""

    path: Path
    config: Mapping[str, Json]
    code: Mapping[str, Json]
    metrics: Sequence[Mapping[str, Json]]
    events: Sequence[Mapping[str, Json]]
    first: Measurement | None
    """The evaluation of the policy that RL started from; None for a run without evaluation."""
    last: Measurement | None
    """The last evaluation; None where there is only the first."""

    def curve(self, name: str, phase: str) -> list[tuple[float, float]]:
        """(index + 1, value) of a metric over the steps of a phase, where it was finite."""
        rows = [row for row in self.metrics if row["phase"] == phase and row.get(name) is not None]
        return [(row["index"] + 1.0, row[name]) for row in rows]

    def total(self, name: str, phase: str | None = None) -> float:
        """Sum of a metric over the steps of a phase, or of the whole run."""
        return sum(row.get(name) or 0.0 for row in self.metrics if phase in (None, row["phase"]))

    def training_cpu_s(self, phase: str | None = None) -> float:
        """CPU seconds of a phase, or of the whole run, without its evaluations."""
        return self.total("perf/cpu_s", phase) - self.total("perf/eval_cpu_s", phase)


def read_run(path: Path) -> RunRecords:
    """The records of the run at `path`.

    Raises:
        RunDirectoryError: there is no run, or one of its files is damaged.
    """
    config = read_object(path / "config.json")
    if config is None:
        raise RunDirectoryError(f"{path} holds no run: there is no readable config.json in it. Give a run's log_path.")
    first, last = _evaluations(path / "traces.jsonl")
    return RunRecords(
        path=path,
        config=config,
        code=read_object(path / "code.json") or {},
        metrics=list(read_lines(path / "metrics.jsonl")),
        events=list(read_lines(path / "events.jsonl")),
        first=first,
        last=last,
    )


def read_lines(path: Path, needle: bytes = b"") -> Iterator[dict[str, Json]]:
    """The JSON records of a file whose lines hold `needle`; nothing where there is no file."""
    if not path.exists():
        return
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if needle not in line or not line.endswith(b"\n"):  # what a killed run was writing last never happened
                continue
            try:
                yield json.loads(line)
            except ValueError as error:
                raise RunDirectoryError(
                    f"{path}, line {number} is damaged ({error}), so the run cannot be reported. Restore the file."
                ) from error


def _evaluations(path: Path) -> tuple[Measurement | None, Measurement | None]:
    first: list[dict[str, Json]] = []
    last: list[dict[str, Json]] = []
    for record in read_lines(path, _EVALUATION):
        if not first or record["step"] == first[0]["step"]:
            first.append(record)
            continue
        if last and record["step"] != last[0]["step"]:
            last = []
        last.append(record)
    return _measurement(first), _measurement(last)


def evaluation_at(path: Path, step: int) -> Measurement | None:
    """The evaluation that the run at `path` made after a step; None where it made none.

    Raises:
        RunDirectoryError: its traces are damaged.
    """
    return _measurement([r for r in read_lines(path / "traces.jsonl", _EVALUATION) if r["step"] == step])


def find_checkpoint(path: Path, batch: int | None = None) -> Commit:
    """The commit of the run at `path` whose checkpoint was taken after `batch` RL batches; the last one by default.

    Raises:
        RunDirectoryError: no such run or checkpoint; the message lists those there are.
    """
    saved = live_checkpoints(read_ledger(path / "ledger.jsonl").commits)
    if not saved:
        raise RunDirectoryError(f"{path} holds no run with a checkpoint. Give the log_path of a run.")
    found = [commit for commit in saved if batch in (None, commit.batch)]
    if not found:
        batches = ", ".join(str(b) for b in sorted({commit.batch for commit in saved}))
        raise RunDirectoryError(f"{path} has no checkpoint of RL batch {batch}; there are {batches}.")
    return found[-1]


def best_checkpoint(path: Path, metric: str) -> Commit:
    """The commit with the largest `metric` among those of the run at `path` that have a checkpoint; of equals the last.

    Raises:
        RunDirectoryError: no such run or checkpoint, or the metric was measured at none of them.
    """
    find_checkpoint(path)
    saved = live_checkpoints(read_ledger(path / "ledger.jsonl").commits)
    values = {row["step"]: row.get(metric) for row in read_lines(path / "metrics.jsonl")}
    measured = [(float(value), c.step, c) for c in saved if (value := values.get(c.step)) is not None]
    if not measured:
        raise RunDirectoryError(
            f"{metric} was measured at no checkpoint of {path}, so none of them is the best by it. Choose another "
            "best_metric (metrics.jsonl has their names), or a checkpoint by --step."
        )
    return max(measured)[2]


def _measurement(records: Sequence[Mapping[str, Json]]) -> Measurement | None:
    if not records:
        return None
    ends: dict[tuple[int, int], Mapping[str, Json]] = {}
    for record in records:  # turns in order: the last one of each rollout stays
        ends[record["group"], record["sample"]] = record
    groups = groupby(sorted(ends.items(), key=lambda item: item[0]), key=lambda item: item[0][0])
    tasks = tuple(_task(place, [rollout for _, rollout in items]) for place, items in groups)
    return Measurement(records[0]["step"], records[0]["phase"], records[0]["index"], tasks)


def _task(place: int, rollouts: Sequence[Mapping[str, Json]]) -> HeldoutTask:
    columns: dict[str, list[float]] = {}
    for rollout in rollouts:
        if rollout["reward"] is not None:  # errored: not known, so in no number
            for name, value in {"reward": rollout["reward"], **rollout.get("metrics", {})}.items():
                columns.setdefault(name, []).append(value)
    answers = tuple(map(_answer, rollouts))
    values = {name: fmean(samples) for name, samples in columns.items()}
    return HeldoutTask(place, rollouts[0]["task"]["key"], answers, values)


def _answer(rollout: Mapping[str, Json]) -> Answer:
    status: ScoreStatus = "errored" if rollout["reward"] is None else rollout["score"]["status"]
    return Answer(rollout.get("text") or "", status, rollout["reward"])
