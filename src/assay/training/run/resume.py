"""How a run starts or goes on in a directory: a plan, which only reads, and its execution, which removes.

    plan = plan_resume(path, config)      ResumePlan | Refusal; everything is checked and nothing is changed
    plan.apply()                          with the directory locked: what the plan does not keep is removed

The ledger is cut first: it alone decides what is committed, so after a kill at any later moment the next plan removes
the same things.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from assay.config.record import changed_files
from assay.errors import RunDirectoryError
from assay.storage.files import (
    Writing,
    check_writable,
    encode_json,
    human_bytes,
    read_object,
    remove,
    replace_file,
    truncate_file,
)
from assay.training.run.changes import Change, changed_record, changes_after, plain_settings
from assay.training.run.checkpoints import Checkpoint, checkpoint_folder, open_checkpoint
from assay.training.run.growth import MAX_BATCHES, Length, is_free, length_change, schedule
from assay.training.run.ledger import Commit, LedgerContent, live_checkpoints, read_ledger
from assay.training.run.provenance import code_changes, describe_code
from assay.training.run.starting_point import as_ranges, available_batches, cure_of, position_to_go_on_from
from assay.types import Json

logger = logging.getLogger(__name__)

LEDGER, CONFIG = "ledger.jsonl", "config.json"
SINKS = ("metrics.jsonl", "traces.jsonl", "tokens.jsonl", "events.jsonl", "tensorboard")
"""Files, and folders of files, that a run appends to; a resume cuts them back to the step it resumes from."""
REPORT = "report.html"
"""Made as a whole when the run ends; a resume removes it."""
MayChange = Callable[[str], bool]
"""Whether a resumed run may change the setting with this dotted key, since it does not change what is computed."""
_NEWBORN = {"run.lock", "code.json", "code.json.tmp", "config.json.tmp"}
"""What a run killed before `config.json` was in place may leave."""
_CHECKPOINT = re.compile(r"(start|(sft|rl)_\d{6,})(\.tmp)?")
_ABSENT = "absent"


def nothing_may_change(key: str) -> bool:
    """The strictest `MayChange`."""
    return False


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a run can neither start nor resume in a directory."""

    error: RunDirectoryError
    """What to raise: a `CheckpointError` where the checkpoint to go on from is not whole."""
    changes: Sequence[str] = ()
    """The settings that differ, as `key: old -> new` in JSON notation, where they are the reason."""


@dataclass(frozen=True)
class ResumePlan:
    """How a run starts, goes on or is complete in a directory; made by `plan_resume`."""

    path: Path
    config: Mapping[str, Json]
    """The resolved config, as plain JSON data."""
    content: LedgerContent = field(default_factory=LedgerContent)
    """The ledger as it was read."""
    kept: int = 0
    """How many of its commits stay; 0 where the run starts."""
    checkpoint: Checkpoint | None = None
    """The verified checkpoint to go on from; None where the run starts, and where it is complete."""
    code_changes: Sequence[str] = ()
    """Versions that differ from those at the start of the run, as `name: old -> new`, and files of code that
    changed."""
    resume_from_batch: int | None = None
    may_change: MayChange = nothing_may_change
    length: Length | None = None
    """How the number of batches differs from the one that the run was started or last grown with; None where not."""
    changes: Sequence[Change] = ()
    """Settings that differ from those under which the kept commits were made."""
    record: Mapping[str, Json] | None = None
    """What `config.json` is to hold from now on; None where it stays."""

    @property
    def commits(self) -> Sequence[Commit]:
        """The commits that stay."""
        return self.content.commits[: self.kept]

    @property
    def ledger_size(self) -> int:
        """Bytes of the ledger that stay."""
        return self.content.ends[self.kept - 1] if self.kept else 0

    @property
    def is_complete(self) -> bool:
        """Whether the run came to its end, so that there is nothing to do."""
        return bool(self.commits) and self.commits[-1].done

    @property
    def run_id(self) -> str:
        """Hash (12 hex digits) of the settings that decide what the run computes; equal runs have equal ids."""
        free = {MAX_BATCHES} if is_free(self.config) else set()
        deciding = {k: v for k, v in plain_settings(self.config).items() if k not in free and not self.may_change(k)}
        return hashlib.sha256(encode_json(deciding, sort_keys=True)).hexdigest()[:12]

    def renewed(self) -> ResumePlan:
        """This plan, or a new one where another process has changed the ledger since. Lock the directory before.

        Raises:
            RunDirectoryError, CheckpointError: the new plan is a refusal.
        """
        with Writing(self.path, "the run directory"):
            if read_ledger(self.path / LEDGER) == self.content:
                return self
        plan = plan_resume(self.path, self.config, self.resume_from_batch, self.may_change)
        if isinstance(plan, Refusal):
            raise plan.error
        return plan

    def apply(self) -> None:
        """Bring the directory to where the run starts or goes on. Safe to repeat after a kill; lock it before.

        Raises:
            RunDirectoryError: the directory cannot be written to.
        """
        if self.is_complete:
            return
        if not self.kept:
            # With the second file in place the directory is a run's.
            replace_file(self.path / "code.json", encode_json(describe_code(), indent=2) + b"\n")
            replace_file(self.path / CONFIG, encode_json(self.config, indent=2) + b"\n")
        if self.code_changes:
            logger.warning(
                "%s was started under other code or data (%s). The run goes on, but it is not guaranteed to equal an "
                "uninterrupted one bit for bit.",
                self.path,
                "; ".join(self.code_changes),
            )
        dropped = sum(not commit.done for commit in self.content.commits[self.kept :])
        if self.length is not None:
            logger.info("%s: the run in %s goes on after step %d.", self.length, self.path, self.commits[-1].step)
        if dropped:
            steps = f"{dropped} step{'s' if dropped > 1 else ''}"
            logger.info("Removing %s of %s after its checkpoint.", steps, self.path)
        self._cut()
        if self.record is not None:
            # Last: until the ledger is cut, a run that was complete still is.
            replace_file(self.path / CONFIG, encode_json(self.record, indent=2) + b"\n")

    def _cut(self) -> None:
        with Writing(self.path, "the run directory"):
            ledger = self.path / LEDGER
            if ledger.exists():
                truncate_file(ledger, self.ledger_size)
            saved = live_checkpoints(self.commits)
            there = [commit for commit in saved if checkpoint_folder(self.path, commit).is_dir()]
            index = b"".join(commit.encode_checkpoint() for commit in there)
            replace_file(self.path / "checkpoints.jsonl", index)
            # A sink that was turned off on the way keeps what it had.
            sizes = {name: size for commit in self.commits for name, size in commit.sinks.items()}
            for file in list(_sink_files(self.path)):
                size = sizes.get(file.relative_to(self.path).as_posix())
                if size is None:
                    remove(file)
                else:
                    truncate_file(file, size)
            names = {commit.checkpoint for commit in saved}
            for folder in list((self.path / "checkpoints").glob("*")):
                if _CHECKPOINT.fullmatch(folder.name) and folder.name not in names:
                    remove(folder)
            remove(self.path / REPORT)


