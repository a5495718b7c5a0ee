"""`AssayAgentLoop`: whole Assay environments in verl 0.9, with Assay's own turns, budgets, scores and credit.

    actor_rollout_ref.rollout.agent.agent_loop_config_path=DIR/agent_loop.yaml         written by `assay export-data`
    +actor_rollout_ref.rollout.agent.agent_loop_manager_class=assay.integrations.verl.agent_manager.AssayAgentLoopManager
    algorithm.adv_estimator=assay

verl starts the rollouts of a prompt one by one, in one process. Each plays to its end and waits for its siblings; then
the group is scored and credited at once, and each is handed its training rows. What verl takes for rewards, token by
token, are Assay's advantages, which the estimator `assay` passes on as they are: so credit is that of Assay's trainer,
for each turn. In validation they are the rollout's plain reward.

A rollout that could not be scored has no rows, and no part in its group's baseline.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any
from uuid import uuid4

from assay.errors import ConfigError, DataError, MissingDependencyError, ModelError, RewardError
from assay.integrations.environments import (
    Budget,
    GroupTable,
    HostGroup,
    HostRow,
    PlayedGroup,
    Prepared,
    Sampled,
    TaskReference,
)
from assay.integrations.environments.access import Share, hosted_task
from assay.integrations.environments.group import START_S
from assay.integrations.verl.agent_check import ESTIMATOR
from assay.rollouts.renderers.base import Renderer
from assay.types import SamplingParams, Trajectory

try:
    from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput
except ImportError as error:
    raise MissingDependencyError(
        f"AssayAgentLoop belongs to the agent loops of verl 0.9, which cannot be imported here ({error}). Install "
        "verl>=0.9 with what its rollouts need."
    ) from error

_GROUPS = GroupTable()
"""The groups that are played in this process. verl runs all rollouts of a prompt in one event loop."""


class TokenScores(AgentLoopOutput):  # type: ignore[misc]
    """A training row whose scores stand on its tokens, and not on the last one alone."""

    token_scores: list[float]
    """One per token of the response: an advantage, or in validation the reward."""

    def as_dict(self) -> dict[str, Any]:
        """See `AgentLoopOutput`. verl copies `reward_score` of a rollout's last row to all; these it leaves alone."""
        fields: dict[str, Any] = super().as_dict()
        fields.pop("token_scores", None)
        fields["rm_scores"] = fields["rm_scores"].new_tensor(self.token_scores)
        return fields


