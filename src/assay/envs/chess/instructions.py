"""What a chat model is told about the chess tasks: the task and the form of an answer, with an example."""

from __future__ import annotations

from collections.abc import Mapping

from assay.envs.chess.arbiter import DRAW_REWARD, ILLEGAL_REWARD, LEGAL_REWARD, WIN_REWARD
from assay.envs.chess.grammar import MAX_CANDIDATES, AnswerForm

_LAST = "You may reason first. The last line is your answer, and nothing else stands on it"
_POSITION = "You are given a chess position in FEN, after P:. Choose the best move for the side to move."
_UCI = "moves in UCI notation (e2e4; a7a8q for a promotion; e1g1 for castling)"

POLICY: Mapping[AnswerForm, str] = {
    "best": f"{_POSITION} {_LAST}: B: and the move, with {_UCI}. For example:\nB: e2e4",
    "full": (
        f"{_POSITION} {_LAST}: M: and the best {MAX_CANDIDATES} moves (all, where fewer are legal), best first; E: and "
        f"an evaluation of each in pawns, positive where it is good for the side to move; B: and the best move, with "
        f"{_UCI}. For example:\nM: e2e4 d2d4 g1f3 c2c4 e2e3 E: 0.35 0.30 0.25 0.20 0.10 B: e2e4"
    ),
}
"""Form of a P: answer -> what is told."""

ARBITER = (
    "You are given, after A:, a chess position in FEN, a move in UCI notation, and the last moves of the game (the "
    "given move is the last of them), with + between them. Make the move by the rules of chess. "
    f"{_LAST}, four fields with + between them: the new position in FEN (all six fields; the en-passant square only "
    f"where such a capture is legal); a reward ({LEGAL_REWARD:g} for a legal move after which the game goes on, "
    f"{WIN_REWARD:g} for mate, {DRAW_REWARD:g} for a draw, {ILLEGAL_REWARD:g} for an illegal move); 1 if the game is "
    "over, else 0; 1 if the move is illegal, else 0. After an illegal move the position stays as it was. For example:\n"
    f"8/8/8/8/8/4k3/8/R3K3 b - - 1 1+{LEGAL_REWARD:g}+0+0"
)
"""What is told of A: tasks."""
