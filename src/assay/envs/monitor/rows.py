"""Rows of monitor data: generated here, or read from files with the columns of the published data sets.

`text`, `measurements` (list of booleans), `is_correct` (the latent variable), `is_clean` (whether measurements can be
trusted), and in the diamonds data `difficulty`. A source is a file (JSON lines or parquet), a folder (written by
`datasets.save_to_disk`, or with a file per split) or the hub, through the `datasets` package.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from assay.envs.monitor.answers import true_measurements
from assay.errors import DataError, MissingDependencyError, pip_install
from assay.types import Json

Split = Literal["train", "validation", "final"]
HUB_OWNER = "redwoodresearch"
"""Owner of the published data sets on the Hugging Face hub."""
COLUMNS = ("text", "measurements", "is_correct")
"""Columns that every row needs."""
TRAIN_SPLIT, HELDOUT_SPLIT = "train", "validation"
"""Splits of the published data sets that are read."""


@dataclass(frozen=True, slots=True)
class MonitorRow:
    """One problem and what is true of it."""

    text: str
    measurements: tuple[bool, ...]
    is_correct: bool
    """The latent variable, which a monitor is asked for."""
    is_clean: bool | None = None
    """Whether the measurements were made where they can be trusted; None where the data do not say."""
    difficulty: int | None = None
    tags: tuple[str, ...] = field(default=())
    """Slices that metrics are split by, beyond those that follow from the columns."""

    @property
    def key(self) -> str:
        """Hash of the problem's text (hex, 16 characters)."""
        return text_key(self.text)


def text_key(text: str) -> str:
    """Hash of a text (hex, 16 characters)."""
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:16]


def split_of(key: str) -> Split:
    """The side of the split that a key alone decides: one in ten is `validation`, one in ten `final`."""
    tenth = int(hashlib.sha256(key.encode()).hexdigest()[:8], 16) % 10
    return ("validation", "final")[tenth] if tenth < 2 else "train"


@dataclass(frozen=True)
class Source:
    """Rows as read, by the splits of the source; one without splits has all of them under `train`."""

    name: str
    train: Sequence[MonitorRow]
    heldout: Sequence[MonitorRow] = ()

    def rows(self, split: Split) -> list[MonitorRow]:
        """The rows of one side, without those of equal text; no text is on two sides.

        Where the source has held-out rows of its own, they are cut in two, and their texts are dropped from training.

        Raises:
            DataError: there are none.
        """
        if self.heldout:
            apart = {row.key for row in self.heldout}
            if split == "train":
                chosen = [row for row in self.train if row.key not in apart]
            else:
                side = 0 if split == "validation" else 1
                chosen = [row for row in self.heldout if int(row.key, 16) % 2 == side]
        else:
            chosen = [row for row in self.train if split_of(row.key) == split]
        unique = list({row.key: row for row in chosen}.values())
        if not unique:
            raise DataError(f"{self.name} has no {split} rows. Give more data.")
        return unique


def read_source(source: str, dataset_name: str) -> Source:
    """Rows from a file, a folder or the hub.

    Args:
        source: a path, or `huggingface`.
        dataset_name: the data set's name on the hub; used only there.

    Raises:
        DataError: there is no such file, or its rows are not as published.
        MissingDependencyError: a package that reads this kind of file is not installed.
    """
    if source == "huggingface":
        return _from_datasets(_hub(dataset_name), f"{HUB_OWNER}/{dataset_name}")
    path = Path(source).expanduser()
    if path.is_file():
        return Source(str(path), list(read_file(path)))
    if not path.is_dir():
        raise DataError(
            f"dataset_src={source} is neither a file nor a folder. Give a .jsonl or .parquet file, a folder that "
            "datasets.save_to_disk wrote or one with train.* and validation.* files, `generated`, or `huggingface`."
        )
    if (path / "dataset_dict.json").exists() or (path / "state.json").exists():
        return _from_datasets(_saved(path), str(path))
    files = {split: sorted(_split_files(path, split)) for split in (TRAIN_SPLIT, HELDOUT_SPLIT)}
    if not files[TRAIN_SPLIT]:
        raise DataError(f"{path} has neither train.jsonl nor train.parquet (or data/train-*.parquet).")
    train, heldout = ([row for file in files[split] for row in read_file(file)] for split in files)
    return Source(str(path), train, heldout)


def _split_files(folder: Path, split: str) -> Iterator[Path]:
    for place in (folder, folder / "data"):
        for suffix in ("jsonl", "parquet"):
            yield from place.glob(f"{split}.{suffix}")
            yield from place.glob(f"{split}-*.{suffix}")