class AssayAgentLoop(AgentLoopBase):  # type: ignore[misc]
    """One rollout of a task. verl makes one for each, of the entry `assay` of the YAML file.

    Args:
        prepared: the environment and how it is played (`Prepared.to_json`), as `assay export-data` writes it.
        share: who has the environment's engines; see `hosted_task`.
        start_s: seconds that a rollout which has ended waits for siblings that have not begun.

    Raises:
        ConfigError: verl would compute other advantages than those that it is handed.
    """

    def __init__(
        self,
        *args: Any,
        prepared: str,
        share: Share = "machine",
        start_s: float = START_S,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        estimator = self.config.algorithm.adv_estimator
        if estimator != ESTIMATOR:
            raise ConfigError(
                f"algorithm.adv_estimator={estimator}: verl would compute advantages from Assay's advantages, which "
                f"stand where it expects rewards. Set algorithm.adv_estimator={ESTIMATOR}."
            )
        self._prepared, self._share, self._start_s = prepared, share, float(start_s)

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> list[TokenScores]:
        """Play one rollout; see `AgentLoopBase`.

        Args:
            kwargs: the columns of the row, with verl's `uid`, `global_steps` and `session_id`.

        Returns:
            The rollout's training rows; none where it could not be scored.

        Raises:
            ConfigError: verl's V0 trainer runs this.
            DataError: the row is not one that `assay export-data` wrote.
            RewardError: no rollout of the group could be scored; verl then counts the group as failed.
            Exception: what verl's server raises.
        """
        seat = _Session.of(kwargs, self.rollout_config)
        one, renderer = _read(self._prepared), _renderer(self.tokenizer, self._prepared)
        if seat.reference.environment != one.environment:
            raise DataError(
                f"The task {seat.reference.id} is of another environment than the file of agent loops, so it would be "
                "played and credited as another. Write both with one `assay export-data`."
            )
        task = await hosted_task(seat.reference, self._share)
        group = _GROUPS.join(
            seat.key,
            lambda: HostGroup(task, seat.size, one.playing, renderer, seed=(seat.step,), start_s=self._start_s),
        )
        policy = _Policy(self.server_manager, sampling_params, seat.step)
        budget = Budget(int(self.rollout_config.prompt_length), int(self.rollout_config.response_length))
        try:
            await group.play(seat.member, policy, budget)
            played = await group.settled()
        finally:
            _GROUPS.leave(seat.key)
        _require_a_score(played)
        rows = played.rows(seat.member)
        if seat.validates:
            return _validated(played.rollout(seat.member), rows, renderer, policy)
        return [_output(row, list(row.advantages), played.rollout(seat.member), policy) for row in rows]


@dataclass(frozen=True)
class _Session:
    """What verl says of a rollout that it starts."""

    reference: TaskReference
    uid: str
    step: int
    member: int
    size: int

    @classmethod
    def of(cls, row: Mapping[str, Any], rollout_config: Any) -> _Session:
        if "session_id" not in row:
            raise ConfigError(
                "verl's V0 trainer does not say which rollouts belong together, takes one score for a whole rollout, "
                "and ends at the first that cannot be scored, so Assay's credit would be lost. Set trainer.use_v1=true."
            )
        extra = row.get("extra_info")
        if not isinstance(extra, Mapping) or "assay_task" not in extra:
            raise DataError(
                "This row has no extra_info.assay_task, so there is no task to play. Train on the files that `assay "
                "export-data` writes, or let other rows name their own agent_name."
            )
        reference = TaskReference.from_json(extra["assay_task"])
        heldout = reference.split == "heldout"
        size = rollout_config.val_kwargs.n if heldout else rollout_config.n
        return cls(reference, str(row["uid"]), int(row["global_steps"]), int(row["session_id"]), int(size))

    @property
    def key(self) -> tuple[str, int]:
        """What the rollouts of a group share."""
        return self.uid, self.step

    @property
    def validates(self) -> bool:
        """Whether the plain reward is asked for. verl does not say; held-out tasks are for that."""
        return self.reference.split == "heldout"


@dataclass
class _Policy:
    """verl's server as a host's policy. One for each rollout, so that its turns share a server and its cache."""

    server: Any
    sampling_params: Mapping[str, Any]
    step: int
    request: str = field(default_factory=lambda: uuid4().hex)
    seconds: float = 0.0
    preempted: int = 0
    versions: list[int] = field(default_factory=list)
    """Steps whose weights have sampled: verl's own count."""

    async def sample(self, prompt_ids: Sequence[int], params: SamplingParams, seed: int) -> Sampled:
        """See `HostPolicy`. Temperature and the like are verl's.

        Raises:
            ModelError: verl interrupted the completion.
        """
        asked = {**self.sampling_params, "max_tokens": params.max_tokens, "stop_token_ids": list(params.stop)}
        begun = time.monotonic()
        found = await self.server.generate(self.request, prompt_ids=list(prompt_ids), sampling_params=asked)
        self.seconds += time.monotonic() - begun
        if found.stop_reason == "aborted":
            raise ModelError(
                "verl interrupted a completion to update the weights and did not go on with it. Half an answer is not "
                "judged. Use a rollout that resumes (verl's asynchronous trainers do)."
            )
        self.preempted += found.num_preempted or 0
        versions = (found.extra_fields.get(name) for name in ("min_global_steps", "max_global_steps"))
        self.versions += [int(version) for version in versions if version is not None]
        tokens = [int(token) for token in found.token_ids]
        logprobs = found.log_probs or (None if tokens else [])
        return Sampled(tokens, logprobs, max(self.versions, default=self.step))

    def span(self) -> tuple[int, int]:
        """The first and last step whose weights have sampled."""
        return min(self.versions, default=self.step), max(self.versions, default=self.step)


def _require_a_score(played: PlayedGroup) -> None:
    rollouts = played.group.trajectories
    if all(rollout.errored for rollout in rollouts):
        raise RewardError(
            f"None of the {len(rollouts)} rollouts of {played.group.task.id} could be scored: {rollouts[0].failure}. "
            "verl trains on the other groups, and replaces this one if trainer.v1.sampler.sync_refill_failed_groups is "
            "set."
        )


def _validated(rollout: Trajectory, rows: Sequence[HostRow], renderer: Renderer, policy: _Policy) -> list[TokenScores]:
    """The rows of a rollout in validation, whose score verl reads off the last one: the reward, on its last token."""
    if rollout.reward is None:
        return []
    if not rows:  # Nothing was sampled, and was judged.
        prompt = rollout.transitions[-1].prompt_tokens
        rows = [HostRow(prompt, (renderer.stop[0],), (0,), (0.0,), (0.0,), (0.0,), (0,))]
    outputs = [_output(row, [0.0] * len(row.response_ids), rollout, policy) for row in rows]
    outputs[-1].token_scores[-1] = rollout.reward
    return outputs


def _output(row: HostRow, scores: list[float], rollout: Trajectory, policy: _Policy) -> TokenScores:
    """A row as verl takes it. All have the same fields: verl takes the first one's for all."""
    first, last = policy.span()
    turns = rollout.transitions
    invalid = sum(turn.score.status == "invalid" for turn in turns)
    reward = float(rollout.reward or 0.0)
    return TokenScores(
        prompt_ids=list(row.prompt_ids),
        response_ids=list(row.response_ids),
        response_mask=list(row.mask),
        response_logprobs=None if row.logprobs is None else list(row.logprobs),
        reward_score=reward,
        num_turns=2 * len(turns),
        metrics=AgentLoopMetrics(generate_sequences=policy.seconds, num_preempted=policy.preempted),
        token_scores=scores,
        extra_fields={
            "min_global_steps": first,
            "max_global_steps": last,
            "reward_extra_info": {
                "assay_reward": reward,
                "assay_turns": float(len(turns)),
                "assay_invalid": invalid / max(1, len(turns)),
            },
            "turn_scores": [float(turn.score.value or 0.0) for turn in turns],
            "tool_rewards": [],
        },
    )


@lru_cache(maxsize=16)
def _read(prepared: str) -> Prepared:
    return Prepared.from_json(prepared)


@lru_cache(maxsize=16)
def _renderer(tokenizer: Any, prepared: str) -> Renderer:
    return _read(prepared).renderer(tokenizer)
