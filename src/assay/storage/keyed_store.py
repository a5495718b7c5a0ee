"""Bytes by key, kept on disk across runs and processes in one SQLite file (write-ahead log; a local disk).

    store = KeyedStore(path, max_mb=256, contents=REPLIES)
    store.put([(key, value)])
    store.get(key)

Rows are kept in the order of their last use, which is their row id: a counter, so no clock is needed. Beyond the
size bound the lowest ids go. Reading an old row moves it to the top, with the next write.

A store must never lose a value or stop a run. What cannot be written stays in memory and is tried again; a damaged file
is moved aside and a new one begun (`sqlite_file`). Each is reported once, in the terms of the store's `Contents`.
"""

from __future__ import annotations

import itertools
import logging
import os
import sqlite3
import time
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from assay.errors import CacheError
from assay.storage.sqlite_file import (
    EXTENT,
    Contents,
    Extent,
    OpenFile,
    SqliteFailure,
    Unusable,
    evict,
    inode_of,
    is_damage,
    is_refusal,
    open_file,
    open_for_reading,
)

logger = logging.getLogger(__name__)

MAX_UNWRITTEN_BYTES = 32_000_000
"""Values kept in memory while they cannot be written; beyond it the oldest are dropped."""
MAX_TOUCHED = 4096
"""Rows that were read, whose use is not yet written."""
FIRST_RETRY_S = 1.0
LAST_RETRY_S = 30.0
"""Seconds until a failing disk is tried again: the first wait, and the longest."""

_LAST_ID = 2**62
_NOTHING_STALE = -(2**63)

_SELECT = "SELECT id, reply, checksum FROM replies WHERE key = ?"
_INSERT = "INSERT OR REPLACE INTO replies (id, key, reply, checksum) VALUES (?, ?, ?, ?)"


def default_path(name: str) -> Path:
    """The user's own store of that file name: `assay/<name>` in $XDG_CACHE_HOME, or in ~/.cache.

    Raises:
        CacheError: neither that variable nor a home folder is known.
    """
    base = os.environ.get("XDG_CACHE_HOME", "")
    try:
        # The XDG Base Directory Specification says to ignore relative values.
        folder = Path(base) if os.path.isabs(base) else Path.home() / ".cache"
    except RuntimeError as error:
        raise CacheError(
            f"no folder for {name}: {error}. Set HOME or XDG_CACHE_HOME, choose a file with cache_path=..., or do "
            "without with cache=false."
        ) from error
    return folder / "assay" / name


