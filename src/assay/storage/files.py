"""Writing files so that a kill, a full disk or a read-only folder loses nothing and says what to do.

Whole files are replaced atomically; records are appended with one write, and a write that fails half-way is undone.
Every failure of the operating system inside `Writing(...)` becomes a `RunDirectoryError` with its cure.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from assay.errors import AssayError, RunDirectoryError
from assay.types import Check, Json

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_FORBIDDEN = {errno.EACCES, errno.EPERM, errno.EROFS}
_FULL_PHRASES = ("No space left on device", "File too large", "Disk quota exceeded")
"""How writers that hide `errno` (safetensors, torch) spell a full disk."""


@dataclass(frozen=True)
class Home:
    """What keeps its files somewhere, in the words of the cures."""

    keeper: str
    setting: str
    """The one that says where."""
    retry: str
    """How to go on once there is room."""


RUN = Home("A run", "log_path", "run the same command again: it resumes from the last checkpoint")


@dataclass(frozen=True)
class Writing:
    """Context in which a failed write to `path` becomes a `RunDirectoryError` naming `what` and the cure.

    Other errors pass through unchanged: a lost connection (a hosted backend's) has nothing to do with this disk.
    """

    path: Path
    what: str
    needed: int | None = None
    """Bytes that the write needs, where known."""
    home: Home = RUN

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None or isinstance(error, (AssayError, ConnectionError, TimeoutError)):
            return
        code = error.errno if isinstance(error, OSError) else None
        if code in _FULL or any(phrase in str(error) for phrase in _FULL_PHRASES):
            raise RunDirectoryError(self._full()) from error
        if code in _FORBIDDEN:
            raise RunDirectoryError(
                f"Cannot write {self.what} at {self.path}: {os.strerror(code or 0)}. "
                f"{self.home.keeper} keeps its state there. Set {self.home.setting} to a folder that this "
                "user may write to, or change its permissions."
            ) from error
        if isinstance(error, OSError):
            raise RunDirectoryError(
                f"Cannot write {self.what} at {self.path}: {error}. {self.home.keeper} keeps its state there. "
                f"Set {self.home.setting} to a folder that can be created and written to."
            ) from error

    def _full(self) -> str:
        need = "" if self.needed is None else f" (needs {human_bytes(self.needed)})"
        return (
            f"No room to write {self.what} at {self.path}{need}: {human_bytes(free_bytes(self.path))} free, or a limit "
            "on file size or a quota was reached. Everything committed before it is intact. Free space there, then "
            f"{self.home.retry}."
        )


def free_bytes(path: Path) -> int:
    """Free bytes of the file system that holds `path`, which need not exist yet."""
    return shutil.disk_usage(_existing(path)).free


def check_writable(path: Path) -> None:
    """Refuse, without writing, a folder that could not be made or written to.

    Raises:
        OSError: what stands in the way.
    """
    place = _existing(path.absolute())
    if not place.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(place))
    if not os.access(place, os.W_OK | os.X_OK):
        code = errno.EROFS if os.statvfs(place).f_flag & os.ST_RDONLY else errno.EACCES
        raise OSError(code, os.strerror(code), str(place))


def disk_check(name: str, path: Path, least: int = 10**9) -> Check:
    """Whether a folder can be written to and has room; below `least` bytes it counts as full."""
    cure = f"free space there, or choose another folder for the {name}"
    try:
        check_writable(path)
    except OSError as error:
        return Check(f"disk: {name}", False, f"{path} cannot be written to: {error.strerror}", cure)
    free = free_bytes(path)
    return Check(f"disk: {name}", free >= least, f"{human_bytes(free)} free at {path}", cure)


def _existing(path: Path) -> Path:
    """The nearest folder or file above `path` that exists, or itself."""
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def human_bytes(size: int) -> str:
    """`size` in bytes, kB, MB or GB (powers of 1000), with three significant digits."""
    if size < 1000:
        return f"{size} bytes"
    power = min(3, int(math.log10(size)) // 3)
    return f"{size / 1000**power:.3g} {('', 'kB', 'MB', 'GB')[power]}"


def append(fd: int, data: bytes) -> None:
    """Append `data` to a file opened with `O_APPEND`; a write that fails half-way leaves the file as it was."""
    before = os.fstat(fd).st_size
    try:
        done = os.write(fd, data)
        while done < len(data):
            done += os.write(fd, data[done:])
    except OSError:
        os.ftruncate(fd, before)
        raise


def sync_directory(path: Path) -> None:
    """Make the names in directory `path` durable."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def sync_file(path: Path) -> None:
    """Make the content of the file `path` durable."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def replace_file(path: Path, data: bytes, *, durable: bool = True, home: Home = RUN) -> None:
    """Write `data` to `path` atomically: a reader sees the old content or the new, never a part.

    `durable` also waits until it is on the disk, so that a power cut cannot undo it.

    Raises:
        RunDirectoryError: the disk is full or the folder cannot be written to; the old content is intact.
    """
    temporary = path.with_name(path.name + ".tmp")
    with Writing(path, path.name, len(data), home):
        try:
            with open(temporary, "wb") as file:
                file.write(data)
                file.flush()
                if durable:
                    os.fsync(file.fileno())
            os.replace(temporary, path)
            if durable:
                sync_directory(path.parent)
        finally:
            temporary.unlink(missing_ok=True)


def truncate_file(path: Path, size: int) -> None:
    """Cut the file `path` to `size` bytes, durably; a file that already has that size is not touched."""
    if path.stat().st_size == size:
        return
    fd = os.open(path, os.O_WRONLY)
    try:
        os.ftruncate(fd, size)
        os.fsync(fd)
    finally:
        os.close(fd)


def remove(path: Path) -> None:
    """Delete a file or a whole folder; one that is already gone is fine."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def sha256_file(path: Path) -> str:
    """SHA-256 of the file's content, in hex."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_object(path: Path) -> dict[str, Json] | None:
    """The JSON object in a file, or None if there is none."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def encode_json(value: Json, *, indent: int | None = None, sort_keys: bool = False) -> bytes:
    """`value` as one JSON document in UTF-8, always valid: numbers that are not finite become null.

    Tuples and arrays become lists, paths strings and numpy scalars numbers. Characters are written as themselves,
    except in text that UTF-8 cannot hold (lone surrogates), which is escaped.
    """
    separators = (",", ":") if indent is None else None

    def dump(data: Json, ascii_only: bool = False) -> str:
        return json.dumps(
            data, indent=indent, sort_keys=sort_keys, separators=separators, ensure_ascii=ascii_only, allow_nan=False
        )

    try:
        text = dump(value)
    except (TypeError, ValueError):  # something that json does not take as it is
        value = _plain(value)
        text = dump(value)
    try:
        return text.encode()
    except UnicodeEncodeError:
        return dump(value, ascii_only=True).encode()


def _plain(value: Any) -> Json:
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted(_plain(item) for item in value)
    if isinstance(value, Path):
        return str(value)
    as_python = getattr(value, "tolist", None)
    if as_python is None:
        raise TypeError(f"a value of type {type(value).__name__} cannot be written as JSON; give plain data")
    return _plain(as_python())
