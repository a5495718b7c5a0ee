"""Answers of a batch as a table, for TensorBoard and Weights & Biases. Pure.

Answers are untrusted: control characters are made visible, and in Markdown every symbol is escaped by its number, so an
answer can be neither markup nor a script.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from assay.grpo.group_data import TurnPlace, TurnTraining
from assay.terminal import inert
from assay.training.metrics.token_traces import mean_of
from assay.types import Trajectory, TrajectoryGroup

ROWS = 32
"""Answers in a table: the first groups of the batch, as many as fit."""
MAX_TEXT = 2000
"""Characters of a prompt or an answer that are kept."""
Cell = str | float | int | None
_SIGN = re.compile(r"[^0-9A-Za-z\s\x80-\U0010ffff]")


@dataclass(frozen=True, slots=True)
class Table:
    """Named columns, and rows of as many cells."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]


def completion_table(groups: Sequence[TrajectoryGroup], turns: Mapping[TurnPlace, TurnTraining]) -> Table:
    """One row per rollout: its place and task, what was asked and answered, reward, advantage and reward parts.

    Args:
        turns: what the batch's turns trained with.
    """
    some = list(islice(((g, s, t) for g, group in enumerate(groups) for s, t in enumerate(group.trajectories)), ROWS))
    parts = [_parts(rollout) for _, _, rollout in some]
    names = sorted({name for found in parts for name in found})
    rows = [
        (
            g,
            s,
            inert(rollout.task.id, lines=False),
            _text(rollout.task.prompt[-1].content if rollout.task.prompt else ""),
            _answer(rollout),
            rollout.reward,
            _advantage(rollout, [turns.get((g, s, t)) for t in range(len(rollout.transitions))]),
            *(found.get(name) for name in names),
        )
        for (g, s, rollout), found in zip(some, parts, strict=True)
    ]
    shown = [inert(name, lines=False) for name in names]
    return Table(("group", "sample", "task", "prompt", "answer", "reward", "advantage", *shown), rows)


def markdown(table: Table) -> str:
    """The table in Markdown, every text in it inert."""
    lines = [table.columns, ["---"] * len(table.columns), *table.rows]
    return "\n".join(
        f"| {' | '.join('---' if n == 1 else _cell(cell) for cell in line)} |" for n, line in enumerate(lines)
    )


def _parts(rollout: Trajectory) -> dict[str, float]:
    """The named parts of the reward, each as of the last turn that has it."""
    return {name: value for turn in rollout.transitions for name, value in turn.score.parts.items()}


def _answer(rollout: Trajectory) -> str:
    """What was said, turn by turn."""
    said = [turn.text for turn in rollout.transitions]
    return _text("\n".join(said) if len(said) < 2 else "\n".join(f"[{n}] {text}" for n, text in enumerate(said, 1)))


def _text(text: str) -> str:
    return inert(text[:MAX_TEXT])


def _advantage(rollout: Trajectory, turns: Sequence[TurnTraining | None]) -> float | None:
    """Mean over the tokens of the rollout; None where it trained nothing."""
    means = [None if turn is None or turn.advantages is None else mean_of(turn.advantages) for turn in turns]
    counts = [len(turn.completion.tokens) for turn in rollout.transitions]
    known = [(mean, count) for mean, count in zip(means, counts, strict=True) if mean is not None]
    tokens = sum(count for _, count in known)
    return sum(mean * count for mean, count in known) / tokens if tokens else None


def _cell(cell: Cell) -> str:
    if cell is None:
        return ""
    text = f"{cell:.4g}" if isinstance(cell, float) else str(cell)
    signs = _SIGN.sub(lambda match: f"&#{ord(match[0])};", text)
    return "<br>".join(line.replace("\t", "    ") for line in signs.split("\n"))
