"""Analyses kept on disk across runs and processes: a `KeyedStore` that a run can do without.

A folder that cannot be written to is read if that is possible. A warning is logged, and the run goes on.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from assay.storage.keyed_store import KeyedStore
from assay.storage.sqlite_file import Contents

FILE_NAME = "stockfish.sqlite"
"""The cache's file in its folder."""
MAX_MB = 4000
"""Bound of the file, enough for about three million analyses; those used longest ago are removed first."""
ANALYSES = Contents(
    store="analysis cache",
    items="analyses",
    made_again="computed again",
    cure="choose another folder with cache_dir=..., or do without with stockfish.cache=false",
)


class AnalysisCache:
    """Text by (fingerprint, FEN). Use one object from one thread; several processes may share the folder."""

    def __init__(self, folder: Path) -> None:
        self._store = KeyedStore(folder / FILE_NAME, MAX_MB, ANALYSES, required=False)

    def get(self, fingerprint: str, fen: str) -> str | None:
        """The stored text, or None."""
        value = self._store.get(key_of(fingerprint, fen))
        return None if value is None else value.decode(errors="replace")

    def put(self, fingerprint: str, fen: str, moves: str) -> None:
        """Store, replacing what was there."""
        self._store.put([(key_of(fingerprint, fen), moves.encode())])

    def close(self) -> None:
        """Close the file; safe to call twice. Afterwards nothing is found and nothing is stored."""
        self._store.close()


def key_of(fingerprint: str, fen: str) -> str:
    """SHA-256 (hex) of what determines an analysis."""
    return hashlib.sha256(json.dumps([fingerprint, fen]).encode()).hexdigest()
