"""Ranking by the embeddings of a sentence-transformers model: exact inner products of unit vectors, with FAISS.

The vectors are a plain array, memory-mapped; FAISS searches the part of it that belongs to the language. The embedding
of a fixed text is kept beside them: a model that embeds it otherwise is another model, whose queries would be compared
with vectors that mean something else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from assay.errors import DataError, MissingDependencyError, first_line, pip_install
from assay.retrieval.code_text import tokens
from assay.retrieval.operations import operations
from assay.retrieval.ranking import FIRST_WINDOW, GROWTH

MAX_EMBEDDED_CHARACTERS = 8_000
"""Of a problem; models read less than that."""
MOST_OPERATIONS = 100
"""Named before the code."""
VECTORS, PROBE = "vectors.npy", "probe.npy"
PROBE_TEXT = "import torch\n\n\ndef forward(x):\n    return torch.softmax(x, dim=-1)\n"
SAME_MODEL = 0.99
"""Cosine of the probe's embeddings from which two models are one: the same one differs by rounding alone."""


class Embedder(Protocol):
    """A model that turns texts into vectors."""

    @property
    def name(self) -> str:
        """How it is found again."""
        ...

    def encode(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """One vector a text, of length 1. Shape: (texts, dimensions)."""
        ...


class SentenceTransformerEmbedder:
    """Any model that sentence-transformers loads: a folder, or a name on the Hugging Face hub."""

    def __init__(self, model: str, device: str | None = None, batch_size: int = 32) -> None:
        """Load the model.

        Raises:
            MissingDependencyError: sentence-transformers is not installed.
            DataError: there is no such model, or it cannot be loaded.
        """
        try:
            from sentence_transformers import SentenceTransformer
        except ImportError as error:
            raise _needed("sentence-transformers") from error
        folder = Path(model).expanduser()
        self.name = str(folder.resolve()) if folder.is_dir() else model
        self._batch_size = batch_size
        try:
            self._model = SentenceTransformer(self.name, device=device)
        except (OSError, ValueError, RuntimeError, KeyError, TypeError, AttributeError) as error:
            raise DataError(
                f"the embedding model {model} cannot be loaded: {first_line(error)} Give a folder that "
                "sentence-transformers wrote, or the name of a model on the hub and a connection; without a model, "
                "an index ranks by shared words."
            ) from error

    def encode(self, texts: Sequence[str]) -> npt.NDArray[np.float32]:
        """See `Embedder.encode`."""
        found = self._model.encode(
            list(texts),
            batch_size=self._batch_size,
            show_progress_bar=False,
            convert_to_numpy=True,
            normalize_embeddings=True,
        )
        vectors = np.ascontiguousarray(found, np.float32)
        if not np.isfinite(vectors).all():
            raise DataError(f"the embedding model {self.name} gives numbers that are not finite. Give another one.")
        return vectors


class EmbeddingRanking:
    """Entries by the cosine of their embedding and the query's."""

    kind = "embeddings"

    def __init__(self, vectors: npt.NDArray[np.float32], embedder: Embedder) -> None:
        self._vectors = vectors
        self._embedder = embedder
        self._faiss = _faiss()

    def ranked(self, query: str, start: int, end: int) -> Iterator[tuple[int, float]]:
        """See `Ranking.ranked`; an embedding at a right angle or more has nothing to do with the query's."""
        query_1D = self._embedder.encode([embedded_text(query)])
        window, done = min(FIRST_WINDOW, end - start), 0
        while True:
            found, places = self._faiss.knn(
                query_1D, self._vectors[start:end], window, metric=self._faiss.METRIC_INNER_PRODUCT
            )
            scores, places = found[0], places[0]
            # What ties with the window's last one may lie beyond it, so that one waits for the next window.
            settled = scores > (scores[-1] if window < end - start else -np.inf)
            order = np.lexsort((places[settled], -scores[settled]))
            for place in order[done:]:
                if scores[settled][place] <= 0:
                    return
                yield start + int(places[settled][place]), float(scores[settled][place])
            if window == end - start:
                return
            done, window = len(order), min(window * GROWTH, end - start)


def embedded_text(code: str) -> str:
    """What a model reads of a problem: its operations in order, in words, and then its code."""
    done = operations(tokens(code[:MAX_EMBEDDED_CHARACTERS]))
    return f"# {' '.join(done[:MOST_OPERATIONS])}\n{code}"[:MAX_EMBEDDED_CHARACTERS]


def build_vectors(codes: Sequence[str], folder: Path, embedder: Embedder) -> Mapping[str, Any]:
    """Write the embeddings of sources, in their order, into a folder; returns the settings, for the manifest.

    Raises:
        DataError: the model gives no finite vectors.
    """
    vectors_ND = embedder.encode([embedded_text(code) for code in codes])
    np.save(folder / VECTORS, vectors_ND, allow_pickle=False)
    np.save(folder / PROBE, embedder.encode([PROBE_TEXT])[0], allow_pickle=False)
    return {"kind": EmbeddingRanking.kind, "dimensions": vectors_ND.shape[1], "model": embedder.name}


def open_vectors(
    folder: Path, settings: Mapping[str, Any], entries: int, model: str | None, device: str | None
) -> EmbeddingRanking:
    """The ranking in a folder whose files are those that were written.

    Raises:
        ValueError: the files do not belong together.
        DataError: the model cannot be loaded, or is another one than the one that made the vectors.
        MissingDependencyError: FAISS or sentence-transformers is not installed.
    """
    vectors = np.load(folder / VECTORS, mmap_mode="r", allow_pickle=False)
    probe = np.load(folder / PROBE, allow_pickle=False)
    shape = (entries, settings.get("dimensions"))
    if vectors.dtype != np.float32 or vectors.shape != shape or probe.shape != shape[1:]:
        raise ValueError(f"{VECTORS} does not fit the entries")
    if not np.isfinite(vectors).all() or not np.isfinite(probe).all():
        raise ValueError(f"{VECTORS} has numbers that are not finite")
    _faiss()
    name = model or settings.get("model")
    if not isinstance(name, str):
        raise ValueError("no model is named")
    embedder = SentenceTransformerEmbedder(name, device)
    now = embedder.encode([PROBE_TEXT])[0]
    if now.shape != probe.shape or float(now @ probe) < SAME_MODEL:
        raise DataError(
            f"the model {name} is not the one that embedded the entries, so that its queries would find anything. Name "
            "the model that built the index, or build the index again with this one."
        )
    return EmbeddingRanking(vectors, embedder)


def _faiss() -> Any:
    try:
        import faiss
    except ImportError as error:
        raise _needed("faiss") from error
    return faiss


def _needed(package: str) -> MissingDependencyError:
    return MissingDependencyError(
        f"ranking by embeddings needs {package}, which is not installed: {pip_install('embeddings')}. Without a "
        "model, an index ranks by shared words."
    )
