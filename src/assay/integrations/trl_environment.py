"""Whole environments in TRL: `rollout_func`, its reward function and the data set, for any Assay task.

    env = environment("chess", tokenizer=tokenizer)
    GRPOTrainer(model, reward_funcs=env.reward_func, rollout_func=env.rollout_func,
                train_dataset=env.dataset("train"), processing_class=tokenizer, args=...)

TRL samples, with its own settings; prompts, turns, budgets and rewards are Assay's. A rollout that could not be scored
has no reward (`None`), which TRL leaves out of its group's mean. TRL has one advantage per completion, which it
computes itself from the rollout's reward: credit for each turn needs another host.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import math
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Literal

from assay.backends.base import Capabilities
from assay.envs.base import GroupScorer
from assay.errors import ConfigError, DataError
from assay.integrations.environments import Budget, HostGroup, HostRow, PlayedGroup, Prepared, Sampled, TaskReference
from assay.integrations.environments.access import HostedTask, Share, hosted_task, tasks_of
from assay.integrations.environments.reference import Split
from assay.integrations.environments.settings import prepared
from assay.rollouts.renderers.base import Renderer
from assay.rollouts.sampling import Policy, Sampling
from assay.rollouts.together import together
from assay.types import Completion, Message, SamplingParams

logger = logging.getLogger(__name__)

Rebuilt = Literal["refuse", "last"]
UNBOUNDED = 1 << 30
MARK = "assay_task"
"""Key of a prompt's messages that holds the task's, where several tasks have the same prompt."""
NEEDS = ("_generate_single_turn", "num_generations", "num_generations_eval", "eos_token_ids")
"""What is used of TRL's trainer beside its documented parts."""


def environment(
    sources: str | Sequence[str] | None = None,
    overrides: str | Sequence[str] = (),
    *,
    tokenizer: Any,
    rebuilt: Rebuilt = "refuse",
    share: Share = "machine",
) -> TRLEnvironment:
    """An environment for TRL's `GRPOTrainer`.

    Args:
        sources, overrides: presets or YAML files, and `key=value`, as `assay train` takes them.
        tokenizer: the one that the trainer is given as `processing_class`.
        rebuilt: what becomes of a rollout whose prompts are written anew (kernels in several turns), for which TRL has
            no room, since a completion is one row: `refuse` raises, `last` trains its last turn on its whole reward.
        share: who has the environment's engines; see `hosted_task`.

    Raises:
        ConfigError: settings that cannot be read or go together.
    """
    return TRLEnvironment(prepared(sources, overrides, tokenizer), rebuilt, share)


