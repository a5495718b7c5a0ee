"""Tasks of environments from any thread and any event loop of a host.

`hosted_task(reference)` is an `EnvGroupBuilder` like any other. Behind it the environment lives in a thread of its own,
in the one process of this machine that has it (`share="machine"`, the default), or in this process.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

from assay.envs.base import Env, StepResult
from assay.integrations.environments.desk import Desk, OwnDesk
from assay.integrations.environments.reference import EnvironmentReference, Split, TaskReference
from assay.integrations.environments.shared import SharedDesk
from assay.rewards.client.reply_cache import default_cache_path
from assay.rewards.loop_thread import LoopThread
from assay.types import Message, Score, Task, Trajectory

T = TypeVar("T")

Share = Literal["machine", "process"]
ListedTask = tuple[TaskReference, Task]
CLOSE_S = 30.0
"""Longest wait for engines and pools to end."""


class HostedTask:
    """An `EnvGroupBuilder` whose envs live at a desk."""

    def __init__(self, reference: TaskReference, task: Task, desk: Desk) -> None:
        self.reference, self.task, self._desk = reference, task, desk

    async def make(self, n: int) -> list[Env]:
        """See `EnvGroupBuilder`."""
        envs = await _there(lambda: self._desk.make(self.reference, n))
        return [HostedEnv(env) for env in envs]


class RankedHostedTask(HostedTask):
    """One whose groups are scored as a whole."""

    async def score_group(self, trajectories: Sequence[Trajectory]) -> list[Score]:
        """See `GroupScorer`."""
        return await _there(lambda: self._desk.score(self.reference, trajectories))


class HostedEnv:
    """An env that lives in the desk's event loop."""

    def __init__(self, env: Env) -> None:
        self._env = env
        self.whole_replies = bool(getattr(env, "whole_replies", False))

    async def reset(self) -> list[Message]:
        """See `Env`."""
        return await _there(self._env.reset)

    async def step(self, text: str) -> StepResult:
        """See `Env`."""
        return await _there(lambda: self._env.step(text))


def tasks_of(environment: EnvironmentReference, split: Split, share: Share = "machine") -> list[ListedTask]:
    """All tasks of a split, each once, to make a host's data set of. Waits until the environment is built.

    Raises:
        AssayError: the environment cannot be built.
    """
    desk = _desk(environment, share)
    tasks = _loop().submit(desk.tasks(environment, split)).result()
    return [(TaskReference(environment, split, task.key, task.id), task) for task in tasks]


async def hosted_task(reference: TaskReference, share: Share = "machine") -> HostedTask:
    """The builder of a task, wherever its environment lives.

    Args:
        share: `machine`: one process of this machine has the environment, with its engines, pools and judges, for all
            processes of this user that name it; `process`: this process has its own.

    Raises:
        AssayError: there is no such task, or its environment cannot be built.
    """
    desk = _desk(reference.environment, share)
    found = await _there(lambda: desk.find(reference))
    return (RankedHostedTask if found.ranks else HostedTask)(reference, found.task, desk)


async def _there(make: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """What a call at a desk gives. Cancelling it cancels the call."""

    async def call() -> T:
        return await make()  # Made there: some envs look for their event loop when a coroutine is made.

    return await asyncio.wrap_future(_loop().submit(call()))


def close_environments() -> None:
    """End the environments of this process, and give up those that it has for others. What they run ends with the
    process too, if this is not called."""
    global _THREAD
    with _LOCK:
        desks, thread = list(_DESKS.values()), _THREAD
        _DESKS.clear()
        _THREAD = None
    if thread is not None and thread.alive:
        for desk in desks:
            thread.submit(desk.close()).result(CLOSE_S)
        thread.close(CLOSE_S)


_LOCK = threading.RLock()
_THREAD: LoopThread | None = None
_DESKS: dict[tuple[str, str, str], Desk] = {}
"""(how it is shared, environment, folder) -> the way to it."""


def _loop() -> LoopThread:
    global _THREAD
    with _LOCK:
        if _THREAD is None or not _THREAD.alive:
            _THREAD = LoopThread("assay-environments")
        return _THREAD


def _desk(environment: EnvironmentReference, share: Share) -> Desk:
    folder = _folder()
    key = (share, environment.digest if share == "machine" else "", str(folder))
    with _LOCK:
        if key not in _DESKS:
            shared = folder / f"{environment.digest}.desk"
            _DESKS[key] = SharedDesk(shared, OwnDesk) if share == "machine" else OwnDesk()
        return _DESKS[key]


def _folder() -> Path:
    return default_cache_path().parent / "environments"


def _forget_after_fork() -> None:
    """A forked child has no such thread: it finds the environments anew."""
    global _LOCK, _THREAD
    _LOCK, _THREAD = threading.RLock(), None
    _DESKS.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_after_fork)
