"""The chess environment: one analysis per prompt, shared by the rollouts of its group.

An engine that fails makes the group's scores `errored`, with the engine's message as evidence; it never makes them 0.
With several turns, an invalid answer is told what was wrong with it and may try again.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import chess

from assay.envs.base import Env, StepResult
from assay.envs.chess.arbiter import Ruling, ruling_on
from assay.envs.chess.engine.stockfish import Analysis, StockfishPool
from assay.envs.chess.grammar import (
    MAX_CANDIDATES,
    ParsedArbiter,
    ParsedPolicy,
    arbiter_answer,
    final_line,
    parse_arbiter,
    parse_policy,
    policy_answer,
)
from assay.envs.chess.rewards import (
    ArbiterWeights,
    PolicyTruth,
    PolicyWeights,
    errored,
    outlook,
    score_arbiter,
    score_policy,
)
from assay.errors import EngineError
from assay.types import Message, Score, Task


@dataclass(frozen=True)
class Referee:
    """What the envs of a run share: the engine pool (None where no task needs it) and the rewards."""

    pool: StockfishPool | None
    policy_weights: PolicyWeights
    arbiter_weights: ArbiterWeights


@dataclass(frozen=True)
class GroupTruth:
    """The truth of one task: a verdict, or the values of all moves, or why neither is known."""

    policy: PolicyTruth | None = None
    arbiter: Ruling | None = None
    failure: str = ""


@dataclass
class ChessEnv:
    """One rollout of a P: or A: task."""

    task: Task
    truth: GroupTruth
    referee: Referee
    max_turns: int = 1
    turns: int = field(default=0, init=False)

    async def reset(self) -> list[Message]:
        """The task's prompt."""
        return list(self.task.prompt)

    async def step(self, text: str) -> StepResult:
        """Score the answer; an invalid one may be corrected while turns are left."""
        self.turns += 1
        score = self._score(text)
        retry = score.status == "invalid" and self.turns < self.max_turns
        return StepResult(
            score=score,
            done=not retry,
            messages=(Message("user", complaint(score)),) if retry else (),
            metrics=metrics_of(score, self.truth.policy, self.referee.policy_weights),
        )

    def gold(self) -> str | None:
        """A best answer; None where the truth is not known."""
        payload, truth = self.task.payload, self.truth
        if truth.arbiter is not None:
            ruling = truth.arbiter
            return arbiter_answer(ruling.fen, ruling.reward, ruling.terminated, ruling.truncated)
        if truth.policy is None:
            return None
        values = truth.policy.values
        moves = sorted(values, key=lambda uci: -values[uci])[:MAX_CANDIDATES]
        pawns = [values[uci] / 100 for uci in moves]
        return policy_answer(moves[0], moves, pawns, form=payload["form"], given=payload["given"])

    def _score(self, text: str) -> Score:
        if self.truth.failure:
            return errored(self.truth.failure)
        payload = self.task.payload
        if payload["kind"] == "A":
            return score_arbiter(self.truth.arbiter, read_arbiter(self.task, text), self.referee.arbiter_weights)
        answer = read_policy(self.task, text, first=self.turns == 1)
        return score_policy(self.truth.policy, answer, self.referee.policy_weights, payload["form"])


def read_policy(task: Task, text: str, *, first: bool = True) -> ParsedPolicy:
    """A P: answer. A prompt that ends with the answer's label shows it in the first turn only."""
    payload = task.payload
    return parse_policy(_answer(task, text), payload["form"], payload["given"] if first else "")


def read_arbiter(task: Task, text: str) -> ParsedArbiter:
    """An A: answer."""
    return parse_arbiter(_answer(task, text))


def _answer(task: Task, text: str) -> str:
    return final_line(text) if task.payload.get("chat") else text


@dataclass
class ChessGroupBuilder:
    """Makes the envs of one task and finds its truth, once."""

    task: Task
    referee: Referee
    max_turns: int = 1

    async def make(self, n: int) -> list[Env]:
        """`n` fresh envs that share one truth."""
        truth = await find_truth(self.task, self.referee.pool)
        return [ChessEnv(self.task, truth, self.referee, self.max_turns) for _ in range(n)]


async def find_truth(task: Task, pool: StockfishPool | None) -> GroupTruth:
    """The truth of a task. A failing engine is reported in `failure`; it does not raise."""
    payload = task.payload
    if payload["kind"] == "A":
        return GroupTruth(arbiter=true_ruling(task))
    if pool is None:
        return GroupTruth(failure="no engine: P: answers are verified by Stockfish")
    try:
        return GroupTruth(policy=policy_truth(await pool.analyse(payload["fen"])))
    except EngineError as error:
        return GroupTruth(failure=str(error))


def true_ruling(task: Task) -> Ruling:
    """The verdict of the rules on an A: task."""
    return ruling_on(task.payload["fen"], task.payload["uci"], task.payload["history"])


def policy_truth(analysis: Analysis) -> PolicyTruth:
    """The values of all legal moves.

    Raises:
        EngineError: the engine did not value exactly the moves that python-chess calls legal.
    """
    values = {move.uci: move.value_cp for move in analysis.moves}
    legal = {move.uci() for move in chess.Board(analysis.fen).legal_moves}
    if values.keys() != legal:
        raise EngineError(
            f"the engine valued {len(values)} of the {len(legal)} legal moves of {analysis.fen}, so answers cannot be "
            "ranked. Raise stockfish.multipv (500 values all) or stockfish.nodes."
        )
    return PolicyTruth(values, analysis.fingerprint, analysis.cached)


def complaint(score: Score) -> str:
    """What the policy is told about an invalid answer."""
    problems = score.evidence.get("problems") or ["the answer is invalid"]
    return f"Invalid answer: {'; '.join(problems)}. Try again."


def metrics_of(score: Score, truth: PolicyTruth | None, weights: PolicyWeights) -> dict[str, float]:
    """The turn's metrics: the parts of the score; for P: (with `truth`) also `keeps_win`, where there is a win."""
    if score.status == "errored":
        return {}
    metrics = dict(score.parts)
    if truth is not None and outlook(truth.best_value, weights.win_cp) == "won":
        metrics["keeps_win"] = score.parts["keeps"]
    return metrics
