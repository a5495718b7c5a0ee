"""Tasks and examples in batches, each a function of the seed and the batch's number alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from assay.envs.base import EnvGroupBuilder, Example
from assay.envs.chess.env import ChessGroupBuilder, Judge
from assay.envs.chess.positions import PositionSource, draw_forever
from assay.envs.chess.tasks import TaskStyle, make_example
from assay.types import Task

TRAIN_STREAM, ORDER_STREAM, SFT_STREAM = 1, 2, 3
"""Second words of the seeds of independent random streams."""


@dataclass(frozen=True)
class ChessRLDataset:
    """`tasks`, `num_epochs` times, in batches that run on over the end of an epoch; only the last may be smaller."""

    tasks: Sequence[Task]
    judge: Judge
    batch_size: int
    max_turns: int
    num_epochs: int = 1
    shuffle: bool = False
    seed: int = 0

    def __len__(self) -> int:
        return -(-len(self.tasks) * self.num_epochs // self.batch_size)

    def batch(self, index: int) -> Sequence[EnvGroupBuilder]:
        """The builders of batch `index`. Cheap: positions are analysed when a builder makes its envs."""
        if not 0 <= index < len(self):
            raise IndexError(f"batch {index} of {len(self)}")
        size = len(self.tasks)
        places = range(index * self.batch_size, min((index + 1) * self.batch_size, size * self.num_epochs))
        orders = {epoch: self._order(epoch) for epoch in range(places[0] // size, places[-1] // size + 1)}
        return [ChessGroupBuilder(self.tasks[orders[p // size][p % size]], self.judge, self.max_turns) for p in places]

    def _order(self, epoch: int) -> Sequence[int]:
        if not self.shuffle:
            return range(len(self.tasks))
        order: list[int] = np.random.default_rng([self.seed, ORDER_STREAM, epoch]).permutation(len(self.tasks)).tolist()
        return order


@dataclass(frozen=True)
class ChessSupervisedDataset:
    """Endless supervised examples on the train side of the split.

    Positions are drawn afresh (or, from a finite source, in ever new orders). They are never held-out ones; they may be
    positions that RL trains on too, which gives nothing away, since the examples hold no engine's opinion.
    """

    source: PositionSource
    style: TaskStyle
    seed: int

    def batch(self, index: int, size: int) -> list[Example]:
        """See `SupervisedDataset.batch`."""
        rng = np.random.default_rng([self.seed, SFT_STREAM, index])
        return [make_example(p, self.style, rng) for p in islice(draw_forever(self.source, rng, "train"), size)]
