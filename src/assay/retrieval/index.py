"""Solved problems that resemble a problem: `open_index(path).search(code, 3, language="triton", exclude=...)`.

Ranked by shared words, or by embeddings where the index was built with a model. Entries of the other language and those
that the exclusion forbids are passed over while the ranking is walked down, so that `k` are found wherever there are
`k`. Equal scores are ordered by place, so that a search gives the same result everywhere.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from assay.errors import AssayError, ConfigError, DataError
from assay.retrieval.bm25 import Bm25Ranking, build_bm25, open_bm25
from assay.retrieval.code_text import code_hash
from assay.retrieval.embeddings import Embedder, EmbeddingRanking, build_vectors, open_vectors
from assay.retrieval.entries import LANGUAGES, Entry, Language
from assay.retrieval.exclusion import MAX_QUERY_CHARACTERS, Exclusion, screen
from assay.retrieval.ranking import Ranking
from assay.retrieval.store import EntryTexts, Manifest, damaged, read_store, write_store
from assay.types import Json

__all__ = ["Entry", "Exclusion", "Hit", "Index", "Language", "build_index", "code_hash", "open_index"]

NOTHING = Exclusion()
"""Excludes nothing."""


@dataclass(frozen=True)
class Hit:
    """An entry that a search found."""

    entry: Entry
    score: float
    place: int
    """Its number in the index."""


class Index:
    """An open index. Any number of searches may run at once."""

    def __init__(self, path: Path, manifest: Manifest, texts: EntryTexts, ranking: Ranking) -> None:
        self.path = path
        self.fingerprint = manifest.fingerprint
        """SHA-256 (hex) of its content; equal entries and settings have equal ones."""
        self.languages: tuple[Language, ...] = tuple(manifest.spans)
        self.ranked_by = ranking.kind
        self.sources = manifest.sources
        self._spans = manifest.spans
        self._texts = texts
        self._ranking = ranking

    def __len__(self) -> int:
        return len(self._texts)

    def search(self, query: str, k: int, *, language: str, exclude: Exclusion = NOTHING) -> list[Entry]:
        """The `k` entries that resemble a problem most, best first; fewer where there are no more.

        Args:
            query: The problem's code.
            k: Entries wanted, at least 0.
            language: Of their kernels.
            exclude: Problems whose solutions may not be shown.

        Raises:
            ConfigError: `k` is negative, or the index has no entry of that language.
            DataError: an entry cannot be read.
        """
        return [hit.entry for hit in self.hits(query, k, language=language, exclude=exclude)]

    def hits(self, query: str, k: int, *, language: str, exclude: Exclusion = NOTHING) -> list[Hit]:
        """As `search`, with scores."""
        if k < 0:
            raise ConfigError(f"k={k}: a search gives no fewer than 0 entries. Ask for 0 or more.")
        shown = screen(exclude)
        allowed = (hit for hit in self._ranked(query, language) if shown.reason(hit.entry) is None)
        return list(itertools.islice(allowed, k))

    def _ranked(self, query: str, language: str) -> Iterator[Hit]:
        """All entries of a language that have something to do with a query, best first."""
        start, end = self._span(language)
        for place, score in self._ranking.ranked(query[:MAX_QUERY_CHARACTERS], start, end):
            yield Hit(self._texts[place], score, place)

    def _span(self, language: str) -> tuple[int, int]:
        for there, span in self._spans.items():
            if there == language:
                return span
        raise ConfigError(
            f"the index {self.path} has no entry whose language is {language!r}, but {' and '.join(self._spans)}. "
            "Build it from a corpus of that language, or choose another one."
        )


def build_index(
    entries: Iterable[Entry], path: Path, embedder: Embedder | None = None, sources: Json = None
) -> Manifest:
    """Write an index of entries into a folder, in place of the index that may be there.

    Args:
        entries: In any order; equal entries give an equal index only in equal order.
        path: The folder.
        embedder: Ranks by its embeddings; without one, by shared words.
        sources: What to say of where the entries come from, for readers.

    Raises:
        DataError: there are no entries, or the folder holds something else or cannot be written.
        MissingDependencyError: what the ranking needs is not installed.
    """
    ordered = sorted(entries, key=lambda entry: LANGUAGES.index(entry.language))
    if not ordered:
        raise DataError("there is no entry to build an index from. Give a corpus with solved problems.")
    codes = [entry.torch_code for entry in ordered]
    if embedder is None:
        return write_store(path, ordered, lambda folder: build_bm25(codes, folder), sources)
    return write_store(path, ordered, lambda folder: build_vectors(codes, folder, embedder), sources)


def open_index(path: Path, model: str | None = None, device: str | None = None) -> Index:
    """Open an index, and check every byte of it.

    Args:
        path: Its folder.
        model: Where the embedding model is now, if not where it was when the index was built; unused without one.
        device: Where the embedding model runs; by default sentence-transformers chooses.

    Raises:
        ConfigError: there is no index.
        DataError: it is damaged, of another version, or something else; or its embedding model is another one.
        MissingDependencyError: what its ranking needs is not installed.
    """
    path = Path(path)
    manifest = read_store(path)
    folder = path / manifest.folder
    try:
        texts = EntryTexts(path, manifest)
        ranking = _open_ranking(manifest, folder, model, device)
    except AssayError:
        raise
    except (OSError, ValueError, EOFError, KeyError, RecursionError) as error:
        raise damaged(path, f"a file cannot be read ({error})") from error
    return Index(path, manifest, texts, ranking)


def _open_ranking(manifest: Manifest, folder: Path, model: str | None, device: str | None) -> Ranking:
    kind = manifest.ranking.get("kind")
    if kind == Bm25Ranking.kind:
        return open_bm25(folder, manifest.entries)
    if kind == EmbeddingRanking.kind:
        return open_vectors(folder, manifest.ranking, manifest.entries, model, device)
    raise ValueError(f"its entries are ranked by {kind!r:.40}, which is unknown")
