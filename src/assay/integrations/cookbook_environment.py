"""Whole environments in the Tinker cookbook: its trainers ask for groups (`TaskGroup`), its own code for messages.

    one = prepared("chess", tokenizer=tokenizer)
    groups = [TaskGroup(reference, one, tokenizer) for reference, _ in tasks_of(one.environment, "train")]

is what `RLDataset.get_batch` returns. Rollouts are played as in Assay's own loop, with Assay's renderer, so tokens are
the same. The cookbook sums a rollout's rewards and centres them over the group, so credit is per rollout. One that
could not be scored gets the mean of its group, and so no advantage; a group without any score raises.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from assay.envs.base import Env as AssayEnv
from assay.errors import MissingDependencyError, RewardError
from assay.integrations.environments import Budget, HostGroup, Prepared, Sampled, TaskReference
from assay.integrations.environments.access import Share, hosted_task
from assay.integrations.environments.group import scored_together
from assay.rollouts.play import verdict
from assay.types import Message, SamplingParams, Trajectory

try:
    import tinker
    from tinker_cookbook.renderers import format_content_as_string, get_text_content
    from tinker_cookbook.rl.message_env import MessageEnv, MessageStepResult
    from tinker_cookbook.rl.types import Env, EnvGroupBuilder, InitialObservationOverflow, StepResult
except ImportError as error:
    raise MissingDependencyError(
        f"assay.integrations.cookbook_environment needs the Tinker cookbook ({error}): pip install tinker-cookbook."
    ) from error

UNBOUNDED = Budget(1 << 30, 1 << 30)


class MessageTask(MessageEnv):  # type: ignore[misc]
    """One env of a task by messages, for the cookbook's own renderers: wrap it in `EnvFromMessageEnv`.

    What could not be scored raises `RewardError`: alone, a rollout has no group whose mean it could take. A rollout
    that still goes on after `max_turns` (`Prepared.playing.max_turns`) ends.
    """

    def __init__(self, env: AssayEnv, max_turns: int) -> None:
        self._env, self._left, self._said = env, max_turns, list[Message]()

    async def initial_observation(self) -> list[dict[str, str]]:
        """The env's first messages."""
        self._said = list(await self._env.reset())
        return _plain(self._said)

    async def step(self, message: Any) -> Any:
        """The env's verdict on a reply, and the whole conversation, which it may have written anew.

        Raises:
            RewardError: the reply could not be scored.
        """
        whole = getattr(self._env, "whole_replies", False)
        text = format_content_as_string(message["content"], separator="") if whole else get_text_content(message)
        result = await verdict(self._env, text)
        if result.score.value is None:
            said = result.score.why or "no reason was given"
            raise RewardError(f"A reply could not be scored: {said}. A made-up reward would be trained on.")
        self._said = list(result.messages) if result.replace else [*self._said, Message("assistant", text)]
        self._said += [] if result.replace else result.messages
        metrics = {name: float(value) for name, value in result.metrics.items()}
        self._left -= 1
        return MessageStepResult(result.score.value, result.done or self._left < 1, _plain(self._said), metrics)


