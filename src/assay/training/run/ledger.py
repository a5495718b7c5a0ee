"""The ledger: one JSON line per committed step, the single source of truth about how far a run has come.

A line says which step was done, the size that every sink then had, and the checkpoint that holds the state after it,
if one was written. Whatever is on disk beyond the last line does not count. A run's lines are `start` (step -1, the
state before any step), then its `sft` and `rl` steps, then `end`.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from assay.errors import RunDirectoryError
from assay.storage.files import Writing, append, encode_json
from assay.types import Json

VERSION = 1
"""Format of the ledger; a reader refuses a larger one."""
Phase = Literal["start", "sft", "rl", "end"]
MACHINE_METRICS = ("perf/", "time/", "progress/", "reward_engine/")
"""How the names of metrics begin that depend on the machine, on what is cached, or on how long the run is to be."""


@dataclass(frozen=True, slots=True)
class Commit:
    """One line of the ledger. `step` is global (0-based), `index` counts within the phase."""

    step: int
    phase: Phase
    index: int
    checkpoint: str | None = None
    """Name of the checkpoint that holds the state after this step."""
    sinks: Mapping[str, int] = field(default_factory=dict)
    """Size in bytes of every sink after this step, by its path relative to the run directory."""
    digest: str = ""
    """SHA-256 of the step's metrics without the machine-dependent ones; equal in a resumed and an uninterrupted run."""
    done: bool = False
    """Whether the run is complete."""
    removed: Sequence[str] = ()
    """Names of earlier checkpoints that the run no longer keeps from this step on."""
    version: int = VERSION

    @property
    def batch(self) -> int:
        """The RL batch that comes next: how many have been done."""
        return self.index + 1 if self.phase == "rl" else 0

    def encode(self) -> bytes:
        """The line, with its newline."""
        names = ("version", "step", "phase", "index", "checkpoint", "sinks", "digest")
        record: dict[str, Json] = {name: getattr(self, name) for name in names}
        if self.done:
            record["done"] = True
        if self.removed:
            record["removed"] = list(self.removed)
        return encode_json(record) + b"\n"

    def encode_checkpoint(self) -> bytes:
        """The line of `checkpoints.jsonl` about its checkpoint, with its newline."""
        record = {
            "version": 1,
            "name": self.checkpoint,
            "step": self.step,
            "phase": self.phase,
            "index": self.index,
            "batch": self.batch,
            "path": f"checkpoints/{self.checkpoint}",
        }
        return encode_json(record) + b"\n"


@dataclass(frozen=True, slots=True)
class LedgerContent:
    """What a ledger file holds: its commits, where each line ends, and the bytes of a torn last line."""

    commits: tuple[Commit, ...] = ()
    ends: tuple[int, ...] = ()
    torn: int = 0

    @property
    def is_complete(self) -> bool:
        """Whether the run came to its end."""
        return bool(self.commits) and self.commits[-1].done


def live_checkpoints(commits: Sequence[Commit]) -> list[Commit]:
    """The commits whose checkpoint the run still keeps after the last of them, oldest first."""
    removed = {name for commit in commits for name in commit.removed}
    return [commit for commit in commits if commit.checkpoint is not None and commit.checkpoint not in removed]


def place_in_words(step: int, phase: str, index: int) -> str:
    """A step as its reader knows it: `before training` (step -1 of the files), `step 12 (rl 7)`."""
    return "before training" if phase == "start" else f"step {step} ({phase} {index + 1})"


def is_machine_metric(name: str) -> bool:
    """Whether a metric depends on the machine or on what is cached, so that it may differ in a resumed run."""
    return name.startswith(MACHINE_METRICS)


def metrics_digest(step: int, phase: Phase, index: int, metrics: Mapping[str, float]) -> str:
    """SHA-256 (hex) of a step's metrics without the machine-dependent ones."""
    same = {name: value for name, value in metrics.items() if not is_machine_metric(name)}
    content = {"step": step, "phase": phase, "index": index, "metrics": same}
    return hashlib.sha256(encode_json(content, sort_keys=True)).hexdigest()


