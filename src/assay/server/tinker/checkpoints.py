"""Checkpoints on disk: `runs/RUN/weights/NAME` (to train on) and `runs/RUN/sampler_weights/NAME` (to sample from).

A checkpoint is a folder that appears whole or not at all: it is written beside its place and then renamed. What clients
call `tinker://RUN/weights/NAME` is looked up by its parts, each of which has to be a plain name.
"""

from __future__ import annotations

import asyncio
import json
import re
import secrets
import shutil
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from assay.backends.local.adapters.bank import PARTS, Part, Shape
from assay.server.tinker.config import STATE
from assay.server.tinker.errors import RequestError, absent, bad
from assay.storage.files import Writing, read_object, remove, replace_file, sync_directory, sync_file
from assay.types import Json

Kind = Literal["weights", "sampler_weights"]
KINDS: Mapping[Kind, str] = {"weights": "training", "sampler_weights": "sampler"}
"""Folder of a kind of checkpoint -> what the protocol calls the kind."""
RECORD = "checkpoint.json"
RUN_RECORD = "run.json"
SCHEME = "tinker://"
REPLACED = ".replaced-"
"""Before the name of a checkpoint that makes room for a new one: a server that ends in between puts it back."""
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._=+@-]{0,199}")
_RUN = re.compile(r"[A-Za-z0-9-]{1,64}:train:[0-9]{1,9}")
SHORTEST_TTL_S, LONGEST_TTL_S = 3600, 10 * 366 * 86400


