"""Positions from files: an openings table, FEN or EPD lines, PGN games.

What cannot be read is refused with file, line and content; a damaged file is never read in part. Positions in which the
game is over are left out, since there is nothing to answer in them.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from io import StringIO
from pathlib import Path
from typing import Literal, TextIO

import chess
import chess.pgn

from assay.envs.chess.grammar import is_fen_like
from assay.envs.chess.positions.base import FixedSource, Position, Side, is_playable, position_of, turns
from assay.envs.chess.positions.selfplay import recent_history
from assay.errors import DataError

FileKind = Literal["openings", "fen", "epd", "pgn"]

logger = logging.getLogger(__name__)
_MOVE_NUMBER = re.compile(r"\d+\.+")


def read_source(kind: FileKind, path: Path, side: Side) -> FixedSource:
    """The positions of a file with one of the wanted colours to move, each once.

    Raises:
        DataError: the file is missing, damaged, or has no such position.
    """
    reader: Callable[[TextIO, Path], Iterator[Position]] = {
        "openings": _read_openings,
        "fen": _read_fens,
        "epd": _read_epds,
        "pgn": _read_games,
    }[kind]
    colours = turns(side)
    try:
        with path.expanduser().open(encoding="utf-8-sig") as lines:
            everything = list(reader(lines, path))
    except OSError as error:
        raise DataError(f"cannot read the {kind} file {path}: {error.strerror}. Check source_path.") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text ({error}). Convert it, or check source_path and source.") from error
    usable = [p for p in everything if p.board.turn in colours and is_playable(p.board)]
    logger.info("%s: %d positions, %d of them playable with side=%s", path, len(everything), len(usable), side)
    if not usable:
        raise DataError(
            f"{path} has {len(everything)} positions, none of them playable with side={side}. Use another file or side."
        )
    return FixedSource(usable)


def _damaged(path: Path, line: int, content: str, why: object) -> DataError:
    shown = content.strip()
    shown = shown if len(shown) <= 200 else shown[:197] + "..."
    return DataError(f"{path}, line {line}: {why}: {shown!r}. Correct or remove the line.")


def _content(lines: TextIO) -> Iterator[tuple[int, str]]:
    """Numbered lines that are neither blank nor comments."""
    for number, line in enumerate(lines, start=1):
        if line.strip() and not line.startswith("#"):
            yield number, line.strip()


def _read_fens(lines: TextIO, path: Path) -> Iterator[Position]:
    for number, line in _content(lines):
        if not is_fen_like(line):
            raise _damaged(path, number, line, "not a FEN with six fields")
        try:
            board = chess.Board(line)
        except ValueError as error:
            raise _damaged(path, number, line, error) from error
        yield _checked(board, path, number, line)


def _read_epds(lines: TextIO, path: Path) -> Iterator[Position]:
    for number, line in _content(lines):
        try:
            board, _ = chess.Board.from_epd(line)
        except ValueError as error:
            raise _damaged(path, number, line, error) from error
        if len(line.split()) < 4:
            raise _damaged(path, number, line, "not an EPD with at least four fields")
        yield _checked(board, path, number, line)


def _checked(board: chess.Board, path: Path, number: int, line: str) -> Position:
    if not board.is_valid():
        raise _damaged(path, number, line, f"an impossible position ({board.status()!r})")
    return position_of(board)


def _read_openings(lines: TextIO, path: Path) -> Iterator[Position]:
    """Every position along every line of a table with tab-separated columns, `pgn` among them; prefixes played once."""
    header = lines.readline().rstrip("\n").split("\t")
    if "pgn" not in header:
        raise _damaged(path, 1, "\t".join(header), "the heading must name tab-separated columns with 'pgn' among them")
    column = header.index("pgn")
    played: dict[tuple[str, ...], chess.Board] = {(): chess.Board()}
    yield position_of(chess.Board())
    for number, line in enumerate(lines, start=2):
        if not line.strip():
            continue
        fields = line.rstrip("\n").split("\t")
        if len(fields) != len(header):
            raise _damaged(path, number, line, f"{len(fields)} columns instead of {len(header)}")
        sans = tuple(_MOVE_NUMBER.sub(" ", fields[column]).split())
        if not sans:
            raise _damaged(path, number, line, "an opening without moves")
        for length in range(1, len(sans) + 1):
            if sans[:length] in played:
                continue
            board = played[sans[: length - 1]].copy()
            try:
                board.push_san(sans[length - 1])
            except ValueError as error:
                raise _damaged(path, number, line, error) from error
            played[sans[:length]] = board
            yield position_of(board.copy(stack=False), recent_history(board))


class _StrictReader(chess.pgn.GameBuilder[chess.pgn.Game]):
    """Raises what python-chess would only log."""

    def handle_error(self, error: Exception) -> None:
        """Refuse the game."""
        raise error


def _read_games(lines: TextIO, path: Path) -> Iterator[Position]:
    """Every position of every game's main line, up to a threefold repetition."""
    text = lines.read()
    stream = StringIO(text)
    number, counted = 1, 0
    while True:
        place = stream.tell()
        line = stream.readline()
        if not line:
            return
        if not line.strip():
            continue
        number += text.count("\n", counted, place)
        counted = place
        stream.seek(place)
        try:
            game = chess.pgn.read_game(stream, Visitor=_StrictReader)
        except (ValueError, AssertionError) as error:
            raise _damaged(path, number, line, f"in the game that starts here: {error}") from error
        if game is None:
            return
        yield from _positions_of(game, path, number, line)


def _positions_of(game: chess.pgn.Game, path: Path, number: int, line: str) -> Iterator[Position]:
    if game.next() is None and game.headers.get("Event", "?") == "?" and "FEN" not in game.headers:
        raise _damaged(path, number, line, "neither a PGN heading nor moves")
    board = game.board()
    if type(board) is not chess.Board or board.chess960 or not board.is_valid():
        raise _damaged(path, number, line, "the game that starts here is not standard chess from a possible position")
    yield position_of(board.copy(stack=False))
    for move in game.mainline_moves():
        board.push(move)
        if board.is_repetition(3):
            return
        yield position_of(board.copy(stack=False), recent_history(board))
