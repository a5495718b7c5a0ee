"""Positions become tasks and supervised examples; everything here is decided by python-chess and a random generator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import chess
import numpy as np

from assay.envs.base import Example
from assay.envs.chess.arbiter import judge
from assay.envs.chess.grammar import (
    HISTORY_PLIES,
    MAX_CANDIDATES,
    AnswerForm,
    arbiter_answer,
    arbiter_prompt,
    given_label,
    policy_answer,
    policy_prompt,
)
from assay.envs.chess.positions import Position
from assay.types import Message, Task

ENV_NAME = "chess"
Kind = Literal["P", "A"]

@dataclass(frozen=True, slots=True)
class TaskStyle:
    """How positions are posed: the settings of `ChessDatasetBuilder` that shape prompts and answers."""

    form: AnswerForm
    """Form of a P: answer."""
    template: str
    """P: prompt with `{fen}`."""
    illegal_fraction: float
    """Share of A: tasks whose move is illegal."""


def policy_task(position: Position, style: TaskStyle) -> Task:
    """The P: task of a position; its truth is the engine's analysis, made when the task is posed."""
    return Task(
        env=ENV_NAME,
        id=f"P:{position.fen}",
        prompt=(Message("user", policy_prompt(position.fen, style.template)),),
        payload={"kind": "P", "fen": position.fen, "form": style.form, "given": given_label(style.template)},
        tags=("P", f"P/{_side(position.fen)}"),
    )


def arbiter_task(position: Position, style: TaskStyle, rng: np.random.Generator) -> Task:
    """An A: task: a random legal move, or with probability `illegal_fraction` an illegal one."""
    board = chess.Board(position.fen)
    illegal = rng.random() < style.illegal_fraction
    move = (random_illegal_move if illegal else random_legal_move)(board, rng).uci()
    history = (*position.history, move)[-HISTORY_PLIES:]
    return Task(
        env=ENV_NAME,
        id=f"A:{position.fen}+{move}",
        prompt=(Message("user", arbiter_prompt(position.fen, move, history)),),
        payload={"kind": "A", "fen": position.fen, "uci": move, "history": list(history)},
        tags=("A", f"A/{_side(position.fen)}"),
    )


def policy_example(position: Position, style: TaskStyle, rng: np.random.Generator) -> Example:
    """A supervised P: example that teaches the form and the rules and nothing of strength.

    The best move is a random legal one; the long form lists random distinct legal moves with evaluations of 0.
    """
    board = chess.Board(position.fen)
    best = random_legal_move(board, rng).uci()
    moves: list[str] = []
    if style.form == "full":
        legal = [move.uci() for move in board.legal_moves]
        moves = [legal[i] for i in rng.permutation(len(legal))[:MAX_CANDIDATES]]
        best = moves[int(rng.integers(len(moves)))]
    answer = policy_answer(best, moves, [0.0] * len(moves), form=style.form, given=given_label(style.template))
    return Example((Message("user", policy_prompt(position.fen, style.template)),), answer)


def arbiter_example(task: Task) -> Example:
    """The exact answer to an A: task."""
    truth = judge(task.payload["fen"], task.payload["uci"], task.payload["history"])
    return Example(task.prompt, arbiter_answer(truth.fen, truth.reward, truth.terminated, truth.truncated))


def random_legal_move(board: chess.Board, rng: np.random.Generator) -> chess.Move:
    """A legal move, all equally likely: pseudo-legal ones are drawn until one is legal, which is faster than listing."""
    moves = list(board.generate_pseudo_legal_moves())
    for index in rng.permutation(len(moves)).tolist():
        if not board.is_into_check(moves[index]):
            return moves[index]
    raise ValueError(f"no legal move in {board.fen()}")


def random_illegal_move(board: chess.Board, rng: np.random.Generator) -> chess.Move:
    """A move that is written correctly and is illegal.

    Half of the time it is near-legal (made by a piece of the mover, or pseudo-legal but leaving the king in check),
    otherwise any two squares.
    """
    legal = set(board.legal_moves)
    unsafe = [move for move in board.pseudo_legal_moves if move not in legal]
    own = list(chess.SquareSet(board.occupied_co[board.turn]))
    while True:
        kind = rng.random()
        if kind < 0.25 and unsafe:
            return unsafe[int(rng.integers(len(unsafe)))]
        start = own[int(rng.integers(len(own)))] if kind < 0.5 else int(rng.integers(64))
        move = chess.Move(start, int(rng.integers(64)))
        if move.from_square != move.to_square and move not in legal:
            return move


def _side(fen: str) -> str:
    return "white" if fen.split(" ", 2)[1] == "w" else "black"
