"""Analyses kept on disk across runs and processes, in one SQLite file (write-ahead log).

The cache is a convenience: nothing it does may lose an analysis or stop a run. A damaged file is moved aside and a new
one begun; when nothing can be written the run goes on without, and one warning says so.
"""

from __future__ import annotations

import fcntl
import logging
import os
import sqlite3
from pathlib import Path

logger = logging.getLogger(__name__)

FILE_NAME = "stockfish.sqlite"
BUSY_TIMEOUT_S = 5.0
"""How long a write waits for another process to finish its own."""

_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS analysis_v1 (fingerprint TEXT, fen TEXT, moves TEXT NOT NULL, "
    "PRIMARY KEY (fingerprint, fen)) WITHOUT ROWID"
)


class AnalysisCache:
    """Text by (fingerprint, FEN). Use it from one thread; several processes may share the folder."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / FILE_NAME
        self._warned = False
        self._inode = 0
        self._db: sqlite3.Connection | None = None
        try:
            self._open()
        except sqlite3.OperationalError as error:
            self._warn(error)
        except sqlite3.DatabaseError as error:
            self._replace_damaged(error)

    def get(self, fingerprint: str, fen: str) -> str | None:
        """The stored text, or None."""
        row = self._execute("SELECT moves FROM analysis_v1 WHERE fingerprint = ? AND fen = ?", (fingerprint, fen))
        return None if row is None else str(row[0])

    def put(self, fingerprint: str, fen: str, moves: str) -> None:
        """Store, replacing what was there. Failing to is a warning, once."""
        self._execute("INSERT OR REPLACE INTO analysis_v1 VALUES (?, ?, ?)", (fingerprint, fen, moves))

    def close(self) -> None:
        """Close the file; safe to call twice. Afterwards nothing is found and nothing is stored."""
        if self._db is not None:
            self._db.close()
            self._db = None

    def _open(self) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise sqlite3.OperationalError(str(error)) from error
        self._db = sqlite3.connect(self.path, timeout=BUSY_TIMEOUT_S, isolation_level=None)
        self._db.execute("PRAGMA journal_mode = WAL")
        self._db.execute("PRAGMA synchronous = NORMAL")
        self._db.execute(_SCHEMA)
        self._inode = self.path.stat().st_ino

    def _execute(self, statement: str, values: tuple[str, ...]) -> tuple[object, ...] | None:
        if self._db is None:
            return None
        try:
            row: tuple[object, ...] | None = self._db.execute(statement, values).fetchone()
            return row
        except sqlite3.OperationalError as error:
            self._warn(error)
        except sqlite3.DatabaseError as error:
            self._replace_damaged(error)
        return None

    def _warn(self, error: Exception) -> None:
        if not self._warned:
            self._warned = True
            logger.warning(
                "the analysis cache %s cannot be used as it should (%s): analyses are computed but may not be kept. "
                "Free disk space or choose a writable cache folder.",
                self.path,
                error,
            )

    def _replace_damaged(self, error: Exception) -> None:
        """Move a damaged file aside, unless another process did so already, and begin a new one."""
        self.close()
        try:
            with open(self.path.with_suffix(".lock"), "w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                if self._inode in (0, self.path.stat().st_ino):
                    self._move_aside(error)
                self._open()
        except (OSError, sqlite3.DatabaseError) as failure:
            self._warn(failure)

    def _move_aside(self, error: Exception) -> None:
        number = 1
        while (aside := self.path.with_name(f"{self.path.name}.damaged-{number}")).exists():
            number += 1
        os.replace(self.path, aside)
        for suffix in ("-wal", "-shm"):
            leftover = self.path.with_name(self.path.name + suffix)
            if leftover.exists():
                os.replace(leftover, aside.with_name(aside.name + suffix))
        logger.warning(
            "the analysis cache %s is damaged (%s). It was moved to %s and a new one begun; analyses will be computed "
            "again.",
            self.path,
            error,
            aside,
        )
