"""Rollouts as records that can be read: what the policy was told, what it said, and what each part of that earned."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Literal

from assay.training.run.ledger import Phase
from assay.types import Json, Score, Trajectory, TrajectoryGroup, Transition

VERSION = 1
"""Format of the records of `traces.jsonl`."""
Decode = Callable[[Sequence[int]], str]
"""Text of token ids."""


def trace_records(
    groups: Sequence[TrajectoryGroup],
    *,
    run_id: str,
    step: int,
    phase: Phase,
    index: int,
    split: Literal["train", "eval"],
    decode: Decode | None = None,
) -> list[dict[str, Json]]:
    """One record per turn, in (group, sample, turn) order; a rollout that never got a turn has one without text.

    `text` is the answer that was judged; `thought` stands beside it where a thinking model thought before it.
    `messages` are the task's prompt, on first turns. `observation` is what the policy was told since its last turn, as
    text, on later ones (with `decode`).
    """
    header = {"version": VERSION, "run": run_id, "step": step, "phase": phase, "index": index, "split": split}
    return [
        {**header, "group": g, "sample": s, **record}
        for g, group in enumerate(groups)
        for s, trajectory in enumerate(group.trajectories)
        for record in _turns(trajectory, decode)
    ]


def _turns(trajectory: Trajectory, decode: Decode | None) -> Iterator[dict[str, Json]]:
    task = trajectory.task
    rollout = {
        "task": {"env": task.env, "id": task.id, "key": task.key, "tags": list(task.tags)},
        "seed": trajectory.seed,
        "end": trajectory.stop_reason,
        "reward": trajectory.reward,
    }
    prompt = [{"role": message.role, "content": message.content} for message in task.prompt]
    if not trajectory.transitions:
        yield {"turn": 0, **rollout, "messages": prompt, "text": None, "score": {"status": "errored", "value": None}}
    before: Transition | None = None
    for turn, transition in enumerate(trajectory.transitions):
        told: dict[str, Json] = {"messages": prompt} if before is None else {}
        if before is not None and decode is not None:
            told = {"observation": decode(_new_tokens(before, transition))}
        yield {"turn": turn, **rollout, **told, **_turn(transition)}
        before = transition


def _turn(transition: Transition) -> dict[str, Json]:
    completion = transition.completion
    return {
        "text": transition.text,
        **({} if transition.thought is None else {"thought": transition.thought}),
        "stop_reason": completion.stop_reason,
        "prompt_tokens": len(transition.prompt_tokens),
        "completion_tokens": len(completion.tokens),
        "policy_version": completion.policy_version,
        "score": _score(transition.score),
        "metrics": dict(transition.metrics),
    }


def _score(score: Score) -> dict[str, Json]:
    """The verdict without what varies between reruns (`cached`, `usage`), so that traces of equal runs are equal."""
    return {
        "status": score.status,
        "value": score.value,
        "parts": dict(score.parts),
        "evidence": dict(score.evidence),
        "verifier": score.fingerprint,
    }


def _new_tokens(before: Transition, now: Transition) -> Sequence[int]:
    """What was added to the context since the last completion; the whole context where it was rewritten."""
    seen = (*before.prompt_tokens, *before.completion.tokens)
    return now.prompt_tokens[len(seen) :] if now.prompt_tokens[: len(seen)] == seen else now.prompt_tokens
