"""Positions and their division into train, validation and final: by canonical key, never by order of drawing.

Two positions that chess cannot tell apart (move counters; colours swapped; mirror images, and rotations where no pawn
gives the board a direction) have one key, and a hash of that key alone decides the side of the split. So no held-out
position, nor a reflection of one, is ever trained on, whatever the seed, the source or the number of positions.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Literal, Protocol

import chess
import numpy as np
import numpy.typing as npt

from assay.errors import DataError

Split = Literal["train", "validation", "final"]
Side = Literal["white", "black", "both"]
Codes = npt.NDArray[np.uint8]
"""Squares as numbers, shape [..., 64], a1 first: 0 empty, 1..6 white pawn to king, 9..14 black pawn to king."""

HELDOUT_SHARE = 0.1
"""Share of all canonical positions that is `validation`, and the same again that is `final`."""
BLACK = 8
"""Added to a piece's code when it is black."""
MAX_DRAWS_PER_POSITION = 500
"""Draws without a new position after which a source counts as exhausted."""

_SYMBOLS = ".PNBRQK..pnbrqk"


@dataclass(frozen=True, slots=True)
class Position:
    """A position to act on. `history` are the last (at most 9) half-moves that led to it, from old to new, if known."""

    fen: str
    """Normal form: the en-passant square only where a capture is legal."""
    key: bytes
    """Canonical key (see `canonical_key`)."""
    board: chess.Board = field(compare=False, repr=False)
    """The position as a board, which must not be changed; its move stack may be empty."""
    history: tuple[str, ...] = ()


class PositionSource(Protocol):
    """Where positions come from."""

    def draw(self, rng: np.random.Generator, split: Split) -> Iterator[Position]:
        """Unfinished legal positions of one split, decided by `rng`: endless, or one pass in random order."""
        ...


def _permutations() -> npt.NDArray[np.intp]:
    """The 8 symmetries of the square board as gather indices, shape [8, 64]: identity and file mirror come first."""
    board = np.arange(64).reshape(8, 8)
    turned = [np.rot90(board, quarter) for quarter in range(4)]
    # rot90 then mirror gives the other four; identity and file mirror are the two that keep pawns walking upwards.
    ordered = [turned[0], np.fliplr(turned[0]), *turned[1:], *(np.fliplr(t) for t in turned[1:])]
    return np.stack([image.reshape(64) for image in ordered])


_SYMMETRIES = _permutations()
_RANK_FLIP = np.arange(64).reshape(8, 8)[::-1].reshape(64)
_COLOUR_SWAP = np.array([code ^ BLACK if code & 7 else code for code in range(16)], dtype=np.uint8)


def encode_board(board: chess.Board) -> Codes:
    """Squares of a board as `Codes`, shape [64]."""
    codes = np.zeros(64, dtype=np.uint8)
    for square, piece in board.piece_map().items():
        codes[square] = piece.piece_type + (0 if piece.color else BLACK)
    return codes


def whites_view(codes: Codes) -> Codes:
    """The same position with colours swapped and the board turned over; shape [..., 64]."""
    return _COLOUR_SWAP[codes[..., _RANK_FLIP]]


def quiet_keys(views: Codes, has_pawns: bool) -> list[bytes]:
    """Canonical keys of positions without castling rights or en passant, seen by the mover (`views`, shape [n, 64])."""
    symmetries = _SYMMETRIES[:2] if has_pawns else _SYMMETRIES
    images = views[:, symmetries].tobytes()
    step = 64 * len(symmetries)
    return [
        min(images[place : place + 64] for place in range(start, start + step, 64))
        for start in range(0, len(images), step)
    ]