def read_file(path: Path) -> Iterator[MonitorRow]:
    """The rows of one `.jsonl` or `.parquet` file.

    Raises:
        DataError, MissingDependencyError: see `read_source`.
    """
    if path.suffix == ".jsonl":
        return rows_of(_json_lines(path), str(path))
    if path.suffix == ".parquet":
        return rows_of(_parquet(path), str(path))
    raise DataError(f"{path}: only .jsonl and .parquet files are read, not {path.suffix or 'files without a suffix'}.")


def rows_of(records: Iterable[Mapping[str, Json]], name: str) -> Iterator[MonitorRow]:
    """Records with the published columns as rows.

    Raises:
        DataError: a column is missing, or a value is not what it should be; with the number of the row.
    """
    for number, record in enumerate(records, start=1):
        missing = [column for column in COLUMNS if column not in record]
        if missing:
            there = ", ".join(map(str, record)) or "none"
            raise DataError(
                f"{name}, row {number} has no column {' and no '.join(missing)}; there are {there}. Monitor data have "
                f"the columns {', '.join(COLUMNS)} (and is_clean, difficulty)."
            )
        try:
            yield _row(record)
        except DataError as error:
            raise DataError(f"{name}, row {number}: {error}") from error


def _row(record: Mapping[str, Json]) -> MonitorRow:
    if not isinstance(record["text"], str) or not record["text"].strip():
        raise DataError(f"the text is {record['text']!r}, so the problem is empty.")
    latent, clean, difficulty = record["is_correct"], record.get("is_clean"), record.get("difficulty")
    if latent not in (0, 1):
        raise DataError(f"is_correct is {latent!r} and not True or False.")
    if clean is not None and clean not in (0, 1):
        raise DataError(f"is_clean is {clean!r} and not True, False or null.")
    return MonitorRow(
        text=record["text"],
        measurements=true_measurements(record["measurements"]),
        is_correct=bool(latent),
        is_clean=None if clean is None else bool(clean),
        difficulty=None if difficulty is None else int(difficulty),
    )


def _json_lines(path: Path) -> Iterator[Mapping[str, Json]]:
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue
            try:
                record = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise DataError(f"{path}, line {number} is not valid JSON ({error}).") from error
            if not isinstance(record, dict):
                raise DataError(f"{path}, line {number} is not a JSON object.")
            yield record


def _parquet(path: Path) -> Iterator[Mapping[str, Json]]:
    try:
        from pyarrow import ArrowException, parquet
    except ImportError as error:
        raise MissingDependencyError(_needs("a parquet file", "pyarrow")) from error
    try:
        table = parquet.read_table(path)
    except (ArrowException, OSError) as error:
        raise DataError(f"{path} cannot be read as parquet: {error}") from error
    for batch in table.to_batches():
        yield from batch.to_pylist()


def _from_datasets(data: Any, name: str) -> Source:
    """Rows of a `datasets.Dataset`, or of a `DatasetDict` with the published splits."""
    if not hasattr(data, "keys"):
        return Source(name, list(rows_of(data, name)))
    if TRAIN_SPLIT not in data:
        raise DataError(f"{name} has the splits {', '.join(data)}, but no {TRAIN_SPLIT}.")
    heldout = rows_of(data[HELDOUT_SPLIT], f"{name} ({HELDOUT_SPLIT})") if HELDOUT_SPLIT in data else ()
    return Source(name, list(rows_of(data[TRAIN_SPLIT], f"{name} ({TRAIN_SPLIT})")), list(heldout))


def _saved(path: Path) -> Any:
    try:
        from datasets import load_from_disk
    except ImportError as error:
        raise MissingDependencyError(_needs("a folder that datasets.save_to_disk wrote", "datasets")) from error
    try:
        return load_from_disk(str(path))
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read as a saved data set: {error}") from error


def _hub(name: str) -> Any:
    try:
        from datasets import load_dataset
    except ImportError as error:
        raise MissingDependencyError(_needs("dataset_src=huggingface", "datasets")) from error
    try:
        return load_dataset(f"{HUB_OWNER}/{name}")
    except (OSError, ValueError) as error:
        raise DataError(
            f"{HUB_OWNER}/{name} cannot be loaded from the hub: {error}. Check the name and the connection, or give a "
            "local copy as dataset_src."
        ) from error


def _needs(what: str, package: str) -> str:
    return f"{what} is read with {package}, which is not installed: {pip_install('data')}."