class KeyedStore:
    """Values by key. One object serves one caller at a time; any number of processes may have the file open.

    Close it before a fork, and open it again in each process. `evicted` counts the rows dropped for the size bound,
    `write_failures` the writes that did not reach the disk at once, `lost` the values that never will.
    """

    def __init__(self, path: Path, max_mb: int, contents: Contents, *, required: bool = True) -> None:
        """Open the file, making it and its folder if needed.

        Args:
            path: The file.
            max_mb: Bound of its size (1 MB is 10**6 bytes).
            contents: What is kept, for messages.
            required: False goes on without a file that cannot be opened: it is read if that is possible, new values
                are kept in memory, and a warning says so.

        Raises:
            CacheError: it is required, and can neither be opened nor replaced by a new one.
        """
        # SQLite resolves links, and puts the companions of the file beside the real one.
        self.path = Path(os.path.realpath(path))
        self.evicted = 0
        self.write_failures = 0
        self.lost = 0
        self._contents = contents
        self._max_bytes = max_mb * 1_000_000
        self._unwritten: dict[str, bytes | None] = {}
        self._unwritten_bytes = 0
        self._touched: dict[int, None] = {}
        self._stale_below = _NOTHING_STALE
        self._reading = _Retry()
        self._writing = _Retry()
        self._said_damaged_row = False
        self._closed = False
        self._file: OpenFile | None = None
        try:
            self._file = open_file(self.path, contents)
        except CacheError as error:
            if required:
                raise
            self._file = open_for_reading(self.path)
            self._unwritable(error)
        for extent in self._rows(EXTENT, ()):
            self._note_extent(Extent(*extent))

    def get(self, key: str) -> bytes | None:
        """The stored value, or None."""
        if self._unwritten and key in self._unwritten:
            return self._unwritten[key]
        for row_id, body, checksum in self._rows(_SELECT, (key,)):
            return self._sound(key, row_id, body, checksum)
        return None

    def put(self, rows: Sequence[tuple[str, bytes]]) -> bool:
        """Store values in one transaction, replacing what was there. Never raises for a disk that fails.

        True: they are on disk and outlive this process, however it ends. False: the disk did not take them; this
        object still finds them, and writes them later.
        """
        for key, value in rows:
            self._set_unwritten(key, value)
        return self._write()

    def drop(self, key: str) -> None:
        """Forget a value."""
        self._set_unwritten(key, None)
        self._write()

    def close(self) -> None:
        """Write what is unwritten and close the file; safe to call twice. Afterwards it finds and stores nothing."""
        if self._closed:
            return
        self._writing.hurry()
        if self._unwritten or self._touched:
            self._write()
        self._closed = True
        self._give_up(0)
        self._disconnect()

    def __len__(self) -> int:
        """Number of stored values; counts them one by one."""
        rows = self._rows("SELECT count(*) FROM replies", ())
        return int(rows[0][0]) if rows else 0

    def _rows(self, statement: str, values: Sequence[str]) -> list[Any]:
        """What a query finds; nothing where the file cannot be read now."""
        if self._file is None or not self._reading.due():
            return []
        try:
            rows = self._file.db.execute(statement, values).fetchall()
        except SqliteFailure as error:
            self._unreadable(error)
            return []
        self._reading.worked()
        return rows

    def _sound(self, key: str, row_id: int, body: object, checksum: object) -> bytes | None:
        """The value of a row, if it is what was written."""
        if not isinstance(body, bytes) or _checksum(key, body) != checksum:
            if not self._said_damaged_row:
                self._said_damaged_row = True
                logger.warning(
                    "a row of the %s %s does not match its checksum: the disk has changed it. It is ignored and will "
                    "be %s. Check the disk. Further such rows are not reported.",
                    self._contents.store,
                    self.path,
                    self._contents.made_again,
                )
            return None
        if row_id < self._stale_below:
            self._touched[row_id] = None
            if len(self._touched) >= MAX_TOUCHED:
                self._write()
        return body

    def _write(self) -> bool:
        """Write everything that waits for it, unless that has failed too recently to be tried again."""
        if self._closed or not self._writing.due():
            return self._unwritable(None)
        try:
            try:
                self._transact(self._connected())
            except (*SqliteFailure, Unusable) as error:
                if not is_damage(error):
                    raise
                self._transact(self._replaced(error))
        except (*SqliteFailure, Unusable, CacheError, OSError) as error:
            return self._unwritable(error)
        if self._writing.worked():
            logger.warning("the %s %s can be written again.", self._contents.store, self.path)
        self._unwritten.clear()
        self._unwritten_bytes = 0
        self._touched.clear()
        return True

    def _transact(self, db: sqlite3.Connection) -> None:
        bodies = [(key, value) for key, value in self._unwritten.items() if value is not None]
        dropped = [(key,) for key, value in self._unwritten.items() if value is None]
        with db:
            db.execute("BEGIN IMMEDIATE")
            top = db.execute("SELECT max(id) FROM replies").fetchone()[0] or 0
            if top > _LAST_ID:
                raise Unusable("damaged", f"its counter stands at {top}")
            ids = itertools.count(top + 1)
            if self._touched:
                moves = [(next(ids), row_id) for row_id in self._touched]
                db.executemany("UPDATE replies SET id = ? WHERE id = ?", moves)
            if dropped:
                db.executemany("DELETE FROM replies WHERE key = ?", dropped)
            db.executemany(_INSERT, [(next(ids), key, body, _checksum(key, body)) for key, body in bodies])
            extent = Extent(*db.execute(EXTENT).fetchone())
            evicted = evict(db, extent, self._max_bytes, len(bodies))
        self.evicted += evicted
        self._note_extent(extent)

    def _note_extent(self, extent: Extent) -> None:
        """Rows in the older half of a cache that is more than half full are moved up when they are read."""
        half_full = 2 * extent.used_bytes > self._max_bytes
        self._stale_below = (extent.lowest + extent.highest) // 2 if half_full else _NOTHING_STALE

    def _connected(self) -> sqlite3.Connection:
        """The connection; a new one if the file was deleted or moved aside by others, or could not be opened before."""
        if self._file is not None and self._file.inode != inode_of(self.path):
            self._disconnect()
        if self._file is None or self._file.read_only:
            opened = open_file(self.path, self._contents)
            self._disconnect()
            self._file = opened
        return self._file.db

    def _replaced(self, damage: Exception) -> sqlite3.Connection:
        """A connection to a new file, the damaged one moved aside."""
        inode = self._file.inode if self._file is not None else None
        self._disconnect()
        self._file = open_file(self.path, self._contents, Unusable("damaged", str(damage)), inode)
        return self._file.db

    def _disconnect(self) -> None:
        if self._file is not None:
            self._file.db.close()
            self._file = None
        self._touched.clear()
        self._stale_below = _NOTHING_STALE

    def _unreadable(self, error: Exception) -> None:
        read_only = self._file is not None and self._file.read_only
        if read_only:
            self._disconnect()  # Read without locks: what looks like damage may be another process at work.
        if is_damage(error) and not read_only:
            try:
                self._replaced(error)
            except CacheError as failure:
                logger.warning("%s New %s are kept in memory meanwhile.", failure, self._contents.items)
        elif not is_refusal(error) and not is_damage(error):
            raise error
        elif self._reading.failed():
            logger.warning(
                "the %s %s cannot be read (%s): stored %s will be %s until it can. Look for another program that "
                "locks the file, and check the disk.",
                self._contents.store,
                self.path,
                error,
                self._contents.items,
                self._contents.made_again,
            )

    def _unwritable(self, error: Exception | None) -> bool:
        """Note that a write failed, or was not tried (None). False, for `put`."""
        if isinstance(error, sqlite3.DatabaseError) and not is_refusal(error) and not is_damage(error):
            raise error
        self._touched.clear()
        if self._unwritten:
            self.write_failures += 1
        if error is not None and self._writing.failed():
            logger.warning(
                "the %s %s cannot be written (%s): new %s are kept in memory and written when that is possible again; "
                "if the run ends before, they are lost. Free disk space, end what locks the file, or check the "
                "permissions.",
                self._contents.store,
                self.path,
                error.__cause__ if isinstance(error, CacheError) else error,
                self._contents.items,
            )
        self._give_up(0 if self._closed else MAX_UNWRITTEN_BYTES)
        return False

    def _set_unwritten(self, key: str, value: bytes | None) -> None:
        """Note a value, or that it is to be dropped (None), as the newest that waits to be written."""
        self._unwritten_bytes += len(value or b"") - len(self._unwritten.pop(key, None) or b"")
        self._unwritten[key] = value

    def _give_up(self, most_bytes: int) -> None:
        """Forget the oldest unwritten values beyond `most_bytes`."""
        lost = 0
        while self._unwritten and (self._unwritten_bytes > most_bytes or not most_bytes):
            value = self._unwritten.pop(next(iter(self._unwritten)))
            self._unwritten_bytes -= len(value or b"")
            lost += value is not None
        if lost and not self.lost:
            logger.warning(
                "%d %s could not be written to %s and are lost: they will be %s. Further losses are counted, not "
                "reported.",
                lost,
                self._contents.items,
                self.path,
                self._contents.made_again,
            )
        self.lost += lost


class _Retry:
    """When to try again what has failed: after growing intervals. Time is monotonic, never the wall clock's."""

    def __init__(self) -> None:
        self._wait_s = 0.0
        self._next = 0.0

    def due(self) -> bool:
        """Whether it may be tried now."""
        return not self._wait_s or time.monotonic() >= self._next

    def failed(self) -> bool:
        """Put off the next attempt. True for the first of a row of failures."""
        first = not self._wait_s
        self._wait_s = min(2 * self._wait_s or FIRST_RETRY_S, LAST_RETRY_S)
        self._next = time.monotonic() + self._wait_s
        return first

    def hurry(self) -> None:
        """Allow the next attempt now, since it is the last."""
        self._next = 0.0

    def worked(self) -> bool:
        """Forget the failures. True where there were any."""
        failing = bool(self._wait_s)
        self._wait_s = 0.0
        return failing


def _checksum(key: str, body: bytes) -> int:
    # SQLite checks structure, not content; and a damaged index can lead to the row of another key.
    return zlib.crc32(body, zlib.crc32(key.encode()))
