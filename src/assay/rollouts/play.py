"""One rollout, from the first messages of an env to the end: a coroutine.

An env speaks messages, a policy speaks tokens; the renderer joins them, and keeps a model's thoughts from the env.
Scoring begins when the completion arrives, and the next turn when its verdict does; nothing here knows of other
rollouts. A failure of the env is data: the rollout becomes `errored`. A failure of the policy is not, and is raised.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Sequence
from dataclasses import replace

from assay.envs.base import Env, StepResult
from assay.rollouts.renderers.base import Renderer
from assay.rollouts.sampling import Policy
from assay.rollouts.seeds import derive
from assay.rollouts.together import reraise_if_cancelled
from assay.types import Completion, EpisodeEnd, Message, SamplingParams, Score, Task, Trajectory, Transition

logger = logging.getLogger(__name__)


async def play(
    env: Env | None,
    policy: Policy,
    renderer: Renderer,
    params: SamplingParams,
    *,
    task: Task,
    max_turns: int,
    seed: Sequence[int | str],
) -> Trajectory:
    """Play one rollout to its end.

    Args:
        env: None stands for one that could not be made; the rollout is errored.
        params: sampling parameters; the renderer's stop tokens are added.
        max_turns: a rollout still going after so many turns ends with `max_turns`; one whose next prompt fills the
            policy's context ends with `length`.
        seed: the names that this rollout's randomness is derived from; each turn derives its own.

    Raises:
        AssayError: the policy cannot answer.
    """
    params = replace(params, stop=(*params.stop, *renderer.stop))
    transitions: list[Transition] = []
    end: EpisodeEnd | None = None
    conversation, prompt = await _first_prompt(env, renderer)
    while env is not None and prompt is not None and end is None:
        turn = len(transitions)
        last = turn + 1 >= max_turns
        completion = await policy.complete(prompt, params, derive(*seed, turn), last=last)
        text = renderer.text(completion.tokens)
        reply = renderer.read(text)
        result = await _verdict(env, reply.answer)
        transitions.append(
            Transition(tuple(prompt), completion, reply.answer, result.score, result.metrics, reply.thought)
        )
        end = _end(result, last)
        if end is None:
            conversation = (*conversation, renderer.said(text))
            conversation, prompt = _next_prompt(conversation, prompt, completion, result, renderer)
            if prompt is not None and len(prompt) >= policy.context_length:
                end = "length"
    return Trajectory(task, tuple(transitions), end or "errored", derive(*seed))


async def _first_prompt(env: Env | None, renderer: Renderer) -> tuple[tuple[Message, ...], Sequence[int] | None]:
    """The first messages and their tokens; None where the env fails."""
    if env is None:
        return (), None
    try:
        messages = tuple(await env.reset())
        return messages, renderer.start(messages)
    except (Exception, asyncio.CancelledError) as error:
        reraise_if_cancelled(error)
        logger.exception("An env failed to reset; its rollout is errored.")
        return (), None


async def _verdict(env: Env, text: str) -> StepResult:
    try:
        result = await env.step(text)
        if not isinstance(result, StepResult):
            raise TypeError(f"{type(env).__name__}.step() returned {result!r}, and not a StepResult")
        return result
    except (Exception, asyncio.CancelledError) as error:
        reraise_if_cancelled(error)
        logger.exception("An env failed to score a completion; its rollout is errored.")
        return StepResult(failure(error), done=True)


def _end(result: StepResult, last: bool) -> EpisodeEnd | None:
    if result.score.status == "errored":
        return "errored"
    if result.done:
        return "done"
    return "max_turns" if last else None


def _next_prompt(
    conversation: tuple[Message, ...],
    prompt: Sequence[int],
    completion: Completion,
    result: StepResult,
    renderer: Renderer,
) -> tuple[tuple[Message, ...], Sequence[int] | None]:
    """The conversation as it goes on, and what the policy sees of it: what it saw and said with what it is told now
    behind it, or the conversation written anew. None where that cannot be written.

    Args:
        conversation: up to what the policy has just said.
    """
    try:
        following = tuple(result.messages) if result.replace else (*conversation, *result.messages)
        if not following:
            raise ValueError("StepResult(replace=True) without messages leaves the policy nothing to answer")
        if result.replace or renderer.rewrites:
            return following, renderer.start(following)
        told = renderer.extend(result.messages, stopped=completion.stop_reason == "stop")
        return following, [*prompt, *completion.tokens, *told]
    except Exception:
        logger.exception("What an env said cannot be shown to the policy; its rollout is errored.")
        return conversation, None


def failure(error: BaseException) -> Score:
    """The score of what an environment failed to judge; call it where the error is caught."""
    return Score("errored", None, evidence={"error": repr(error), "traceback": traceback.format_exc(limit=5)})
