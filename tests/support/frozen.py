"""Objects that garbage collection leaves alone: frozen once for all tests, and counted once."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

count = gc.get_freeze_count
"""Counts each time."""


def freeze() -> None:
    """Keep all that is there out of garbage collection.

    Every training asks whether its program has frozen something. Python counts by walking through all of it, which here
    are the modules and tests of the whole suite: a tenth of the work of a small run. So the answer is kept.
    """
    gc.collect()
    gc.freeze()
    there = count()
    gc.get_freeze_count = lambda: there


@contextmanager
def counted_anew() -> Iterator[None]:
    """Nothing frozen, and each question answered by a count; then everything is frozen again."""
    gc.get_freeze_count = count
    gc.unfreeze()
    try:
        yield
    finally:
        freeze()
