"""Positions become tasks and supervised examples; everything here is decided by python-chess and a random generator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import chess
import numpy as np

from assay.envs.base import Example
from assay.envs.chat import Instructions
from assay.envs.chess.arbiter import ruling_on
from assay.envs.chess.grammar import (
    MAX_CANDIDATES,
    AnswerForm,
    arbiter_answer,
    arbiter_prompt,
    given_label,
    policy_answer,
    policy_prompt,
)
from assay.envs.chess.instructions import ARBITER, POLICY
from assay.envs.chess.positions.base import Position
from assay.envs.chess.positions.endgames import invent_past
from assay.envs.chess.positions.selfplay import random_legal_move
from assay.types import Json, Message, Task

ENV_NAME = "chess"


@dataclass(frozen=True, slots=True)
class TaskStyle:
    """How positions are posed: the settings of `ChessDatasetBuilder` that shape prompts and answers."""

    form: AnswerForm
    """Form of a P: answer."""
    template: str
    """P: prompt with `{fen}`."""
    arbiter_share: float
    """Share of A: tasks, from 0 to 1."""
    illegal_fraction: float
    """Share of A: tasks whose move is illegal."""
    timeless: bool
    """Positions come without a game (endgames), so A: tasks get an invented history."""
    told: Instructions = field(default_factory=Instructions)
    """What the model is told before the task. A chat model answers in a message of its own, so that no label which a
    prompt ends with is the beginning of its answer."""

    @property
    def given(self) -> str:
        """The label of a P: answer that the prompt shows already."""
        return "" if self.told.chat else given_label(self.template)

    def policy_prompt(self, fen: str) -> tuple[Message, ...]:
        """What a P: task shows."""
        return (*self.told.messages(POLICY[self.form]), Message("user", policy_prompt(fen, self.template)))

    def answer(self, text: str) -> str:
        """A supervised answer as the model would write it: without the space that joins it to a bare prompt."""
        return text.lstrip() if self.told.chat else text


def make_tasks(positions: Sequence[Position], style: TaskStyle, rng: np.random.Generator) -> list[Task]:
    """One task for each position, in order; the number of A: tasks is the nearest one to their share."""
    arbiter = np.arange(len(positions)) < round(style.arbiter_share * len(positions))
    return [
        arbiter_task(position, style, rng) if is_arbiter else policy_task(position, style)
        for position, is_arbiter in zip(positions, rng.permutation(arbiter).tolist(), strict=True)
    ]


def make_example(position: Position, style: TaskStyle, rng: np.random.Generator) -> Example:
    """A supervised example on a position, A: with the probability of the share."""
    if style.arbiter_share and rng.random() < style.arbiter_share:
        return arbiter_example(arbiter_task(position, style, rng))
    return policy_example(position, style, rng)


def policy_task(position: Position, style: TaskStyle) -> Task:
    """The P: task of a position; its truth is the engine's analysis, made when the task is posed."""
    return Task(
        env=ENV_NAME,
        id=f"P:{position.fen}",
        prompt=style.policy_prompt(position.fen),
        payload={"kind": "P", "fen": position.fen, "form": style.form, "given": style.given, **_reply(style)},
        tags=("P", f"P/{side_to_move(position.fen)}"),
    )


def arbiter_task(position: Position, style: TaskStyle, rng: np.random.Generator) -> Task:
    """An A: task: a random legal move, or with probability `illegal_fraction` an illegal one."""
    if style.timeless:
        position = invent_past(position, rng)
    illegal = rng.random() < style.illegal_fraction
    move = (random_illegal_move if illegal else random_legal_move)(position.board, rng).uci()
    history = (*position.history, move)
    return Task(
        env=ENV_NAME,
        id=f"A:{position.fen}+{move}",
        prompt=(*style.told.messages(ARBITER), Message("user", arbiter_prompt(position.fen, move, history))),
        payload={"kind": "A", "fen": position.fen, "uci": move, "history": list(history), **_reply(style)},
        tags=("A", f"A/{side_to_move(position.fen)}"),
    )


def _reply(style: TaskStyle) -> dict[str, Json]:
    """What the verifier has to know of a chat model's replies; nothing for others, whose tasks keep their keys."""
    return {"chat": True} if style.told.chat else {}


def policy_example(position: Position, style: TaskStyle, rng: np.random.Generator) -> Example:
    """A supervised P: example that teaches the form and the rules, but not which moves are good.

    The best move is a random legal one; the long form lists random distinct legal moves, the best move among them, with
    evaluations of 0.
    """
    best = random_legal_move(position.board, rng).uci()
    moves: list[str] = []
    if style.form == "full":
        legal = [move.uci() for move in position.board.legal_moves]
        moves = [legal[index] for index in rng.permutation(len(legal))[:MAX_CANDIDATES]]
        best = moves[int(rng.integers(len(moves)))]
    answer = policy_answer(best, moves, [0.0] * len(moves), form=style.form, given=style.given)
    return Example(style.policy_prompt(position.fen), style.answer(answer))


def arbiter_example(task: Task) -> Example:
    """The exact answer to an A: task."""
    truth = ruling_on(task.payload["fen"], task.payload["uci"], task.payload["history"])
    return Example(task.prompt, arbiter_answer(truth.fen, truth.reward, truth.terminated, truth.truncated))


def random_illegal_move(board: chess.Board, rng: np.random.Generator) -> chess.Move:
    """A move that is written correctly and is illegal.

    A quarter each, where there are such moves: it leaves the mover's king in check; it lacks or misplaces a promotion;
    it moves a piece of the mover to any square; it names any two squares.
    """
    legal = set(board.legal_moves)
    kind = rng.random()
    candidates: list[chess.Move] = []
    if kind < 0.25:
        candidates = [move for move in board.pseudo_legal_moves if move not in legal]
    elif kind < 0.5:
        bare = {chess.Move(move.from_square, move.to_square) for move in legal if move.promotion}
        dressed = {chess.Move(move.from_square, move.to_square, chess.QUEEN) for move in legal if not move.promotion}
        candidates = sorted(bare or dressed, key=chess.Move.uci)
    if candidates:
        return candidates[int(rng.integers(len(candidates)))]
    own = list(chess.SquareSet(board.occupied_co[board.turn]))
    while True:
        start = own[int(rng.integers(len(own)))] if kind < 0.75 else int(rng.integers(64))
        move = chess.Move(start, int(rng.integers(64)))
        if move.from_square != move.to_square and move not in legal:
            return move


def side_to_move(fen: str) -> str:
    """`white` or `black`."""
    return "white" if fen.split(" ", 2)[1] == "w" else "black"
