"""Keys and values to put into a keyed store, each derived from a number, and programs that do so elsewhere."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from assay.storage.keyed_store import KeyedStore
from assay.storage.sqlite_file import Contents

THINGS = Contents("store of things", "things", "made again", "choose another folder=...")


def key(number: int) -> str:
    return hashlib.sha256(str(number).encode()).hexdigest()


def value(number: int, size: int = 420) -> bytes:
    return (f"thing {number} " * size).encode()[:size]


def rows(numbers: range, size: int = 420) -> list[tuple[str, bytes]]:
    return [(key(n), value(n, size)) for n in numbers]


def found(store: KeyedStore, numbers: Iterable[int]) -> dict[str, bytes]:
    """What the store holds of the values of these numbers."""
    return {key(n): stored for n in numbers if (stored := store.get(key(n))) is not None}


def open_store(path: Path, max_mb: int = 10, required: bool = True) -> KeyedStore:
    return KeyedStore(path, max_mb, THINGS, required=required)


PRELUDE = """
import os, resource, signal, sys, time
from pathlib import Path
from support.stored_values import found, key, open_store, rows, value
path = Path(sys.argv[1])
"""


def program(code: str, *arguments: object, prefix: tuple[str, ...] = ()) -> subprocess.Popen[str]:
    """A process that runs `code` after `PRELUDE`."""
    folders = [str(Path(__file__).parents[1]), *sys.path]
    return subprocess.Popen(
        [*prefix, sys.executable, "-c", PRELUDE + code, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, folders))},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def output(process: subprocess.Popen[str]) -> str:
    """What a program printed, once it has ended well."""
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    return out