def plan_resume(
    path: Path | str,
    config: Mapping[str, Json],
    resume_from_batch: int | None = None,
    may_change: MayChange = nothing_may_change,
) -> ResumePlan | Refusal:
    """Decide how a run with these settings starts or goes on at `path`. Reads whole checkpoints, changes nothing.

    A run that was killed before its first commit starts afresh, under the settings given now. Any other goes on from
    its last checkpoint; a complete one is left alone, unless it is to have more batches now (see `growth`).

    Args:
        path: the run directory, which need not exist.
        config: the resolved config.
        resume_from_batch: go on from the checkpoint taken after so many RL batches instead; what came later is removed.
        may_change: the settings that may differ from those that the run was started with.
    """
    path = Path(path).expanduser()
    plain: dict[str, Json] = json.loads(encode_json(config))
    plan = ResumePlan(path, plain, resume_from_batch=resume_from_batch, may_change=may_change)
    try:
        with Writing(path, "the run directory"):
            content = read_ledger(path / LEDGER) if _holds_run(path) else LedgerContent()
            if content.commits:
                found = _go_on(replace(plan, content=content))
                if isinstance(found, ResumePlan) and not found.is_complete:
                    check_writable(path)
                return found
            check_writable(path)
            _check_nothing_is_lost(path)
    except RunDirectoryError as error:
        return Refusal(error)
    if resume_from_batch is not None:
        return Refusal(
            RunDirectoryError(
                f"resume_from_batch={resume_from_batch}, but {path} has no run to resume. "
                "Remove resume_from_batch to start one, or set log_path to the run's directory."
            )
        )
    return replace(plan, content=content)


def _check_nothing_is_lost(path: Path) -> None:
    """Refuse to start afresh over checkpoints that a run without a ledger cannot have written.

    Raises:
        RunDirectoryError: the ledger is gone.
    """
    folders = (path / "checkpoints").glob("*")
    if later := sorted(f.name for f in folders if _CHECKPOINT.fullmatch(f.name) and not f.name.startswith("start")):
        raise RunDirectoryError(
            f"{path} holds checkpoints ({', '.join(later[:5])}) but no {LEDGER}, which says what the run had "
            "committed, so starting here would remove them. Restore the file, or set log_path to a new directory "
            f"(load_checkpoint_path={path / 'checkpoints' / later[-1]} starts from their weights)."
        )