class TaskEnv(Env):  # type: ignore[misc]
    """One rollout of a group, played by Assay: the cookbook is handed each prompt, and hands back what it sampled."""

    def __init__(self, group: HostGroup, member: int, stop: Sequence[int], budget: Budget) -> None:
        self.group, self.member = group, member
        self._stop, self._budget = list(stop), budget
        self._prompts: asyncio.Queue[Sequence[int]] = asyncio.Queue()
        self._sampled: asyncio.Queue[Sampled] = asyncio.Queue()
        self._playing: asyncio.Task[Trajectory] | None = None

    async def sample(self, prompt_ids: Sequence[int], params: SamplingParams, seed: int) -> Sampled:
        """See `HostPolicy`: the cookbook samples."""
        self._prompts.put_nowait(prompt_ids)
        found = await self._sampled.get()
        return Sampled(found.tokens[: params.max_tokens])

    async def initial_observation(self) -> Any:
        """The first prompt; where the rollout is over before it, the cookbook's word for that."""
        self._playing = asyncio.create_task(self.group.play(self.member, self, self._budget))
        prompt = await self._next()
        if prompt is None:
            return InitialObservationOverflow(0.0, {"assay_errored": 1.0}, {"assay": self._playing.result().failure})
        return tinker.ModelInput.from_ints(list(prompt)), self._stop

    async def step(self, action: list[int], *, extra: Any = None) -> Any:
        """What follows a completion. Its reward comes with those of the group."""
        self._sampled.put_nowait(Sampled(action))
        prompt = await self._next()
        following = tinker.ModelInput.from_ints(list(prompt or ()))
        return StepResult(0.0, prompt is None, following, self._stop)

    async def stop(self) -> None:
        """End the rollout, wherever it is; its siblings do not wait for it."""
        if self._playing is not None and not self._playing.done():
            self._playing.cancel()
            await asyncio.wait([self._playing])

    async def rollout(self) -> Trajectory:
        """The rollout before its group is scored; errored where it has not ended."""
        await self.stop()
        return self.group.ended(self.member)

    async def _next(self) -> Sequence[int] | None:
        """The next prompt, or None once the rollout is over."""
        assert self._playing is not None, "initial_observation comes first"
        asked = asyncio.create_task(self._prompts.get())
        try:
            await asyncio.wait([asked, self._playing], return_when=asyncio.FIRST_COMPLETED)
            if asked.done():
                return asked.result()
            self._playing.result()
            return None
        finally:
            asked.cancel()


@dataclass
class TaskGroup(EnvGroupBuilder):  # type: ignore[misc]
    """The rollouts of one task. Holds plain data and the tokenizer, so it pickles; envs are made where it is used."""

    reference: TaskReference
    prepared: Prepared
    tokenizer: Any
    budget: Budget = UNBOUNDED
    share: Share = "machine"
    _envs: list[tuple[asyncio.Task[Any] | None, TaskEnv]] = field(default_factory=list, repr=False)
    """Each with the asyncio task that made it: two may play the same group at a time."""

    async def make_envs(self) -> Sequence[Any]:
        """One env for each rollout."""
        renderer = self.prepared.renderer(self.tokenizer)
        task = await hosted_task(self.reference, self.share)
        size = self.prepared.group_size
        group = HostGroup(task, size, self.prepared.playing, renderer)
        envs = [TaskEnv(group, member, renderer.stop, self.budget) for member in range(size)]
        self._envs += [(asyncio.current_task(), env) for env in envs]
        return envs

    async def compute_group_rewards(
        self, trajectory_group: list[Any], env_group: Sequence[Any]
    ) -> list[tuple[float, dict[str, float]]]:
        """The reward of each rollout, and whether it stands in for one that is missing.

        Where the cookbook has played a rollout again, its env is of a later `make_envs`.

        Raises:
            RewardError: no rollout of the group could be scored.
        """
        ended = [await env.rollout() for env in env_group]
        rollouts = (await scored_together(await hosted_task(self.reference, self.share), ended)).trajectories
        scored = [rollout.reward for rollout in rollouts if rollout.reward is not None]
        if not scored:
            raise RewardError(
                f"No rollout of {self.reference.id} could be scored: {rollouts[0].failure}. Made-up rewards would be "
                "trained on."
            )
        mean = sum(scored) / len(scored)
        rewards = [mean if rollout.reward is None else rollout.reward for rollout in rollouts]
        return [
            (reward, {"assay_errored": float(rollout.errored), "assay_turns": float(len(rollout.transitions))})
            for reward, rollout in zip(rewards, rollouts, strict=True)
        ]

    async def cleanup(self) -> None:
        """End what still plays of the calling task's envs, and of those whose task is over."""
        mine = [one for one in self._envs if one[0] is None or one[0] is asyncio.current_task() or one[0].done()]
        self._envs = [one for one in self._envs if one not in mine]
        for _, env in mine:
            await env.stop()

    def logging_tags(self) -> list[str]:
        """Metrics are split by the environment."""
        return ["assay"]


def _plain(messages: Sequence[Message]) -> list[dict[str, str]]:
    return [{"role": message.role, "content": message.content} for message in messages]
