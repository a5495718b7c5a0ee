"""Environments of this process, each rebuilt once from its reference, and their tasks by key."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from assay.envs.base import EnvData, EnvGroupBuilder, RLDataset, build_data, iter_builders
from assay.envs.tasks import TaskBatches
from assay.errors import DataError
from assay.integrations.environments.reference import EnvironmentReference, Split, TaskReference

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Rebuilt:
    """An environment, and the builders of its tasks."""

    data: EnvData

    def builders(self, split: Split) -> Mapping[str, EnvGroupBuilder]:
        """The group builders of a split by the key of their task, in the order of an unshuffled epoch."""
        return self._train if split == "train" else self._heldout

    def builder(self, task: TaskReference) -> EnvGroupBuilder:
        """The group builder of a task.

        Raises:
            DataError: the environment has no such task.
        """
        builders = self.builders(task.split)
        if (found := builders.get(task.key)) is not None:
            return found
        if any(builder.task.id == task.id for builder in builders.values()):
            raise DataError(
                f"The task {task.id} has changed since it was written: its prompt or what verifies it is another now "
                f"(key {task.key}). It would be scored as another problem. Write the tasks anew."
            )
        raise DataError(
            f"There is no task {task.id} (key {task.key}) among the {len(builders)} of the split {task.split}. The "
            "environment draws other tasks here than where it was written: compare the versions of Assay and of what "
            "it reads, or write the tasks anew."
        )

    @cached_property
    def _train(self) -> Mapping[str, EnvGroupBuilder]:
        return _by_key(self.data.train)

    @cached_property
    def _heldout(self) -> Mapping[str, EnvGroupBuilder]:
        return _by_key(self.data.heldout)


class Environments:
    """The environments of one process. May be used from any thread; each is built once, also if many ask at a time."""

    def __init__(self) -> None:
        self._found: dict[str, Rebuilt] = {}
        self._locks: dict[str, threading.Lock] = {}
        self._lock = threading.Lock()

    def rebuilt(self, reference: EnvironmentReference) -> Rebuilt:
        """The environment; it is built by the first that asks, which may take minutes.

        Raises:
            AssayError: it cannot be built. The next that asks tries again.
        """
        digest = reference.digest
        with self._lock:
            lock = self._locks.setdefault(digest, threading.Lock())
        with lock:
            if digest not in self._found:
                config = reference.config()
                logger.info("Building the environment %s (%s).", digest, type(config.dataset_builder).__name__)
                self._found[digest] = Rebuilt(build_data(config.dataset_builder, config.context()))
            return self._found[digest]

    async def close(self) -> None:
        """Close all environments; those that are asked for afterwards are built again."""
        with self._lock:
            found, self._found = self._found, {}
        await asyncio.gather(*(one.data.close() for one in found.values()))


def _by_key(dataset: RLDataset) -> dict[str, EnvGroupBuilder]:
    return {builder.task.key: builder for builder in _once_each(dataset)}


def _once_each(dataset: RLDataset) -> Sequence[EnvGroupBuilder]:
    """A builder of each task: of batches of tasks, without going through all epochs."""
    if isinstance(dataset, TaskBatches):
        return [dataset.builder(task) for task in dataset.tasks]
    return list(iter_builders(dataset))
