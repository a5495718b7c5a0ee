"""Whether what a user's env returned can be used: looked at where it is returned, so that a mistake costs one rollout
and names its env, and does not end a run where rewards are averaged or rollouts are written."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Real

import numpy as np

from assay.envs.base import StepResult
from assay.storage.files import encode_json
from assay.types import Message, Score

_MOST_SHOWN = 80


def require_messages(messages: object, said: str) -> None:
    """Refuse what is not a list of messages.

    Args:
        said: begins the message: `Guessing.reset() returned`.

    Raises:
        TypeError: it is not.
    """
    if not isinstance(messages, list | tuple) or not all(isinstance(message, Message) for message in messages):
        raise TypeError(f'{said} {_shown(messages)}, and not a list of Message: [Message("user", "...")]')


def require_result(result: object, said: str) -> StepResult:
    """The result of a turn, once it is one that can be averaged and recorded.

    Args:
        said: what returned it: `Guessing.step()`.

    Raises:
        TypeError: it is not.
    """
    if not isinstance(result, StepResult):
        raise TypeError(f"{said} returned {_shown(result)}, and not a StepResult")
    require_messages(result.messages, f"{said} returned a StepResult whose messages are")
    require_score(result.score, f"{said} returned a StepResult whose score")
    metrics: Mapping[str, object] = result.metrics
    for name, value in metrics.items():
        if not isinstance(value, Real | np.bool_):
            raise TypeError(f"{said} returned a StepResult whose metric {name} is {_shown(value)}, and not a number")
    return result


def require_score(score: object, said: str) -> Score:
    """A score, once its evidence is plain data: it is written into the run's traces.

    Args:
        said: whose it is: `Guessing.step() returned a StepResult whose score`.

    Raises:
        TypeError: it is not.
    """
    if not isinstance(score, Score):
        raise TypeError(f"{said} is {_shown(score)}, and not a Score")
    if score.evidence:
        try:
            encode_json(dict(score.evidence))
        except (TypeError, ValueError, RecursionError) as error:
            raise TypeError(f"{said} has evidence that cannot be recorded: {error}") from error
    return score


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."
