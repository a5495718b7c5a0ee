"""Endgame positions: random placements of given material, drawn in bulk with numpy and finished with python-chess.

Upper case is White and lower case Black: `KRkp` is king and rook against king and pawn. All placements that are legal
and unfinished, with the wanted side to move, are equally likely within one material.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import chess
import numpy as np
import numpy.typing as npt

from assay.envs.chess.grammar import HISTORY_PLIES
from assay.envs.chess.positions.base import (
    BLACK,
    Codes,
    Position,
    Side,
    Split,
    board_text,
    quiet_keys,
    split_of,
    turns,
    whites_view,
)
from assay.errors import ConfigError

CHUNK = 64
"""Placements drawn at once; about half of them survive the rules and the split."""
BARREN_CHUNKS = 200
"""Chunks in a row without one usable position after which the material counts as unusable."""

_CODES = {symbol: kind for kind, symbol in enumerate("PNBRQK", start=1)} | {
    symbol: kind + BLACK for kind, symbol in enumerate("pnbrqk", start=1)
}
_KINGS = (_CODES["K"], _CODES["k"])


def parse_material(text: str) -> tuple[tuple[int, ...], ...]:
    """Piece codes, kings first, of a comma-separated list such as `KQk,KRkp`.

    Raises:
        ConfigError: not one king for each side, an unknown letter, or material with which the game is over.
    """
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise ConfigError("material is empty, so there is no endgame to draw. Name some, such as material=KQk,KRk.")
    return tuple(_parse_one(name) for name in names)


def _parse_one(name: str) -> tuple[int, ...]:
    if name.count("K") != 1 or name.count("k") != 1 or any(symbol not in _CODES for symbol in name):
        raise ConfigError(
            f"material {name!r} must have one K (White's king), one k (Black's) and otherwise the letters PNBRQ and "
            "pnbrq, as in KQk or KRkp."
        )
    white = sum(symbol.isupper() for symbol in name)
    if name.count("P") > 8 or name.count("p") > 8 or white > 16 or len(name) - white > 16:
        raise ConfigError(f"material {name!r} has more pieces than a side can have.")
    others = sorted(_CODES[symbol] for symbol in name if symbol not in "Kk")
    if len(others) < 2 and {code & 7 for code in others} <= {chess.KNIGHT, chess.BISHOP}:
        raise ConfigError(f"material {name!r} is a draw by insufficient material: the game is over. Add a piece.")
    return (*_KINGS, *others)


class EndgameSource:
    """Random legal placements of `material`, the listed materials evenly; endless."""

    def __init__(self, material: str, side: Side) -> None:
        self.material, self.side = material, side
        kinds = parse_material(material)
        # One row for each material, shape [materials, pieces], short ones padded with 0 at the end.
        self._pieces = np.zeros((len(kinds), max(map(len, kinds))), dtype=np.uint8)
        for row, codes in zip(self._pieces, kinds, strict=True):
            row[: len(codes)] = codes

    def draw(self, rng: np.random.Generator, split: Split) -> Iterator[Position]:
        """See `PositionSource.draw`.

        Raises:
            ConfigError: the material hardly ever gives a legal unfinished position with this side to move.
        """
        barren = 0
        while barren < BARREN_CHUNKS:
            barren += 1
            for codes, turn, key in self._placements(rng, split):
                board = chess.Board(None)
                board.turn = turn
                place_pieces(board, codes)
                # A legal move proves that the game goes on, except with insufficient material.
                if board.is_valid() and any(board.generate_legal_moves()) and not board.is_insufficient_material():
                    barren = 0
                    yield Position(f"{board_text(codes)} {'w' if turn else 'b'} - - 0 1", key, board)
        raise ConfigError(
            f"no legal unfinished {split} position found with material={self.material} and side={self.side} in "
            f"{BARREN_CHUNKS * CHUNK} random placements. Use other material or side."
        )

    def _placements(self, rng: np.random.Generator, split: Split) -> Iterator[tuple[Codes, chess.Color, bytes]]:
        """A chunk of placements on one side of the split that pass the checks made with numpy."""
        pieces = self._pieces[rng.integers(len(self._pieces), size=CHUNK)]
        squares = rng.integers(64, size=pieces.shape)
        colours = turns(self.side)
        turn = np.array(colours)[rng.integers(len(colours), size=CHUNK)]
        codes, fits = scatter(pieces, squares)
        codes, turn = codes[fits], turn[fits]
        views = np.where(turn[:, None], codes, whites_view(codes))
        pawned = ((codes & 7) == chess.PAWN).any(axis=1)
        keys: list[bytes] = [b""] * len(codes)
        for has_pawns in (False, True):
            rows = np.flatnonzero(pawned == has_pawns)
            for row, key in zip(rows.tolist(), quiet_keys(views[rows], has_pawns), strict=True):
                keys[row] = key
        for row, key in enumerate(keys):
            if split_of(key) == split:
                yield codes[row], bool(turn[row]), key


def scatter(pieces: Codes, squares: npt.NDArray[np.int64]) -> tuple[Codes, npt.NDArray[np.bool_]]:
    """Boards, shape [n, 64], with `pieces` (0 is none, kings first) on `squares`, both [n, k]; and which rows fit.

    A row fits when no two pieces share a square, no pawn is on an outer rank and the kings are not neighbours.
    """
    codes = np.zeros((len(pieces), 64), dtype=np.uint8)
    rows, columns = np.nonzero(pieces)
    codes[rows, squares[rows, columns]] = pieces[rows, columns]
    distinct = np.count_nonzero(codes, axis=1) == np.count_nonzero(pieces, axis=1)
    outer = np.concatenate([codes[:, :8], codes[:, 56:]], axis=1)
    pawns_inside = ((outer & 7) != chess.PAWN).all(axis=1)
    white, black = squares[:, 0], squares[:, 1]
    apart = np.maximum(np.abs(white // 8 - black // 8), np.abs(white % 8 - black % 8)) > 1
    return codes, distinct & pawns_inside & apart


def place_pieces(board: chess.Board, codes: Codes) -> None:
    """Put the pieces of `codes` (shape [64]) on an empty board; faster than one call of python-chess for each."""
    kinds = [0] * 7
    for square in codes.nonzero()[0].tolist():
        code = int(codes[square])
        mask = 1 << square
        kinds[code & 7] |= mask
        board.occupied_co[code < BLACK] |= mask
        board.occupied |= mask
    _, board.pawns, board.knights, board.bishops, board.rooks, board.queens, board.kings = kinds


def invent_past(position: Position, rng: np.random.Generator) -> Position:
    """The same position with a history: up to 9 quiet half-moves, found by moving pieces back, that could lead to it.

    The counters are drawn to fit; one time in 50 the next quiet half-move is the one that ends the game by the 75-move
    rule. The canonical key is that of the position given.
    """
    board = position.board.copy(stack=False)
    past: list[str] = []
    for _ in range(int(rng.integers(HISTORY_PLIES))):
        uci = _unmove(board, rng)
        if uci is None:
            break
        past.append(uci)
    seasoned = position.board.copy(stack=False)
    seasoned.halfmove_clock = 149 if rng.random() < 0.02 else len(past) + int(rng.integers(30))
    seasoned.fullmove_number = 1 + (seasoned.halfmove_clock + 1) // 2 + int(rng.integers(40))
    return replace(position, fen=seasoned.fen(en_passant="legal"), board=seasoned, history=tuple(reversed(past)))


def _unmove(board: chess.Board, rng: np.random.Generator) -> str | None:
    """Take back a random quiet move of a piece on `board`; None when a few tries find none that was legal."""
    movers = list(chess.SquareSet(board.occupied_co[not board.turn] & ~board.pawns))
    for _ in range(8):
        to = movers[int(rng.integers(len(movers)))]
        # Pieces other than pawns walk back the way they come.
        origins = list(board.attacks(to) - chess.SquareSet(board.occupied))
        if not origins:
            continue
        start = origins[int(rng.integers(len(origins)))]
        board.set_piece_at(start, board.remove_piece_at(to))
        board.turn = not board.turn
        # The move then is legal, so the earlier game was not over.
        if board.is_valid():
            return chess.Move(start, to).uci()
        board.turn = not board.turn
        board.set_piece_at(to, board.remove_piece_at(start))
    return None
