"""Where environments live: one event loop that makes envs, plays them and scores groups, whoever asks for it.

Engines, grading pools and judges belong to a desk, so that there is one of each for all who ask it. Calls run in the
desk's own event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from assay.envs.base import Env, GroupScorer
from assay.envs.results import require_score
from assay.errors import ConfigError
from assay.integrations.environments.rebuilt import Environments
from assay.integrations.environments.reference import EnvironmentReference, Split, TaskReference
from assay.types import Score, Task, Trajectory


@dataclass(frozen=True, slots=True)
class Found:
    """A task, and whether its groups are scored as a whole."""

    task: Task
    ranks: bool


class Desk(Protocol):
    """Makes and scores. All methods belong to one event loop."""

    async def tasks(self, environment: EnvironmentReference, split: Split) -> Sequence[Task]:
        """All tasks of a split, each once.

        Raises:
            AssayError: the environment cannot be built.
        """
        ...

    async def find(self, reference: TaskReference) -> Found:
        """The task of a reference.

        Raises:
            AssayError: there is none, or its environment cannot be built.
        """
        ...

    async def make(self, reference: TaskReference, n: int) -> Sequence[Env]:
        """`n` fresh envs. What the builder raises is raised."""
        ...

    async def score(self, reference: TaskReference, trajectories: Sequence[Trajectory]) -> list[Score]:
        """See `GroupScorer.score_group`."""
        ...

    async def close(self) -> None:
        """Close all environments."""
        ...


class OwnDesk:
    """The environments of this process."""

    def __init__(self) -> None:
        self._environments = Environments()

    async def tasks(self, environment: EnvironmentReference, split: Split) -> Sequence[Task]:
        """See `Desk`."""
        rebuilt = await asyncio.to_thread(self._environments.rebuilt, environment)
        return [builder.task for builder in rebuilt.builders(split).values()]

    async def find(self, reference: TaskReference) -> Found:
        """See `Desk`."""
        rebuilt = await asyncio.to_thread(self._environments.rebuilt, reference.environment)
        builder = rebuilt.builder(reference)
        return Found(builder.task, isinstance(builder, GroupScorer))

    async def make(self, reference: TaskReference, n: int) -> Sequence[Env]:
        """See `Desk`."""
        rebuilt = await asyncio.to_thread(self._environments.rebuilt, reference.environment)
        builder = rebuilt.builder(reference)
        envs = await builder.make(n)
        if len(envs) != n:
            raise ConfigError(f"{type(builder).__name__}.make({n}) gave {len(envs)} envs. Return one for each rollout.")
        return envs

    async def score(self, reference: TaskReference, trajectories: Sequence[Trajectory]) -> list[Score]:
        """See `Desk`."""
        rebuilt = await asyncio.to_thread(self._environments.rebuilt, reference.environment)
        builder = rebuilt.builder(reference)
        if not isinstance(builder, GroupScorer):
            raise ConfigError(f"{type(builder).__name__} has no score_group, so its groups are not scored as a whole.")
        scores = await builder.score_group(trajectories)
        said = f"a score of {type(builder).__name__}.score_group()"
        return [require_score(score, said) for score in scores]

    async def close(self) -> None:
        """See `Desk`."""
        await self._environments.close()
