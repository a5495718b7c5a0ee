"""An index on disk: a folder with a manifest, and beside it a folder of files that the manifest names and vouches for.

    manifest.json                      format, version, spans of the languages, ranking, checksums
    3f2a.../entries.jsonl              one entry a line; entry_starts.npy says where each begins
    3f2a.../word_starts.npy ...        what the ranking needs

Nothing is pickled, and everything large is memory-mapped. The files of a new index are written beside those of the old
one; replacing the manifest is what replaces the index, so a kill leaves the one or the other, whole.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import os
import re
import secrets
import shutil
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from assay.errors import ConfigError, DataError
from assay.retrieval.entries import LANGUAGES, Entry, Language
from assay.storage.files import encode_json, sha256_file, sync_directory, sync_file
from assay.storage.sqlite_file import locked
from assay.types import Json

FORMAT = "assay-retrieval-index"
VERSION = 1
MANIFEST = "manifest.json"
ENTRIES, STARTS = "entries.jsonl", "entry_starts.npy"
LOCK_TIMEOUT_S = 10.0
MAX_MANIFEST_BYTES = 1_000_000

_FOLDER = re.compile(r"[0-9a-f]{16}")
_FILE = re.compile(r"[a-z_]+\.(?:npy|json|jsonl)")
_UNFINISHED = ".building-"


@dataclass(frozen=True)
class Manifest:
    """What an index holds."""

    folder: str
    entries: int
    spans: Mapping[Language, tuple[int, int]]
    """First and last place (exclusive) of the entries of each language."""
    ranking: Mapping[str, Any]
    files: Mapping[str, Mapping[str, Any]]
    """Name -> bytes and sha256."""
    sources: Json = None
    """Where the entries come from and what was skipped, for readers."""

    @property
    def fingerprint(self) -> str:
        """SHA-256 (hex) of the content: entries, their order, and the ranking."""
        return _fingerprint(self.spans, self.ranking, self.files)


def _fingerprint(
    spans: Mapping[Language, tuple[int, int]], ranking: Mapping[str, Any], files: Mapping[str, Mapping[str, Any]]
) -> str:
    # Where a model lies says nothing of the content: that it is the same one is checked when the index is opened.
    settings = {key: value for key, value in ranking.items() if key != "model"}
    said = {"version": VERSION, "spans": spans, "ranking": settings, "files": files}
    return hashlib.sha256(encode_json(said, sort_keys=True)).hexdigest()


def write_store(
    path: Path, entries: Sequence[Entry], rank: Callable[[Path], Mapping[str, Any]], sources: Json = None
) -> Manifest:
    """Write an index, in place of the one that may be there.

    Args:
        path: The index's folder, which is made if needed.
        entries: In the order of their places; those of one language follow each other.
        rank: Writes the ranking's files into a folder, and returns its settings.
        sources: Kept for readers.

    Raises:
        DataError: the folder holds something else, another process is writing there, or it cannot be written.
    """
    spans = _spans(entries)
    with _writing(path):
        _refuse_foreign(path)
        is_new = not path.exists()
        path.mkdir(parents=True, exist_ok=True)
        with locked(path / ".lock", LOCK_TIMEOUT_S):
            work = path / f"{_UNFINISHED}{os.getpid()}-{secrets.token_hex(4)}"
            work.mkdir()
            try:
                _write_entries(work, entries)
                ranking = rank(work)
                files = {
                    file.name: {"bytes": file.stat().st_size, "sha256": sha256_file(file)}
                    for file in sorted(work.iterdir())
                }
                name = _fingerprint(spans, ranking, files)[:16]
                manifest = Manifest(name, len(entries), spans, ranking, files, sources)
                _put_in_place(path, work, manifest)
            finally:
                shutil.rmtree(work, ignore_errors=True)
                if is_new and not (path / MANIFEST).is_file():
                    _remove_empty(path)
    return manifest


def _remove_empty(path: Path) -> None:
    """Take away a folder made for an index that then could not be built. Who waits for it fails, and says so."""
    (path / ".lock").unlink(missing_ok=True)
    with suppress(OSError):  # something else is there by now
        path.rmdir()


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except TimeoutError as error:
        raise DataError(
            f"another process is writing the index {path}. Wait for it, or give another --output."
        ) from error
    except OSError as error:
        raise DataError(
            f"cannot write the index {path}: {error.strerror or error}. An index that was there is as it was. Free "
            "space or correct permissions there, or give another --output."
        ) from error


def _spans(entries: Sequence[Entry]) -> dict[Language, tuple[int, int]]:
    order = [LANGUAGES.index(entry.language) for entry in entries]
    if order != sorted(order):
        raise ValueError("entries of one language must follow each other, in the order of LANGUAGES")
    spans = {language: (bisect_left(order, n), bisect_right(order, n)) for n, language in enumerate(LANGUAGES)}
    return {language: span for language, span in spans.items() if span[0] < span[1]}


def _refuse_foreign(path: Path) -> None:
    if not path.exists():
        return
    if not path.is_dir():
        raise DataError(f"{path} is a file, and an index is a folder. Give another --output.")
    held = [name for name in os.listdir(path) if name != ".lock" and not name.startswith(_UNFINISHED)]
    if held and not (path / MANIFEST).is_file():
        raise DataError(f"{path} holds {sorted(held)[0]} and no index, so it is left alone. Give another --output.")
    if held:
        _read_manifest(path, any_version=True)


def _write_entries(folder: Path, entries: Sequence[Entry]) -> None:
    starts = np.zeros(len(entries) + 1, np.int64)
    with open(folder / ENTRIES, "wb") as file:
        for place, entry in enumerate(entries):
            file.write(encode_json(entry.as_json()) + b"\n")
            starts[place + 1] = file.tell()
    np.save(folder / STARTS, starts, allow_pickle=False)


def _put_in_place(path: Path, work: Path, manifest: Manifest) -> None:
    for file in work.iterdir():
        sync_file(file)
    target = path / manifest.folder
    if not _is_sound(target, manifest.files):
        shutil.rmtree(target, ignore_errors=True)
        os.rename(work, target)
    sync_directory(target)
    said = {
        "format": FORMAT,
        "version": VERSION,
        "folder": manifest.folder,
        "entries": manifest.entries,
        "spans": manifest.spans,
        "ranking": manifest.ranking,
        "files": manifest.files,
        "sources": manifest.sources,
    }
    new = path / f"{_UNFINISHED}{MANIFEST}"
    new.write_bytes(encode_json(said, indent=1))
    sync_file(new)
    os.replace(new, path / MANIFEST)
    sync_directory(path)
    for other in path.iterdir():
        if other.name != manifest.folder and (_FOLDER.fullmatch(other.name) or other.name.startswith(_UNFINISHED)):
            shutil.rmtree(other, ignore_errors=True)


def _is_sound(folder: Path, files: Mapping[str, Mapping[str, Any]]) -> bool:
    try:
        return all(sha256_file(folder / name) == said["sha256"] for name, said in files.items())
    except OSError:
        return False


def read_store(path: Path) -> Manifest:
    """The manifest of an index whose files are all there and as they were written.

    Raises:
        ConfigError: there is nothing at `path`.
        DataError: it is no index, one of another version, or damaged.
    """
    if not path.exists():
        raise ConfigError(f"there is no index at {path}. {cure(path)}")
    manifest = _read_manifest(path)
    for name, said in manifest.files.items():
        file = path / manifest.folder / name
        try:
            whole = file.stat().st_size == said.get("bytes") and sha256_file(file) == said.get("sha256")
        except OSError as error:
            raise damaged(path, f"{name} cannot be read ({error.strerror})") from error
        if not whole:
            raise damaged(path, f"{name} is not what was written")
    return manifest


def cure(path: Path) -> str:
    """How to get an index at `path`."""
    return f"Build one: assay index build --output {path}"


def damaged(path: Path, why: str) -> DataError:
    """The error for an index that cannot be used as it is."""
    return DataError(f"the index {path} is damaged: {why}, so what it would show cannot be trusted. {cure(path)}")


def _read_manifest(path: Path, any_version: bool = False) -> Manifest:
    file = path / MANIFEST
    try:
        if not file.is_file():
            raise DataError(f"{path} is no index of Assay: it has no {MANIFEST}. {cure(path)}")
        if file.stat().st_size > MAX_MANIFEST_BYTES:
            raise DataError(f"{path} is no index of Assay: its {MANIFEST} is too long. {cure(path)}")
        said = json.loads(file.read_bytes())
    except OSError as error:
        raise DataError(f"the index {path} cannot be read: {error.strerror}. Check its permissions.") from error
    except DataError:
        raise
    except (ValueError, RecursionError) as error:
        raise damaged(path, f"{MANIFEST} is not JSON") from error
    if not isinstance(said, dict) or said.get("format") != FORMAT:
        raise DataError(f"{path} is no index of Assay: its {MANIFEST} does not say so. {cure(path)}")
    if said.get("version") != VERSION and not any_version:
        raise DataError(
            f"the index {path} has version {said.get('version')!r:.20}, and this Assay reads version {VERSION}. "
            f"{cure(path)}"
        )
    if any_version:
        return Manifest("", 0, {}, {}, {})
    return _checked(path, said)


def _checked(path: Path, said: Mapping[str, Json]) -> Manifest:
    """The manifest in JSON that may be anything."""
    folder, count, spans, ranking, files = (said.get(key) for key in ("folder", "entries", "spans", "ranking", "files"))
    if not (
        isinstance(folder, str)
        and _FOLDER.fullmatch(folder)
        and type(count) is int
        and count > 0
        and isinstance(ranking, dict)
        and isinstance(files, dict)
        and all(_FILE.fullmatch(name) and isinstance(about, dict) for name, about in files.items())
        and {ENTRIES, STARTS} <= files.keys()
        and isinstance(spans, dict)
    ):
        raise damaged(path, f"{MANIFEST} lacks what an index needs")
    found: dict[Language, tuple[int, int]] = {}
    place = 0
    for language in LANGUAGES:
        span = spans.get(language)
        if span is None:
            continue
        if not (isinstance(span, list) and [type(end) for end in span] == [int, int] and place == span[0] < span[1]):
            raise damaged(path, f"{MANIFEST} has impossible places of {language} entries")
        found[language] = (span[0], span[1])
        place = span[1]
    manifest = Manifest(folder, count, found, ranking, files, said.get("sources"))
    if place != count or not manifest.fingerprint.startswith(folder):
        raise damaged(path, f"{MANIFEST} was changed")
    return manifest


class EntryTexts:
    """The entries of an index, read from its file when they are asked for. Valid while this object lives."""

    def __init__(self, path: Path, manifest: Manifest) -> None:
        """Map the file.

        Raises:
            DataError: it does not hold the entries that the manifest counts.
        """
        self._path = path
        folder = path / manifest.folder
        self._starts = np.load(folder / STARTS, mmap_mode="r", allow_pickle=False)
        with open(folder / ENTRIES, "rb") as file:
            self._text = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        starts = self._starts
        if not (
            starts.dtype == np.int64
            and starts.shape == (manifest.entries + 1,)
            and starts[0] == 0
            and starts[-1] == len(self._text)
            and (np.diff(starts) > 0).all()
        ):
            raise damaged(path, f"{STARTS} does not fit {ENTRIES}")

    def __len__(self) -> int:
        return len(self._starts) - 1

    def __getitem__(self, place: int) -> Entry:
        line = self._text[self._starts[place] : self._starts[place + 1]]
        try:
            return Entry.from_json(json.loads(line))
        except (ValueError, RecursionError) as error:
            raise damaged(self._path, f"entry {place} cannot be read ({error})") from error
