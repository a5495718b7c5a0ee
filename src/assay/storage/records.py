"""Rows of tables: JSON lines, JSON, CSV, parquet, folders and hub data sets of the `datasets` package.

Reading is bounded, and a row that cannot be read is named by its file and line.
"""

from __future__ import annotations

import csv
import itertools
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from assay.errors import DataError, MissingDependencyError, first_line, pip_install
from assay.types import Json

Record = Mapping[str, Json]
MAX_LINE_BYTES = 16_000_000
"""Of one row of text; a longer line is not a row."""
MAX_FILE_BYTES = 4_000_000_000
"""A larger file is not read."""
ABSENT = object()
"""In place of a column that a row does not have; null is a value."""
SUFFIXES = (".jsonl", ".json", ".csv", ".tsv", ".parquet")


def records_of(source: str, split: str, subset: str | None = None) -> Iterator[tuple[str, Record]]:
    """Rows, each with the place that it stands at (`data.jsonl, line 3`).

    Args:
        source: a file, a folder that `datasets` wrote or one with `SPLIT.jsonl` (or another kind), or a hub id.
        split: which rows of a folder or of a hub data set; a single file has no splits.
        subset: the configuration of a hub data set.

    Raises:
        DataError: there is no such thing, or it cannot be read.
        MissingDependencyError: a package that reads it is not installed.
    """
    path = Path(source).expanduser()
    if path.is_file():
        return _file(path)
    if path.is_dir() and ((path / "dataset_dict.json").exists() or (path / "state.json").exists()):
        return _from_datasets(_saved(path), str(path), split)
    if path.is_dir() and (files := sorted(_split_files(path, split))):
        return itertools.chain.from_iterable(map(_file, files))
    if path.suffix in SUFFIXES:
        there = sorted(p.name for p in path.parent.glob(f"*{path.suffix}")) if path.parent.is_dir() else []
        listed = f" That folder has {', '.join(there[:10])}." if there else ""
        raise DataError(f"{source} does not exist.{listed}")
    return _from_datasets(_hub(source, subset), source, split)


def _split_files(folder: Path, split: str) -> Iterator[Path]:
    for place in (folder, folder / "data"):
        for suffix in SUFFIXES:
            yield from place.glob(f"{split}{suffix}")
            yield from place.glob(f"{split}-*{suffix}")


def _file(path: Path) -> Iterator[tuple[str, Record]]:
    readers: Mapping[str, Callable[[Path], Iterator[tuple[str, Record]]]] = {
        ".jsonl": _json_lines,
        ".json": _json,
        ".csv": lambda path: _csv(path, ","),
        ".tsv": lambda path: _csv(path, "\t"),
        ".parquet": _parquet,
    }
    reader = readers.get(path.suffix)
    if reader is None:
        raise DataError(
            f"{path}: {path.suffix or 'files without a suffix'} cannot be read. Give {', '.join(SUFFIXES)}, a "
            "folder that `datasets` wrote, or a hub id."
        )
    if path.stat().st_size > MAX_FILE_BYTES:
        raise DataError(f"{path} has more than {MAX_FILE_BYTES:,} bytes, and is not read. Split it.")
    return _readable(path, reader(path))


def _readable(path: Path, rows: Iterator[tuple[str, Record]]) -> Iterator[tuple[str, Record]]:
    try:
        yield from rows
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}.") from error


def _json_lines(path: Path) -> Iterator[tuple[str, Record]]:
    with path.open("rb") as file:
        for number in itertools.count(1):
            line = file.readline(MAX_LINE_BYTES + 1)
            if not line:
                return
            place = f"{path}, line {number}"
            if len(line) > MAX_LINE_BYTES:
                raise DataError(
                    f"{place} has more than {MAX_LINE_BYTES:,} bytes, so it is not a row. Is it JSON lines?"
                )
            if line.strip():
                yield place, _object(line, place)


def _object(text: bytes, place: str) -> Record:
    try:
        found = _plain(json.loads(text))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{place} is not valid JSON ({error}).") from error
    if not isinstance(found, dict):
        raise DataError(f"{place} is a {type(found).__name__}, not an object with a value for each column.")
    return found


