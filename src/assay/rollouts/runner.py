"""Rollouts: a batch of groups played to the end, turn by turn.

Envs speak messages and the backend speaks tokens; the runner joins them. All rollouts that are still going take a turn
together in one `sample` call, in (group, sample) order, so results never depend on which env answers first. A failure
inside an env is data: the rollout becomes `errored`, and its siblings go on.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from assay.backends.base import Backend
from assay.envs.base import Env, EnvGroupBuilder, GroupScorer, StepResult
from assay.rollouts.renderer import Renderer
from assay.rollouts.seeds import derive
from assay.types import (
    Completion,
    EpisodeEnd,
    Message,
    SamplingParams,
    Score,
    Trajectory,
    TrajectoryGroup,
    Transition,
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class PreparedGroup:
    """A builder with its envs made: the shared work of the group (an engine analysis, say) is done."""

    builder: EnvGroupBuilder
    envs: Sequence[Env]


async def prepare(builders: Sequence[EnvGroupBuilder], group_size: int) -> list[PreparedGroup]:
    """Make the envs of every group, concurrently, in order."""
    made = await asyncio.gather(*(builder.make(group_size) for builder in builders))
    return [PreparedGroup(builder, envs) for builder, envs in zip(builders, made, strict=True)]


@dataclass
class _Rollout:
    """One rollout in progress."""

    group: int
    sample: int
    env: Env
    tokens: list[int] = field(default_factory=list)
    transitions: list[Transition] = field(default_factory=list)
    end: EpisodeEnd | None = None


async def run_groups(
    groups: Sequence[PreparedGroup],
    backend: Backend,
    renderer: Renderer,
    params: SamplingParams,
    *,
    max_turns: int,
    seed: int,
) -> list[TrajectoryGroup]:
    """Play every rollout of every group.

    Args:
        params: sampling parameters; the renderer's stop tokens are added.
        max_turns: rollouts still going after so many turns end with `max_turns`.
        seed: seed of the batch; each turn of each sample derives its own.
    """
    params = replace(params, stop=(*params.stop, *renderer.stop))
    rollouts = [_Rollout(g, s, env) for g, group in enumerate(groups) for s, env in enumerate(group.envs)]
    await asyncio.gather(*(_begin(rollout, renderer) for rollout in rollouts))
    for turn in range(max_turns):
        active = [r for r in rollouts if r.end is None]
        if not active:
            break
        seeds = [derive(seed, r.group, r.sample, turn) for r in active]
        completions = await backend.sample([r.tokens for r in active], params, seeds)
        last = turn + 1 == max_turns
        await asyncio.gather(*(_turn(r, c, renderer, last) for r, c in zip(active, completions, strict=True)))
    finished = [_finish(g, group, rollouts, seed) for g, group in enumerate(groups)]
    return list(await asyncio.gather(*(_rescore(group, f) for group, f in zip(groups, finished, strict=True))))


async def _begin(rollout: _Rollout, renderer: Renderer) -> None:
    try:
        rollout.tokens = renderer.start(await rollout.env.reset())
    except Exception:
        logger.exception("An env failed to reset; its rollout is errored.")
        rollout.end = "errored"


async def _turn(rollout: _Rollout, completion: Completion, renderer: Renderer, last: bool) -> None:
    text = renderer.text(completion.tokens)
    try:
        result = await rollout.env.step(text)
    except Exception as error:
        logger.exception("An env failed to score a completion; its rollout is errored.")
        evidence = {"error": repr(error), "traceback": traceback.format_exc(limit=5)}
        result = StepResult(Score("errored", None, evidence=evidence), done=True)
    prompt = tuple(rollout.tokens)
    rollout.transitions.append(Transition(prompt, completion, text, result.score, result.metrics))
    if result.score.status == "errored":
        rollout.end = "errored"
    elif result.done:
        rollout.end = "done"
    elif last:
        rollout.end = "max_turns"
    else:
        rollout.tokens = [*prompt, *completion.tokens, *_reply(renderer, result.messages, completion)]


def _reply(renderer: Renderer, messages: Sequence[Message], completion: Completion) -> list[int]:
    return renderer.extend(messages, stopped=completion.stop_reason == "stop")


def _finish(index: int, group: PreparedGroup, rollouts: Sequence[_Rollout], seed: int) -> TrajectoryGroup:
    members = sorted((r for r in rollouts if r.group == index), key=lambda r: r.sample)
    task = group.builder.task
    return TrajectoryGroup(
        task,
        tuple(
            Trajectory(task, tuple(r.transitions), r.end or "max_turns", derive(seed, r.group, r.sample))
            for r in members
        ),
    )


async def _rescore(group: PreparedGroup, finished: TrajectoryGroup) -> TrajectoryGroup:
    """Let a builder that ranks whole groups replace the score of each trajectory's last turn."""
    if not isinstance(group.builder, GroupScorer):
        return finished
    scores = await group.builder.score_group(finished.trajectories)
    rescored = []
    for trajectory, score in zip(finished.trajectories, scores, strict=True):
        *earlier, last = trajectory.transitions
        rescored.append(replace(trajectory, transitions=(*earlier, replace(last, score=score))))
    return replace(finished, trajectories=tuple(rescored))
