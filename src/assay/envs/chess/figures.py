"""Boards for the report: a task's position with the answers drawn on it, as an HTML fragment."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import chess
import chess.svg

from assay.envs.chess.grammar import parse_policy
from assay.types import Task

BOARD_PIXELS = 260
_LEGAL, _ILLEGAL, _GIVEN = "#15781bb0", "#b02020b0", "#1b4f9cb0"
_MAX_SHOWN = 300


def draw_task(task: Task, answers: Sequence[str]) -> str:
    """An SVG board with the answers' texts below it.

    P: an arrow for every answered move, green where legal and red where not. A: a blue arrow for the given move.
    """
    board = chess.Board(task.payload["fen"])
    if task.payload["kind"] == "A":
        arrows = [_arrow(task.payload["uci"], _GIVEN)]
    else:
        legal = {move.uci() for move in board.legal_moves}
        parsed = [parse_policy(text, task.payload["form"], task.payload["given"]) for text in answers]
        moves = dict.fromkeys(answer.best for answer in parsed if answer.best is not None and not answer.problems)
        arrows = [_arrow(uci, _LEGAL if uci in legal else _ILLEGAL) for uci in moves]
    picture = chess.svg.board(board, arrows=arrows, size=BOARD_PIXELS, orientation=chess.WHITE)
    texts = "".join(f"<li><code>{escape(text.strip()[:_MAX_SHOWN]) or '&nbsp;'}</code></li>" for text in answers)
    caption = escape(task.prompt[-1].content)
    return f'<figure class="chess">{picture}<figcaption><code>{caption}</code></figcaption><ul>{texts}</ul></figure>'


def _arrow(uci: str, colour: str) -> chess.svg.Arrow:
    move = chess.Move.from_uci(uci)
    return chess.svg.Arrow(move.from_square, move.to_square, color=colour)
