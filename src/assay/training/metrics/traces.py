"""Rollouts as readable records: what the policy was told, what it said, and the score of each part."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal

from assay.grpo.group_data import TurnPlace, TurnTraining
from assay.training.metrics.token_traces import mean_of
from assay.training.run.ledger import Phase
from assay.types import Json, Message, Score, Trajectory, TrajectoryGroup, Transition

VERSION = 2
"""Format of the records of `traces.jsonl`; a reader refuses a larger one."""
Decode = Callable[[Sequence[int]], str]
"""Text of token ids."""
Turns = Mapping[TurnPlace, TurnTraining]
"""What the turns of a batch trained with."""
_FAILED = TurnTraining("failed")


def trace_records(
    groups: Sequence[TrajectoryGroup],
    *,
    run_id: str,
    step: int,
    phase: Phase,
    index: int,
    split: Literal["train", "eval"],
    decode: Decode | None = None,
    turns: Turns | None = None,
    further: Callable[[Trajectory, int], Mapping[str, Json]] | None = None,
) -> list[dict[str, Json]]:
    """One record per turn, in (group, sample, turn) order; a rollout without any turn has one record without text.

    `text` is the answer that was judged; `thought` stands beside it where a thinking model thought before it.
    `messages` are the conversation that a turn began with: on first turns, and where the env put another in place of
    everything so far. `observation` is what the policy was told since its last turn, as text, on the other turns (with
    `decode`).

    Args:
        turns: what the turns of a training batch trained with; None where its training step failed.
        further: what the environment adds to the record of a rollout's turn.
    """
    header = {"version": VERSION, "run": run_id, "step": step, "phase": phase, "index": index, "split": split}
    return [
        _with(
            {
                **header,
                "group": g,
                "sample": s,
                **record,
                **_training(trajectory, split, turns, (g, s, record["turn"])),
            },
            further(trajectory, record["turn"]) if further is not None else {},
        )
        for g, group in enumerate(groups)
        for key in [group.task.key]  # a hash of the whole task: once for all its rollouts
        for s, trajectory in enumerate(group.trajectories)
        for record in _turns(trajectory, key if trajectory.task is group.task else trajectory.task.key, decode)
    ]


def _with(record: dict[str, Json], further: Mapping[str, Json]) -> dict[str, Json]:
    """The record, whose head stays as it is, with what is added to it."""
    return {**record, **{name: value for name, value in further.items() if name not in record}}


def _training(trajectory: Trajectory, split: str, turns: Turns | None, place: TurnPlace) -> dict[str, Json]:
    """What a turn trained with, or the reason why it was not trained on; evaluations have neither."""
    if split == "eval":
        return {"advantage": None, "trained": False, "removed": None}
    found = None if turns is None else turns.get(place)
    if found is None:
        found = TurnTraining("errored") if trajectory.errored else _FAILED
    advantage = None if found.advantages is None else mean_of(found.advantages)
    return {"advantage": advantage, "trained": found.removed is None, "removed": found.removed}


def _turns(trajectory: Trajectory, key: str, decode: Decode | None) -> Iterator[dict[str, Json]]:
    task = trajectory.task
    rollout = {
        "task": {"env": task.env, "id": task.id, "key": key, "tags": list(task.tags)},
        "seed": trajectory.seed,
        "end": trajectory.stop_reason,
        "reward": trajectory.reward,
        **({"error": trajectory.error} if trajectory.error else {}),
    }
    if not trajectory.transitions:
        told: dict[str, Json] = {"messages": _messages(task.prompt)}
        evidence = {"evidence": {"error": trajectory.error}} if trajectory.error else {}
        score = {"status": "errored", "value": None, **evidence}
        yield {"turn": 0, **rollout, **told, "text": None, "score": score}
    before: Transition | None = None
    for turn, transition in enumerate(trajectory.transitions):
        told = {}
        if before is None or transition.messages:
            told = {"messages": _messages(transition.messages or task.prompt)}
        elif decode is not None:
            told = {"observation": decode(_new_tokens(before, transition))}
        yield {"turn": turn, **rollout, **told, **_turn(transition)}
        before = transition


def _messages(messages: Sequence[Message]) -> list[dict[str, Json]]:
    return [{"role": message.role, "content": message.content} for message in messages]


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
