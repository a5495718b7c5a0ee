"""The run directory: created once, locked while in use, and resumed exactly.

    config.json  code.json  ledger.jsonl  checkpoints.jsonl  checkpoints/  run.lock
    metrics.jsonl  traces.jsonl  tokens.jsonl  events.jsonl  tensorboard/   (sinks: files that only ever grow)

A step is committed in this order: sinks flushed, checkpoint renamed into place if one is due, one ledger line, which
also names the earlier checkpoints that are no longer kept; only then are these removed. To resume, the ledger is cut
after its last line that has a checkpoint, and then everything beyond that line is removed:
`assay.training.run.resume` does this. A refused directory is not changed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Protocol

from assay.storage.files import Writing, append, read_object, remove, replace_file
from assay.training.run.checkpoints import (
    REFUGE,
    ROLLED_BACK_AT,
    STATE,
    Checkpoint,
    SaveState,
    checkpoint_folder,
    checkpoint_name,
    is_refuge,
    open_checkpoint,
    write_checkpoint,
)
from assay.training.run.ledger import Commit, Ledger, Phase, live_checkpoints, metrics_digest
from assay.training.run.lock import take_lock
from assay.training.run.reader import read_lines
from assay.training.run.resume import LEDGER, SINKS, ResumePlan
from assay.training.run.retention import Keep, Saved, refuges, superfluous
from assay.types import Json


class Sink(Protocol):
    """Something that a run appends its records to."""

    @property
    def files(self) -> Sequence[Path]:
        """The files it appends to (absolute, inside `RunDirectory.path`); they exist from its construction on."""
        ...

    def flush(self, *, durable: bool) -> None:
        """Hand everything written to the operating system; `durable` waits until it is on the disk."""
        ...

    def close(self) -> None:
        """Flush and release the files; safe to call twice."""
        ...


def describe(commit: Commit, state: Mapping[str, Json], value: float | None) -> Saved:
    """What decides whether the checkpoint of a commit is kept, and gone back to."""
    back, refuge = int(state.get(ROLLED_BACK_AT, 0)), int(state.get(REFUGE, 0))
    return Saved(str(commit.checkpoint), commit.batch, is_refuge(state), value, back, refuge)


class RunDirectory:
    """A run's open, locked directory; made by `RunDirectory.open`. Use it as a context manager, or call `close`."""

    def __init__(self, plan: ResumePlan, lock: int, ledger: Ledger, keep: Keep) -> None:
        self.path = plan.path
        self.config = plan.config
        """The resolved config, as plain JSON data."""
        self.resumed = plan.checkpoint
        """The verified checkpoint to go on from; None where the run starts, and where it is complete."""
        self.changes = plan.changes
        """Settings that differ from those under which the steps before were done."""
        self.run_id = plan.run_id
        """Short hash of the settings that decide what the run computes; equal runs have equal ids."""
        self._lock = lock
        self._ledger = ledger
        self._keep = keep
        self._sinks: list[Sink] = []
        self._checkpoint_bytes = plan.checkpoint.size if plan.checkpoint is not None else None
        self._saved = self._describe_saved()
        self.checkpoint_s: float | None = None
        """Seconds that the checkpoint of the last commit took; None where it has none."""

    @classmethod
    def open(cls, plan: ResumePlan, keep: Keep | None = None) -> RunDirectory:
        """Create, or bring back to its last checkpoint, the directory of a run, as planned by `plan_resume`.

        If another process has changed the directory since it was planned, a new plan is made. A complete run is left
        alone: see `is_complete`. Checkpoints that `keep` does not want are removed when a new one is committed.

        Raises:
            RunDirectoryError: the directory is in use or not writable, or has become one that is refused.
            CheckpointError: the checkpoint to resume from is no longer whole. Nothing was changed.
        """
        with Writing(plan.path, "the run directory"):
            plan.path.mkdir(parents=True, exist_ok=True)
            lock = take_lock(plan.path)
        try:
            plan = plan.renewed()
            plan.apply()
            return cls(plan, lock, Ledger(plan.path / LEDGER, plan.commits, plan.ledger_size), keep or Keep())
        except BaseException:
            os.close(lock)
            raise

    @property
    def is_complete(self) -> bool:
        """Whether the run came to its end; nothing more can be committed."""
        return bool(self.commits) and self.commits[-1].done

    @property
    def commits(self) -> Sequence[Commit]:
        """The committed steps in order; the first is the start (step -1)."""
        return tuple(self._ledger.commits)

    @property
    def next_step(self) -> int:
        """Global index of the step to do next; -1 where even the start is not committed."""
        return self._ledger.next_step

    @property
    def checkpoints(self) -> Sequence[Commit]:
        """The commits whose checkpoint is kept, oldest first."""
        gone = self._gone()
        return [commit for commit in live_checkpoints(self.commits) if commit.checkpoint not in gone]

    def refuges(self, limit: int, rolled_back_at: int, went_to: int, *, own_step: bool) -> list[Commit]:
        """The checkpoints that a rollback may go back to, the best choice first: see `retention.refuges`."""
        commits = {str(commit.checkpoint): commit for commit in self.checkpoints}
        states = {n: read_object(checkpoint_folder(self.path, c) / STATE) or {} for n, c in commits.items()}
        saved = [describe(commit, states[name], None) for name, commit in commits.items()]
        now = Saved("", self.commits[-1].batch, False, None, rolled_back_at, went_to)
        return [commits[found.name] for found in refuges(saved, now, limit, own_step=own_step)]

    def load_checkpoint(self, commit: Commit) -> Checkpoint:
        """The verified checkpoint of one of `checkpoints`.

        Raises:
            CheckpointError: it is missing or not whole.
        """
        return open_checkpoint(checkpoint_folder(self.path, commit))

    def attach(self, *sinks: Sink) -> None:
        """Let every commit flush these sinks and record their sizes. Attach them before the first commit."""
        for sink in sinks:
            for file in sink.files:
                name = file.relative_to(self.path)
                if name.parts[0] not in SINKS:
                    raise ValueError(f"sink {name} is not one of {SINKS}: a resume would not cut it back")
            self._sinks.append(sink)

    async def commit(
        self,
        phase: Phase,
        index: int,
        metrics: Mapping[str, float] | None = None,
        *,
        save: SaveState | None = None,
        state: Mapping[str, Json] | None = None,
        durable: bool = True,
    ) -> Commit:
        """Commit the step that was just done, with a checkpoint where `save` (`Backend.save_state`) is given.

        The first commit is `("start", 0)` and needs a checkpoint. `state` is what the loop needs beside the policy to
        go on. With `durable=False` a power cut can lose the step (a kill cannot); a checkpoint is always durable.

        Raises:
            RunDirectoryError: the disk is full or unwritable; the step is not committed, earlier ones are intact.
            ValueError: called out of order, or with one of `save` and `state` but not the other.
        """
        step = self.next_step
        if self.is_complete or (phase == "start") != (step == -1) or phase == "end":
            raise ValueError(f"cannot commit phase {phase!r} as step {step}; complete: {self.is_complete}")
        if (save is None) != (state is None) or (phase == "start" and save is None):
            raise ValueError("a checkpoint needs both save and state, and the start needs a checkpoint")
        sizes = self._flush(durable or save is not None)
        name, self.checkpoint_s = None, None
        if save is not None and state is not None:
            name = checkpoint_name(phase, index)
            target = self.path / "checkpoints" / name
            if any(commit.checkpoint == name for commit in self.commits):
                raise ValueError(f"checkpoint {name} exists already: {phase} step {index} was committed before")
            began = time.monotonic()
            self._checkpoint_bytes = await write_checkpoint(
                target, step, phase, index, save, state, needed=self._checkpoint_bytes
            )
            self.checkpoint_s = time.monotonic() - began
        digest = metrics_digest(step, phase, index, metrics or {})
        commit = Commit(step, phase, index, name, sizes, digest)
        if name is not None:
            value = (metrics or {}).get(self._keep.metric)
            self._saved.append(describe(commit, state or {}, value))
            commit = replace(commit, removed=(*self._gone(), *superfluous(self._saved, self._keep)))
        self._ledger.append(commit, durable=durable or save is not None)
        if commit.removed:
            self._remove(commit.removed)
        elif name is not None:
            self._append_index(commit)
        return commit

    def finish(self) -> None:
        """Mark the run complete, so that the same command does nothing more.

        Raises:
            RunDirectoryError: the disk is full or unwritable; the run is not marked.
        """
        if self.is_complete or self.next_step == -1:
            raise ValueError(f"cannot finish at step {self.next_step}; complete: {self.is_complete}")
        step = self.next_step
        digest = metrics_digest(step, "end", 0, {})
        self._ledger.append(Commit(step, "end", 0, None, self._flush(True), digest, done=True), durable=True)

    def write_file(self, name: str, content: str | bytes) -> Path:
        """Write a file that is made as a whole (a report) atomically; returns its path.

        Raises:
            RunDirectoryError: the disk is full or unwritable.
        """
        replace_file(self.path / name, content.encode() if isinstance(content, str) else content)
        return self.path / name

    def close(self) -> None:
        """Release the files and the lock; safe to call twice. The code that opened sinks closes them."""
        self._ledger.close()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def __enter__(self) -> RunDirectory:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _flush(self, durable: bool) -> dict[str, int]:
        for sink in self._sinks:
            sink.flush(durable=durable)
        files = [file for sink in self._sinks for file in sink.files]
        return {file.relative_to(self.path).as_posix(): file.stat().st_size for file in files}

    def _describe_saved(self) -> list[Saved]:
        """What decides which checkpoints are kept; None keeps all."""
        if self._keep.everything:
            return []
        metrics = {row["step"]: row for row in read_lines(self.path / "metrics.jsonl")}
        return [
            describe(
                commit,
                read_object(checkpoint_folder(self.path, commit) / STATE) or {},
                metrics.get(commit.step, {}).get(self._keep.metric),
            )
            for commit in self.checkpoints
        ]

    def _gone(self) -> list[str]:
        """Checkpoints that the ledger still has and the disk has not.

        A run that went back to an earlier step does not get back what it had removed by then. Where nothing is ever
        removed, a missing folder is damage, and whoever reads the checkpoint says so.
        """
        if self._keep.everything:
            return []
        saved = live_checkpoints(self.commits)
        return [str(commit.checkpoint) for commit in saved if not checkpoint_folder(self.path, commit).is_dir()]

    def _remove(self, names: Sequence[str]) -> None:
        """Remove checkpoints; the ledger says already that they are gone."""
        index = b"".join(commit.encode_checkpoint() for commit in self.checkpoints)
        replace_file(self.path / "checkpoints.jsonl", index)
        for name in names:
            folder = self.path / "checkpoints" / name
            with Writing(folder, f"without the checkpoint {name}, which is no longer kept,"):
                remove(folder)
        self._saved = [saved for saved in self._saved if saved.name not in names]

    def _append_index(self, commit: Commit) -> None:
        path = self.path / "checkpoints.jsonl"
        line = commit.encode_checkpoint()
        with Writing(path, path.name, len(line)):
            fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                append(fd, line)
            finally:
                os.close(fd)
