"""Endless supervised examples of chess, each batch a function of the seed and the batch's number alone."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

import numpy as np

from assay.envs.base import Example
from assay.envs.chess.positions.base import PositionSource, draw_forever
from assay.envs.chess.tasks import TaskStyle, make_example
from assay.envs.tasks import SFT_STREAM


@dataclass(frozen=True)
class ChessSupervisedDataset:
    """Endless supervised examples on the train side of the split.

    Positions are drawn afresh (or, from a finite source, in ever new orders). They are never held-out ones; they may be
    positions that RL trains on too. That reveals nothing: the examples do not say which moves are good.
    """

    source: PositionSource
    style: TaskStyle
    seed: int

    def batch(self, index: int, size: int) -> list[Example]:
        """See `SupervisedDataset.batch`."""
        rng = np.random.default_rng([self.seed, SFT_STREAM, index])
        return [make_example(p, self.style, rng) for p in islice(draw_forever(self.source, rng, "train"), size)]
