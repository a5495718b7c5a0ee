"""Where a run's records go: JSON lines, TensorBoard, Weights & Biases, the log.

Files that belong to the run's state grow by whole records, written at once, so that their size is always the end of a
record and a resume can cut them back. W&B keeps its own files and is told every step once.
"""

from __future__ import annotations

import importlib
import logging
import math
import os
import re
import secrets
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

from assay.errors import ConfigError, MissingDependencyError, pip_install
from assay.storage.files import Writing, append, encode_json, read_object, replace_file
from assay.training.metrics.tables import Table, markdown
from assay.training.run.directory import Sink
from assay.training.run.ledger import Phase
from assay.types import Json

logger = logging.getLogger(__name__)

Histograms = Mapping[str, Sequence[float]]
"""Name -> values."""


class MetricSink(Sink, Protocol):
    """A sink of metrics. `metrics` are finite and sorted by name."""

    def log(self, step: int, phase: Phase, index: int, metrics: Mapping[str, float], histograms: Histograms) -> None:
        """Record the metrics of one step; more than one call per step is fine."""
        ...

    def table(self, step: int, name: str, table: Table) -> None:
        """Record a table of a step that is being done, before its metrics."""
        ...


class _AppendFile:
    """A file that grows by whole chunks."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with Writing(path, path.name):
            path.parent.mkdir(exist_ok=True)
            self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    @property
    def files(self) -> Sequence[Path]:
        """The one file."""
        return (self.path,)

    def write(self, data: bytes) -> None:
        """Append all of `data`, or nothing of it.

        Raises:
            RunDirectoryError: the disk is full or unwritable.
        """
        with Writing(self.path, self.path.name, len(data)):
            append(self._fd, data)

    @property
    def size(self) -> int:
        """Present size in bytes."""
        return os.fstat(self._fd).st_size

    def flush(self, *, durable: bool) -> None:
        """Wait until everything is on the disk, where `durable`."""
        if durable:
            with Writing(self.path, self.path.name):
                os.fsync(self._fd)

    def close(self) -> None:
        """Release the file; safe to call twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class JsonlSink(_AppendFile):
    """A file of JSON records, one per line."""

    def write_records(self, records: Sequence[Mapping[str, Json]]) -> None:
        """Append the records with one write, all or none.

        Raises:
            RunDirectoryError: the disk is full or unwritable.
        """
        if records:
            self.write(b"".join(encode_json(record) + b"\n" for record in records))


def is_per_tag(metric: str) -> bool:
    """Whether a metric is that of a single tag, in training (`tag/...`) or in evaluation (`eval/tag/...`)."""
    return metric.removeprefix("eval/").startswith("tag/")


def has_tensorboard() -> bool:
    """Whether the writer of TensorBoard files is installed."""
    return find_spec("tensorboardX") is not None


def writes_tensorboard(enabled: bool | None) -> bool:
    """Whether a run writes TensorBoard files: as set, or else if the writer is installed."""
    return has_tensorboard() if enabled is None else enabled


