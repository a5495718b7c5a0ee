"""Checkpoints: folders that are complete or absent, and are verified when they are read.

    checkpoints/<name>/policy/          what the backend saved: weights, optimizer, reference
    checkpoints/<name>/state.json       what the loop saved: counters, generators, controllers
    checkpoints/<name>/manifest.json    size and SHA-256 of every file above

A checkpoint is written under a temporary name and renamed when every byte is on the disk. Reading one checks it
against its manifest first, so a half-copied folder is refused and never loaded.
"""

from __future__ import annotations

import json
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from assay.errors import CheckpointError
from assay.storage.files import Writing, encode_json, human_bytes, remove, sha256_file, sync_directory, sync_file
from assay.training.run.ledger import Commit, Phase
from assay.types import Json

VERSION = 1
"""Format of the manifest; a reader refuses a larger one."""
MANIFEST = "manifest.json"
STATE = "state.json"
POLICY = "policy"
TEMPORARY = ".tmp"
"""Suffix of a checkpoint that is being written; such a folder is never read and is deleted when the run reopens."""

HEALTHY, REGULAR = "healthy", "regular"
"""Keys of the state that the loop saves: whether no alarm spoke against the policy, and whether the checkpoint was due
(and not written only because the run was then to end) and is not too close to the one before."""
ROLLED_BACK_AT, REFUGE = "rolled_back_at", "refuge"
"""Further ones: the RL batches done when the run was last rolled back, and those behind the policy it went back to."""
REFUGE_SPACING = 5
"""Least distance, in RL batches, of checkpoints to go back to, so that few of them need be kept for that."""

SaveState = Callable[[Path], Awaitable[None]]
"""Writes the policy into the folder it is given, which does not exist yet: `Backend.save_state`."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint whose files were checked against its manifest."""

    path: Path
    step: int
    """Global index of the last step in it; -1 for the state before any step."""
    phase: Phase
    index: int
    """Index of that step within its phase."""
    size: int
    """Bytes of its files."""
    state: Mapping[str, Json]
    """What the loop saved beside the policy."""

    @property
    def name(self) -> str:
        """Name of the folder."""
        return self.path.name

    @property
    def policy(self) -> Path:
        """The folder to give to `Backend.load_state`."""
        return self.path / POLICY

    @property
    def batch(self) -> int:
        """The RL batch that comes next: how many have been done."""
        return self.index + 1 if self.phase == "rl" else 0


def checkpoint_name(phase: Phase, index: int) -> str:
    """`start`, `sft_000150` (after 150 supervised steps) or `rl_000010` (after 10 RL batches)."""
    return "start" if phase == "start" else f"{phase}_{index + 1:06d}"


def is_refuge(state: Mapping[str, Json]) -> bool:
    """Whether a rollback may go back to the checkpoint with this state.

    One that was written only because the run was to end there does not count: a longer run would not have written it.
    """
    return bool(state.get(HEALTHY, True)) and bool(state.get(REGULAR, True))


def opens_space(batch: int, save_every: int) -> bool:
    """Whether the checkpoint after `batch` RL batches is the first in its stretch of `REFUGE_SPACING` batches."""
    return batch // REFUGE_SPACING > (batch - save_every) // REFUGE_SPACING


def checkpoint_folder(run: Path, commit: Commit) -> Path:
    """Folder of a commit's checkpoint in the run directory `run`.

    Raises:
        ValueError: the commit has no checkpoint.
    """
    if commit.checkpoint is None:
        raise ValueError(f"step {commit.step} has no checkpoint")
    return run / "checkpoints" / commit.checkpoint


async def write_checkpoint(
    path: Path,
    step: int,
    phase: Phase,
    index: int,
    save: SaveState,
    state: Mapping[str, Json],
    needed: int | None = None,
) -> int:
    """Write a whole, durable checkpoint to `path` and return its size in bytes.

    `needed` is an estimate of that size, for the message of a full disk.

    Raises:
        RunDirectoryError: the disk is full or unwritable. Nothing is left at `path`.
    """
    temporary = path.with_name(path.name + TEMPORARY)
    with Writing(path, f"checkpoint {path.name}", needed):
        remove(temporary)
        remove(path)
        temporary.mkdir(parents=True)
        try:
            await save(temporary / POLICY)
            (temporary / STATE).write_bytes(encode_json(state))
            files = _measure(temporary)
            manifest = {"version": VERSION, "step": step, "phase": phase, "index": index, "files": files}
            (temporary / MANIFEST).write_bytes(encode_json(manifest, indent=1))
            _sync_tree(temporary)
            os.replace(temporary, path)
            sync_directory(path.parent)
        finally:
            remove(temporary)
    return sum(int(entry["size"]) for entry in files.values())


def _measure(folder: Path) -> dict[str, dict[str, Json]]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {
        path.relative_to(folder).as_posix(): {"size": path.stat().st_size, "sha256": sha256_file(path)}
        for path in files
    }


def _sync_tree(folder: Path) -> None:
    for root, _, names in os.walk(folder):
        for name in names:
            sync_file(Path(root) / name)
        sync_directory(Path(root))


def open_checkpoint(path: Path, *, cure: str = "Use another checkpoint.") -> Checkpoint:
    """Check a checkpoint folder against its manifest and read its state. Reads every byte, changes nothing.

    Raises:
        CheckpointError: the folder is missing, is not a checkpoint, or has a missing, short or changed file; the
            message names the file and ends with `cure`.
    """
    if not path.is_dir():
        raise CheckpointError(f"Checkpoint {path} does not exist. {cure}")
    manifest_path = path / MANIFEST
    if not manifest_path.is_file():
        raise CheckpointError(
            f"{path} has no {MANIFEST}: it is not a checkpoint of a run, or only part of one. {cure} "
            "(A Hugging Face model folder is loaded with model_name instead.)"
        )
    try:
        manifest = json.loads(manifest_path.read_bytes())
        version, files = manifest["version"], manifest["files"]
        header = (int(manifest["step"]), manifest["phase"], int(manifest["index"]))
        expected = {name: (int(entry["size"]), str(entry["sha256"])) for name, entry in files.items()}
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise CheckpointError(
            f"{manifest_path} cannot be read ({error!r}), so the checkpoint is unsafe. {cure}"
        ) from error
    if version > VERSION:
        raise CheckpointError(f"{manifest_path} has format version {version}; this Assay reads up to {VERSION}. {cure}")
    if STATE not in expected:
        raise CheckpointError(f"{manifest_path} does not list {STATE}, so the checkpoint is unsafe. {cure}")
    for name, (size, digest) in expected.items():
        _verify_file(path / name, size, digest, cure)
    size = sum(size for size, _ in expected.values())
    return Checkpoint(path, *header, size, state=json.loads((path / STATE).read_bytes()))


def _verify_file(path: Path, size: int, digest: str, cure: str) -> None:
    if not path.is_file():
        raise CheckpointError(f"Checkpoint file {path} is missing. {cure}")
    found = path.stat().st_size
    if found != size:
        raise CheckpointError(
            f"Checkpoint file {path} has {human_bytes(found)} instead of {human_bytes(size)}: it was only partly "
            f"written or copied. {cure}"
        )
    if sha256_file(path) != digest:
        raise CheckpointError(f"Checkpoint file {path} was changed after it was written (SHA-256 differs). {cure}")
