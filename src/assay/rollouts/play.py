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
from assay.envs.results import require_messages, require_result
from assay.plugins import in_words
from assay.rollouts.renderers.base import Renderer
from assay.rollouts.sampling import Policy
from assay.rollouts.seeds import derive, turn_seed
from assay.rollouts.together import reraise_if_cancelled
from assay.types import Completion, EpisodeEnd, Message, SamplingParams, Score, Task, Trajectory, Transition

logger = logging.getLogger(__name__)


async def play(
    env: Env | str,
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
        env: a text, if the env could not be made, says why; the rollout is errored.
        params: sampling parameters; the renderer's stop tokens are added.
        max_turns: a rollout still going after so many turns ends with `max_turns`; one for whose next prompt the
            policy has no room ends with `length`.
        seed: the names that this rollout's randomness is derived from, its number in its group last; each turn derives
            its own.

    Raises:
        AssayError: the policy cannot answer.
    """
    params = replace(params, stop=(*params.stop, *renderer.stop))
    transitions: list[Transition] = []
    end: EpisodeEnd | None = None
    messages, start = ((), env) if isinstance(env, str) else await _begin(env, renderer)
    error, prompt = (start, ()) if isinstance(start, str) else ("", start)
    conversation = messages
    while not isinstance(env, str) and not error and end is None:
        turn = len(transitions)
        last = turn + 1 >= max_turns
        completion = await policy.complete(prompt, params, turn_seed(seed, turn), last=last)
        text = renderer.text(completion.tokens)
        reply = renderer.read(text)
        result = await verdict(env, reply.whole if getattr(env, "whole_replies", False) else reply.answer)
        judged = (reply.answer, result.score, result.metrics)
        transitions.append(Transition(tuple(prompt), completion, *judged, messages, reply.thought))
        messages = tuple(result.messages) if result.replace else ()
        end = _end(result, last)
        if end is None:
            conversation = messages if result.replace else (*conversation, renderer.said(text), *result.messages)
            following = _next_prompt(conversation, prompt, completion, result, renderer)
            error, prompt = (following, prompt) if isinstance(following, str) else ("", following)
            if not error and policy.room(prompt) < 1:
                end = "length"
    return Trajectory(task, tuple(transitions), end or "errored", derive(*seed), error)


async def _begin(env: Env, renderer: Renderer) -> tuple[tuple[Message, ...], Sequence[int] | str]:
    """The env's first messages, and the prompt made from them; if the env fails, the reason instead of the prompt."""
    try:
        messages = await env.reset()
        require_messages(messages, f"{type(env).__name__}.reset() returned")
        return tuple(messages), renderer.start(messages)
    except (Exception, asyncio.CancelledError) as error:
        reraise_if_cancelled(error)
        logger.debug("An env failed to reset; its rollout is errored.", exc_info=True)
        return (), in_words(error)


async def verdict(env: Env, text: str) -> StepResult:
    """What an env says of a reply; errored where it fails, or says something that cannot be used."""
    try:
        return require_result(await env.step(text), f"{type(env).__name__}.step()")
    except (Exception, asyncio.CancelledError) as error:
        reraise_if_cancelled(error)
        logger.debug("An env failed to score a completion; its rollout is errored.", exc_info=True)
        return StepResult(failure(error), done=True)


def _end(result: StepResult, last: bool) -> EpisodeEnd | None:
    if result.score.status == "errored":
        return "errored"
    if result.done:
        return "done"
    return "max_turns" if last else None


def _next_prompt(
    conversation: Sequence[Message],
    prompt: Sequence[int],
    completion: Completion,
    result: StepResult,
    renderer: Renderer,
) -> Sequence[int] | str:
    """The next prompt: the conversation so far with the new messages, or a new conversation.

    The reason, if it cannot be written.
    """
    try:
        if not conversation:
            raise ValueError("StepResult(replace=True) without messages leaves the policy nothing to answer")
        if result.replace or renderer.rewrites:
            return renderer.start(conversation)
        told = renderer.extend(result.messages, stopped=completion.stop_reason == "stop")
        return [*prompt, *completion.tokens, *told]
    except Exception as error:
        logger.debug("What an env said cannot be shown to the policy; its rollout is errored.", exc_info=True)
        return in_words(error)


def failure(error: BaseException) -> Score:
    """The score of what an environment failed to judge; call it where the error is caught."""
    return Score("errored", None, evidence={"error": in_words(error), "traceback": traceback.format_exc(limit=-5)})
