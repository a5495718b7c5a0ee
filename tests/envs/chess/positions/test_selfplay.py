import asyncio
from collections import Counter
from itertools import islice

import chess
import numpy as np
import pytest

from assay.envs.chess.engine.stockfish import Analysis, MoveValue, StockfishConfig, StockfishPool
from assay.envs.chess.positions.base import split_of
from assay.envs.chess.positions.selfplay import EngineGames, RandomGames, choose_line, random_legal_move


def engine_positions(tmp_path, processes, count=12):
    async def play():
        async with StockfishPool(StockfishConfig(nodes=50, processes=processes, cache=False), tmp_path) as pool:
            source = EngineGames(pool, "both")
            return list(islice(source.draw(np.random.default_rng(0), "train"), count))

    return asyncio.run(play())


def test_engine_games_are_the_same_with_any_number_of_processes(tmp_path, monkeypatch):
    monkeypatch.setattr("assay.envs.chess.positions.selfplay.MAX_PLIES", 9)
    monkeypatch.setattr("assay.envs.chess.positions.selfplay.GAMES_AT_ONCE", 2)
    one = engine_positions(tmp_path, 1)
    assert one == engine_positions(tmp_path, 2)
    assert {split_of(p.key) for p in one} == {"train"}
    for position in one:
        board = chess.Board(position.fen)
        assert board.is_valid() and len(position.history) <= 9
    assert any(len(p.history) >= 5 for p in one)


def analysis(*values):
    moves = tuple(MoveValue(uci, cp, None) for uci, cp in values)
    return Analysis(chess.STARTING_FEN, moves, "", False)


def test_the_engine_plays_better_moves_more_often_and_hopeless_ones_never():
    lines = analysis(("e2e4", 40), ("d2d4", 40), ("c2c4", 0), ("g2g4", -1000), ("f2f3", -1000), ("a2a3", 39))
    rng = np.random.default_rng(0)
    played = Counter(choose_line(lines, rng) for _ in range(2000))
    assert set(played) == {"e2e4", "d2d4", "c2c4"}
    assert played["e2e4"] / played["c2c4"] == pytest.approx(np.e, rel=0.2)


def test_random_moves_are_legal_and_equally_likely():
    # A pinned knight and a king in no check: the knight's pseudo-legal moves must never come up.
    board = chess.Board("4r1k1/8/8/8/8/8/4N3/4K3 w - - 0 1")
    legal = list(board.legal_moves)
    rng = np.random.default_rng(0)
    drawn = Counter(random_legal_move(board, rng) for _ in range(4000))
    assert set(drawn) == set(legal)
    for count in drawn.values():
        assert count == pytest.approx(4000 / len(legal), rel=0.15)
    with pytest.raises(ValueError, match="no legal move"):
        random_legal_move(chess.Board("R5k1/5ppp/8/8/8/8/8/4K3 b - - 1 1"), rng)


def test_games_end_before_a_fivefold_repetition_could_come_up(monkeypatch):
    # Moves that always shuffle the same pieces: the start comes up every fourth half-move.
    shuffle = ["g1f3", "g8f6", "f3g1", "f6g8"]
    monkeypatch.setattr(
        "assay.envs.chess.positions.selfplay.random_legal_move",
        lambda board, rng: chess.Move.from_uci(shuffle[len(board.move_stack) % 4]),
    )
    monkeypatch.setattr("assay.envs.chess.positions.selfplay.MAX_GAP", 1)
    monkeypatch.setattr("assay.envs.chess.positions.selfplay.split_of", lambda key: "train")
    positions = list(islice(RandomGames("both").draw(np.random.default_rng(0), "train"), 60))
    assert max(int(p.fen.split()[4]) for p in positions) == 7
