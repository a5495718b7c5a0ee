"""Positions from games that are played for the purpose: by random legal moves, or by the engine.

A game ends with its outcome, at a length limit, or at its first threefold repetition. So no position that is handed out
is one move away from a fivefold repetition, which the ten half-moves of an A: prompt could not show.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from math import exp

import chess
import numpy as np

from assay.envs.chess.engine.stockfish import Analysis, StockfishPool
from assay.envs.chess.grammar import HISTORY_PLIES
from assay.envs.chess.positions.base import Position, Side, Split, position_of, split_of, turns

MAX_PLIES = 120
"""Longest game, in half-moves."""
MAX_GAP = 8
"""Random games hand out a position every 1 to `MAX_GAP` half-moves, so that neighbours differ."""
OPENING_PLIES = 6
"""Most random half-moves before the engine takes over, for variety."""
TOP_LINES = 5
"""The engine's move is drawn from so many of its best ones ..."""
TEMPERATURE_CP = 40.0
"""... in proportion to exp(value / temperature); a move this much worse is e times less likely."""
GAMES_AT_ONCE = 8
"""Engine games that are played side by side, to keep all processes of the pool busy."""


def random_legal_move(board: chess.Board, rng: np.random.Generator) -> chess.Move:
    """A legal move, all equally likely: pseudo-legal ones are drawn until one is legal, which is faster than listing.

    Raises:
        ValueError: there is none.
    """
    moves = list(board.generate_pseudo_legal_moves())
    while moves:
        move = moves.pop(int(rng.integers(len(moves))))
        if not board.is_into_check(move):
            return move
    raise ValueError(f"no legal move in {board.fen()}")


def game_over(board: chess.Board) -> bool:
    """Whether self-play ends a game here."""
    return len(board.move_stack) >= MAX_PLIES or board.is_repetition(3) or board.outcome() is not None


def recent_history(board: chess.Board) -> tuple[str, ...]:
    """The last half-moves of the game on the board, as many as an A: prompt shows beside the move to come."""
    return tuple(move.uci() for move in board.move_stack[-(HISTORY_PLIES - 1) :])


class RandomGames:
    """Positions of games of random legal moves from the initial position; endless."""

    def __init__(self, side: Side) -> None:
        self._colours = turns(side)

    def draw(self, rng: np.random.Generator, split: Split) -> Iterator[Position]:
        """See `PositionSource.draw`."""
        while True:
            board = chess.Board()
            gap = int(rng.integers(1, MAX_GAP + 1))
            while not game_over(board):
                if gap <= 0 and board.turn in self._colours:
                    position = position_of(board.copy(stack=False), recent_history(board))
                    if split_of(position.key) == split:
                        yield position
                    gap = int(rng.integers(1, MAX_GAP + 1))
                board.push(random_legal_move(board, rng))
                gap -= 1


class EngineGames:
    """Positions of games in which the engine draws its moves from its best lines; endless.

    The games are the same in every run: the first ones of a fixed sequence, so that their analyses are cached once and
    serve as truth too. They are played when first asked for and remembered for all splits.
    """

    def __init__(self, pool: StockfishPool, side: Side) -> None:
        self._pool, self._colours = pool, turns(side)
        self._positions: list[Position] = []
        self._rounds = 0

    def draw(self, rng: np.random.Generator, split: Split) -> Iterator[Position]:
        """Positions in the order of play, whatever `rng`.

        Raises:
            EngineError: the engine failed.
        """
        index = 0
        while True:
            while index >= len(self._positions):
                self._play_round()
            position = self._positions[index]
            index += 1
            if split_of(position.key) == split:
                yield position

    def _play_round(self) -> None:
        first = self._rounds * GAMES_AT_ONCE
        self._rounds += 1
        # A thread of its own: the caller may already be inside an event loop.
        with ThreadPoolExecutor(1) as executor:
            self._positions += executor.submit(asyncio.run, self._play(range(first, first + GAMES_AT_ONCE))).result()

    async def _play(self, numbers: range) -> list[Position]:
        """Play games in lockstep; positions by game, then by half-move, whatever order the engines answer in."""
        games = [_opening(number) for number in numbers]
        found: list[list[Position]] = [[] for _ in games]
        while running := [index for index, (board, _) in enumerate(games) if not game_over(board)]:
            analyses = await asyncio.gather(*(self._pool.analyse(games[index][0].fen()) for index in running))
            for index, analysis in zip(running, analyses, strict=True):
                board, rng = games[index]
                if board.turn in self._colours:
                    found[index].append(position_of(board.copy(stack=False), recent_history(board)))
                board.push_uci(choose_line(analysis, rng))
        return [position for game in found for position in game]


def _opening(number: int) -> tuple[chess.Board, np.random.Generator]:
    rng = np.random.default_rng([number])
    board = chess.Board()
    for _ in range(int(rng.integers(OPENING_PLIES + 1))):
        board.push(random_legal_move(board, rng))
        if game_over(board):
            return chess.Board(), rng
    return board, rng


def choose_line(analysis: Analysis, rng: np.random.Generator) -> str:
    """One of the engine's best moves, better ones more often."""
    top = analysis.moves[:TOP_LINES]
    weights = np.array([exp((move.value_cp - top[0].value_cp) / TEMPERATURE_CP) for move in top])
    return top[int(rng.choice(len(top), p=weights / weights.sum()))].uci
