"""Endgame positions: random placements of given material, drawn in bulk with numpy and finished with python-chess.

Upper case is White and lower case Black: `KRkp` is king and rook against king and pawn. All placements that are legal
and unfinished, with the wanted side to move, are equally likely within one material.
"""

from __future__ import annotations

from collections.abc import Iterator

import chess
import numpy as np

from assay.envs.chess.positions import (
    BLACK,
    Codes,
    Position,
    Side,
    Split,
    board_text,
    quiet_key,
    split_of,
    turns,
    whites_view,
)
from assay.errors import ConfigError

CHUNK = 64
"""Placements drawn at once; about half of them survive the rules and the split."""
BARREN_CHUNKS = 200
"""Chunks in a row without one usable position after which the material counts as hopeless."""

_CODES = {symbol: kind for kind, symbol in enumerate("PNBRQK", start=1)} | {
    symbol: kind + BLACK for kind, symbol in enumerate("pnbrqk", start=1)
}


def parse_material(text: str) -> tuple[tuple[int, ...], ...]:
    """Piece codes of a comma-separated list such as `KQk,KRkp`.

    Raises:
        ConfigError: not one king for each side, an unknown letter, or material with which no game goes on.
    """
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise ConfigError("material is empty, so there is no endgame to draw. Name some, such as material=KQk,KRk.")
    for name in names:
        if name.count("K") != 1 or name.count("k") != 1 or any(symbol not in _CODES for symbol in name):
            raise ConfigError(
                f"material {name!r} must have one K (White's king), one k (Black's) and otherwise the letters PNBRQ and "
                "pnbrq, as in KQk or KRkp."
            )
        if name.count("P") > 8 or name.count("p") > 8 or sum(map(str.isupper, name)) > 16 or len(name) > 32:
            raise ConfigError(f"material {name!r} has more pieces than a side can have.")
        board = chess.Board(None)
        board.set_piece_map({square: chess.Piece.from_symbol(symbol) for square, symbol in enumerate(name)})
        if not any(symbol in "PQRpqr" for symbol in name) and board.is_insufficient_material():
            raise ConfigError(f"material {name!r} is a draw by insufficient material: the game is over. Add a piece.")
    return tuple(tuple(_CODES[symbol] for symbol in name) for name in names)


class EndgameSource:
    """Random legal placements of `material`, the listed materials evenly; endless."""

    def __init__(self, material: str, side: Side) -> None:
        self.material = parse_material(material)
        self.side = side

    def draw(self, rng: np.random.Generator, split: Split) -> Iterator[Position]:
        """See `PositionSource.draw`.

        Raises:
            ConfigError: the material hardly ever gives a legal unfinished position with this side to move.
        """
        barren = 0
        while barren < BARREN_CHUNKS:
            barren += 1
            for codes, turn in self._placements(rng):
                position = _finish(codes, turn, split)
                if position is not None:
                    barren = 0
                    yield position
        raise ConfigError(
            f"no legal unfinished {split} position found with material={self.material_text} and side={self.side} in "
            f"{BARREN_CHUNKS * CHUNK} random placements. Use other material or side."
        )

    @property
    def material_text(self) -> str:
        """The material as it is written in the settings."""
        symbol = {code: name for name, code in _CODES.items()}
        return ",".join("".join(symbol[code] for code in pieces) for pieces in self.material)

    def _placements(self, rng: np.random.Generator) -> list[tuple[Codes, chess.Color]]:
        """A chunk of placements that obey what numpy can see: one piece per square, pawns off the outer ranks."""
        choice = rng.integers(len(self.material), size=CHUNK)
        squares = rng.integers(64, size=(CHUNK, 32))
        colours = turns(self.side)
        turn = rng.integers(len(colours), size=CHUNK)
        placements = []
        for row in range(CHUNK):
            pieces = self.material[choice[row]]
            places = squares[row, : len(pieces)].tolist()
            if len(set(places)) < len(places) or not all(
                8 <= place < 56 for place, code in zip(places, pieces, strict=True) if code & 7 == chess.PAWN
            ):
                continue
            codes = np.zeros(64, dtype=np.uint8)
            codes[places] = pieces
            placements.append((codes, colours[turn[row]]))
        return placements


def _finish(codes: Codes, turn: chess.Color, split: Split) -> Position | None:
    """The position, when it is on the wanted side of the split, legal and unfinished."""
    view = codes if turn else whites_view(codes)
    key = quiet_key(view, bool(np.any((codes & 7) == chess.PAWN)))
    if split_of(key) != split:
        return None
    board = chess.Board(None)
    board.turn = turn
    place_pieces(board, codes)
    if not board.is_valid() or board.is_insufficient_material() or not any(board.generate_legal_moves()):
        return None
    return Position(f"{board_text(codes)} {'w' if turn else 'b'} - - 0 1", key)


def place_pieces(board: chess.Board, codes: Codes) -> None:
    """Put the pieces of `codes` (shape [64]) on an empty board."""
    for square in np.flatnonzero(codes).tolist():
        code = int(codes[square])
        board._set_piece_at(square, code & 7, code < BLACK)
