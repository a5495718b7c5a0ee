"""In which order tests run."""

from __future__ import annotations

from pathlib import Path

import pytest

TESTS = Path(__file__).parent
LONG = ("", "kernels", "training", "sandbox", "envs", "rewards")
"""Folders whose files take longest, `""` for the files beside this one. They are started first (`make test` gives each
process a file at a time), so that all processes are busy to the end."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: rank(item.path))


def rank(path: Path) -> int:
    """The place of a file's folder in the order."""
    *folders, _ = path.relative_to(TESTS).parts
    folder = folders[0] if folders else ""
    return LONG.index(folder) if folder in LONG else len(LONG)
