"""The SQLite file of a keyed store: opened under a lock, and moved aside, never deleted, if it cannot be used.

A process that opens the file, or finds it damaged, holds an flock on `<file>.lock` meanwhile. Two processes that find
the same damage therefore move it once: the second sees another inode at the path and opens what the first has begun.
"""

from __future__ import annotations

import fcntl
import logging
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from assay.errors import CacheError

logger = logging.getLogger(__name__)

SCHEMA_VERSION = 1
"""Kept in the file's `user_version`. A file of another version is moved aside."""
APPLICATION_ID = 0x41535259
"""Kept in the file's header: tells a keyed store from any other SQLite database."""
FILE_MODE = 0o600
"""Mode of a new file, since its contents may be private. A file that its owner has opened to others stays so."""
BUSY_TIMEOUT_S = 2.0
"""How long a statement waits for another process that holds the database."""
LOCK_TIMEOUT_S = 10.0
"""How long to wait for other processes that are opening the file."""

# Replies were the first values kept this way. The table keeps their name, so that old files can still be read.
_SCHEMA = (
    "CREATE TABLE replies "
    "(id INTEGER PRIMARY KEY, key TEXT NOT NULL UNIQUE, reply BLOB NOT NULL, checksum INTEGER NOT NULL)"
)
_SMALLEST_DATABASE = 512
_LOG_PAGES = 4000
"""Pages in the write-ahead log that start a checkpoint: 16 MB. Each checkpoint waits for the disk."""
_PAGE_CACHE_KIB = 16_384
"""Memory for pages of the file; most of a key's index stays in it."""
_LOG_BYTES = 64_000_000
"""Size to which a larger write-ahead log is cut."""

EXTENT = (
    "SELECT (SELECT page_count FROM pragma_page_count), (SELECT freelist_count FROM pragma_freelist_count), "
    "(SELECT page_size FROM pragma_page_size), (SELECT coalesce(min(id), 0) FROM replies), "
    "(SELECT coalesce(max(id), 0) FROM replies)"
)
"""Query for the fields of an `Extent`; takes the same time however large the file is."""

_OLDEST = "SELECT id, coalesce(length(reply), 0) FROM replies ORDER BY id LIMIT ?"
_EVICT_ROWS = 4096
"""Most rows that one write drops beyond four times those it adds: a bound made smaller is reached in steps."""
_EVICT_SLACK = 1_000_000
"""Bytes dropped beyond what is needed, so that not every write drops something."""
_ROW_OVERHEAD = 200
"""Bytes of a row beside its value: the key twice, the ids, and what a page leaves unused."""
_VACUUM_PAGES = 1024
"""Most pages that one write gives back to the disk after the bound was made smaller."""

_DAMAGE = frozenset(
    {
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_NOTADB,
        sqlite3.SQLITE_FORMAT,
        # The statements are fixed and the schema was checked, so these too mean that the file has changed during use.
        sqlite3.SQLITE_ERROR,
        sqlite3.SQLITE_SCHEMA,
        sqlite3.SQLITE_MISMATCH,
        sqlite3.SQLITE_CONSTRAINT,
        sqlite3.SQLITE_TOOBIG,
    }
)


SqliteFailure = (sqlite3.DatabaseError, UnicodeDecodeError)
"""What a statement may raise because of the file."""


@dataclass(frozen=True, slots=True)
class Contents:
    """What a store keeps, in words for its messages."""

    store: str
    """What the store is called: `reply cache`."""
    items: str
    """What its values are called: `replies`."""
    made_again: str
    """What happens to a value that is lost: `asked and paid for again`."""
    cure: str
    """What to do if there can be no store: the setting for another file, and the one for none."""


class Unusable(Exception):
    """The file is not a store that this version can read. `label` becomes part of its name once moved aside."""

    def __init__(self, label: str, reason: str) -> None:
        super().__init__(reason)
        self.label = label


@dataclass(frozen=True, slots=True)
class OpenFile:
    """A connection, and the inode of the file behind it."""

    db: sqlite3.Connection
    inode: int
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class Extent:
    """How far a file reaches: its pages, and the ids of its rows."""

    pages: int
    free_pages: int
    page_bytes: int
    lowest: int
    highest: int

    @property
    def used_bytes(self) -> int:
        """Size of the file without the pages that hold nothing."""
        return (self.pages - self.free_pages) * self.page_bytes


def is_damage(error: Exception) -> bool:
    """Whether the file itself is not, or no longer, what it should be."""
    # SQLite's message can quote a damaged schema; if that is not UTF-8, Python's module cannot report it.
    return isinstance(error, Unusable | UnicodeDecodeError) or getattr(error, "sqlite_errorcode", 0) & 0xFF in _DAMAGE


def is_refusal(error: Exception) -> bool:
    """Whether SQLite itself reports the error; errors of Python's module itself have no code."""
    return hasattr(error, "sqlite_errorcode")


def inode_of(path: Path) -> int | None:
    """The inode at `path`, or None where nothing is."""
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return None


