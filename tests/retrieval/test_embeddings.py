"""Ranking by embeddings: real sentence-transformers models from local folders, and FAISS."""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from assay.errors import DataError
from assay.retrieval import embeddings
from assay.retrieval.embeddings import EmbeddingRanking, SentenceTransformerEmbedder, embedded_text
from assay.retrieval.exclusion import Exclusion
from assay.retrieval.index import Index, build_index, open_index
from assay.retrieval.store import MANIFEST
from support.embedding_models import write_random_transformer, write_word_model
from support.retrieval_entries import synthetic
from support.synthetic_problems import write_module

if any(find_spec(name) is None for name in ("faiss", "sentence_transformers")):  # importing them takes seconds
    pytest.skip("faiss or sentence_transformers is not installed", allow_module_level=True)

MADE = synthetic(90)
ENTRIES = [made for _, made in MADE]
CODES = [made.torch_code for made in ENTRIES]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    texts = [embedded_text(code) for code in CODES]
    return {
        "words": write_word_model(folder / "words", texts),
        "transformer": write_random_transformer(folder / "transformer", texts),
        "other": write_random_transformer(folder / "other", texts, seed=1),
        "wide": write_random_transformer(folder / "wide", texts, width=64),
    }


@pytest.fixture(scope="module")
def index(models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Index:
    path = tmp_path_factory.mktemp("index") / "i"
    build_index(ENTRIES, path, SentenceTransformerEmbedder(str(models["words"]), "cpu"))
    return open_index(path, device="cpu")


def test_another_spelling_of_a_problem_finds_it(index: Index) -> None:
    assert index.ranked_by == "embeddings"
    found = [
        made in index.search(write_module(recipe, 5000 + place), 3, language=made.language)
        for place, (recipe, made) in enumerate(MADE)
    ]
    assert sum(found) >= 0.9 * len(found)


def test_a_transformer_with_pooling_ranks_a_problem_first_for_its_own_text(
    models: dict[str, Path], tmp_path: Path
) -> None:
    build_index(ENTRIES, tmp_path / "i", SentenceTransformerEmbedder(str(models["transformer"]), "cpu", 4))
    opened = open_index(tmp_path / "i", device="cpu")
    for made in ENTRIES[::7]:
        best = opened.hits(made.torch_code, 1, language=made.language)[0]
        assert best.entry == made and best.score == pytest.approx(1, abs=1e-5)


def test_what_is_excluded_is_passed_over(index: Index) -> None:
    recipe, made = MADE[0]
    query = write_module(recipe, 1)
    assert made in index.search(query, 5, language="triton")
    found = index.search(query, 5, language="triton", exclude=Exclusion.of({"p": query}))
    assert len(found) == 5 and made not in found


def test_the_vectors_are_a_memory_mapped_array(index: Index) -> None:
    (file,) = index.path.glob("*/vectors.npy")
    assert isinstance(np.load(file, mmap_mode="r", allow_pickle=False), np.memmap)
    assert not [path for path in index.path.rglob("*") if path.suffix in (".pkl", ".faiss", ".bin")]


@pytest.mark.parametrize("name", ["other", "wide"])
def test_another_model_is_refused(models: dict[str, Path], tmp_path: Path, name: str) -> None:
    build_index(ENTRIES[:10], tmp_path / "i", SentenceTransformerEmbedder(str(models["transformer"]), "cpu"))
    with pytest.raises(DataError, match=r"is not the one that embedded the entries, .* build the index again"):
        open_index(tmp_path / "i", model=str(models[name]), device="cpu")


def test_a_model_that_moved_is_named_anew(models: dict[str, Path], tmp_path: Path) -> None:
    moved = tmp_path / "here"
    moved.symlink_to(models["words"])
    build_index(ENTRIES[:10], tmp_path / "i", SentenceTransformerEmbedder(str(models["words"]), "cpu"))
    before = open_index(tmp_path / "i", device="cpu")
    said = json.loads((tmp_path / "i" / MANIFEST).read_text())
    said["ranking"]["model"] = str(tmp_path / "gone")
    (tmp_path / "i" / MANIFEST).write_text(json.dumps(said))
    with pytest.raises(DataError, match=r"embedding model .*gone cannot be loaded"):
        open_index(tmp_path / "i", device="cpu")
    after = open_index(tmp_path / "i", model=str(moved), device="cpu")
    assert after.fingerprint == before.fingerprint


def test_a_model_that_is_none(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"model .*empty cannot be loaded: .*without a model, an index ranks"):
        SentenceTransformerEmbedder(str(tmp_path / "empty"), "cpu")
    (tmp_path / "empty" / "modules.json").write_text("{")
    with pytest.raises(DataError, match="cannot be loaded"):
        SentenceTransformerEmbedder(str(tmp_path / "empty"), "cpu")


class Given:
    """An embedder whose vectors are given."""

    name = "given"

    def __init__(self, vector: Sequence[float]) -> None:
        self.vector = np.asarray([vector], np.float32)

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        return self.vector


@pytest.mark.parametrize("size", [1, 5, 255, 256, 257, 3000])
@pytest.mark.parametrize("span", [(0.0, 1.0), (0.2, 0.9)])
def test_windows_of_faiss_give_the_order_of_all_scores(size: int, span: tuple[float, float]) -> None:
    """Few different vectors, so that most scores tie, also across the windows' ends."""
    rng = np.random.default_rng(size)
    few = rng.standard_normal((9, 4)).astype(np.float32)
    vectors = few[rng.integers(0, 9, size)]
    query = rng.standard_normal(4).astype(np.float32)
    start, end = int(span[0] * size), max(int(span[1] * size), int(span[0] * size) + 1)
    found = list(EmbeddingRanking(vectors, Given(query)).ranked("", start, end))
    exact = dict(found)
    groups = {tuple(vectors[place]): exact.get(place) for place in range(start, end)}
    wanted = sorted(
        (place for place in range(start, end) if groups[tuple(vectors[place])] is not None),
        key=lambda place: (-groups[tuple(vectors[place])], place),
    )
    assert [place for place, _ in found] == wanted
    assert len(wanted) == sum(float(vectors[place] @ query) > 0 for place in range(start, end))
    assert all(abs(score - float(vectors[place] @ query)) < 1e-5 for place, score in found)


def test_operations_come_before_the_code_and_long_code_is_cut() -> None:
    text = embedded_text(write_module(("relu", "softmax"), 0) + "x" * 100_000)
    assert text.startswith("# relu softmax\nimport torch")
    assert len(text) == embeddings.MAX_EMBEDDED_CHARACTERS


def test_numbers_that_are_not_finite_are_refused(models: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    embedder = SentenceTransformerEmbedder(str(models["words"]), "cpu")
    monkeypatch.setattr(embedder._model, "encode", lambda *_, **__: np.full((1, 4), np.nan))
    with pytest.raises(DataError, match="not finite"):
        embedder.encode(["x"])
