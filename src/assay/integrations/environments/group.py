"""The rollouts of one task under a host's policy: played side by side, scored as a group, credited once all have ended.

    group = table.join((uid, step), lambda: HostGroup(task, n, playing, renderer))   a host that starts each by itself
    await group.play(member, policy, budget)
    played = await group.settled()
    rows = played.rows(member)

    played = await play_tasks(tasks, n, playing, renderer, policy, budget)           a host that starts all at once

A rollout whose environment fails is errored: it has no rows and no part in the group's baseline. So is a sibling that
never starts. A policy that fails is raised to the host, and its siblings are told.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field

from assay.envs.base import EnvGroupBuilder
from assay.integrations.environments.policy import Budget, HostPolicy, PromptTooLong, Seat
from assay.integrations.environments.rows import HostRow, host_rows
from assay.integrations.environments.settings import Playing
from assay.plugins import in_words
from assay.rollouts.play import play
from assay.rollouts.renderers.base import Renderer
from assay.rollouts.runner import GroupBoard, PreparedGroup, prepare
from assay.rollouts.seeds import derive
from assay.rollouts.together import together
from assay.types import Trajectory, TrajectoryGroup

logger = logging.getLogger(__name__)

START_S = 600.0
"""How long a rollout that has ended waits for siblings that have not begun."""
MOST_INCOMPLETE = 64
"""Groups that are kept for rollouts which come late."""


@dataclass(frozen=True)
class PlayedGroup:
    """A group with its credit."""

    group: TrajectoryGroup
    advantages: tuple[tuple[float, ...], ...]
    """One per turn of each rollout; 0 where the group says nothing, empty where a rollout is errored."""

    def rollout(self, member: int) -> Trajectory:
        """One rollout, scored."""
        return self.group.trajectories[member]

    def rows(self, member: int) -> list[HostRow]:
        """The training rows of a rollout; none where it is errored."""
        return host_rows(self.rollout(member), self.advantages[member])


class HostGroup:
    """`size` rollouts of one task. Belongs to one event loop.

    Args:
        builder: makes the envs, once for all; see `hosted_task`.
        seed: names that the randomness of the rollouts is derived from, before the member's number.
        start_s: how long those that have ended wait for siblings that have not begun.
    """

    def __init__(
        self,
        builder: EnvGroupBuilder,
        size: int,
        playing: Playing,
        renderer: Renderer,
        *,
        seed: Sequence[int | str] = (),
        start_s: float = START_S,
    ) -> None:
        self.size = size
        self._builder, self._playing, self._renderer = builder, playing, renderer
        self._seed, self._start_s = (playing.seed, *seed), start_s
        self._ended: dict[int, Trajectory] = {}
        self._begun: set[int] = set()
        self._closed = False
        """Whether rollouts that have not begun come too late."""
        self._changed = asyncio.Event()
        self._prepared: asyncio.Task[list[PreparedGroup]] | None = None
        self._settling: asyncio.Task[PlayedGroup] | None = None

    async def play(self, member: int, policy: HostPolicy, budget: Budget) -> Trajectory:
        """Play one rollout to its end. However it ends, its siblings do not wait for it any longer.

        Returns:
            The rollout before its group is scored.

        Raises:
            ValueError: the group has no such member, or it was played already.
            Exception: what the policy raises.
        """
        if member in self._begun or not 0 <= member < self.size:
            raise ValueError(f"rollout {member} of a group of {self.size} was played already, or there is none")
        self._begun.add(member)
        self._changed.set()
        seed = (*self._seed, member)
        ended = self._errored(member, "it was not played to its end")
        if self._closed:
            return ended
        try:
            envs = (await self._envs()).envs
            try:
                ended = await play(
                    envs[member],
                    Seat(policy, budget),
                    self._renderer,
                    self._playing.params,
                    task=self._builder.task,
                    max_turns=self._playing.max_turns,
                    seed=seed,
                )
            except PromptTooLong as error:
                ended = self._errored(member, in_words(error))
            return ended
        finally:
            self._ended[member] = ended
            self._changed.set()

    async def settled(self) -> PlayedGroup:
        """The group once all of its rollouts have ended, scored as a whole where it is, with its credit.

        Those that have not begun `start_s` after this was first asked are errored; they are not played any more.
        """
        if self._settling is None:
            self._settling = asyncio.create_task(self._settle())
        return await asyncio.shield(self._settling)

    def ended(self, member: int) -> Trajectory:
        """A rollout before its group is scored; errored where it has not ended."""
        return self._ended.get(member) or self._errored(member, "it was not played to its end")

    def needed(self, left: int) -> bool:
        """Whether a rollout may still ask for the group once so many have left it."""
        return left < (len(self._begun) if self._closed else self.size)

    async def _envs(self) -> PreparedGroup:
        if self._prepared is None:
            self._prepared = asyncio.create_task(prepare([self._builder], self.size))
        (group,) = await asyncio.shield(self._prepared)
        return group

    async def _settle(self) -> PlayedGroup:
        try:
            async with asyncio.timeout(self._start_s):
                await self._until(lambda: len(self._begun) == self.size)
        except TimeoutError:
            logger.warning("%d of %d rollouts never began.", self.size - len(self._begun), self.size)
        self._closed, awaited = True, set(self._begun)
        await self._until(lambda: awaited <= self._ended.keys())
        never = f"it had not begun {self._start_s:g} s after the first of its group ended"
        group = await scored_together(
            self._builder,
            [self._ended[m] if m in awaited else self._errored(m, never) for m in range(self.size)],
        )
        credit = self._playing.credit.advantages(group)
        if credit is None:
            credit = [[] if t.errored else [0.0] * len(t.transitions) for t in group.trajectories]
        return PlayedGroup(group, tuple(map(tuple, credit)))

    async def _until(self, there: Callable[[], bool]) -> None:
        while not there():
            await self._changed.wait()
            self._changed.clear()

    def _errored(self, member: int, why: str) -> Trajectory:
        return Trajectory(self._builder.task, (), "errored", derive(*self._seed, member), why)


async def scored_together(builder: EnvGroupBuilder, ended: Sequence[Trajectory]) -> TrajectoryGroup:
    """Rollouts of one task, which may be of several `HostGroup`s, as one group: scored as a whole where it is."""
    board = GroupBoard(builder, len(ended))
    for place, trajectory in enumerate(ended):
        await board.take(place, trajectory)
    return board.result()


@dataclass
class GroupTable:
    """Groups whose rollouts a host starts one by one, in one process and one event loop, by a key that they share."""

    _groups: dict[Hashable, HostGroup] = field(default_factory=dict)
    _left: dict[Hashable, int] = field(default_factory=dict)
    _incomplete: deque[Hashable] = field(default_factory=deque)
    """Groups that were settled without all of their rollouts, the oldest first: one that comes late finds its own."""

    def join(self, key: Hashable, make: Callable[[], HostGroup]) -> HostGroup:
        """The group of a key; the first that joins makes it."""
        if key not in self._groups:
            self._groups[key], self._left[key] = make(), 0
        return self._groups[key]

    def leave(self, key: Hashable) -> None:
        """One rollout needs its group no longer; it is forgotten with the last. Call it in `finally`."""
        self._left[key] += 1
        group, left = self._groups[key], self._left[key]
        if left >= group.size:
            self._forget(key)
        elif not group.needed(left) and key not in self._incomplete:
            self._incomplete.append(key)
            if len(self._incomplete) > MOST_INCOMPLETE:
                self._forget(self._incomplete[0])

    def __len__(self) -> int:
        return len(self._groups)

    def _forget(self, key: Hashable) -> None:
        del self._groups[key], self._left[key]
        if key in self._incomplete:
            self._incomplete.remove(key)


async def play_group(group: HostGroup, policy: HostPolicy, budget: Budget) -> PlayedGroup:
    """All rollouts of a group, side by side.

    Raises:
        Exception: what the policy raises; the other rollouts are stopped.
    """
    await together(group.play(member, policy, budget) for member in range(group.size))
    return await group.settled()


async def play_tasks(
    builders: Sequence[EnvGroupBuilder],
    size: int,
    playing: Playing,
    renderer: Renderer,
    policy: HostPolicy,
    budget: Budget,
    *,
    seed: Sequence[int | str] = (),
) -> list[PlayedGroup]:
    """A group of `size` rollouts of each task, all side by side; in order.

    Raises:
        Exception: what the policy raises.
    """
    groups = [HostGroup(one, size, playing, renderer, seed=(*seed, place)) for place, one in enumerate(builders)]
    return await together(play_group(group, policy, budget) for group in groups)