class TRLEnvironment:
    """See `environment`."""

    def __init__(self, one: Prepared, rebuilt: Rebuilt = "refuse", share: Share = "machine") -> None:
        self._prepared, self._rebuilt, self._share = one, rebuilt, share
        self._tasks: dict[str, TaskReference] = {}
        """Hash of a prompt -> its task: a prompt is all that TRL hands back."""

    def dataset(self, split: Split = "train") -> Any:
        """A `datasets.Dataset` of the tasks, whose prompts are found again when TRL asks for rollouts.

        Tasks that share a prompt are told apart by a mark beside the text, which chat templates do not read.

        Raises:
            ConfigError: there are no tasks, or one of another split cannot be told from one of this.
        """
        from datasets import Dataset

        listed = tasks_of(self._prepared.environment, split, self._share)
        if not listed:
            raise ConfigError(f"The environment has no tasks in the split {split}, so there is nothing to train on.")
        shared = Counter(prompt_key(task.prompt) for _, task in listed)
        rows = []
        for reference, task in listed:
            prompt: list[dict[str, Any]] = [{"role": one.role, "content": one.content} for one in task.prompt]
            found = prompt_key(task.prompt)
            if shared[found] > 1:
                prompt = [{**message, MARK: reference.key} for message in prompt]
                found = reference.key
            if self._tasks.setdefault(found, reference).key != reference.key:
                raise ConfigError(
                    f"The tasks {self._tasks[found].id} and {reference.id} of two splits have the same prompt, and a "
                    "prompt is all that TRL hands back, so one would be scored as the other. Make prompts differ."
                )
            rows.append({"prompt": prompt, "assay_task": reference.to_json()})
        return Dataset.from_list(rows)

    def rollout_func(self, prompts: list[Any], trainer: Any) -> dict[str, list[Any]]:
        """What TRL calls for rollouts: one for each prompt, in order.

        Raises:
            ConfigError: the trainer cannot sample what the environment needs.
            DataError: a prompt is not of this environment.
        """
        played: dict[str, list[Any]] = _run(lambda: self._played(prompts, trainer))
        return played

    def reward_func(self, prompts: Any, completions: Any, **columns: Any) -> list[float | None]:
        """The rewards of the rollouts that `rollout_func` played; None where one could not be scored.

        Raises:
            DataError: they were not played by `rollout_func`.
        """
        rewards = columns.get("assay_reward")
        if rewards is None:
            raise DataError(
                "TRL passed no column assay_reward, so these completions were not played by the environment. Pass "
                "rollout_func=env.rollout_func to the trainer too."
            )
        if (log := columns.get("log_metric")) is not None:
            log("assay/errored", sum(reward is None for reward in rewards) / max(1, len(rewards)))
            log("assay/turns", sum(columns["assay_turns"]) / max(1, len(rewards)))
        if (log_extra := columns.get("log_extra")) is not None:
            log_extra("assay_end", list(columns["assay_end"]))
        return list(rewards)

    async def _played(self, prompts: Sequence[Any], trainer: Any) -> dict[str, list[Any]]:
        renderer = self._prepared.renderer(trainer.processing_class)
        size = _group_size(trainer)
        _check(trainer, renderer)
        _check_turns(trainer, self._prepared.playing.max_turns)
        chunks = list(_chunks([_key_of(prompt) for prompt in prompts], size))
        builders = await together(self._task(key) for key, _ in chunks)
        _check_whole(builders, [count for _, count in chunks], size)
        playing = self._prepared.playing
        groups = [
            HostGroup(builder, count, playing, renderer, seed=(int(trainer.state.global_step), place))
            for place, (builder, (_, count)) in enumerate(zip(builders, chunks, strict=True))
        ]
        budget = _budget(trainer)
        sampler = _TrainerSampler(trainer)
        async with Sampling(sampler, len(prompts), playing.params.max_tokens) as sampling:

            async def one(place: int, group: HostGroup, member: int) -> None:
                with sampling.seat(place) as policy:
                    await group.play(member, _Seated(policy, playing.params.max_tokens), budget)

            seats = [(group, member) for group in groups for member in range(group.size)]
            await together(one(place, group, member) for place, (group, member) in enumerate(seats))
        if not sampler.called and _in_one_call(trainer):
            sampler.keep_step(trainer.processing_class.eos_token_id)
        played = await together(group.settled() for group in groups)
        return self._columns(played, trainer.processing_class.eos_token_id)

    async def _task(self, key: str) -> HostedTask:
        reference = self._tasks.get(key)
        if reference is None:
            raise DataError(
                "TRL asks for rollouts of a prompt that is not in this environment's data sets, so there is nothing to "
                "score it by. Train on env.dataset(...), made by this same object, without changing its prompts."
            )
        return await hosted_task(reference, self._share)

    def _columns(self, played: Sequence[PlayedGroup], eos: int) -> dict[str, list[Any]]:
        rollouts = [(group, member) for group in played for member in range(len(group.group.trajectories))]
        rows = [self._row(group, member, eos) for group, member in rollouts]
        trajectories = [group.rollout(member) for group, member in rollouts]
        failed = Counter(t.failure for t in trajectories if t.errored)
        if failed:
            (why, _), *_ = failed.most_common(1)
            logger.warning("%d of %d rollouts could not be scored: %s", failed.total(), len(trajectories), why)
        known = all(row.logprobs is not None for row in rows)
        return {
            "prompt_ids": [list(row.prompt_ids) for row in rows],
            "completion_ids": [list(row.response_ids) for row in rows],
            # TRL compares these with the trainer's own, where its sampler gives them.
            "logprobs": [list(row.logprobs or ()) for row in rows] if known else None,  # type: ignore[dict-item]
            "env_mask": [list(row.mask) for row in rows],
            "assay_reward": [trajectory.reward for trajectory in trajectories],
            "assay_end": [trajectory.stop_reason for trajectory in trajectories],
            "assay_turns": [len(trajectory.transitions) for trajectory in trajectories],
        }

    def _row(self, group: PlayedGroup, member: int, eos: int) -> HostRow:
        """The one row of a rollout; where nothing of it is trained, a row without a sampled token."""
        rows = group.rows(member)
        if len(rows) > 1 and self._rebuilt == "refuse":
            raise ConfigError(
                f"A rollout of {group.group.task.id} has {len(rows)} training rows, since its prompts are written "
                "anew, and TRL has one row per completion. Set mode=single_turn, or chat.history=append where a chat "
                'template does it, or rebuilt="last" to train the last turn alone on the whole reward; verl and '
                "prime-rl train all of them."
            )
        if rows:
            return rows[-1]
        turns = group.rollout(member).transitions
        prompt = turns[-1].prompt_tokens if turns else (eos,)
        return HostRow(prompt, (eos,), (0,), (0.0,), (0.0,), (0.0,), ())


@dataclass(frozen=True)
class _Seated:
    """The place of one rollout among those that are sampled together, as a host's policy."""

    policy: Policy
    most: int
    """Limit of a turn; equal for all, so that their prompts become one call. What a row has no room for is cut."""

    async def sample(self, prompt_ids: Sequence[int], params: SamplingParams, seed: int) -> Sampled:
        """See `HostPolicy`."""
        found = await self.policy.complete(prompt_ids, replace(params, max_tokens=self.most), seed, last=False)
        tokens, logprobs = found.tokens[: params.max_tokens], found.logprobs[: params.max_tokens]
        return Sampled(tokens, None if any(map(math.isnan, logprobs)) else logprobs)