@dataclass(frozen=True)
class Run:
    """An adapter that was trained, as it is known after its weights have left memory."""

    id: str
    owner: str
    base_model: str
    rank: int
    parts: tuple[Part, ...]
    seed: int
    created: float
    user_metadata: Mapping[str, str] | None = None

    @property
    def shape(self) -> Shape:
        """What its adapter is."""
        return Shape(self.rank, frozenset(self.parts), self.seed)


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint and what it says of itself."""

    run: Run
    kind: Kind
    name: str
    created: float
    size: int
    steps: int
    optimizer: bool
    expires: float | None = None
    public: bool = False
    user_metadata: Mapping[str, str] | None = None

    @property
    def path(self) -> str:
        """As clients name it."""
        return f"{SCHEME}{self.run.id}/{self.kind}/{self.name}"

    def to_json(self) -> dict[str, Json]:
        """As the protocol lists it."""
        return {
            "checkpoint_id": f"{self.kind}/{self.name}",
            "checkpoint_type": KINDS[self.kind],
            "time": stamp(self.created),
            "tinker_path": self.path,
            "size_bytes": self.size,
            "public": self.public,
            "user_metadata": None if self.user_metadata is None else dict(self.user_metadata),
            "expires_at": None if self.expires is None else stamp(self.expires),
        }


def stamp(seconds: float) -> str:
    """A time as the protocol writes it."""
    return datetime.fromtimestamp(seconds, UTC).isoformat()


class CheckpointStore:
    """The checkpoints in a folder; listings and whatever removes or moves files take as long as there
    are many, so call those off the event loop.

    `now` is the clock by which checkpoints expire, in seconds since 1970.
    """

    def __init__(self, root: Path, now: Callable[[], float] = time.time) -> None:
        """What a server that ended while it wrote left behind is removed.

        Raises:
            RunDirectoryError: the folder cannot be made or written to.
        """
        self._root = root / "runs"
        self.now = now
        # Held while checkpoints change places or records, which savers, clients and the sweep do on several threads.
        self._moving = threading.Lock()
        self._made: dict[str, tuple[str, float]] = {}
        """Run -> whose it is, and when it was made: what lists are made of, without reading thousands of records."""
        with Writing(self._root, "checkpoints", home=STATE):
            self._root.mkdir(parents=True, exist_ok=True)
            for half in self._root.glob("*/*/.writing-*"):
                remove(half)
            for old in self._root.glob(f"*/*/{REPLACED}*"):
                place = old.with_name(old.name.removeprefix(REPLACED))
                if place.exists():
                    remove(old)
                else:
                    old.rename(place)

    def add_run(self, run: Run) -> None:
        """Note a run, so that its checkpoints say whose they are.

        Raises:
            RunDirectoryError: it cannot be written.
        """
        folder = self._root / run.id
        with Writing(folder, "the record of a run", home=STATE):
            folder.mkdir(parents=True, exist_ok=True)
        replace_file(folder / RUN_RECORD, json.dumps(asdict(run)).encode(), home=STATE)
        self._made[run.id] = (run.owner, run.created)

    def run(self, run_id: str) -> Run | None:
        """A run by its name; None where there is none."""
        if not _RUN.fullmatch(run_id):
            return None
        record = read_object(self._root / run_id / RUN_RECORD)
        return None if record is None else _run(record)

    def runs_of(self, owner: str, prefix: str = "") -> list[str]:
        """The names of a client's runs, newest first, that begin so; a record is read where it was not yet."""
        found = []
        for name in (folder.name for folder in self._root.iterdir() if folder.name.startswith(prefix)):
            if name not in self._made and (run := self.run(name)) is not None:
                self._made[name] = (run.owner, run.created)
            of, created = self._made.get(name, ("", 0.0))
            if of == owner:
                found.append((-created, name))
        return [name for _, name in sorted(found)]

    async def save(
        self,
        checkpoint: Checkpoint,
        write: Callable[[Path], Awaitable[None]],
        *,
        overwrite: bool,
    ) -> Checkpoint:
        """Write a checkpoint; `write` fills its folder.

        Raises:
            RequestError: there is one of this name already.
            RunDirectoryError: the disk is full or cannot be written to; nothing is left of it, and an older one stays.
        """
        place = self._place(checkpoint.run.id, checkpoint.kind, checkpoint.name)
        if place.exists() and not overwrite and not self._is_over(place):
            raise bad(f"{checkpoint.path} exists already. Save under another name, or with overwrite.")
        half = place.parent / f".writing-{secrets.token_hex(6)}"
        with Writing(place, f"the checkpoint {checkpoint.name}", home=STATE):
            try:
                half.mkdir(parents=True)
                await write(half)
                size = sum(f.stat().st_size for f in half.iterdir())
                checkpoint = replace(checkpoint, size=size)
                (half / RECORD).write_text(json.dumps(_record(checkpoint)))
                await asyncio.to_thread(self._put, half, place)
            finally:
                shutil.rmtree(half, ignore_errors=True)
        return checkpoint

    def find(self, path: str) -> Checkpoint:
        """A checkpoint by the name that clients use.

        Raises:
            RequestError: the name is not one, or there is no such checkpoint (any more).
        """
        run_id, kind, name = parse(path)
        run = self.run(run_id)
        record = None if run is None else read_object(self._place(run_id, kind, name) / RECORD)
        if run is None or record is None:
            raise missing(path)
        found = _checkpoint(run, kind, name, record)
        if found.expires is not None and found.expires <= self.now():
            raise missing(path)
        return found

    def folder(self, checkpoint: Checkpoint) -> Path:
        """Where its files are."""
        return self._place(checkpoint.run.id, checkpoint.kind, checkpoint.name)

    def of_run(self, run: Run) -> list[Checkpoint]:
        """The checkpoints of a run, oldest first."""
        found: list[Checkpoint] = []
        for kind in KINDS:
            for folder in sorted((self._root / run.id / kind).glob("[!.]*")):
                record = read_object(folder / RECORD)
                if record is not None:
                    found.append(_checkpoint(run, kind, folder.name, record))
        now = self.now()
        return sorted((c for c in found if c.expires is None or c.expires > now), key=lambda c: (c.created, c.path))

    def change(self, checkpoint: Checkpoint, **changes: Any) -> None:
        """Change what a checkpoint says of itself.

        Raises:
            RequestError: it is not there any more.
        """
        with self._moving:
            changed = replace(self.find(checkpoint.path), **changes)
            record = json.dumps(_record(changed)).encode()
            replace_file(self.folder(checkpoint) / RECORD, record, home=STATE)

    def delete(self, checkpoint: Checkpoint) -> None:
        """Remove a checkpoint.

        Raises:
            RequestError: it is not there any more.
        """
        with self._moving:
            gone = _aside(self.folder(self.find(checkpoint.path)))
        remove(gone)

    def remove_expired(self) -> int:
        """Remove the checkpoints whose time is over; returns how many."""
        count = 0
        for run in self._root.iterdir():
            for place in (place for kind in KINDS for place in (run / kind).glob("[!.]*")):
                if not self._is_over(place):
                    continue
                with self._moving:
                    # Again: a client may have saved under the name of one that is over.
                    gone = _aside(place) if self._is_over(place) else None
                if gone is not None:
                    remove(gone)
                    count += 1
        return count

    def _is_over(self, place: Path) -> bool:
        record = read_object(place / RECORD)
        expires = None if record is None else record.get("expires")
        return isinstance(expires, (int, float)) and expires <= self.now()

    def files(self, checkpoint: Checkpoint) -> Iterator[Path]:
        """Its files, without the server's own record."""
        yield from (f for f in sorted(self.folder(checkpoint).iterdir()) if f.name != RECORD)

    def _place(self, run_id: str, kind: Kind, name: str) -> Path:
        return self._root / run_id / kind / name

    def _put(self, half: Path, place: Path) -> None:
        """Make a folder that was written durable, and put it in its place."""
        for file in half.iterdir():
            sync_file(file)
        old = place.with_name(REPLACED + place.name)
        with self._moving:
            if place.exists():
                remove(old)
                place.rename(old)
            half.rename(place)
        sync_directory(place.parent)
        remove(old)