def parse_ledger(data: bytes, path: Path) -> LedgerContent:
    """Read a ledger, forgiving what a crash can leave behind: anything unreadable after the last checkpoint.

    Raises:
        RunDirectoryError: an unreadable line is followed by a checkpoint, or steps are missing or out of order.
    """
    commits: list[Commit] = []
    ends: list[int] = []
    position = 0
    for line in data.splitlines(keepends=True):
        commit = _parse_line(line, path)
        if commit is None:
            break
        if commit.step != len(commits) - 1:
            raise _damaged(path, f"line {len(commits) + 1} is step {commit.step}, expected {len(commits) - 1}")
        position += len(line)
        commits.append(commit)
        ends.append(position)
    if not commits and b"\n" in data:
        raise _damaged(path, "its first line is unreadable")
    for line in data[position:].splitlines(keepends=True):
        later = _parse_line(line, path)
        if later is not None and (later.checkpoint is not None or later.done):
            raise _damaged(path, f"line {len(commits) + 1} is unreadable, but a later line has a checkpoint")
    return LedgerContent(tuple(commits), tuple(ends), torn=len(data) - position)


def _parse_line(line: bytes, path: Path) -> Commit | None:
    """The commit of one line, or None where the line is torn or not a commit."""
    if not line.endswith(b"\n"):
        return None
    try:
        record = json.loads(line)
    except ValueError:
        return None
    if not isinstance(record, dict) or not isinstance(record.get("version"), int):
        return None
    if record["version"] > VERSION:
        raise RunDirectoryError(
            f"{path} has format version {record['version']}, newer than this Assay reads ({VERSION}). "
            "Resume with the Assay that wrote it (see code.json), or set log_path to a new directory."
        )
    if not isinstance(record.get("step"), int) or not isinstance(record.get("checkpoint"), str | None):
        return None
    sinks = record.get("sinks")
    if not isinstance(sinks, dict) or not all(isinstance(size, int) for size in sinks.values()):
        return None
    try:
        return Commit(**{**record, "removed": tuple(record.get("removed", ()))})
    except TypeError:
        return None


def _damaged(path: Path, finding: str) -> RunDirectoryError:
    return RunDirectoryError(
        f"{path} is damaged: {finding}. So it is unknown what the run had committed, and nothing was changed. "
        "Restore the file from a copy, or set log_path to a new directory (its checkpoints can be started from with "
        "load_checkpoint_path)."
    )


def read_ledger(path: Path) -> LedgerContent:
    """The content of the ledger file; a missing one is empty.

    Raises:
        RunDirectoryError: as `parse_ledger`.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return LedgerContent()
    except OSError as error:
        raise RunDirectoryError(
            f"{path} cannot be read ({error.strerror}), so it is unknown what the run had committed. Restore the file."
        ) from error
    return parse_ledger(data, path)


class Ledger:
    """The open ledger of a run, positioned after its last commit."""

    def __init__(self, path: Path, commits: Sequence[Commit], size: int) -> None:
        self.path = path
        self.commits = list(commits)
        with Writing(path, "the ledger"):
            self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            os.ftruncate(self._fd, size)
            os.fsync(self._fd)

    @property
    def next_step(self) -> int:
        """Global index of the step that comes next; -1 where even the start is not committed."""
        return len(self.commits) - 1

    def append(self, commit: Commit, *, durable: bool) -> None:
        """Commit a step: one line, one write; `durable` waits until it is on the disk.

        Raises:
            RunDirectoryError: the disk is full or unwritable; the step is not committed.
        """
        line = commit.encode()
        with Writing(self.path, f"step {commit.step} to the ledger", len(line)):
            append(self._fd, line)
            if durable:
                os.fsync(self._fd)
        self.commits.append(commit)

    def close(self) -> None:
        """Release the file; safe to call twice."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
