"""`AssayRewardManager`: verl's reward loop with the engine behind it. Needs verl 0.9.

    reward.reward_manager.source=importlib
    reward.reward_manager.module.path=pkg://assay.integrations.verl.manager
    reward.reward_manager.name=AssayRewardManager
    +reward.custom_reward_function.reward_kwargs.reward=...         settings, as for `compute_score`

verl asks sample by sample; what arrives while its event loop turns becomes one batch of the engine, and every sample is
answered as soon as it is scored. Beyond what `acompute_score` is given, the reward sees the prompt, and the rollouts of
one prompt are known as a group by their `uid`, so that `on_failure=group_mean` works within a batch.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from assay.errors import ConfigError, MissingDependencyError
from assay.integrations.common.scoring import HostScorer, Row, missing, sample_of, scorer
from assay.integrations.common.settings import plain
from assay.integrations.verl.score import REWARD_LOOP, served_judge
from assay.rewards import Sample
from assay.types import Message, Score

try:
    from verl.experimental.reward_loop.reward_manager import register
    from verl.experimental.reward_loop.reward_manager.base import RewardManagerBase
except ImportError as error:
    raise MissingDependencyError(
        "AssayRewardManager belongs to the reward loop of verl 0.9, which cannot be imported here "
        f"({error}). Install verl>=0.9, or use assay.integrations.verl.compute_score with an older one."
    ) from error

GATHER_S = 0.005
"""How long the first sample of a batch waits for others."""
_ROLES = ("system", "user", "assistant")


@dataclass(frozen=True)
class _Waiting:
    """A sample on its way into a batch."""

    sample: Sample
    group: object
    answer: asyncio.Future[Row]


@register("assay")
class AssayRewardManager(RewardManagerBase):  # type: ignore[misc]
    """See the module. verl makes one in each of its `reward.num_workers` reward workers."""

    def __init__(
        self,
        config: Any,
        tokenizer: Any,
        compute_score: Any = None,
        reward_router_address: str | None = None,
        reward_model_tokenizer: Any = None,
    ) -> None:
        super().__init__(config, tokenizer, compute_score)
        self._scorer = scorer(settings_of(config, reward_router_address))
        self._gathering: list[_Waiting] = []
        self._batches: set[asyncio.Task[None]] = set()

    @property
    def scorer(self) -> HostScorer:
        """The scorer of this process."""
        return self._scorer

    async def run_single(self, data: Any) -> dict[str, Any]:
        """The reward of one rollout (of its last sequence, where it has several), as verl wants it.

        Raises:
            RewardError: it could not be scored, and the failure policy has nothing to stand in for it. verl's V1
                trainer leaves the rollout out of its group; V0 ends the step.
        """
        sample, group = await self._read(data)
        row = await self._score(sample, group)
        return {"reward_score": row["score"], "reward_extra_info": row}

    async def _read(self, data: Any) -> tuple[Sample, object]:
        item = data[-1:][0]
        fields = item.non_tensor_batch
        response_ids = item.batch["responses"]
        length = int(item.batch["attention_mask"][-response_ids.shape[-1] :].sum())
        loop = asyncio.get_running_loop()
        response = await loop.run_in_executor(None, self._decode, response_ids[:length])
        truth = fields["reward_model"]
        # Rollouts keep results of tools and turns in separate fields; rewards look for everything in extra_info.
        extra = {
            **plain(fields.get("extra_info") or {}),
            **plain(dict(fields.get("tool_extra_fields") or {})),
            "num_turns": plain(fields.get("__num_turns__")),
        }
        sample = sample_of(
            response,
            truth.get("ground_truth") if isinstance(truth, Mapping) else truth,
            str(fields["data_source"]),
            extra,
            messages_of(plain(fields.get("raw_prompt"))),
        )
        uid = fields.get("uid")
        return sample, str(uid) if uid is not None else object()

    def _decode(self, ids: Any) -> str:
        return str(self.tokenizer.decode(ids, skip_special_tokens=True))

    async def _score(self, sample: Sample, group: object) -> Row:
        loop = asyncio.get_running_loop()
        waiting = _Waiting(sample, group, loop.create_future())
        if not self._gathering:
            loop.call_later(GATHER_S, self._start_batch)
        self._gathering.append(waiting)
        return await waiting.answer

    def _start_batch(self) -> None:
        batch, self._gathering = self._gathering, []
        task = asyncio.get_running_loop().create_task(self._score_batch(batch))
        self._batches.add(task)
        task.add_done_callback(partial(self._end_batch, batch))

    async def _score_batch(self, batch: Sequence[_Waiting]) -> None:
        """Answer each sample as soon as its reward is known; the failed ones last, when their groups are."""
        scores: dict[int, Score] = {}
        async for place, score in self._scorer.engine.stream([waiting.sample for waiting in batch]):
            scores[place] = score
            if score.value is not None:
                _answer(batch[place], self._scorer.row(score, score.value))
        ordered = [scores[place] for place in range(len(batch))]
        rewards = self._scorer.rewards(ordered, [waiting.group for waiting in batch])
        for waiting, score, reward in zip(batch, ordered, rewards, strict=True):
            if reward is not None:
                _answer(waiting, self._scorer.row(score, reward))
            elif not waiting.answer.done():
                waiting.answer.set_exception(missing(score, REWARD_LOOP))

    def _end_batch(self, batch: Sequence[_Waiting], task: asyncio.Task[None]) -> None:
        """An error that ends a batch ends the wait of all its samples, which would otherwise never end."""
        self._batches.discard(task)
        for waiting in batch:
            if waiting.answer.done():
                continue
            if task.cancelled():
                waiting.answer.cancel()
            elif (error := task.exception()) is not None:
                waiting.answer.set_exception(error)


def settings_of(config: Any, router_address: str | None = None) -> dict[str, object]:
    """The settings in verl's config, where it has those of its reward function.

    Raises:
        ConfigError: the config names a reward function that is not Assay's: it would never be called.
    """
    custom = plain(config.get("reward", {}).get("custom_reward_function") or {})
    path = custom.get("path")
    if path and "assay.integrations.verl" not in str(path).replace("/", "."):
        raise ConfigError(
            f"reward.custom_reward_function.path={path} would never be called: AssayRewardManager scores with "
            "reward.custom_reward_function.reward_kwargs.reward. Remove the path, or use another manager."
        )
    settings: dict[str, object] = dict(custom.get("reward_kwargs") or {})
    return settings | served_judge(router_address, settings)


def messages_of(raw: object) -> tuple[Message, ...]:
    """The chat messages of a prompt, as far as they are text of roles that a judge can be shown."""
    if not isinstance(raw, list):
        return ()
    return tuple(
        Message(message["role"], message["content"])
        for message in raw
        if isinstance(message, dict) and message.get("role") in _ROLES and isinstance(message.get("content"), str)
    )


def _answer(waiting: _Waiting, row: Row) -> None:
    if not waiting.answer.done():
        waiting.answer.set_result(row)
