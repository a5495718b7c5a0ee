"""Policies whose expected held-out metrics follow from the truth of each task, without sampling."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from assay.envs.base import BaselineMetrics
from assay.envs.chess.arbiter import LEGAL_REWARD
from assay.envs.chess.env import Referee, metrics_of, policy_truth, true_ruling
from assay.envs.chess.grammar import ParsedArbiter, ParsedPolicy
from assay.envs.chess.rewards import score_arbiter, score_policy
from assay.types import Score, Task

RANDOM_LEGAL = "random_legal"
"""Answers a P: task of the short form with a legal move, all equally likely."""
UNCHANGED_BOARD = "unchanged_board"
"""Answers an A: task with the position it was given, as if a legal move had changed nothing."""


async def known_policies(tasks: Sequence[Task], referee: Referee) -> BaselineMetrics:
    """Expected metrics and `reward` of the policies above on the tasks that they apply to.

    The random mover is left out for the long form, because its lists are undefined.

    Raises:
        EngineError: a position could not be analysed, so the baseline is unknown.
    """
    policy = [task for task in tasks if task.payload["kind"] == "P" and task.payload["form"] == "best"]
    arbiter = [task for task in tasks if task.payload["kind"] == "A"]
    baselines: dict[str, dict[str, list[float]]] = {}
    if policy:
        rows = await asyncio.gather(*(_random_mover(task, referee) for task in policy))
        baselines[RANDOM_LEGAL] = _columns(rows)
    if arbiter:
        baselines[UNCHANGED_BOARD] = _columns([_copier(task, referee) for task in arbiter])
    return baselines


async def _random_mover(task: Task, referee: Referee) -> dict[str, float]:
    if referee.pool is None:
        raise ValueError("P: tasks need an engine")
    truth = policy_truth(await referee.pool.analyse(task.payload["fen"]))
    rows = []
    for uci in truth.values:
        score = score_policy(truth, ParsedPolicy((), (), uci, ()), referee.policy_weights, "best")
        rows.append(_row(score, metrics_of(score, truth, referee.policy_weights)))
    return {name: sum(values) / len(values) for name, values in _columns(rows).items()}


def _copier(task: Task, referee: Referee) -> dict[str, float]:
    answer = ParsedArbiter(task.payload["fen"], LEGAL_REWARD, False, False, ())
    score = score_arbiter(true_ruling(task), answer, referee.arbiter_weights)
    return _row(score, metrics_of(score, None, referee.policy_weights))


def _row(score: Score, metrics: dict[str, float]) -> dict[str, float]:
    if score.value is None:
        raise ValueError("a baseline needs the truth")
    return {"reward": score.value, **metrics}


def _columns(rows: Sequence[dict[str, float]]) -> dict[str, list[float]]:
    columns: dict[str, list[float]] = {}
    for row in rows:
        for name, value in row.items():
            columns.setdefault(name, []).append(value)
    return columns
