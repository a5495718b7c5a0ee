"""Rollouts: a batch of groups played to the end, turn by turn.

Envs speak messages and the backend speaks tokens; the runner joins them. All rollouts that are still going take a turn
together in one `sample` call, in (group, sample) order, so results never depend on which env answers first. A failure
inside an environment is data: the rollouts that it hits become `errored`, and the others go on.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from assay.backends.base import Backend
from assay.envs.base import Env, EnvGroupBuilder, GroupScorer, StepResult
from assay.rollouts.renderers.base import Renderer
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
    envs: Sequence[Env | None]
    """None stands for an env that could not be made."""


async def prepare(builders: Sequence[EnvGroupBuilder], group_size: int) -> list[PreparedGroup]:
    """Make the envs of every group, concurrently, in order. Where a builder fails, its rollouts will be errored."""
    return list(await asyncio.gather(*(_prepare(builder, group_size) for builder in builders)))


async def _prepare(builder: EnvGroupBuilder, group_size: int) -> PreparedGroup:
    try:
        return PreparedGroup(builder, await builder.make(group_size))
    except Exception:
        logger.exception("The envs of a group could not be made; its rollouts are errored.")
        return PreparedGroup(builder, [None] * group_size)


@dataclass
class _Rollout:
    """One rollout in progress."""

    group: int
    sample: int
    env: Env | None
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
        max_turns: rollouts still going after so many turns end with `max_turns`; those that fill the backend's
            context before that end with `length`.
        seed: seed of the batch; each turn of each sample derives its own.
    """
    params = replace(params, stop=(*params.stop, *renderer.stop))
    rollouts = [_Rollout(g, s, env) for g, group in enumerate(groups) for s, env in enumerate(group.envs)]
    starts: dict[tuple[Message, ...], list[int]] = {}
    await asyncio.gather(*(_begin(rollout, renderer, starts) for rollout in rollouts))
    for turn in range(max_turns):
        active = [r for r in rollouts if r.end is None]
        if not active:
            break
        seeds = [derive(seed, r.group, r.sample, turn) for r in active]
        completions = await backend.sample([r.tokens for r in active], params, seeds)
        last = turn + 1 == max_turns
        await asyncio.gather(*(_turn(r, c, renderer, last) for r, c in zip(active, completions, strict=True)))
        for rollout in active:
            if rollout.end is None and len(rollout.tokens) >= backend.context_length:
                rollout.end = "length"
    finished = _finish(groups, rollouts, seed)
    return list(await asyncio.gather(*(_rescore(group, f) for group, f in zip(groups, finished, strict=True))))


async def _begin(rollout: _Rollout, renderer: Renderer, starts: dict[tuple[Message, ...], list[int]]) -> None:
    """Show a rollout its first messages; equal ones are made into tokens once and remembered in `starts`."""
    if rollout.env is None:
        rollout.end = "errored"
        return
    try:
        messages = tuple(await rollout.env.reset())
        if messages not in starts:
            starts[messages] = renderer.start(messages)
        rollout.tokens = starts[messages]
    except Exception:
        logger.exception("An env failed to reset; its rollout is errored.")
        rollout.end = "errored"


async def _turn(rollout: _Rollout, completion: Completion, renderer: Renderer, last: bool) -> None:
    assert rollout.env is not None
    text = renderer.text(completion.tokens)
    try:
        result = await rollout.env.step(text)
    except Exception as error:
        logger.exception("An env failed to score a completion; its rollout is errored.")
        result = StepResult(_failure(error), done=True)
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


def _finish(groups: Sequence[PreparedGroup], rollouts: Sequence[_Rollout], seed: int) -> list[TrajectoryGroup]:
    trajectories: list[list[Trajectory]] = [[] for _ in groups]
    for r in rollouts:
        task = groups[r.group].builder.task
        end = r.end or "max_turns"
        trajectories[r.group].append(Trajectory(task, tuple(r.transitions), end, derive(seed, r.group, r.sample)))
    return [TrajectoryGroup(g.builder.task, tuple(t)) for g, t in zip(groups, trajectories, strict=True)]


async def _rescore(group: PreparedGroup, finished: TrajectoryGroup) -> TrajectoryGroup:
    """Let a builder that ranks whole groups replace the score of each trajectory's last turn."""
    if not isinstance(group.builder, GroupScorer):
        return finished
    places = [place for place, trajectory in enumerate(finished.trajectories) if not trajectory.errored]
    judged = [finished.trajectories[place] for place in places]
    try:
        scores = dict(zip(places, await group.builder.score_group(judged), strict=True))
    except Exception as error:
        logger.exception("A group could not be scored; its rollouts are errored.")
        scores = dict.fromkeys(places, _failure(error))
    rescored = [_with_last_score(t, scores[i]) if i in scores else t for i, t in enumerate(finished.trajectories)]
    return replace(finished, trajectories=tuple(rescored))


def _with_last_score(trajectory: Trajectory, score: Score) -> Trajectory:
    *earlier, last = trajectory.transitions
    end = "errored" if score.status == "errored" else trajectory.stop_reason
    return replace(trajectory, transitions=(*earlier, replace(last, score=score)), stop_reason=end)


def _failure(error: Exception) -> Score:
    """The score of what an environment failed to judge; call it where the error is caught."""
    return Score("errored", None, evidence={"error": repr(error), "traceback": traceback.format_exc(limit=5)})
