"""Boards for the report: a task's position with the answers drawn on it, as an HTML fragment."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import chess
import chess.svg

from assay.envs.chess.env import read_policy
from assay.types import Task

BOARD_PIXELS = 260
_LEGAL, _ILLEGAL, _GIVEN = "#0072b2c8", "#d55e00c8", "#4b5563c8"
"""Blue, vermilion and grey: told apart by every kind of colour vision."""
_BOARD = {
    "square light": "#f1efe9",
    "square dark": "#d2ccbf",
    "margin": "#ffffff00",
    "coord": "#8a8f98",
}


def draw_task(task: Task, answers: Sequence[str]) -> str:
    """An SVG board with the answered moves.

    P: an arrow for every answered move (a circle where it goes nowhere), blue where legal and vermilion where not. A: a
    grey arrow for the given move.
    """
    board = chess.Board(task.payload["fen"])
    if task.payload["kind"] == "A":
        arrows = [_arrow(task.payload["uci"], _GIVEN)]
    else:
        moves = [_answered_move(task, text) for text in answers]
        legal = {move.uci() for move in board.legal_moves}
        arrows = [_arrow(uci, _LEGAL if uci in legal else _ILLEGAL) for uci in dict.fromkeys(moves) if uci]
    picture = chess.svg.board(board, arrows=arrows, size=BOARD_PIXELS, orientation=chess.WHITE, colors=_BOARD)
    caption = escape(task.prompt[-1].content)
    return f'<figure class="chess">{picture}<figcaption><code>{caption}</code></figcaption></figure>'


def _answered_move(task: Task, text: str) -> str | None:
    answer = read_policy(task, text)
    return None if answer.problems else answer.best


def _arrow(uci: str, colour: str) -> chess.svg.Arrow:
    # A readable answer can name one square twice, which python-chess does not accept as a move.
    return chess.svg.Arrow(chess.parse_square(uci[:2]), chess.parse_square(uci[2:4]), color=colour)
