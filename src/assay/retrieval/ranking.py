"""Entries in the order of their scores, one after the other, so that a search can pass over those it may not show."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np
import numpy.typing as npt

FIRST_WINDOW = 256
"""Entries that are put in order at first; `GROWTH` times as many when these do not suffice."""
GROWTH = 8


class Ranking(Protocol):
    """Orders the entries of an index for a query."""

    @property
    def kind(self) -> str:
        """What the manifest calls it."""
        ...

    def ranked(self, query: str, start: int, end: int) -> Iterator[tuple[int, float]]:
        """The entries at places `start` to `end` (exclusive) that have something to do with a query, as places with
        scores: best first, equal scores by place."""
        ...


def in_order(scores: npt.NDArray[np.float32]) -> Iterator[tuple[int, float]]:
    """Places with scores above 0, best first, equal scores by place. Puts in order only as many as are asked for."""
    candidates = np.flatnonzero(scores > 0)
    ranks = scores[candidates]
    window, done = FIRST_WINDOW, 0
    while done < len(candidates):
        chosen = candidates
        if window < len(candidates):
            # All that reach the score of the window's last one, so that no tie is cut.
            chosen = candidates[ranks >= np.partition(ranks, len(ranks) - window)[len(ranks) - window]]
        ordered = chosen[np.lexsort((chosen, -scores[chosen]))]
        yield from ((int(place), float(scores[place])) for place in ordered[done:])
        done, window = len(ordered), max(window * GROWTH, len(ordered) + 1)
