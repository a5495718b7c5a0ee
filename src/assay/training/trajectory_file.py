"""Scored rollouts as a file: the part of a checkpoint for batches sampled ahead of their training step.

A header line with the format's version, then one JSON line per group. Tokens, log-probabilities and scores come back as
they were, to the bit.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from assay.errors import CheckpointError
from assay.storage.files import encode_json
from assay.types import Completion, Json, Message, Score, Task, Trajectory, TrajectoryGroup, Transition

VERSION = 1
"""Format of the file; a reader refuses a larger one."""
Batches = Mapping[int, Sequence[TrajectoryGroup]]
"""The groups of RL batches, by their index."""


def encode(batches: Batches) -> bytes:
    """The content of a file."""
    lines: list[Json] = [{"version": VERSION, "batches": sorted(batches)}]
    lines += [{"batch": index, **asdict(group)} for index in sorted(batches) for group in batches[index]]
    return b"".join(encode_json(line) + b"\n" for line in lines)


def decode(content: bytes, path: Path) -> dict[int, list[TrajectoryGroup]]:
    """What `encode` was given; `path` names the file in errors.

    Raises:
        CheckpointError: the content is damaged or of a newer format.
    """
    try:
        header, *lines = (json.loads(line) for line in content.splitlines())
        if header["version"] > VERSION:
            raise CheckpointError(f"{path} has format version {header['version']}; this Assay reads up to {VERSION}.")
        batches: dict[int, list[TrajectoryGroup]] = {int(index): [] for index in header["batches"]}
        for line in lines:
            batches[line["batch"]].append(group_of(line))
    except (ValueError, KeyError, TypeError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(
            f"{path} cannot be read as rollouts ({error!r}), and they cannot be sampled again: their policy is gone. "
            "Resume from another checkpoint (resume_from_batch=N)."
        ) from error
    return batches


def group_of(record: Mapping[str, Json]) -> TrajectoryGroup:
    """The group that `asdict` made a record of, once it is JSON.

    Raises:
        KeyError, TypeError, ValueError: it is no such record.
    """
    return TrajectoryGroup(task_of(record["task"]), tuple(_trajectory(t) for t in record["trajectories"]))


def _trajectory(record: Mapping[str, Json]) -> Trajectory:
    turns = tuple(_transition(turn) for turn in record["transitions"])
    return Trajectory(task_of(record["task"]), turns, record["stop_reason"], record["seed"], record.get("error", ""))


def task_of(record: Mapping[str, Json]) -> Task:
    """See `group_of`, for a task."""
    return Task(record["env"], record["id"], _messages(record["prompt"]), record["payload"], tuple(record["tags"]))


def _messages(records: Sequence[Mapping[str, Json]]) -> tuple[Message, ...]:
    return tuple(Message(**message) for message in records)


def _transition(record: Mapping[str, Json]) -> Transition:
    sampled, scored = record["completion"], record["score"]
    reference = sampled["ref_logprobs"]
    completion = Completion(
        tuple(sampled["tokens"]),
        tuple(sampled["logprobs"]),
        sampled["stop_reason"],
        sampled["policy_version"],
        None if reference is None else tuple(reference),
    )
    score = score_of(scored)
    prompt = tuple(record["prompt_tokens"])
    messages, thought = _messages(record.get("messages", ())), record.get("thought")
    return Transition(prompt, completion, record["text"], score, _floats(record["metrics"]), messages, thought)


def score_of(record: Mapping[str, Json]) -> Score:
    """See `group_of`, for a score."""
    return Score(**{**record, "parts": _floats(record["parts"]), "usage": _floats(record["usage"])})


def _floats(record: Mapping[str, Json]) -> dict[str, float]:
    """JSON has no non-finite numbers, so they are written as null."""
    return {name: math.nan if value is None else value for name, value in record.items()}
