"""Solved problems to show in prompts: corpora, search, and what may not be shown. Usable alone.

index = open_index(Path("kernel_rag_index"))
index.search(code, 3, language="triton", exclude=Exclusion.of({"19_ReLU": code}))
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from assay.retrieval.code_text import code_hash
    from assay.retrieval.corpora import Corpus, Reading, corpus_of, entries_of, write_pairs
    from assay.retrieval.entries import Entry
    from assay.retrieval.exclusion import Exclusion
    from assay.retrieval.index import Index, build_index, open_index
    from assay.retrieval.pairs import Pair
else:
    from assay.exports import lazy_exports

    __getattr__, __dir__ = lazy_exports(__name__)

__all__ = [
    "Corpus",
    "Entry",
    "Exclusion",
    "Index",
    "Pair",
    "Reading",
    "build_index",
    "code_hash",
    "corpus_of",
    "entries_of",
    "open_index",
    "write_pairs",
]