def _aside(place: Path) -> Path:
    """Take a checkpoint out of its place; what is left of it where the server ends now goes when it starts again."""
    gone = place.with_name(f".writing-{secrets.token_hex(6)}")
    place.rename(gone)
    return gone


def parse(path: str) -> tuple[str, Kind, str]:
    """Run, kind and name of a path that a client gave.

    Raises:
        RequestError: it is not one.
    """
    parts = path.removeprefix(SCHEME).split("/")
    if not path.startswith(SCHEME) or len(parts) != 3 or not _RUN.fullmatch(parts[0]) or not _NAME.fullmatch(parts[2]):
        raise bad(f"{path[:200]!r} is not the path of a checkpoint. Give one such as {SCHEME}RUN/weights/NAME.")
    for kind in KINDS:
        if parts[1] == kind:
            return parts[0], kind, parts[2]
    raise bad(f"{path[:200]!r} names no kind of checkpoint that is served ({', '.join(KINDS)}).")


def check_name(name: str) -> str:
    """A name that a client gives to a checkpoint.

    Raises:
        RequestError: it is more, or less, than a plain name.
    """
    if not _NAME.fullmatch(name):
        raise bad(
            f"{name[:200]!r} cannot be the name of a checkpoint: letters, digits and . _ = + @ - alone, at most 200, "
            "no dot at the beginning, and no slash."
        )
    return name


def expiry(ttl_seconds: int | None, now: float) -> float | None:
    """When a checkpoint expires.

    Raises:
        RequestError: the time to live is out of range.
    """
    if ttl_seconds is None:
        return None
    if not SHORTEST_TTL_S <= ttl_seconds <= LONGEST_TTL_S:
        raise bad(f"ttl_seconds={ttl_seconds}: give {SHORTEST_TTL_S} to {LONGEST_TTL_S}, or none.")
    return now + ttl_seconds


def missing(path: str) -> RequestError:
    """For a checkpoint that is not there, or not the client's: which of the two is nobody else's business."""
    return absent(f"There is no checkpoint {path[:300]} that this key may use. It may have expired or been deleted.")


def _record(checkpoint: Checkpoint) -> dict[str, Json]:
    record = asdict(checkpoint)
    for name in ("run", "kind", "name"):
        del record[name]
    return record


def _checkpoint(run: Run, kind: Kind, name: str, record: Mapping[str, Json]) -> Checkpoint:
    try:
        return Checkpoint(run, kind, name, **record)
    except TypeError as error:
        raise RequestError(500, f"The record of the checkpoint {kind}/{name} is damaged.", "server") from error


def _run(record: Mapping[str, Json]) -> Run | None:
    try:
        parts = tuple(p for p in PARTS if p in record["parts"])
        return Run(**{**record, "parts": parts})
    except (TypeError, KeyError):
        return None