def canonical_key(board: chess.Board) -> bytes:
    """One key for all positions that are the same to the mover: counters, colour and reflections are ignored.

    Castling rights give the board a direction, so with any of them only the colours are folded; pawns fold left and
    right; without either all 8 symmetries of the square are folded.
    """
    view = encode_board(board)
    rights = board.clean_castling_rights()
    if board.turn == chess.BLACK:
        view = whites_view(view)
        rights = chess.flip_vertical(rights)
    ep = board.ep_square if board.has_legal_en_passant() else None
    if not rights and ep is None:
        return quiet_keys(view[None], bool(board.pawns))[0]
    files = [-1 if ep is None else chess.square_file(ep)]
    images = [view]
    if not rights:
        images.append(view[_SYMMETRIES[1]])
        files.append(7 - files[0])
    tails = [rights.to_bytes(8, "big") + bytes([file + 1]) for file in files]
    return min(image.tobytes() + tail for image, tail in zip(images, tails, strict=True))


def split_of(key: bytes) -> Split:
    """The side of the split on which a canonical key lies; depends on nothing else."""
    place = int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "big") / 2.0**64
    if place < HELDOUT_SHARE:
        return "validation"
    return "final" if place < 2 * HELDOUT_SHARE else "train"


def position_of(board: chess.Board, history: tuple[str, ...] = ()) -> Position:
    """The record of a board."""
    return Position(board.fen(en_passant="legal"), canonical_key(board), board, history)


def is_playable(board: chess.Board) -> bool:
    """Whether the position is possible and the game goes on in it."""
    return board.is_valid() and board.outcome() is None


def turns(side: Side) -> tuple[chess.Color, ...]:
    """The colours that may be to move."""
    return {"white": (chess.WHITE,), "black": (chess.BLACK,), "both": (chess.WHITE, chess.BLACK)}[side]


def board_text(codes: Codes) -> str:
    """FEN board field of squares, shape [64]."""
    rows = codes.tobytes()
    return "/".join(_rank_text(rows[start : start + 8]) for start in range(56, -8, -8))


@cache
def _rank_text(row: bytes) -> str:
    text, empty = "", 0
    for code in row:
        if code:
            text += (str(empty) if empty else "") + _SYMBOLS[code]
            empty = 0
        else:
            empty += 1
    return text + (str(empty) if empty else "")


class FixedSource:
    """A finite list of positions, such as those of a file; of positions with equal keys the first is kept."""

    def __init__(self, positions: Iterable[Position]) -> None:
        self._sides: dict[Split, list[Position]] = {"train": [], "validation": [], "final": []}
        seen = set()
        for position in positions:
            if position.key not in seen:
                seen.add(position.key)
                self._sides[split_of(position.key)].append(position)

    def draw(self, rng: np.random.Generator, split: Split) -> Iterator[Position]:
        """One pass in random order."""
        side = self._sides[split]
        for index in rng.permutation(len(side)).tolist():
            yield side[index]


def draw_forever(source: PositionSource, rng: np.random.Generator, split: Split) -> Iterator[Position]:
    """Positions of a split without end: a finite source is passed through again and again.

    Raises:
        DataError: the source has no position on this side of the split.
    """
    while True:
        position = None
        for position in source.draw(rng, split):
            yield position
        if position is None:
            raise DataError(f"the source has no position on the {split} side of the split. Use a richer source.")


def draw_distinct(
    source: PositionSource,
    rng: np.random.Generator,
    split: Split,
    count: int,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[Position]:
    """`count` positions of a split, no two with the same canonical key; `progress` is told how many there are so far.

    Raises:
        DataError: the source has fewer.
    """
    found: dict[bytes, Position] = {}
    fruitless = 0
    for position in source.draw(rng, split):
        if len(found) >= count or fruitless > MAX_DRAWS_PER_POSITION:
            break
        fruitless = fruitless + 1 if position.key in found else 0
        found.setdefault(position.key, position)
        if not fruitless:
            progress(len(found), count)
    if len(found) < count:
        raise DataError(
            f"the source has only {len(found)} distinct positions on the {split} side of the split, but {count} are "
            f"asked for. Lower num_train or num_heldout, or use a richer source. About {1 - 2 * HELDOUT_SHARE:.0%} of "
            f"all positions are train, {HELDOUT_SHARE:.0%} validation and {HELDOUT_SHARE:.0%} final; mirror images "
            "count once."
        )
    return list(found.values())
