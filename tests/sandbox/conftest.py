"""Where tests of sandboxes write."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A folder on disk: a sandbox shows none of this machine's `/dev/shm`, where other tests write."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)
