"""Ranking by shared words (BM25, with `bm25s`): no model, no network, milliseconds.

The arrays are those of bm25s: for each word the entries that have it, and what it adds to their scores.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from assay.errors import DataError, MissingDependencyError, pip_install
from assay.retrieval.code_text import model_part, name_words, tokens
from assay.retrieval.operations import operations
from assay.retrieval.ranking import in_order
from assay.storage.files import encode_json

K1, B = 1.5, 0.75
"""BM25's saturation of repeated words, and its normalisation by length."""
ARRAYS = {"word_starts.npy": np.int32, "word_entries.npy": np.int32, "word_scores.npy": np.float32}
VOCABULARY = "words.json"
FILES = (*ARRAYS, VOCABULARY)


class Bm25Ranking:
    """Entries by the words that they share with the query, rare words counting more."""

    kind = "bm25"

    def __init__(self, scorer: Any) -> None:
        self._scorer = scorer

    def ranked(self, query: str, start: int, end: int) -> Iterator[tuple[int, float]]:
        """See `Ranking.ranked`; an entry without a word of the query has nothing to do with it."""
        words = sorted(set(search_words(query)))
        if words:
            scores = self._scorer.get_scores(words)[start:end]
            yield from ((start + place, score) for place, score in in_order(scores))


def search_words(code: str) -> list[str]:
    """What is compared of two problems: operations, neighbouring operations as one word, and the parts of all names."""
    found = tokens(code)
    done = operations(found)
    neighbours = [f"{one}>{next_one}" for one, next_one in pairwise(done)]
    named = (word for token in model_part(found) if token.kind == "name" for word in name_words(token.text))
    return [*done, *neighbours, *named]


def build_bm25(codes: Iterable[str], folder: Path) -> Mapping[str, Any]:
    """Write the ranking of sources, in their order, into a folder; returns its settings, for the manifest.

    Raises:
        MissingDependencyError: bm25s is not installed.
        DataError: no source has a word.
    """
    bm25s = _bm25s()
    # Ids by first occurrence: bm25s numbers words in the order of a set, which differs from process to process.
    vocabulary: dict[str, int] = {}
    ids = [[vocabulary.setdefault(word, len(vocabulary)) for word in search_words(code)] for code in codes]
    if not vocabulary:
        raise DataError("no problem has a word that search could compare. Is torch_code the text of PyTorch modules?")
    scorer = bm25s.BM25(k1=K1, b=B, method="lucene")
    scorer.index((ids, vocabulary), create_empty_token=False, show_progress=False)
    parts = (scorer.scores["indptr"], scorer.scores["indices"], scorer.scores["data"])
    for (name, kind), array in zip(ARRAYS.items(), parts, strict=True):
        np.save(folder / name, array.astype(kind), allow_pickle=False)
    (folder / VOCABULARY).write_bytes(encode_json(list(vocabulary)))
    return {"kind": Bm25Ranking.kind, "k1": K1, "b": B, "words": len(vocabulary)}


def open_bm25(folder: Path, entries: int) -> Bm25Ranking:
    """The ranking in a folder whose files are those that were written.

    Raises:
        MissingDependencyError: bm25s is not installed.
        ValueError: the files do not belong together.
    """
    bm25s = _bm25s()
    starts, places, scores = (np.load(folder / name, mmap_mode="r", allow_pickle=False) for name in ARRAYS)
    words = json.loads((folder / VOCABULARY).read_bytes())
    arrays = zip((starts, places, scores), ARRAYS.values(), strict=True)
    if (
        not all(array.dtype == kind and array.ndim == 1 for array, kind in arrays)
        or not isinstance(words, list)
        or not all(isinstance(word, str) for word in words)
    ):
        raise ValueError("its arrays are not of the kinds that BM25 needs")
    if not (
        len(starts) == len(words) + 1
        and len(places) == len(scores) == starts[-1]
        and starts[0] == 0
        and (np.diff(starts) >= 0).all()
        and len(places) > 0
        and places.min() >= 0
        and places.max() < entries
        and np.isfinite(scores).all()
    ):
        raise ValueError("its arrays do not belong together")
    scorer = bm25s.BM25(k1=K1, b=B, method="lucene")
    scorer.scores = {"indptr": starts, "indices": places, "data": scores, "num_docs": entries}
    scorer.vocab_dict = {word: number for number, word in enumerate(words)}
    scorer.nonoccurrence_array = None
    return Bm25Ranking(scorer)


def _bm25s() -> Any:
    try:
        import bm25s
    except ImportError as error:
        raise MissingDependencyError(
            f"retrieval ranks with bm25s, which is not installed: {pip_install('retrieval')}."
        ) from error
    return bm25s