def open_file(path: Path, contents: Contents, damage: Unusable | None = None, inode: int | None = None) -> OpenFile:
    """Open the store at `path`, making it and its folder if needed.

    With `damage`, the file of that `inode` is moved aside first, unless another process has done so.

    Raises:
        CacheError: it can neither be opened nor replaced: permissions, a full disk, another program's lock.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with locked(path.with_name(path.name + ".lock"), LOCK_TIMEOUT_S):
            if damage is not None and inode == inode_of(path):
                _move_aside(path, contents, damage)
            try:
                return _connect(path)
            except Unusable as found:
                _move_aside(path, contents, found)
                return _connect(path)
    except (OSError, sqlite3.Error, Unusable) as error:
        raise CacheError(
            f"the {contents.store} {path} cannot be opened: {error}. Without it {contents.items} would always be "
            f"{contents.made_again}. Make the file and its folder writable for this user and free disk space, or "
            f"{contents.cure}."
        ) from error


def open_for_reading(path: Path) -> OpenFile | None:
    """The store at `path` where it cannot be opened for writing; None where it cannot be read without that either.

    The file is taken as it stands, without locks, unless a log beside it is still to be merged into it.
    """
    log = path.with_name(path.name + "-wal")
    try:
        if log.exists() and log.stat().st_size:
            return None
        db = sqlite3.connect(f"{path.as_uri()}?immutable=1", uri=True, isolation_level=None, check_same_thread=False)
    except (OSError, sqlite3.Error):
        return None
    try:
        db.text_factory = bytes
        if db.execute("PRAGMA application_id").fetchone()[0] == APPLICATION_ID:
            _check_schema(db)
            return OpenFile(db, path.stat().st_ino, read_only=True)
    except (OSError, Unusable, *SqliteFailure):
        pass  # the caller has said already that the file cannot be used
    db.close()
    return None


def evict(db: sqlite3.Connection, extent: Extent, max_bytes: int, added: int) -> int:
    """Drop the rows with the lowest ids where the file is beyond `max_bytes`. Returns how many were dropped."""
    excess = extent.used_bytes - max_bytes
    if excess <= 0:
        return 0
    excess += min(_EVICT_SLACK, max_bytes // 32)
    last = None
    oldest = db.execute(_OLDEST, (_EVICT_ROWS + 4 * added,))
    for row_id, size in oldest:
        last = row_id
        excess -= size + _ROW_OVERHEAD
        if excess <= 0:
            break
    oldest.close()
    dropped = db.execute("DELETE FROM replies WHERE id <= ?", (last,)).rowcount
    if extent.pages * extent.page_bytes > 1.25 * max_bytes:
        for _ in range(_VACUUM_PAGES):  # One by one: Python's module runs only the first step of this statement.
            db.execute("PRAGMA incremental_vacuum(1)")
    return dropped


@contextmanager
def locked(path: Path, timeout_s: float) -> Iterator[None]:
    """Hold an exclusive flock on `path`, which is made and stays. Raises TimeoutError when others do not let go."""
    with open(path, "ab", opener=_private) as file:
        give_up = time.monotonic() + timeout_s
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > give_up:
                    raise TimeoutError(f"another process has held {path} for {timeout_s:g} s") from None
                time.sleep(0.01)
        yield


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, FILE_MODE)


def _connect(path: Path) -> OpenFile:
    if path.is_file() and 0 < path.stat().st_size < _SMALLEST_DATABASE:
        raise Unusable("damaged", "file is not a database")  # SQLite would take it for an empty one and overwrite it.
    open(path, "ab", opener=_private).close()  # SQLite gives a file's companions the mode of the file
    db = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
    try:
        # Text comes back as bytes, so that damaged text reaches the checksum instead of failing to decode.
        db.text_factory = bytes
        db.execute("PRAGMA auto_vacuum = INCREMENTAL")
        db.execute("PRAGMA journal_mode = WAL")
        # With a write-ahead log, NORMAL can lose the last entries in a power cut but never the file.
        db.execute("PRAGMA synchronous = NORMAL")
        db.execute(f"PRAGMA wal_autocheckpoint = {_LOG_PAGES}")
        db.execute(f"PRAGMA journal_size_limit = {_LOG_BYTES}")
        db.execute(f"PRAGMA cache_size = -{_PAGE_CACHE_KIB}")
        _check_schema(db)
        return OpenFile(db, path.stat().st_ino)
    except SqliteFailure as error:
        db.close()
        # A header that forbids writing a writable file is damage; any other refusal to write is the disk's.
        readonly = getattr(error, "sqlite_errorcode", 0) & 0xFF == sqlite3.SQLITE_READONLY
        if is_damage(error) or (readonly and os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)):
            raise Unusable("damaged", str(error)) from error
        raise
    except (OSError, Unusable):
        db.close()
        raise


def _check_schema(db: sqlite3.Connection) -> None:
    """Make the schema in an empty file, or check the one that is there."""
    application, version, tables = (
        db.execute(query).fetchone()[0]
        for query in ("PRAGMA application_id", "PRAGMA user_version", "SELECT count(*) FROM sqlite_master")
    )
    if (application, version, tables) == (0, 0, 0):
        with db:
            db.execute("BEGIN IMMEDIATE")
            db.execute(_SCHEMA)
            db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    elif application != APPLICATION_ID:
        raise Unusable("foreign", "it is a database of another program, or of an older Assay")
    elif version != SCHEMA_VERSION:
        raise Unusable(f"version-{version}", f"its schema version is {version}, this Assay's is {SCHEMA_VERSION}")
    elif db.execute("PRAGMA encoding").fetchone()[0] != b"UTF-8":
        raise Unusable("damaged", "its text encoding is not the one it was made with")
    db.execute("SELECT id, key, reply, checksum FROM replies LIMIT 1").fetchone()


def _move_aside(path: Path, contents: Contents, damage: Unusable) -> None:
    """Rename the file and its companions. A process that still has it open goes on with it until its next write."""
    number = 1
    while (aside := path.with_name(f"{path.name}.{damage.label}-{number}")).exists():
        number += 1
    for suffix in ("-wal", "-shm", ""):
        part = path.with_name(path.name + suffix)
        if part.exists():
            os.replace(part, aside.with_name(aside.name + suffix))
    logger.warning(
        "the %s %s cannot be used (%s). It was moved to %s and an empty one begun, so its %s will be %s. Nothing was "
        "deleted.",
        contents.store,
        path,
        damage,
        aside,
        contents.items,
        contents.made_again,
    )
