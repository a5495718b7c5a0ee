"""Entries and small indexes for tests of retrieval."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from assay.retrieval.code_text import code_hash
from assay.retrieval.entries import Entry, Language
from assay.retrieval.index import Index, build_index, open_index
from support.synthetic_problems import Recipe, recipes, write_module


def entry(code: str, name: str = "thing", language: Language = "triton", speedup: float | None = None) -> Entry:
    return Entry(name, language, code, f"# solves {name}\n", code_hash(code), "tests", True, speedup)


def synthetic(count: int, seed: int = 0) -> list[tuple[Recipe, Entry]]:
    """Entries of distinct recipes; every third one is CUDA."""
    made = []
    for place, recipe in enumerate(recipes(count, seed)):
        language: Language = "cuda" if place % 3 == 2 else "triton"
        made.append((recipe, entry(write_module(recipe, place), "+".join(recipe), language)))
    return made


def small_index(folder: Path, entries: Sequence[Entry]) -> Index:
    build_index(entries, folder)
    return open_index(folder)
