"""Analyses kept on disk across runs and processes, in one SQLite file (write-ahead log; a local disk, please).

The cache is a convenience: nothing it does may lose an analysis or stop a run. A damaged file is moved aside and a new
one begun; a folder that cannot be written is read if possible; a full disk keeps what is there. Each says so once.
"""

from __future__ import annotations

import fcntl
import logging
import os
import sqlite3
from pathlib import Path

logger = logging.getLogger(__name__)

FILE_NAME = "stockfish.sqlite"
"""The cache's file in its folder. Its `-wal`, `-shm` and `.lock` companions stand beside it."""
BUSY_TIMEOUT_S = 5.0
"""How long a write waits for other processes to finish theirs."""

_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS analysis_v1 (fingerprint TEXT, fen TEXT, moves TEXT NOT NULL, "
    "PRIMARY KEY (fingerprint, fen)) WITHOUT ROWID"
)


class AnalysisCache:
    """Text by (fingerprint, FEN). Use one object from one thread; several processes may share the folder."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE_NAME
        self._db: sqlite3.Connection | None = None
        self._inode: int | None = None
        self._warned = False
        self._open()

    def get(self, fingerprint: str, fen: str) -> str | None:
        """The stored text, or None."""
        row = self._execute("SELECT moves FROM analysis_v1 WHERE fingerprint = ? AND fen = ?", (fingerprint, fen))
        return None if row is None else str(row[0])

    def put(self, fingerprint: str, fen: str, moves: str) -> None:
        """Store, replacing what was there."""
        self._execute("INSERT OR REPLACE INTO analysis_v1 VALUES (?, ?, ?)", (fingerprint, fen, moves))

    def close(self) -> None:
        """Close the file; safe to call twice. Afterwards nothing is found and nothing is stored."""
        if self._db is not None:
            self._db.close()
            self._db = None

    def _execute(self, statement: str, values: tuple[str, ...]) -> tuple[object, ...] | None:
        if self._db is None:
            return None
        try:
            row: tuple[object, ...] | None = self._db.execute(statement, values).fetchone()
            return row
        except sqlite3.OperationalError as error:
            self._warn(error)
        except sqlite3.DatabaseError as error:
            if not _is_damage(error):
                raise
            self.close()
            self._open(error)
        return None

    def _open(self, damage: sqlite3.DatabaseError | None = None) -> None:
        """Connect. With `damage`, first move the file that was open aside, unless another process has done so."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with open(self.path.with_name(FILE_NAME + ".lock"), "w") as lock:
                # Held while connecting: creating the file and moving it aside are not safe against each other.
                fcntl.flock(lock, fcntl.LOCK_EX)
                if damage is not None and self._inode == self.path.stat().st_ino:
                    self._move_aside(damage)
                try:
                    self._connect()
                except sqlite3.DatabaseError as error:
                    if not _is_damage(error):
                        raise
                    self._move_aside(error)
                    self._connect()
        except (OSError, sqlite3.DatabaseError) as error:
            self._open_for_reading(error)

    def _connect(self) -> None:
        db = sqlite3.connect(self.path, timeout=BUSY_TIMEOUT_S, isolation_level=None)
        try:
            db.execute("PRAGMA journal_mode = WAL")
            # With a write-ahead log, NORMAL can lose the last entries in a power cut but never the file.
            db.execute("PRAGMA synchronous = NORMAL")
            db.execute(_SCHEMA)
            self._inode = self.path.stat().st_ino
        except (OSError, sqlite3.DatabaseError):
            db.close()
            raise
        self._db = db

    def _open_for_reading(self, error: Exception) -> None:
        """What can still be done in a folder that cannot be written: read the file, if nobody is writing it."""
        self._warn(error)
        log = self.path.with_name(FILE_NAME + "-wal")
        if self.path.is_file() and not (log.exists() and log.stat().st_size):
            self._db = sqlite3.connect(f"{self.path.absolute().as_uri()}?immutable=1", uri=True, isolation_level=None)

    def _move_aside(self, damage: sqlite3.DatabaseError) -> None:
        number = 1
        while (aside := self.path.with_name(f"{FILE_NAME}.damaged-{number}")).exists():
            number += 1
        for suffix in ("", "-wal", "-shm"):
            part = self.path.with_name(FILE_NAME + suffix)
            if part.exists():
                os.replace(part, aside.with_name(aside.name + suffix))
        logger.warning(
            "the analysis cache %s is damaged (%s). It was moved to %s and a new one begun, so positions will be "
            "analysed again.",
            self.path,
            damage,
            aside,
        )

    def _warn(self, error: Exception) -> None:
        if not self._warned:
            self._warned = True
            logger.warning(
                "the analysis cache %s cannot be written (%s): analyses go on but may have to be repeated in the next "
                "run. Free disk space or choose a writable cache folder.",
                self.path,
                error,
            )


def _is_damage(error: sqlite3.DatabaseError) -> bool:
    """Whether SQLite says that the file itself is not, or no longer, a database."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
