"""Whole environments in verifiers 0.4 and prime-rl: the tasks and the env of a package that `assay export-env` writes.

verifiers samples, by messages, with its own harness, model and renderer; turns and rewards are Assay's. A rollout is an
episode. Its turns are one trace, as long as each extends the conversation; where the environment writes the
conversation anew (kernels in several turns), a trace begins. A single trace has the rollout's reward; several have the
discounted return from their first turn on, which prime-rl compares with all traces of the group.

A rollout that could not be scored is an error of its episode, which has no reward: prime-rl leaves it out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

from assay.envs.base import Env, GroupScorer
from assay.envs.results import require_messages, require_result
from assay.errors import ConfigError, DataError, MissingDependencyError, RewardError
from assay.grpo.advantages import turn_returns
from assay.integrations.environments import Prepared, TaskReference, hosted_task
from assay.integrations.verifiers_plugin import MOST_BYTES, SETTINGS, TASKS, whole_groups
from assay.types import Completion, Message, Score, Task, Trajectory, Transition

try:
    import verifiers.v1 as vf
except ImportError as error:
    raise MissingDependencyError(
        f"assay.integrations.verifiers_environment needs verifiers 0.4 or newer ({error}): pip install "
        "'verifiers>=0.4'."
    ) from error

REWARD = "assay"
"""Name of the reward on a trace."""


class AssayData(vf.TaskData):  # type: ignore[misc]
    """A task as it travels. What verifies an answer stays with the environment."""

    task_key: str
    """Hash of the task's content."""
    split: Literal["train", "heldout"]
    """Where it is from."""


class AssayTask(vf.Task[AssayData, vf.State, vf.TaskConfig]):  # type: ignore[misc]
    """A task that `AssayEnv` plays and scores."""

    @property
    def key(self) -> str:
        """The same wherever the task is written."""
        return str(self.data.task_key)


class AssayTasksetConfig(vf.TasksetConfig):  # type: ignore[misc]
    """Which tasks."""

    split: Literal["train", "heldout"] = "train"
    """Those to train on, or those to evaluate on."""


class AssayTaskset(vf.Taskset[AssayTask, AssayTasksetConfig]):  # type: ignore[misc]
    """The tasks of a package."""

    folder: ClassVar[Path]
    """Where the package's data is."""

    @cached_property
    def one(self) -> Prepared:
        """The environment, and how it is played.

        Raises:
            DataError: the package does not say.
        """
        try:
            return Prepared.from_json(_text(self.folder / SETTINGS))
        except OSError as error:
            raise DataError(
                f"{self.folder / SETTINGS} cannot be read ({error}). Export the environment anew."
            ) from error

    def load(self) -> Iterator[AssayTask]:
        """See `Taskset`."""
        for line in _text(self.folder / TASKS).rstrip("\n").split("\n"):  # splitlines() would cut in a text, at U+2028.
            row = json.loads(line)
            if row["split"] == self.config.split:
                asked = asked_of([Message(one["role"], one["content"]) for one in row["prompt"]])
                data = AssayData(id=row["id"], name=row["id"], task_key=row["key"], split=row["split"], **asked)
                yield AssayTask(data, self.config.task)

    def reference(self, data: AssayData) -> TaskReference:
        """The task as any process finds it."""
        return TaskReference(self.one.environment, data.split, data.task_key, str(data.id))


class AssayEnvConfig(vf.EnvConfig):  # type: ignore[misc]
    """Who plays, and where the environment lives."""

    agent: vf.AgentConfig = vf.AgentConfig(harness={"id": "null"}, runtime={"type": "subprocess"})
    """The policy. The null harness has no tools, and runs no code that the model writes."""
    share: Literal["machine", "process"] = "machine"
    """Whether one process of a machine has the engines, pools and judges for all, or each its own."""


class AssayEnv(vf.Env[AssayEnvConfig]):  # type: ignore[misc]
    """Plays a task as Assay's own loop does."""

    async def run(self, task: AssayTask, agents: Any) -> None:
        """One rollout; see `Env`.

        Raises:
            ConfigError: its groups are scored as a whole.
            RewardError: it could not be scored.
        """
        one: Prepared = self.taskset.one
        hosted = await hosted_task(self.taskset.reference(task.data), self.config.share)
        if isinstance(hosted, GroupScorer):
            raise ConfigError(whole_groups(hosted.task.id))
        (env,) = await hosted.make(1)
        rollout = _Rollout(task, env, agents.agent, one.playing.max_turns)
        await rollout.play()
        rollout.record(hosted.task, one.playing.credit.gamma)