class TensorBoardSink(_AppendFile):
    """One TensorBoard event file, which a resumed run continues; x is the global step.

    tensorboardX's own writer hands records to a thread, so its file may end anywhere when a step is committed. This
    one takes its messages and writes the framing (length, CRC, data, CRC) itself, one event per call.
    """

    def __init__(
        self,
        folder: Path,
        *,
        per_tag: bool = True,
        tags: Mapping[str, str] | None = None,
        charts: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        """`per_tag=False` leaves out the metrics of single tags (`tag/...`, `eval/tag/...`). `tags` are further names
        under which metrics and histograms are shown. `charts` are names of charts of several scalars each, by tag.

        Raises:
            MissingDependencyError: tensorboardX is not installed.
        """
        if not has_tensorboard():
            raise MissingDependencyError(
                "tensorboard_enabled=true needs tensorboardX, which is not installed. Run "
                f"{pip_install('tensorboard')}, or set tensorboard_enabled=false."
            )
        super().__init__(folder / "events.out.tfevents.0000000000.assay")
        self._per_tag = per_tag
        self._tags = dict(tags or {})
        self._proto: Any = importlib.import_module("tensorboardX.proto.event_pb2")
        self._summary: Any = importlib.import_module("tensorboardX.summary")
        self._crc: Any = importlib.import_module("tensorboardX.record_writer").masked_crc32c
        if self.size == 0:
            self._write_event(file_version="brain.Event:2")
            if charts:
                self._write_event(summary=self._summary.custom_scalars(_layout(charts)))

    def log(self, step: int, phase: Phase, index: int, metrics: Mapping[str, float], histograms: Histograms) -> None:
        """Append one event with all scalars and histograms; empty histograms are left out."""
        summary = self._proto.Event().summary
        for name, value in metrics.items():
            if self._per_tag or not is_per_tag(name):
                for tag in self._shown_as(name):
                    summary.value.add(tag=tag, simple_value=value)
        for name, values in histograms.items():
            finite = [value for value in values if math.isfinite(value)]
            if finite:
                for tag in self._shown_as(name):
                    summary.MergeFrom(self._summary.histogram(tag, finite, bins=30))
        if summary.value:
            self._write_event(step=step, summary=summary)

    def table(self, step: int, name: str, table: Table) -> None:
        """Append one event with the table as text, which TensorBoard shows as Markdown."""
        self._write_event(step=step, summary=self._summary.text(name, markdown(table)))

    def _shown_as(self, name: str) -> tuple[str, ...]:
        return (name, self._tags[name]) if name in self._tags else (name,)

    def _write_event(self, **fields: Any) -> None:
        data = self._proto.Event(wall_time=time.time(), **fields).SerializeToString()
        header = struct.pack("<Q", len(data))
        frame = (header, struct.pack("<I", self._crc(header)), data, struct.pack("<I", self._crc(data)))
        self.write(b"".join(frame))


def _layout(charts: Mapping[str, Sequence[str]]) -> dict[str, dict[str, Any]]:
    """Charts by what their names begin with. TensorBoard takes tags for regular expressions of a tag's beginning."""
    found: dict[str, dict[str, Any]] = {}
    for name, tags in charts.items():
        exact = [f"{re.escape(tag)}$" for tag in tags]
        found.setdefault(name.partition("/")[0], {})[name] = ["Multiline", exact]
    return found


class WandbSink:
    """A Weights & Biases run, which a resumed run continues; W&B's step counts the finished steps.

    The run's W&B id and its last logged step are kept in `wandb.json`. Steps that are repeated after a resume are not
    logged again, so that W&B shows each step once.
    """

    def __init__(self, folder: Path, *, project: str, name: str | None, config: Mapping[str, Json]) -> None:
        """`folder` is the run directory; W&B keeps its files in `wandb/` inside it.

        Raises:
            MissingDependencyError: wandb is not installed.
            ConfigError: W&B refused the run (not logged in, say).
        """
        try:
            wandb: Any = importlib.import_module("wandb")
        except ImportError as error:
            raise MissingDependencyError(
                f"wandb_project={project} needs Weights & Biases, which is not installed. "
                f"Run {pip_install('wandb')}, or set wandb_project=null."
            ) from error
        self._table: Any = wandb.Table
        self._state_path = folder / "wandb.json"
        known = read_object(self._state_path) or {}
        self.id: str = known.get("id") or secrets.token_hex(4)
        """The W&B run id; the same for the whole life of the run."""
        self._told: int = known.get("told", 0)
        self._save_state()
        settings = wandb.Settings(console="off", disable_git=True, disable_code=True, silent=True)
        try:
            self._run = wandb.init(
                project=project,
                name=name,
                id=self.id,
                resume="allow",
                dir=folder,
                config=dict(config),
                settings=settings,
            )
        except wandb.Error as error:
            raise ConfigError(
                f"Weights & Biases refused the run: {error}. Run `wandb login`, set WANDB_MODE=offline to keep its "
                "files in the run directory, or set wandb_project=null."
            ) from error
        self._first = self._told if self._run.offline else self._run.starting_step

    @property
    def files(self) -> Sequence[Path]:
        """None: a resume does not cut W&B's files back."""
        return ()

    def log(self, step: int, phase: Phase, index: int, metrics: Mapping[str, float], histograms: Histograms) -> None:
        """Log to W&B the metrics of a step that it does not have yet; histograms go to TensorBoard only."""
        finished = step + 1
        if finished >= self._first:
            self._run.log({f"{phase}/index": index, **metrics}, step=finished)
            self._told = max(self._told, finished + 1)

    def table(self, step: int, name: str, table: Table) -> None:
        """Add a table to a step that W&B does not have yet."""
        if step + 1 >= self._first:
            made = self._table(columns=list(table.columns), data=[list(row) for row in table.rows])
            self._run.log({name: made}, step=step + 1)

    def flush(self, *, durable: bool) -> None:
        """Save the last step logged to W&B."""
        self._save_state(durable=durable)

    def close(self) -> None:
        """Let W&B finish its uploads; safe to call twice."""
        self._run.finish()

    def _save_state(self, *, durable: bool = True) -> None:
        state = {"version": 1, "id": self.id, "told": self._told}
        replace_file(self._state_path, encode_json(state), durable=durable)


def _figure(value: float) -> str:
    """Four digits that matter; a speed of thousands without an exponent."""
    return f"{value:,.0f}" if 1e4 <= abs(value) < 1e9 else f"{value:.4g}"


class ConsoleSink:
    """One log line per call, with the metrics that matter in the terminal."""

    def __init__(self, names: Mapping[str, str], totals: Mapping[str, int]) -> None:
        """`names` are the metrics to show, in order, where present, and what they are called there; a name that ends in
        a slash stands for all metrics below it, by their own names. `totals` are the numbers of steps of each phase.
        """
        self._names = dict(names)
        self._totals = dict(totals)

    @property
    def files(self) -> Sequence[Path]:
        """None."""
        return ()

    def log(self, step: int, phase: Phase, index: int, metrics: Mapping[str, float], histograms: Histograms) -> None:
        """Log the line; nothing where none of the names is among the metrics."""
        shown = [f"{label} {_figure(value)}" for name in self._names for label, value in self._values(name, metrics)]
        if shown:
            total = f"/{self._totals[phase]}" if phase in self._totals else ""
            logger.info("%s %d%s  %s", phase, index + 1, total, "  ".join(shown))

    def _values(self, name: str, metrics: Mapping[str, float]) -> Iterator[tuple[str, float]]:
        if not name.endswith("/"):
            yield from ((self._names[name], metrics[name]) for _ in range(name in metrics))
            return
        below = ((found.removeprefix(name), value) for found, value in metrics.items() if found.startswith(name))
        yield from ((f"{self._names[name]}{rest}", value) for rest, value in below)

    def table(self, step: int, name: str, table: Table) -> None:
        """Nothing: `assay show` prints answers."""

    def flush(self, *, durable: bool) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """Nothing to do."""
