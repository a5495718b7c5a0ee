"""Records what happened in a step in every sink of the run.

`metrics.jsonl` has one flat record per call: version, step, phase, index, then the metrics sorted by name. Names that
begin with `perf/` (times, rates, memory) or `reward_engine/` (calls, tokens, money: less where replies are cached)
depend on the machine; all others are equal in a resumed run and in an uninterrupted one. A metric that is not finite is
null there and raises an event.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Literal

from assay.training.metrics.sinks import Histograms, JsonlSink, MetricSink
from assay.training.metrics.tables import Table
from assay.training.run.directory import RunDirectory
from assay.training.run.ledger import Phase, is_machine_metric
from assay.types import Json

logger = logging.getLogger(__name__)

VERSION = 1
"""Format of the records of `metrics.jsonl` and `events.jsonl`."""
SETTINGS_CHANGED = "settings_changed"
"""Kind of the event that a resume with other settings raises."""
RATE_RAISED = "learning_rate"
"""Kind of the event when calm steps give back a part of the learning rate that rollbacks took."""
Level = Literal["info", "warning", "error"]
_HEADER = ("version", "step", "phase", "index")
_LOG_LEVELS: Mapping[Level, int] = {"info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def metrics_record(step: int, phase: Phase, index: int, metrics: Mapping[str, float]) -> dict[str, Json]:
    """The line of `metrics.jsonl`; metrics that are not finite become None.

    Raises:
        ValueError: a metric has the name of a header field.
    """
    clash = [name for name in _HEADER if name in metrics]
    if clash:
        raise ValueError(f"metric names {clash} are taken by the record's header; rename them")
    values = {name: float(metrics[name]) for name in sorted(metrics)}
    finite = {name: value if math.isfinite(value) else None for name, value in values.items()}
    return {"version": VERSION, "step": step, "phase": phase, "index": index, **finite}


def comparable(record: Mapping[str, Json]) -> dict[str, Json]:
    """A record of `metrics.jsonl` without what depends on the machine: equal where two runs did the same."""
    return {name: value for name, value in record.items() if not is_machine_metric(name)}


class MetricsLogger:
    """Fans out to the run's JSON lines and to further sinks; every commit of the run flushes them all."""

    def __init__(self, run: RunDirectory, sinks: Sequence[MetricSink] = ()) -> None:
        """Open the run's `metrics.jsonl`, `traces.jsonl`, `tokens.jsonl` and `events.jsonl`; attach them and `sinks`.

        Raises:
            RunDirectoryError: the files cannot be written to.
        """
        self._metrics = JsonlSink(run.path / "metrics.jsonl")
        self._traces = JsonlSink(run.path / "traces.jsonl")
        self._tokens = JsonlSink(run.path / "tokens.jsonl")
        self._events = JsonlSink(run.path / "events.jsonl")
        self._sinks = tuple(sinks)
        self._files = (self._metrics, self._traces, self._tokens, self._events)
        run.attach(*self._files, *sinks)

    def log(
        self,
        step: int,
        phase: Phase,
        index: int,
        metrics: Mapping[str, float],
        histograms: Histograms | None = None,
    ) -> None:
        """Record the metrics of a step (and value lists, for TensorBoard). More than one call per step is fine.

        Raises:
            RunDirectoryError: the disk is full or unwritable.
            ValueError: a metric is called `version`, `step`, `phase` or `index`.
        """
        record = metrics_record(step, phase, index, metrics)
        self._metrics.write_records([record])
        lost = [name for name, value in record.items() if value is None]
        if lost:
            values = ", ".join(f"{name} is {float(metrics[name])}" for name in lost)
            self.event(step, "non_finite_metric", "warning", f"{values}: recorded as null and left out of charts.")
        finite = {name: value for name, value in record.items() if name not in _HEADER and value is not None}
        for sink in self._sinks:
            sink.log(step, phase, index, finite, histograms or {})

    def event(self, step: int, kind: str, level: Level, message: str) -> None:
        """Record an alarm, and log it.

        Raises:
            RunDirectoryError: the disk is full or unwritable.
        """
        logger.log(_LOG_LEVELS[level], "step %d: %s", step, message)
        record = {"version": VERSION, "step": step, "kind": kind, "level": level, "message": message}
        self._events.write_records([record])

    def traces(self, records: Sequence[Mapping[str, Json]]) -> None:
        """Record rollouts: the records of `trace_records`.

        Raises:
            RunDirectoryError: the disk is full or unwritable.
        """
        self._traces.write_records(records)

    def table(self, step: int, name: str, table: Table) -> None:
        """Record a table where sinks hold tables (TensorBoard, W&B); the files have all rollouts already.

        Raises:
            RunDirectoryError: the disk is full or unwritable.
        """
        for sink in self._sinks:
            sink.table(step, name, table)

    def tokens(self, records: Sequence[Mapping[str, Json]]) -> None:
        """Record turns token by token: the records of `token_records`.

        Raises:
            RunDirectoryError: the disk is full or unwritable.
        """
        self._tokens.write_records(records)

    def close(self) -> None:
        """Close every sink; safe to call twice."""
        for sink in (*self._files, *self._sinks):
            sink.close()

    def __enter__(self) -> MetricsLogger:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
