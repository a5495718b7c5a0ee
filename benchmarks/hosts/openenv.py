"""Assay's OpenEnv server, asked by a client that writes its messages as Assay's own loop does."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from benchmarks.hosts.common import FAILING_PLAY, Rollout, Row, first_tasks, report

from assay.envs.base import StepResult
from assay.integrations.environments import HostGroup, PlayedGroup, Prepared, tasks_of
from assay.integrations.openenv import Reply, TaskServer
from assay.types import Message, Score, Task
from support.hosts import BUDGET, Play, Script, bytes_tokenizer


class Session:
    """A rollout of the server, as an env."""

    def __init__(self, one: Prepared, index: int) -> None:
        self._server, self._index = TaskServer(one), index

    async def reset(self) -> list[Message]:
        return messages(await self._server.reset_async(index=self._index))

    async def step(self, text: str) -> StepResult:
        seen = await self._server.step_async(Reply(text=text))
        status: Any = seen.status
        score = Score(status, seen.reward, evidence={"error": seen.error})
        return StepResult(score, seen.done, tuple(messages(seen)), replace=seen.replace)


class Sessions:
    def __init__(self, one: Prepared, index: int, task: Task) -> None:
        self.task, self._one, self._index = task, one, index

    async def make(self, n: int) -> list[Session]:
        return [Session(self._one, self._index) for _ in range(n)]


def messages(seen: Any) -> list[Message]:
    return [Message(one["role"], one["content"]) for one in seen.messages]


def played(play: Play, one: Prepared) -> list[PlayedGroup]:
    places = {reference.key: index for index, (reference, _) in enumerate(tasks_of(one.environment, "train"))}
    builders = [Sessions(one, places[reference.key], task) for reference, task in first_tasks(play, one)]
    renderer, script = one.renderer(bytes_tokenizer()), Script(play)

    async def in_turn(builder: Sessions) -> PlayedGroup:
        """One rollout after the other: the script gives its answers in order of asking."""
        group = HostGroup(builder, play.group_size, one.playing, renderer)
        for member in range(group.size):
            await group.play(member, script, BUDGET)
        return await group.settled()

    async def run() -> list[PlayedGroup]:
        return [await in_turn(builder) for builder in builders]

    return asyncio.run(run())


def play(name: str, play: Play, one: Prepared) -> Sequence[Sequence[Rollout]]:
    return [
        [
            Rollout(rollout.reward, [Row.of(r.prompt_ids, r.response_ids, r.mask) for r in group.rows(member)])
            for member, rollout in enumerate(group.group.trajectories)
        ]
        for group in played(play, one)
    ]


def failing(one: Prepared) -> Sequence[bool]:
    (group,) = played(FAILING_PLAY, one)
    return [rollout.reward is None for rollout in group.group.trajectories]


if __name__ == "__main__":
    report(play, failing)
