"""Run directories made by hand: the files of a run that was never trained, with the rollouts that a test wants."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from assay.grpo.group_data import TurnPlace, TurnTraining
from assay.storage.files import encode_json
from assay.training.metrics.token_traces import token_records
from assay.training.metrics.traces import trace_records
from assay.types import Completion, Json, Message, Score, Task, Trajectory, TrajectoryGroup, Transition

Batch = tuple[int, str, Sequence[TrajectoryGroup]]
"""Step, split and groups."""
TURNS: Mapping[TurnPlace, TurnTraining] = {
    (0, s, 0): TurnTraining(None, np.full(2, a, np.float32), np.zeros(2, np.float32)) for s, a in enumerate((-0.5, 0.5))
}
"""The first two rollouts of a batch's first group trained."""


def turn(text: str, reward: float | None, evidence: Mapping[str, Json] | None = None) -> Transition:
    if reward is None:
        score = Score("errored", None, evidence=evidence or {"error": "the verifier broke"})
    else:
        score = Score("scored", reward, {"right": reward}, evidence or {"why": "because"}, fingerprint="v1")
    return Transition((1, 2), Completion((104, 105), (-0.5, -0.25), "stop", 3), text, score, {"legal": 1.0})


def group(name: str, *rewards: float | None, text: str | None = None, prompt: str | None = None) -> TrajectoryGroup:
    """The answers to the task `name`, each with one turn of two tokens."""
    task = Task("toy", name, (Message("user", prompt or f"say {name}"),), tags=("easy",))
    turns = [turn(f"{name} {reward}" if text is None else text, reward) for reward in rewards]
    ends = ["errored" if reward is None else "done" for reward in rewards]
    return TrajectoryGroup(task, tuple(Trajectory(task, (t,), e, 7) for t, e in zip(turns, ends, strict=True)))  # type: ignore[arg-type]


def record(path: Path, *batches: Batch) -> Path:
    """Write a run with these batches, all of them committed, without checkpoints."""
    path.mkdir(exist_ok=True)
    files: dict[str, bytes] = {"traces.jsonl": b"", "tokens.jsonl": b""}
    commits: list[dict[str, Json]] = [_commit(-1, "start", 0, files)]
    for step, split, groups in batches:
        header = {"run_id": "r", "step": step, "phase": "rl", "index": step, "split": split}
        files["traces.jsonl"] += _lines(trace_records(groups, **header, turns=TURNS, decode=str))  # type: ignore[arg-type]
        if split == "train":
            text = _text
            files["tokens.jsonl"] += _lines(token_records(groups[:1], step=step, turns=TURNS, text=text))
        if commits[-1]["step"] == step:
            commits.pop()
        commits.append(_commit(step, "rl", step, files))
    files["ledger.jsonl"] = _lines(commits)
    files["config.json"] = b"{}"
    for name, content in files.items():
        (path / name).write_bytes(content)
    return path


def _text(tokens: Sequence[int]) -> str:
    return bytes(tokens).decode()


def _lines(records: Sequence[Mapping[str, Json]]) -> bytes:
    return b"".join(encode_json(record) + b"\n" for record in records)


def _commit(step: int, phase: str, index: int, files: Mapping[str, bytes]) -> dict[str, Json]:
    sinks = {name: len(content) for name, content in files.items()}
    return {
        "version": 1,
        "step": step,
        "phase": phase,
        "index": index,
        "checkpoint": None,
        "sinks": sinks,
        "digest": "",
    }


def edit(path: Path, name: str, number: int, change: Mapping[str, Json]) -> None:
    """Change fields of one line of a file of records; `number` counts from 1."""
    lines = (path / name).read_bytes().splitlines(keepends=True)
    lines[number - 1] = encode_json({**json.loads(lines[number - 1]), **change}) + b"\n"
    (path / name).write_bytes(b"".join(lines))
