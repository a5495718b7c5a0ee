"""Corpora of solved problems: published data sets, from the hub or a local copy, and files of your own.

    reading = Reading(corpus_of("kernelbook:kernelbook.parquet"))
    entries = entries_of(reading)
    reading.summary()                  kernelbook.parquet: 3 rows, 2 taken; passed over: 1 no kernel

What is passed over is counted. A row without the columns of its data set is an error: then the file is another one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from assay.errors import ConfigError, DataError
from assay.retrieval.code_text import code_hash
from assay.retrieval.entries import Entry
from assay.retrieval.pairs import FORMS, Form, Pair, as_row, fits, pair_of
from assay.storage.files import encode_json, replace_file
from assay.storage.records import SUFFIXES, Record, records_of
from assay.types import Json

MAX_ENTRIES = 200_000
"""Rows that one corpus may give, unless told otherwise."""


@dataclass(frozen=True)
class Corpus:
    """A data set to read."""

    source: str
    """A file, a folder, or a hub id."""
    form: str | None = None
    """Its form, a key of `FORMS`; None: the one whose columns the first row has."""
    splits: tuple[str, ...] | None = None
    """Splits of a folder or hub data set; None: those of the form."""


def corpus_of(text: str, levels: Sequence[int] = ()) -> Corpus:
    """A corpus as the command line writes it.

    Args:
        text: `kernelbook` (from the hub), `kernelbook:PATH`, or `PATH`, whose columns tell the form.
        levels: Levels of a data set that has them as splits; none for all.

    Raises:
        ConfigError: it is none of these.
    """
    form, colon, source = text.partition(":")
    if form not in FORMS:
        known = ", ".join(FORMS)
        if not text.strip() or not (Path(text).suffix in SUFFIXES or Path(text).expanduser().exists()):
            raise ConfigError(
                f"{text!r} is neither a corpus nor a file. Corpora are {known}; a local copy is given as NAME:PATH, a "
                f"file of your own as PATH ({', '.join(SUFFIXES)})."
            )
        return Corpus(text)
    hub = FORMS[form].hub
    if not source and (colon or hub is None):
        raise ConfigError(f"{text!r} needs a file: {form}:PATH.")
    return Corpus(source or str(hub), form, _splits(form, levels))


def _splits(form: str, levels: Sequence[int]) -> tuple[str, ...] | None:
    known = FORMS[form].splits
    if not levels or not known[0].startswith("level_"):
        return None
    wanted = tuple(f"level_{level}" for level in levels)
    if unknown := [split for split in wanted if split not in known]:
        raise ConfigError(f"{form} has no {unknown[0]}. It has {', '.join(known)}.")
    return wanted


class Reading:
    """The pairs of a corpus, read as they are asked for; afterwards, what was passed over and why."""

    def __init__(self, corpus: Corpus, incorrect: bool = False, max_entries: int = MAX_ENTRIES) -> None:
        """Prepare to read.

        Args:
            corpus: What to read.
            incorrect: Whether solutions that the data set says are wrong are taken too.
            max_entries: Most pairs to take.
        """
        self.corpus = corpus
        self.rows = 0
        self.taken = 0
        self.skipped: Counter[str] = Counter()
        self._incorrect = incorrect
        self._most = max_entries

    def __iter__(self) -> Iterator[Pair]:
        """The pairs, in the order of the rows.

        Raises:
            DataError: the data set cannot be read, or a row lacks a column.
            MissingDependencyError: a package that reads it is not installed.
        """
        form = FORMS[self.corpus.form] if self.corpus.form is not None else None
        for place, row in self._records(form):
            if form is None:
                form = _recognised(place, row)
            if not fits(form, row):
                raise DataError(_lacking(place, row, form))
            self.rows += 1
            if self.taken >= self._most:
                self.skipped[f"beyond the first {self._most:,}"] += 1
                continue
            pair = pair_of(row, form, self.corpus.source, self._incorrect)
            if isinstance(pair, str):
                self.skipped[pair] += 1
            else:
                self.taken += 1
                yield pair

    def _records(self, form: Form | None) -> Iterator[tuple[str, Record]]:
        source = self.corpus.source
        if Path(source).expanduser().is_file():
            yield from records_of(source, "train")
            return
        for split in self.corpus.splits or (form.splits if form else ("train",)):
            yield from records_of(source, split)

    def summary(self) -> str:
        """What was read, in a line."""
        said = f"{self.corpus.source}: {self.rows:,} rows, {self.taken:,} taken"
        skipped = ", ".join(f"{count:,} {reason}" for reason, count in self.skipped.most_common())
        return f"{said}; passed over: {skipped}" if skipped else said

    def as_json(self) -> Json:
        """The same as plain data."""
        about = {"source": self.corpus.source, "form": self.corpus.form, "rows": self.rows, "taken": self.taken}
        return {**about, "passed_over": dict(self.skipped)}


def _recognised(place: str, row: Record) -> Form:
    for form in FORMS.values():
        if fits(form, row):
            return form
    known = "; ".join(f"{name}: {', '.join(form.columns)}" for name, form in FORMS.items())
    raise DataError(f"{place} has the columns of no known data set: {_columns(row)}. Known are {known}.")


def _lacking(place: str, row: Record, form: Form) -> str:
    return f"{place} lacks a column of its data set, which has {', '.join(form.columns)}. It has {_columns(row)}."


def _columns(row: Record) -> str:
    return ", ".join(row)[:300] or "no columns"


def entries_of(pairs: Iterable[Pair]) -> Iterator[Entry]:
    """Solved pairs as entries of an index.

    Raises:
        DataError: a pair has no solution.
    """
    for pair in pairs:
        if pair.solution is None:
            raise DataError(f"{pair.source} holds problems without solutions, so nothing in it can be shown as solved.")
        yield Entry(
            pair.name,
            pair.language,
            pair.problem,
            pair.solution,
            code_hash(pair.problem),
            pair.source,
            pair.correct,
            pair.speedup,
        )


def best_of_each(entries: Sequence[Entry], most: int) -> list[Entry]:
    """At most `most` entries of each problem and language, those with the highest speedup; in the order given.

    Equal speedups are ordered by place. An entry without one comes last.
    """
    groups: dict[tuple[str, str], list[int]] = {}
    for place, entry in enumerate(entries):
        groups.setdefault((entry.language, entry.code_hash), []).append(place)
    kept = set()
    for places in groups.values():
        kept.update(sorted(places, key=lambda place: (-(entries[place].speedup or 0.0), place))[:most])
    return [entry for place, entry in enumerate(entries) if place in kept]


def write_pairs(path: Path, pairs: Iterable[Pair]) -> int:
    """Write solved pairs as JSON lines in the form `assay`, atomically; returns how many.

    Raises:
        RunDirectoryError: the file cannot be written; what was there is intact.
    """
    lines = [encode_json(as_row(pair)) + b"\n" for pair in pairs]
    replace_file(path, b"".join(lines))
    return len(lines)
