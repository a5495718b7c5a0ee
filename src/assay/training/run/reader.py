"""A run directory read back: what the run was, what each step measured, and its held-out evaluations.

Only the committed part of the files is read, so a report can be made at any time, also during the run.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

from assay.errors import RunDirectoryError
from assay.storage.files import read_object
from assay.training.run.checkpoints import checkpoint_folder
from assay.training.run.ledger import Commit, live_checkpoints, read_ledger
from assay.training.run.rollouts import TRACES, Group, Rollout, Rollouts, Turn, open_rollouts
from assay.types import Json, ScoreStatus


@dataclass(frozen=True, slots=True)
class Answer:
    """One rollout of a held-out task: what was said last, the verdict on it, what the whole rollout earned, and its
    turns."""

    text: str
    status: ScoreStatus
    reward: float | None
    parts: Mapping[str, float] = field(default_factory=dict)
    """Named parts of the reward, before weighting."""
    turns: tuple[tuple[str, str], ...] = ()
    """Where there were several turns: what the policy was told before each (nothing further before the first), and what
    it said."""


@dataclass(frozen=True, slots=True)
class HeldoutTask:
    """A held-out task as evaluated: its place in the data set and key, the answers, and each metric's mean over them.

    `values` are empty where no answer could be scored.
    """

    place: int
    key: str
    answers: tuple[Answer, ...]
    values: Mapping[str, float]
    name: str = ""
    """The task's id."""
    prompt: str = ""
    """What the policy was told last before its first answer."""


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
    complete: bool = False
    """Whether the run came to its end; else it is in progress, or was stopped."""

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
    """The records of the run at `path`, as far as they are committed.

    Raises:
        RunDirectoryError: there is no run, or one of its files is damaged.
    """
    config = read_object(path / "config.json")
    if config is None:
        raise RunDirectoryError(f"{path} is not a run: it has no readable config.json. Give a run's log_path.")
    content = read_ledger(path / "ledger.jsonl")
    sizes = content.commits[-1].sinks if content.commits else {}
    first = last = None
    if (path / TRACES).is_file():
        rollouts = open_rollouts(path, committed=True)
        steps = evaluated_steps(rollouts)
        first = measurement(rollouts, steps[0]) if steps else None
        last = measurement(rollouts, steps[-1]) if len(steps) > 1 else None
    return RunRecords(
        path=path,
        config=config,
        code=read_object(path / "code.json") or {},
        metrics=list(read_lines(path / "metrics.jsonl", sizes.get("metrics.jsonl", 0))),
        events=list(read_lines(path / "events.jsonl", sizes.get("events.jsonl", 0))),
        first=first,
        last=last,
        complete=content.is_complete,
    )


def read_lines(path: Path, size: int | None = None) -> Iterator[dict[str, Json]]:
    """The JSON records in the first `size` bytes of a file, without half a last line; nothing where there is no file.

    Raises:
        RunDirectoryError: a line is damaged.
    """
    if not path.exists():
        return
    start = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            start += len(line)
            if (size is not None and start > size) or not line.endswith(b"\n"):
                return
            try:
                record = json.loads(line)
                if not isinstance(record, dict):
                    raise ValueError("it is not a record")
            except ValueError as error:
                raise RunDirectoryError(
                    f"{path}, line {number} is damaged ({error}), so the run cannot be reported. Restore the file."
                ) from error
            yield record


def evaluated_steps(rollouts: Rollouts) -> list[int]:
    """The steps that ended with an evaluation, in order."""
    return list(dict.fromkeys(key.step for key in rollouts.keys if key.split == "eval"))


def measurement(rollouts: Rollouts, step: int) -> Measurement:
    """The evaluation after a step.

    Raises:
        KeyError: there was no evaluation after it.
    """
    keys = [key for key in rollouts.keys if key.split == "eval" and key.step == step]
    if not keys:
        raise KeyError(step)
    groups = [rollouts.group(key) for key in sorted(keys, key=lambda key: key.group)]
    first = groups[0].rollouts[0]
    return Measurement(step, first.phase, first.index, tuple(map(_task, groups)))


def find_checkpoint(path: Path, batch: int | None = None) -> Commit:
    """The commit of the run at `path` whose checkpoint was taken after `batch` RL batches; the last one by default.

    Raises:
        RunDirectoryError: no such run or checkpoint; the message lists those there are.
    """
    saved = live_checkpoints(read_ledger(path / "ledger.jsonl").commits)
    if not saved:
        raise RunDirectoryError(f"{path} is not a run with a checkpoint. Give the log_path of a run.")
    if batch is None:
        return saved[-1]
    there = [commit for commit in saved if checkpoint_folder(path, commit).is_dir()]
    found = [commit for commit in there if commit.batch == batch]
    if not found:
        batches = ", ".join(str(b) for b in sorted({commit.batch for commit in there}))
        raise RunDirectoryError(f"{path} has no checkpoint of RL batch {batch}; it has {batches or 'none'}.")
    return found[-1]


def best_checkpoint(path: Path, metric: str) -> Commit:
    """The commit with the largest `metric` among those of the run at `path` that have a checkpoint; of equals the last.

    Raises:
        RunDirectoryError: no such run or checkpoint, or the metric was measured at none of them.
    """
    find_checkpoint(path)
    saved = live_checkpoints(read_ledger(path / "ledger.jsonl").commits)
    values = {row.get("step"): row.get(metric) for row in read_lines(path / "metrics.jsonl")}
    there = [commit for commit in saved if checkpoint_folder(path, commit).is_dir()]
    measured = [(float(value), c.step, c) for c in there if (value := values.get(c.step)) is not None]
    if not measured:
        raise RunDirectoryError(
            f"{metric} was not measured at any checkpoint of {path}, so no checkpoint is the best by it. Choose "
            "another best_metric (metrics.jsonl has their names), or a checkpoint by --batch."
        )
    return max(measured)[2]


def _task(group: Group) -> HeldoutTask:
    columns: dict[str, list[float]] = {}
    for rollout in group.rollouts:
        if rollout.reward is not None:  # errored: unknown, so excluded from every figure
            for name, value in {"reward": rollout.reward, **rollout.turns[-1].metrics}.items():
                columns.setdefault(name, []).append(value)
    first = group.rollouts[0]
    told = first.turns[0].messages
    return HeldoutTask(
        place=group.key.group,
        key=first.key,
        answers=tuple(map(_answer, group.rollouts)),
        values={name: fmean(samples) for name, samples in columns.items()},
        name=first.task,
        prompt=told[-1].content if told else "",
    )


def _answer(rollout: Rollout) -> Answer:
    last = rollout.turns[-1]
    status: ScoreStatus = "errored" if rollout.reward is None else last.verdict.status
    turns = tuple((_told(turn), turn.text or "") for turn in rollout.turns) if len(rollout.turns) > 1 else ()
    return Answer(last.text or "", status, rollout.reward, rollout.parts, turns)


def _told(turn: Turn) -> str:
    """What the env said before a turn, besides what the rollout began with."""
    if turn.observation is not None or not turn.turn:
        return turn.observation or ""
    return turn.messages[-1].content if turn.messages else ""
