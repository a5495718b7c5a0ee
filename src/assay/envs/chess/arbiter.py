"""The truth of the A: task, from python-chess alone: what a move does to a position, and whether the game ends.

The verdict is that of a game rebuilt from the text: the history is played backwards from the position as far as it can
have been reversible, then forwards again, so that repetitions inside it count. A fifth repetition takes 16 reversible
half-moves, so a prompt with the usual history of at most 10 never shows one; task makers leave out moves whose verdict
in the real game differs from the verdict of the text. Draws that a player would have to claim do not end a game.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import chess

from assay.errors import DataError

LEGAL_REWARD = 0.001
"""Reward of a legal move after which the game goes on."""
WIN_REWARD = 1.0
"""Reward of a move that mates."""
DRAW_REWARD = 0.5
"""Reward of a move that ends the game in a draw."""
ILLEGAL_REWARD = -1.0
"""Reward of an illegal move; the position stays as it was."""
FIVEFOLD_PLIES = 16
"""Fewest half-moves in which a position can come up four more times."""
FINGERPRINT = f"python-chess {chess.__version__}"
"""Names the verifier of the A: task."""


@dataclass(frozen=True, slots=True)
class Ruling:
    """What a move leads to. Positions are in normal form: the en-passant square only where a capture is legal."""

    fen: str
    reward: float
    terminated: bool
    """The game is over."""
    truncated: bool
    """The move was illegal."""
    baseline: str
    """The board before the move with the turn and counters after it; for an illegal move, the unchanged position."""
    pushed_square: str
    """The square behind a pawn that has just made a double step, else `-`: also accepted as the en-passant field."""
    fingerprint: str = FINGERPRINT

    def normalise(self, fen: str) -> str:
        """A predicted position without an en-passant square on which no capture is legal; other fields stay."""
        fields = fen.split()
        if fields[3] == self.pushed_square != "-":
            fields[3] = self.fen.split()[3]
        return " ".join(fields)


def ruling_on(fen: str, uci: str, history: Sequence[str] = ()) -> Ruling:
    """The verdict on playing `uci` in the position `fen`. `history`, if given, ends with `uci`.

    Raises:
        DataError: the position is impossible, `uci` is not a move in UCI notation, or `history` does not end with it.
    """
    try:
        board = chess.Board(fen)
        move = chess.Move.from_uci(uci)
    except ValueError as error:
        raise DataError(f"cannot judge {uci!r} in {fen!r}: {error}") from error
    if not board.is_valid():
        raise DataError(f"cannot judge a move in {fen!r}: the position is impossible ({board.status()!r})")
    if history and history[-1] != uci:
        raise DataError(f"the history {' '.join(history)!r} must end with the move being made, {uci}")
    # Only a repetition depends on the past, and a shorter one cannot hold it.
    return ruling(rebuild(board, history[:-1]) if len(history) >= FIVEFOLD_PLIES else board, move)


def ruling(board: chess.Board, move: chess.Move) -> Ruling:
    """The verdict on playing `move` on a board whose move stack is the game so far; the board is left as it was."""
    before = board.fen(en_passant="legal")
    # push() takes pseudo-legal moves too, so legality must be asked for.
    if move not in board.legal_moves:
        return Ruling(before, ILLEGAL_REWARD, False, True, before, "-")
    double_step = board.piece_type_at(move.from_square) == chess.PAWN and abs(move.to_square - move.from_square) == 16
    behind = chess.square_name((move.from_square + move.to_square) // 2) if double_step else "-"
    board.push(move)
    try:
        outcome = board.outcome()
        reward = LEGAL_REWARD if outcome is None else DRAW_REWARD if outcome.winner is None else WIN_REWARD
        after = board.fen(en_passant="legal")
    finally:
        board.pop()
    return Ruling(after, reward, outcome is not None, False, _passed(before, after), behind)


def rebuild(board: chess.Board, history: Sequence[str]) -> chess.Board:
    """The same position with as much of `history` (the moves that led to it) on its move stack as can be derived.

    A half-move can be taken back when the halfmove clock says that it was neither a capture nor a pawn move and the
    piece can return to an empty square. Castling rights of earlier positions are taken to be those of the present one;
    what cannot be replayed from there to the same position is dropped.
    """
    start = board.copy(stack=False)
    taken: list[chess.Move] = []
    for uci in reversed(history):
        move = _retract(start, uci)
        if move is None:
            break
        taken.append(move)
    game = start
    for move in reversed(taken):
        if move not in game.legal_moves:
            return board.copy(stack=False)
        game.push(move)
    return game if game == board else board.copy(stack=False)


def _retract(board: chess.Board, uci: str) -> chess.Move | None:
    """Take a quiet piece move back on `board`; None, and the board as it was, when the move cannot have been one."""
    try:
        move = chess.Move.from_uci(uci)
    except ValueError:
        return None
    piece = board.piece_at(move.to_square)
    reversible = (
        board.halfmove_clock > 0
        and move.promotion is None
        and piece is not None
        and piece.piece_type != chess.PAWN
        and piece.color != board.turn
        and board.piece_at(move.from_square) is None
        and not (piece.piece_type == chess.KING and chess.square_distance(move.from_square, move.to_square) > 1)
    )
    if not reversible:
        return None
    board.set_piece_at(move.from_square, board.remove_piece_at(move.to_square))
    board.turn = not board.turn
    board.ep_square = None
    board.halfmove_clock -= 1
    board.fullmove_number -= board.turn == chess.BLACK
    return move


def _passed(before: str, after: str) -> str:
    """The position before the move with the side to move and the counters of the position after it."""
    board, _, castling, *_ = before.split()
    _, turn, _, _, halfmoves, fullmoves = after.split()
    return f"{board} {turn} {castling} - {halfmoves} {fullmoves}"