def _go_on(plan: ResumePlan) -> ResumePlan | Refusal:
    """The plan of a run that has committed something.

    Raises:
        RunDirectoryError, CheckpointError: what it would go on from is damaged or not there.
    """
    path, content, batch = plan.path, plan.content, plan.resume_from_batch
    before = read_object(path / CONFIG)
    if before is None:
        raise RunDirectoryError(
            f"{path / CONFIG} cannot be read, so it is unknown which run this is. "
            "Restore the file from a copy, or set log_path to a new directory."
        )
    changes = config_changes(before, plan.config, plan.may_change)
    if changes:
        listed = "\n".join(f"  {change}" for change in changes)
        cure = "use the original ones to go on with this run"
        if any(" absent" in change for change in changes):
            # An entry of a mapping can be left out; no command can bring back what only one of two versions has.
            cure += (
                " (absent: it was not set, so leave it out; or only one of two versions of Assay has it, then use the "
                "one that began the run)"
            )
        error = RunDirectoryError(
            f"{path} holds a run with other settings; going on with new ones would mix two runs:\n{listed}\n"
            f"Set log_path to a new directory for the new settings, or {cure}."
        )
        return Refusal(error, changes)
    length = length_change(before, plan.config)
    done = sum(commit.phase == "rl" for commit in content.commits)
    if content.is_complete and batch is None and (length is None or length.adds_nothing(done)):
        return replace(plan, kept=len(content.commits))
    if length is not None and batch is None and length.now is not None and length.now < done:
        raise RunDirectoryError(
            f"{length}: {done} batches of the run in {path} are done, and cannot be undone by going on. Set "
            f"max_batches={done} or more, or also give resume_from_batch=N to go back to a checkpoint before "
            f"{length.now} batches and discard what came later "
            f"(available: {as_ranges(b for b in available_batches(path, content.commits) if b < length.now)})."
        )
    position = position_to_go_on_from(path, content, batch, length)
    commit = content.commits[position]
    checkpoint = open_checkpoint(checkpoint_folder(path, commit), cure=cure_of(path, content, commit))
    _check_sinks(path, commit)
    versions = code_changes(read_object(path / "code.json") or {}, describe_code())
    files = [f"{file}: changed" for file in changed_files(before)]
    # Refused settings are equal; the number of batches, where it is free, is said with the others.
    changed = changes_after(before, plan.config, commit.step, lambda key: key == MAX_BATCHES or plan.may_change(key))
    record = changed_record(before, plan.config, commit.step, changed)
    return replace(
        plan,
        kept=position + 1,
        checkpoint=checkpoint,
        code_changes=[*versions, *files],
        length=length,
        changes=changed,
        record=None if record == before else record,
    )


def config_changes(before: Mapping[str, Json], now: Mapping[str, Json], may_change: MayChange) -> list[str]:
    """The settings that differ in a way that a resumed run may not, as `key: old -> new` in JSON notation."""
    old, new = plain_settings(before, beside=now), plain_settings(now, beside=before)
    differing = [key for key in sorted(old | new) if old.get(key) != new.get(key) and not may_change(key)]
    why = {}
    if is_free(before):
        differing = [key for key in differing if key != MAX_BATCHES]
    else:
        why[MAX_BATCHES] = (
            f" (optimizer.lr_schedule={schedule(before)} spreads the learning rate over all batches, so those that are "
            "done would have been trained at other rates)"
        )
    return [f"{key}: {old.get(key, _ABSENT)} -> {new.get(key, _ABSENT)}{why.get(key, '')}" for key in differing]


def _holds_run(path: Path) -> bool:
    """Whether `path` holds a run; False where it does not exist, is empty, or was killed while being created.

    Raises:
        RunDirectoryError: it is something else, which a run must not be written into.
    """
    if not path.exists():
        return False
    if not path.is_dir():
        raise RunDirectoryError(f"{path} is a file, and a run needs a directory. Set log_path to a new directory.")
    names = {entry.name for entry in path.iterdir()}
    if names <= _NEWBORN:
        return False
    code = read_object(path / "code.json")
    if CONFIG in names and code is not None and "assay-rl" in code.get("packages", {}):
        return True
    some = ", ".join(sorted(names)[:5])
    raise RunDirectoryError(
        f"{path} is not a run directory and not empty (it holds {some}), so a run could overwrite what is there. Set "
        "log_path to a new or empty directory."
    )


def _check_sinks(path: Path, commit: Commit) -> None:
    """Check that every sink still holds what it held at `commit`.

    Raises:
        RunDirectoryError: one is missing or shorter.
    """
    for name, size in commit.sinks.items():
        found = (path / name).stat().st_size if (path / name).is_file() else None
        if found is None or found < size:
            state = "is missing" if found is None else f"has only {human_bytes(found)}"
            raise RunDirectoryError(
                f"{path / name} is damaged: it {state}, but held {human_bytes(size)} at step {commit.step}, which the "
                "run would resume from. Nothing was changed. Restore it from a copy, or set log_path to a new "
                "directory (load_checkpoint_path can start it from this run's checkpoints)."
            )


def _sink_files(path: Path) -> Iterator[Path]:
    for name in SINKS:
        sink = path / name
        if sink.is_dir():
            yield from (file for file in sink.rglob("*") if file.is_file())
        elif sink.exists():
            yield sink
