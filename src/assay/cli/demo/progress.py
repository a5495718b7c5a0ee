"""What the demo says while it trains: a few plain lines per stage, made of the runs' own metrics."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

from assay.cli.demo.outcome import BASELINES, METRICS
from assay.envs.base import BaselineMetrics
from assay.training.config import TrainingConfig
from assay.types import Json

LINES = 5
"""Lines per stage."""

Row = Mapping[str, Json]


@dataclass
class MetricsFile:
    """The `metrics.jsonl` of a run in progress, read as it is written."""

    path: Path
    rows: list[Row] = field(default_factory=list)
    """Everything read so far."""
    _read: int = 0

    def new(self) -> list[Row]:
        """The rows since the last call, whole lines only.

        A run that resumes cuts its file back: rows that are found again as they were are not new.
        """
        size = self.path.stat().st_size if self.path.exists() else 0
        if size == self._read:
            return []
        known = len(self.rows)
        try:
            found = self._further() if size > self._read else None
        except ValueError:  # cut back, and written on until it was longer than before
            found = None
        if found is None:
            before, self.rows, self._read = self.rows, [], 0
            found = self._further()
            known = next((i for i, (a, b) in enumerate(zip(before, found, strict=False)) if a != b), len(before))
        self.rows += found
        return self.rows[known:]

    def _further(self) -> list[Row]:
        with self.path.open("rb") as file:
            file.seek(self._read)
            text = file.read()
        whole = text[: text.rfind(b"\n") + 1]
        rows = [json.loads(line) for line in whole.splitlines()]
        self._read += len(whole)
        return rows


class Story:
    """Tells of the trained run, row by row."""

    def __init__(
        self,
        config: TrainingConfig,
        batches: int,
        tell: Callable[[str], None],
        baselines: Callable[[], BaselineMetrics],
    ) -> None:
        """`batches` are those of GRPO; `baselines` is called once the held-out tasks have been evaluated."""
        self._config, self._batches, self._tell, self._baselines = config, batches, tell, baselines
        self._rewards: list[float] = []
        self._constant: list[float] = []

    def begin(self, rows: Sequence[Row]) -> None:
        """Tell what comes next, after the rows of earlier sessions."""
        done = {phase: sum(row["phase"] == phase for row in rows) for phase in ("sft", "rl")}
        if done["sft"] < self._config.sft.num_steps:
            self._warm_up(done["sft"])
        elif done["rl"] < self._batches:
            self._grpo(done["rl"])

    def row(self, row: Row) -> None:
        """Tell what a row adds."""
        done, steps = row["index"] + 1, self._config.sft.num_steps
        if row["phase"] == "sft" and is_told(done, steps):
            self._tell(f"  step {done:,} of {steps:,}: loss {row['sft/loss']:.3f}")
        if row["phase"] == "rl":
            self._batch(row, done)
        if "eval/reward/mean" in row:
            self._tell(f"  On held-out positions: {measured(row)}.")
        if row["phase"] == "sft" and done == steps:
            for name, columns in self._baselines().items():
                self._tell(f"  For comparison, {BASELINES.get(name, name)}: {known(columns)}.")
            self._grpo(0)

    def _batch(self, row: Row, done: int) -> None:
        if row.get("reward/mean") is not None:
            self._rewards.append(row["reward/mean"])
        self._constant.append(row["rollout/constant_group_fraction"])
        if is_told(done, self._batches):
            earned = f"{fmean(self._rewards):.3f}" if self._rewards else "unknown"
            share = fmean(self._constant)
            self._tell(f"  batch {done:,} of {self._batches:,}: mean reward {earned}, constant groups {share:.0%}")
            self._rewards, self._constant = [], []

    def _warm_up(self, done: int) -> None:
        steps = self._config.sft.num_steps
        self._tell(
            f"\n1. Warm-up: {steps:,} supervised steps{_after(done)}. The model copies random legal moves, to "
            "learn what an answer looks like. No example says which move is good."
        )

    def _grpo(self, done: int) -> None:
        builder = self._config.active_builder
        self._tell(
            f"\n2. GRPO: {self._batches:,} batches{_after(done)}. For each of {builder.batch_size} positions the model "
            f"gives {builder.group_size} answers, a group. Answers that earned more than the mean of their group "
            "become likelier, the others less likely. A group is constant when all its answers earned the same: it "
            "teaches nothing."
        )


def _after(done: int) -> str:
    return f", of which {done:,} are done" if done else ""


def is_told(done: int, total: int) -> bool:
    """Whether a line is due after step `done` of `total`: `LINES` of them, the last at the end."""
    return done * LINES // total > (done - 1) * LINES // total


def measured(row: Row) -> str:
    """The held-out metrics of a row, in words."""
    values = {name: row.get("eval/reward/mean" if name == "reward" else f"eval/env/{name}") for name in METRICS}
    return _listed(values)


def known(columns: Mapping[str, Sequence[float]]) -> str:
    """The means of an exact baseline, in words."""
    return _listed({name: fmean(columns[name]) if columns.get(name) else None for name in METRICS})


def _listed(values: Mapping[str, float | None]) -> str:
    return ", ".join(f"{METRICS[name]} {value:.3f}" for name, value in values.items() if value is not None)