@dataclass
class _Part:
    """Turns that extend each other, in one trace."""

    trace: Any
    scores: list[Score] = field(default_factory=list)


@dataclass
class _Rollout:
    """A rollout as it is played."""

    task: AssayTask
    env: Env
    agent: Any
    max_turns: int
    parts: list[_Part] = field(default_factory=list)
    turns: int = 0

    async def play(self) -> None:
        messages: Sequence[Message] | None = await self.env.reset()
        while messages is not None:
            require_messages(messages, f"{type(self.env).__name__} gave")
            if not messages:
                raise RewardError(f"{self.task.data.id} could not be scored: its environment left nothing to answer.")
            messages = await self._trace(messages)

    async def _trace(self, messages: Sequence[Message]) -> Sequence[Message] | None:
        """Play on from a conversation until it is written anew; that, or None at the end."""
        asked = AssayData.model_validate({**self.task.data.model_dump(), **asked_of(messages)})
        task = self.task.with_data(prompt=asked.prompt, system_prompt=asked.system_prompt)
        async with self.agent.interaction(task) as talk:
            part = _Part(talk.trace)
            self.parts.append(part)
            segment = await talk.turn()
            while not segment.terminated:
                result = require_result(
                    await self.env.step(said(segment, bool(getattr(self.env, "whole_replies", False)))),
                    f"{type(self.env).__name__}.step()",
                )
                if result.score.status == "errored":
                    why = result.score.why or "no reason was given"
                    raise RewardError(f"{self.task.data.id} could not be scored: {why}")
                part.scores.append(result.score)
                self.turns += 1
                if result.done or self.turns >= self.max_turns:
                    return None
                if result.replace:
                    return result.messages
                segment = await talk.turn([{"role": one.role, "content": one.content} for one in result.messages])
        if part.trace.has_error or not self.turns:
            raise RewardError(f"The policy gave no answer to turn {self.turns + 1} of {self.task.data.id}.")
        return None

    def record(self, task: Task, gamma: float) -> None:
        """Put the rewards on the traces."""
        parts = [part for part in self.parts if part.scores]
        scores = [score for part in parts for score in part.scores]
        turns = tuple(Transition((), Completion((), (), "stop", 0), "", score) for score in scores)
        trajectory = Trajectory(task, turns, "done", 0)
        returns, begun = turn_returns(trajectory, gamma), 0
        for part in parts:
            reward = trajectory.reward if len(parts) == 1 else returns[begun]
            part.trace.record_reward(REWARD, reward)
            part.trace.record_metric("assay_reward", trajectory.reward)
            part.trace.record_metric("assay_turns", float(len(scores)))
            part.trace.record_metric("assay_invalid", sum(s.status == "invalid" for s in scores) / len(scores))
            begun += len(part.scores)


def asked_of(messages: Sequence[Message]) -> dict[str, Any]:
    """Messages as a task of verifiers has them: a system prompt, and a prompt."""
    system, rest = (messages[0].content, messages[1:]) if messages[0].role == "system" else (None, messages)
    if len(rest) == 1 and rest[0].role == "user":
        return {"system_prompt": system, "prompt": rest[0].content}
    return {"system_prompt": system, "prompt": [{"role": one.role, "content": one.content} for one in rest]}


def said(segment: Any, whole: bool) -> str:
    """The text of a reply, as it was sampled; with the thought before it where the environment judges that too."""
    reply = next((one for one in reversed(segment.messages) if one.role == "assistant"), None)
    if reply is None:
        return ""
    content, thought = reply.content or "", reply.reasoning_content
    return f"<think>{thought}</think>{content}" if whole and thought else content


def _text(path: Path) -> str:
    with path.open(encoding="utf-8") as file:
        text = file.read(MOST_BYTES + 1)
    if len(text) > MOST_BYTES:
        raise DataError(f"{path} has more than {MOST_BYTES} characters. Export fewer tasks.")
    return text