class _TrainerSampler:
    """TRL's trainer as what `Sampling` asks: all rollouts that still play are sampled in one call."""

    capabilities = Capabilities(
        losses=frozenset(), terms=frozenset(), lora=False, full_weights=False, exact_resume=False, batch_invariant=False
    )
    context_length = UNBOUNDED

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self.called = False

    def keep_step(self, token: int) -> None:
        """Take part in the call of the other processes, where nothing is to be sampled here: they wait for it."""
        self._trainer._generate_single_turn([[token]], None, {}, 1)

    async def sample_stream(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams, seeds: Sequence[int]
    ) -> AsyncGenerator[tuple[int, Completion], None]:
        """See `Backend`."""
        self.called = True
        ids, logprobs = self._trainer._generate_single_turn([list(prompt) for prompt in prompts], None, {}, 1)
        for place, found in enumerate(ids):
            tokens = tuple(map(int, found))[: params.max_tokens]
            known = (math.nan,) * len(tokens) if logprobs is None else tuple(logprobs[place][: len(tokens)])
            stopped = bool(tokens) and tokens[-1] in params.stop
            yield place, Completion(tokens, known, "stop" if stopped else "length", 0)


def prompt_key(messages: Sequence[Message]) -> str:
    """What a prompt is known by."""
    return json.dumps([[message.role, message.content] for message in messages])


def _key_of(prompt: Any) -> str:
    """What a prompt is known by, as TRL hands it back: with its mark, or by its text, which may be in blocks."""
    from assay.integrations.trl import messages_of

    first = prompt[0] if isinstance(prompt, list) and prompt and isinstance(prompt[0], Mapping) else {}
    mark = first.get(MARK)
    return mark if isinstance(mark, str) else prompt_key(messages_of(prompt))


def _chunks(keys: Sequence[str], size: int) -> list[tuple[str, int]]:
    """Equal prompts beside each other, as groups of at most `size`."""
    found: list[tuple[str, int]] = []
    for key, run in itertools.groupby(keys):
        count = len(list(run))
        found += [(key, min(size, count - begun)) for begun in range(0, count, size)]
    return found


def _group_size(trainer: Any) -> int:
    missing = [name for name in NEEDS if not hasattr(trainer, name)]
    if missing:
        raise ConfigError(
            f"This trainer has no {', '.join(missing)}, so the environment cannot sample with it. It is written for "
            "GRPOTrainer of trl 1.16."
        )
    return int(trainer.num_generations if trainer.model.training else trainer.num_generations_eval)


def _check(trainer: Any, renderer: Renderer) -> None:
    if missing := set(renderer.stop) - set(trainer.eos_token_ids):
        raise ConfigError(
            f"Replies end on the tokens {sorted(missing)} by the tokenizer's chat template, and the trainer samples "
            f"on over them (it stops at {sorted(trainer.eos_token_ids)}). Set the tokenizer's eos_token, or the "
            "model's generation_config.eos_token_id, before the trainer is made."
        )


def _in_one_call(trainer: Any) -> bool:
    """Whether TRL's processes wait for each other when they sample."""
    args = trainer.args
    if trainer.accelerator.num_processes < 2:
        return False
    if args.use_vllm:
        return bool(args.vllm_mode == "server" or args.vllm_tensor_parallel_size > 1)
    return bool(trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled)


def _check_turns(trainer: Any, max_turns: int) -> None:
    """Where processes sample in one call, each has to call equally often, and rollouts of several turns do not."""
    if max_turns > 1 and _in_one_call(trainer):
        raise ConfigError(
            f"Rollouts have up to {max_turns} turns, and TRL's {trainer.accelerator.num_processes} processes sample in "
            "one call: those whose rollouts end sooner would be waited for without end. Set vllm_mode=colocate with "
            "vllm_tensor_parallel_size=1, or one process; verl and prime-rl have no such limit."
        )


def _check_whole(builders: Sequence[HostedTask], counts: Sequence[int], size: int) -> None:
    split = [one.task.id for one, n in zip(builders, counts, strict=True) if isinstance(one, GroupScorer) and n != size]
    if split:
        raise ConfigError(
            f"The groups of {split[0]} are scored as a whole, and this process has only a part of one. Let "
            "per_device_train_batch_size be a multiple of num_generations."
        )


def _budget(trainer: Any) -> Budget:
    response = int(trainer.args.max_completion_length)
    config: Mapping[str, Any] = vars(getattr(trainer.accelerator.unwrap_model(trainer.model), "config", None) or Budget)
    context = config.get("max_position_embeddings")
    return Budget(int(context) - response if isinstance(context, int) else UNBOUNDED, response)


def _run(make: Callable[[], Any]) -> Any:
    """What a coroutine gives; in a thread of its own where this one is inside an event loop (a notebook's)."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(make())
    with ThreadPoolExecutor(1) as elsewhere:
        return elsewhere.submit(lambda: asyncio.run(make())).result()
