"""What passes between processes about tasks and rollouts, as JSON, and back. What is read is checked for its types."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from assay.envs.base import StepResult
from assay.envs.results import require_messages, require_result
from assay.integrations.environments.desk import Found
from assay.rewards.shared.frames import FrameError
from assay.storage.files import encode_json
from assay.training.trajectory_file import group_of, score_of, task_of
from assay.types import Json, Message, Score, Task, Trajectory, TrajectoryGroup, messages_of

VERSION = 1
"""Raised when the messages change."""


def _json(value: Json) -> Json:
    """A value as it is after it was JSON: numbers that are not finite become null, numpy's Python's own."""
    return json.loads(encode_json(value))


def encode_task(task: Task) -> Json:
    """A task as JSON."""
    return _json(asdict(task))


def decode_task(value: Json) -> Task:
    """What `encode_task` was given.

    Raises:
        FrameError: it is not valid.
    """
    try:
        return task_of(value)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise FrameError(f"a frame holds no task: {error}") from error


def encode_found(found: Found) -> Json:
    """A task, and whether its groups are scored as a whole, as JSON."""
    return [encode_task(found.task), found.ranks]


def decode_found(value: Json) -> Found:
    """What `encode_found` was given.

    Raises:
        FrameError: it is not valid.
    """
    if not isinstance(value, list) or len(value) != 2:
        raise FrameError("a frame holds no task")
    return Found(decode_task(value[0]), bool(value[1]))


def encode_messages(messages: Sequence[Message]) -> Json:
    """Messages as JSON.

    Raises:
        TypeError: an env's `reset` returned something else.
    """
    require_messages(messages, "reset() returned")
    return [{"role": message.role, "content": message.content} for message in messages]


def decode_messages(value: Json) -> list[Message]:
    """What `encode_messages` was given.

    Raises:
        FrameError: it is not valid.
    """
    try:
        return list(messages_of(value)) if value else []
    except (TypeError, ValueError) as error:
        raise FrameError(f"a frame holds no messages: {error}") from error


def encode_result(result: object, said: str) -> Json:
    """The result of a turn as JSON; `said` is what returned it.

    Raises:
        TypeError: it is none.
    """
    found = require_result(result, said)
    metrics = {name: float(value) for name, value in found.metrics.items()}
    return {
        "score": _json(asdict(found.score)),
        "done": bool(found.done),
        "messages": encode_messages(found.messages),
        "metrics": _json(metrics),
        "replace": bool(found.replace),
    }


def decode_result(value: Json) -> StepResult:
    """What `encode_result` was given.

    Raises:
        FrameError: it is not valid.
    """
    try:
        metrics = {str(name): math.nan if one is None else float(one) for name, one in value["metrics"].items()}
        score, messages = score_of(value["score"]), tuple(decode_messages(value["messages"]))
        return StepResult(score, bool(value["done"]), messages, metrics, bool(value["replace"]))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise FrameError(f"a frame holds no result of a turn: {error}") from error


def encode_group(trajectories: Sequence[Trajectory]) -> Json:
    """Rollouts of one task as JSON."""
    return _json(asdict(TrajectoryGroup(trajectories[0].task, tuple(trajectories)))) if trajectories else None


def decode_group(value: Json) -> TrajectoryGroup:
    """What `encode_group` was given.

    Raises:
        FrameError: it is not valid, or there is none.
    """
    try:
        return group_of(value)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise FrameError(f"a frame holds no rollouts: {error}") from error


def encode_scores(scores: Sequence[Score]) -> Json:
    """Scores as JSON."""
    return [_json(asdict(score)) for score in scores]


def decode_scores(value: Json) -> list[Score]:
    """What `encode_scores` was given.

    Raises:
        FrameError: it is not valid.
    """
    try:
        records: Sequence[Mapping[str, Json]] = value
        return [score_of(record) for record in records]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise FrameError(f"a frame holds no scores: {error}") from error