def _json(path: Path) -> Iterator[tuple[str, Record]]:
    try:
        found = _plain(json.loads(path.read_bytes()))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not valid JSON ({error}). JSON lines are named .jsonl.") from error
    if not isinstance(found, list):
        raise DataError(f"{path} holds a {type(found).__name__}, not a list of objects.")
    for number, row in enumerate(found, 1):
        if not isinstance(row, dict):
            raise DataError(f"{path}, row {number} is a {type(row).__name__}, not an object.")
        yield f"{path}, row {number}", row


def _csv(path: Path, delimiter: str) -> Iterator[tuple[str, Record]]:
    csv.field_size_limit(MAX_LINE_BYTES)
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file, delimiter=delimiter, strict=True)
        try:
            if twice := sorted(name for name, count in Counter(reader.fieldnames or ()).items() if count > 1):
                raise DataError(f"{path} has two columns called {twice[0]!r}. Rename one of them.")
            for row in reader:
                place = f"{path}, line {reader.line_num}"
                if None in row or None in row.values():
                    raise DataError(
                        f"{place} has a different number of fields than the {len(reader.fieldnames or ())} columns."
                    )
                yield place, row
        except (csv.Error, UnicodeDecodeError) as error:
            raise DataError(f"{path}, after line {reader.line_num}, cannot be read as CSV: {error}.") from error


def _parquet(path: Path) -> Iterator[tuple[str, Record]]:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError as error:
        raise MissingDependencyError(_needs("a parquet file", "pyarrow")) from error
    number = itertools.count(1)
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=1000):
                yield from ((f"{path}, row {next(number)}", _plain(row)) for row in batch.to_pylist())
    except (ArrowException, OSError) as error:
        raise DataError(f"{path} cannot be read as parquet: {first_line(error)}") from error


def _from_datasets(data: Any, name: str, split: str) -> Iterator[tuple[str, Record]]:
    """Rows of a `datasets.Dataset`, or of one split of a `DatasetDict`."""
    if hasattr(data, "keys"):
        if split not in data:
            raise DataError(f"{name} has no split {split}. It has {', '.join(data)}.")
        data, name = data[split], f"{name} ({split})"
    return ((f"{name}, row {number}", _plain(row)) for number, row in enumerate(data, 1))


def _saved(path: Path) -> Any:
    try:
        from datasets import load_from_disk
        from datasets.exceptions import DatasetsError
    except ImportError as error:
        raise MissingDependencyError(_needs("a folder that datasets.save_to_disk wrote", "datasets")) from error
    try:
        return load_from_disk(str(path))
    except (OSError, ValueError, DatasetsError) as error:
        raise DataError(f"{path} cannot be read as a saved data set: {first_line(error)}") from error


def _hub(name: str, subset: str | None) -> Any:
    """A data set of the hub, or of a folder whose files `datasets` knows how to read."""
    try:
        from datasets import load_dataset
        from datasets.exceptions import DatasetGenerationError, DatasetsError
    except ImportError as error:
        raise MissingDependencyError(_needs(f"the hub data set {name}", "datasets")) from error
    try:
        return load_dataset(name, subset)
    except DatasetGenerationError as error:
        why = first_line(error.__cause__ or error)
        raise DataError(f"{name} holds a file that cannot be read: {why}") from error
    except (OSError, ValueError, DatasetsError) as error:
        raise DataError(
            f"{name} is not a file here, and cannot be loaded from the Hugging Face hub: {first_line(error)} "
            "Check the name and the connection, or give a local copy."
        ) from error


def _plain(value: Any) -> Any:
    """A value as JSON has it: dates and the like as text, numbers that are none as null."""
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, bytes):
        return f"<{len(value)} bytes>"
    return value if value is None or isinstance(value, str | int | bool) else str(value)


def column(row: Record, name: str) -> Json:
    """The value of a column, `ABSENT` where there is none: of that very name, or else where its dots lead into nested
    columns."""
    if name in row:
        return row[name]
    found: Json = row
    for part in name.split("."):
        if not isinstance(found, Mapping) or part not in found:
            return ABSENT
        found = found[part]
    return found


def _needs(what: str, package: str) -> str:
    return f"{what} is read with {package}, which is not installed: {pip_install('data')}."


def first_of(rows: Iterable[tuple[str, Record]], most: int) -> tuple[list[tuple[str, Record]], bool]:
    """At most `most` rows, and whether there are more."""
    iterator = iter(rows)
    found = list(itertools.islice(iterator, most))
    return found, next(iterator, None) is not None
