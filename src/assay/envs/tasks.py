"""Tasks in batches, and the texts of supervised examples: what data sets of all environments have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import overload

import numpy as np

from assay.envs.base import EnvGroupBuilder, Example
from assay.types import Task

TRAIN_STREAM, ORDER_STREAM, SFT_STREAM = 1, 2, 3
"""Second words of the seeds of independent random streams."""


@dataclass(frozen=True)
class TaskBatches:
    """`tasks`, `num_epochs` times, in batches that run on over the end of an epoch; only the last may be smaller."""

    tasks: Sequence[Task]
    builder: Callable[[Task], EnvGroupBuilder]
    """Makes the group builder of a task. Cheap: what costs time is done when the builder makes its envs."""
    batch_size: int
    num_epochs: int = 1
    shuffle: bool = False
    seed: int = 0

    def __len__(self) -> int:
        return -(-len(self.tasks) * self.num_epochs // self.batch_size)

    def batch(self, index: int) -> Sequence[EnvGroupBuilder]:
        """The builders of batch `index`."""
        if not 0 <= index < len(self):
            raise IndexError(f"batch {index} of {len(self)}")
        size = len(self.tasks)
        places = range(index * self.batch_size, min((index + 1) * self.batch_size, size * self.num_epochs))
        orders = {epoch: self._order(epoch) for epoch in range(places[0] // size, places[-1] // size + 1)}
        return [self.builder(self.tasks[orders[p // size][p % size]]) for p in places]

    def _order(self, epoch: int) -> Sequence[int]:
        if not self.shuffle:
            return range(len(self.tasks))
        order: list[int] = np.random.default_rng([self.seed, ORDER_STREAM, epoch]).permutation(len(self.tasks)).tolist()
        return order


class ExampleTexts(Sequence[str]):
    """The texts (prompt and completion) of examples that are only made when somebody reads them."""

    def __init__(self, make: Callable[[], Sequence[Example]]) -> None:
        self._make = make

    @cached_property
    def _texts(self) -> list[str]:
        return ["".join(message.content for message in ex.prompt) + ex.completion for ex in self._make()]

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...

    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        return self._texts[index]

    def __len__(self) -> int:
        return len(self._texts)
