"""An OpenEnv 0.10 server over any Assay task: `python -m uvicorn mine:app`, where mine.py holds

    from assay.integrations.openenv import app_of
    app = app_of("chess", ["dataset_builder.num_train=64"])

A session is one rollout: `reset` names a task (or takes one by the seed), `step` takes a reply as text, and
observations hold the messages that the policy sees next. A reply that could not be scored has no reward (`None`),
status `errored`, and ends the rollout. Who trains decides how rewards become credit, and must leave such rollouts out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from assay.envs.base import Env
from assay.errors import DataError, MissingDependencyError
from assay.integrations.environments import Prepared, prepared
from assay.integrations.environments.access import ListedTask, Share, hosted_task, tasks_of
from assay.integrations.environments.reference import Split
from assay.rollouts.play import verdict
from assay.types import Json, Message, Task

try:
    from openenv.core.env_server.http_server import create_app
    from openenv.core.env_server.interfaces import Environment
    from openenv.core.env_server.types import Action, Observation, State
    from pydantic import Field
except ImportError as error:
    raise MissingDependencyError(
        f"assay.integrations.openenv needs OpenEnv ({error}): pip install 'openenv>=0.10'."
    ) from error

MOST_CHARACTERS = 1_000_000
SPLITS: tuple[Split, ...] = ("train", "heldout")


class Reply(Action):  # type: ignore[misc]
    """What the policy says, without special tokens; its thought too where `whole_replies` asks for it."""

    text: str = Field(max_length=MOST_CHARACTERS)


class Seen(Observation):  # type: ignore[misc]
    """What the policy sees next, and what its reply earned."""

    messages: list[dict[str, str]] = Field(default_factory=list)
    """What is said next; after `reset`, or with `replace`, the whole conversation."""
    replace: bool = False
    status: str = ""
    """`scored`, `invalid` (the policy's fault) or `errored` (the environment's: there is no reward)."""
    error: str = ""
    whole_replies: bool = False
    """Whether replies are judged with the thought before them (`<think>...</think>`); else send the answer alone."""


class TaskServer(Environment):  # type: ignore[misc]
    """One rollout at a time; OpenEnv makes one for each session."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self, one: Prepared, share: Share = "machine") -> None:
        super().__init__()
        self._prepared, self._share = one, share
        self._env: Env | None = None
        self._state = State()

    @property
    def state(self) -> Any:
        """The rollout's name and its turns so far."""
        return self._state

    async def reset_async(self, seed: int | None = None, episode_id: str | None = None, **how: Any) -> Any:
        """Begin a rollout of the task `index` of `split` (train, heldout); without an index, of the seed's.

        Raises:
            DataError, IndexError: there is no such split or task.
        """
        split = how.get("split", "train")
        listed = await asyncio.to_thread(self._listed, split)
        index = how.get("index", (seed or 0) % max(1, len(listed)))
        if type(index) is not int or not 0 <= index < len(listed):
            raise IndexError(f"index={index!r} is not a task of the {len(listed)} of the split {split}")
        reference, task = listed[index]
        (self._env,) = await (await hosted_task(reference, self._share)).make(1)
        self._state = State(episode_id=episode_id, task=task.id, split=split, index=index)
        whole = bool(getattr(self._env, "whole_replies", False))
        return Seen(messages=_plain(await self._env.reset()), whole_replies=whole)

    async def step_async(self, action: Any, timeout_s: float | None = None, **_: Any) -> Any:
        """Judge a reply.

        Raises:
            DataError: no rollout has begun, or it is over.
            TimeoutError: it took longer than `timeout_s`; the rollout is over.
        """
        env = self._env
        if env is None:
            raise DataError("No rollout is under way in this session. Call reset first.")
        self._env = None
        async with asyncio.timeout(timeout_s):
            result = await verdict(env, action.text)
        self._state.step_count += 1
        score = result.score
        done = result.done or score.value is None or self._state.step_count >= self._prepared.playing.max_turns
        self._env = None if done else env
        return Seen(
            done=done,
            reward=score.value,
            messages=_plain(result.messages),
            replace=result.replace,
            status=score.status,
            error=score.why if score.value is None else "",
            metadata={name: float(value) for name, value in {**score.parts, **result.metrics}.items()},
        )

    def reset(self, seed: int | None = None, episode_id: str | None = None, **how: Any) -> Any:
        """See `reset_async`."""
        return asyncio.run(self.reset_async(seed, episode_id, **how))

    def step(self, action: Any, timeout_s: float | None = None, **how: Any) -> Any:
        """See `step_async`."""
        return asyncio.run(self.step_async(action, timeout_s, **how))

    def list_splits(self) -> list[str]:
        """The splits that tasks are in."""
        return list(SPLITS)

    def num_tasks(self, split: str) -> int:
        """How many tasks a split has."""
        return len(self._listed(split))

    def get_task(self, split: str, index: int) -> dict[str, Json]:
        """A task as the policy may know it: without its answer."""
        if index < 0:
            raise IndexError(index)
        return _shown(index, self._listed(split)[index][1])

    def list_tasks(self, split: str) -> list[dict[str, Json]]:
        """See `get_task`, for all of a split."""
        return self.get_task_range(split)

    def get_task_range(self, split: str, start: int | None = None, stop: int | None = None) -> list[dict[str, Json]]:
        """See `get_task`, for some of a split."""
        shown = [_shown(index, task) for index, (_, task) in enumerate(self._listed(split))]
        return shown[start:stop]

    def _listed(self, split: Any) -> Sequence[ListedTask]:
        if split not in SPLITS:
            raise DataError(f"split={split!r} is not one of {', '.join(SPLITS)}.")
        return _listed(self._prepared.environment, split, self._share)


_listed = lru_cache(maxsize=16)(tasks_of)
"""Each session asks."""


def app_of(
    sources: str | Sequence[str] | None = None,
    overrides: str | Sequence[str] = (),
    *,
    name: str = "assay",
    sessions: int = 64,
    share: Share = "machine",
) -> Any:
    """The FastAPI application of an environment, for presets or YAML files and `key=value` as `assay train` takes them.

    Args:
        name: the environment's name in the server's paths.
        sessions: rollouts at a time.

    Raises:
        ConfigError: settings that cannot be read or go together.
    """
    one = prepared(sources, overrides, messages=True)
    return create_app(lambda: TaskServer(one, share), Reply, Seen, env_name=name, max_concurrent_envs=sessions)


def _plain(messages: Sequence[Message]) -> list[dict[str, str]]:
    return [{"role": message.role, "content": message.content} for message in messages]


def _shown(index: int, task: Task) -> dict[str, Json]:
    return {"index": index, "id": task.id, "prompt": _plain(task.prompt), "tags": list(task.tags)}
