"""Reopening a run directory: is it ours, is it the same run, where does it go on, and the way back to there.

Everything is checked before the first change. The ledger is cut first: it alone says what happened, so a kill at any
later moment leaves a ledger from which the next attempt removes the same things.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from assay.errors import RunDirectoryError
from assay.storage.files import Writing, encode_json, human_bytes, read_object, remove, replace_file, truncate_file
from assay.training.run.ledger import Commit, LedgerContent
from assay.training.run.provenance import code_changes, describe_code
from assay.types import Json

logger = logging.getLogger(__name__)

SINKS = ("metrics.jsonl", "traces.jsonl", "events.jsonl", "tensorboard")
"""Files, and folders of files, that a run appends to; a resume cuts them back to the step it resumes from."""
REPORT = "report.html"
"""Made as a whole when the run ends; a resume removes it."""
_FREE_KEYS = re.compile(
    r"wandb_\w+|resume_from_batch|log_path|cache_dir"
    r"|(multiturn_)?dataset_builder\.(engine\.\w+|judge\.(base_url|api_key_env|usd_per_million_\w+))"
)
"""Settings that do not change what the run computes, so a resumed run may change them: a judge that has moved is the
same judge, and a budget that was reached can be raised."""
_NEWBORN = {"run.lock", "code.json", "code.json.tmp", "config.json.tmp"}
"""What a run killed before `config.json` was in place may leave."""
_CHECKPOINT = re.compile(r"(start|(sft|rl)_\d{6,})(\.tmp)?")
_ABSENT = "absent"


def holds_run(path: Path) -> bool:
    """Whether `path` holds a run; False where it does not exist, is empty, or was killed while being created.

    Raises:
        RunDirectoryError: it is something else, which a run must not be written into.
    """
    with Writing(path, "the run directory"):
        if not path.exists():
            return False
        names = {entry.name for entry in path.iterdir()} if path.is_dir() else None
    if names is None:
        raise RunDirectoryError(f"{path} is a file, and a run needs a directory. Set log_path to a new directory.")
    if names <= _NEWBORN:
        return False
    code = read_object(path / "code.json")
    if "config.json" in names and code is not None and "assay-rl" in code.get("packages", {}):
        return True
    some = ", ".join(sorted(names)[:5])
    raise RunDirectoryError(
        f"{path} is not empty and not a run directory (it holds {some}), so writing a run into it could destroy what "
        "is there. Set log_path to a new or empty directory."
    )


def lock_directory(path: Path) -> int:
    """Lock a run directory; the descriptor returned holds the lock until it is closed or the process ends.

    Raises:
        RunDirectoryError: another process holds it.
    """
    fd = os.open(path / "run.lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
    except BlockingIOError:
        holder = os.pread(fd, 32, 0).decode(errors="replace").strip() or "unknown"
        os.close(fd)
        raise RunDirectoryError(
            f"{path} is in use by process {holder}, and two processes would corrupt each other's run. "
            "Wait for it or stop it, or set log_path to another directory."
        ) from None
    except OSError:
        os.close(fd)
        raise
    return fd


def run_id(config: Mapping[str, Json]) -> str:
    """Hash (12 hex digits) of the settings that decide what a run computes."""
    deciding = {key: value for key, value in _flatten(config) if not _FREE_KEYS.fullmatch(key)}
    return hashlib.sha256(encode_json(deciding, sort_keys=True)).hexdigest()[:12]


def config_changes(before: Mapping[str, Json], now: Mapping[str, Json]) -> list[str]:
    """The settings that differ in a way that a resumed run may not, as `key: old -> new` in JSON notation."""
    old, new = dict(_flatten(before)), dict(_flatten(now))
    return [
        f"{key}: {old.get(key, _ABSENT)} -> {new.get(key, _ABSENT)}"
        for key in sorted(old | new)
        if old.get(key) != new.get(key) and not _FREE_KEYS.fullmatch(key)
    ]


def _flatten(value: Json, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Leaves of a nested mapping as (dotted key, JSON text); empty mappings are leaves."""
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from _flatten(item, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, encode_json(value, sort_keys=True).decode()


def write_identity(path: Path, config: Mapping[str, Json]) -> None:
    """Write `code.json`, then `config.json`; with the second in place the directory is a run's."""
    replace_file(path / "code.json", encode_json(describe_code(), indent=2) + b"\n")
    replace_file(path / "config.json", encode_json(config, indent=2) + b"\n")


def check_config(path: Path, config: Mapping[str, Json]) -> None:
    """Refuse to go on with a run under settings that would make it another one.

    Raises:
        RunDirectoryError: settings differ, or `config.json` cannot be read.
    """
    before = read_object(path / "config.json")
    if before is None:
        raise RunDirectoryError(
            f"{path / 'config.json'} cannot be read, so it is unknown which run this is. "
            "Restore the file from a copy, or set log_path to a new directory."
        )
    changes = config_changes(before, config)
    if changes:
        listed = "\n".join(f"  {change}" for change in changes)
        raise RunDirectoryError(
            f"{path} holds a run with other settings; going on under new ones would make it neither run:\n{listed}\n"
            "Set log_path to a new directory for the new settings, or use the original ones to go on with this run."
        )


def warn_of_other_code(path: Path) -> None:
    """Log a warning where the run was started under other versions than those of now."""
    changes = code_changes(read_object(path / "code.json") or {}, describe_code())
    if changes:
        logger.warning(
            "%s was started under other versions (%s). The run goes on, but it is not guaranteed to equal an "
            "uninterrupted one bit for bit.",
            path,
            "; ".join(changes),
        )


def resume_position(path: Path, content: LedgerContent, resume_from_batch: int | None) -> int:
    """Position in the ledger of the commit to go on from.

    Raises:
        RunDirectoryError: no commit has a checkpoint (of that batch); the message lists the batches that have one.
    """
    candidates = [i for i, commit in enumerate(content.commits) if commit.checkpoint is not None]
    if resume_from_batch is not None:
        candidates = [i for i in candidates if content.commits[i].batch == resume_from_batch]
    if not candidates:
        batches = available_batches(path, content.commits)
        wanted = "" if resume_from_batch is None else f" of RL batch {resume_from_batch}"
        listed = ", ".join(map(str, batches)) if batches else "none"
        raise RunDirectoryError(
            f"{path} has no checkpoint{wanted} to resume from. Batches with a checkpoint: {listed}. "
            "Set resume_from_batch to one of them, or set log_path to a new directory to start again."
        )
    return candidates[-1]


def available_batches(path: Path, commits: Sequence[Commit]) -> list[int]:
    """RL batches that `resume_from_batch` can name: those whose checkpoint folder exists."""
    return sorted({c.batch for c in commits if c.checkpoint is not None and checkpoint_path(path, c).is_dir()})


def checkpoint_path(path: Path, commit: Commit) -> Path:
    """Folder of a commit's checkpoint.

    Raises:
        ValueError: the commit has none.
    """
    if commit.checkpoint is None:
        raise ValueError(f"step {commit.step} has no checkpoint")
    return path / "checkpoints" / commit.checkpoint


def checkpoint_cure(path: Path, content: LedgerContent, damaged: Commit) -> str:
    """What to do when the checkpoint of `damaged` cannot be used: go back to another one, or start again."""
    others = [batch for batch in available_batches(path, content.commits) if batch != damaged.batch]
    again = "set log_path to a new directory to start again."
    if not others:
        return f"Nothing was changed. Restore it from a copy, or {again}"
    listed = ", ".join(map(str, others))
    first = f"resume_from_batch={others[-1]}"
    return f"Nothing was changed. Resume from another with {first} (available: {listed}), or {again}"


def check_sinks(path: Path, commit: Commit) -> None:
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


def rewind(path: Path, content: LedgerContent, position: int | None) -> None:
    """Remove everything after the commit at `position` (everything, where None). Safe to repeat after a kill.

    Raises:
        RunDirectoryError: the directory cannot be written to.
    """
    kept = content.commits[: position + 1] if position is not None else ()
    if len(kept) < len(content.commits):
        logger.info("removing %d steps of %s after its checkpoint", len(content.commits) - len(kept), path)
    with Writing(path, "the run directory"):
        ledger = path / "ledger.jsonl"
        if ledger.exists():
            truncate_file(ledger, content.ends[position] if position is not None else 0)
        index = b"".join(index_line(commit) for commit in kept if commit.checkpoint is not None)
        replace_file(path / "checkpoints.jsonl", index)
        sizes = kept[-1].sinks if kept else {}
        for file in list(_sink_files(path)):
            size = sizes.get(file.relative_to(path).as_posix())
            if size is None:
                remove(file)
            else:
                truncate_file(file, size)
        names = {commit.checkpoint for commit in kept}
        for folder in list((path / "checkpoints").glob("*")):
            if _CHECKPOINT.fullmatch(folder.name) and folder.name not in names:
                remove(folder)
        remove(path / REPORT)


def index_line(commit: Commit) -> bytes:
    """The line of `checkpoints.jsonl` about a commit's checkpoint."""
    record = {
        "version": 1,
        "name": commit.checkpoint,
        "step": commit.step,
        "phase": commit.phase,
        "index": commit.index,
        "batch": commit.batch,
        "path": f"checkpoints/{commit.checkpoint}",
    }
    return encode_json(record) + b"\n"


def _sink_files(path: Path) -> Iterator[Path]:
    for name in SINKS:
        sink = path / name
        if sink.is_dir():
            yield from (file for file in sink.rglob("*") if file.is_file())
        elif sink.exists():
            yield sink
