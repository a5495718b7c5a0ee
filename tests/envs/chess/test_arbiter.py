import itertools

import chess
import numpy as np
import pytest

from assay.envs.chess.arbiter import rebuild, ruling, ruling_on
from assay.envs.chess.positions.base import draw_distinct
from assay.envs.chess.positions.selfplay import RandomGames, random_legal_move
from assay.errors import DataError

START = chess.STARTING_FEN
LEGAL, WIN, DRAW, ILLEGAL = (0.001, False, False), (1.0, True, False), (0.5, True, False), (-1.0, False, True)


@pytest.mark.parametrize(
    ("name", "fen", "uci", "after", "verdict_"),
    [
        ("quiet move", START, "g1f3", "rnbqkbnr/pppppppp/8/8/8/5N2/PPPPPPPP/RNBQKB1R b KQkq - 1 1", LEGAL),
        ("double step, no capture", START, "e2e4", "rnbqkbnr/pppppppp/8/8/4P3/8/PPPP1PPP/RNBQKBNR b KQkq - 0 1", LEGAL),
        (
            "double step beside a pawn",
            "4k3/8/8/8/3p4/8/4P3/4K3 w - - 0 1",
            "e2e4",
            "4k3/8/8/8/3pP3/8/8/4K3 b - e3 0 1",
            LEGAL,
        ),
        ("en passant", "4k3/8/8/8/3pP3/8/8/4K3 b - e3 0 1", "d4e3", "4k3/8/8/8/8/4p3/8/4K3 w - - 0 2", LEGAL),
        ("castling short", "4k3/8/8/8/8/8/8/R3K2R w KQ - 3 9", "e1g1", "4k3/8/8/8/8/8/8/R4RK1 b - - 4 9", LEGAL),
        ("castling long", "r3k2r/8/8/8/8/8/8/4K3 b kq - 3 9", "e8c8", "2kr3r/8/8/8/8/8/8/4K3 w - - 4 10", LEGAL),
        (
            "rook move loses a right",
            "4k3/8/8/8/8/8/8/R3K2R w KQ - 0 1",
            "h1g1",
            "4k3/8/8/8/8/8/8/R3K1R1 b Q - 1 1",
            LEGAL,
        ),
        ("promotion", "4k3/P7/8/8/8/8/8/4K3 w - - 5 1", "a7a8q", "Q3k3/8/8/8/8/8/8/4K3 b - - 0 1", LEGAL),
        ("underpromotion", "4k3/P7/8/8/8/8/8/4K3 w - - 5 1", "a7a8r", "R3k3/8/8/8/8/8/8/4K3 b - - 0 1", LEGAL),
        ("mate", "6k1/5ppp/8/8/8/8/8/R3K3 w - - 0 1", "a1a8", "R5k1/5ppp/8/8/8/8/8/4K3 b - - 1 1", WIN),
        ("mate by black", "r3k3/8/8/8/8/8/5PPP/6K1 b - - 0 7", "a8a1", "4k3/8/8/8/8/8/5PPP/r5K1 w - - 1 8", WIN),
        ("stalemate", "k7/8/1K6/8/8/8/8/2Q5 w - - 0 1", "c1c7", "k7/2Q5/1K6/8/8/8/8/8 b - - 1 1", DRAW),
        ("insufficient material", "8/8/8/8/3k4/8/3pK3/8 w - - 0 1", "e2d2", "8/8/8/8/3k4/8/3K4/8 b - - 0 1", DRAW),
        ("75 moves", "4k3/8/8/8/8/8/8/R3K3 w - - 149 90", "a1a2", "4k3/8/8/8/8/8/R7/4K3 b - - 150 90", DRAW),
        (
            "mate on move 75",
            "6k1/5ppp/8/8/8/8/8/R3K3 w - - 149 90",
            "a1a8",
            "R5k1/5ppp/8/8/8/8/8/4K3 b - - 150 90",
            WIN,
        ),
        (
            "50 moves is only a claim",
            "4k3/8/8/8/8/8/8/R3K3 w - - 99 90",
            "a1a2",
            "4k3/8/8/8/8/8/R7/4K3 b - - 100 90",
            LEGAL,
        ),
        ("no such move", START, "e2e5", START, ILLEGAL),
        (
            "promotion without a piece",
            "4k3/P7/8/8/8/8/8/4K3 w - - 5 1",
            "a7a8",
            "4k3/P7/8/8/8/8/8/4K3 w - - 5 1",
            ILLEGAL,
        ),
        (
            "promotion of a king move",
            "4k3/8/8/8/8/8/8/4K3 w - - 5 1",
            "e1e2q",
            "4k3/8/8/8/8/8/8/4K3 w - - 5 1",
            ILLEGAL,
        ),
        ("pinned piece", "4r1k1/8/8/8/8/8/4N3/4K3 w - - 0 1", "e2c3", "4r1k1/8/8/8/8/8/4N3/4K3 w - - 0 1", ILLEGAL),
        ("king stays in check", "4r1k1/8/8/8/8/8/8/4K3 w - - 0 1", "e1e2", "4r1k1/8/8/8/8/8/8/4K3 w - - 0 1", ILLEGAL),
        (
            "castling through check",
            "4kr2/8/8/8/8/8/8/4K2R w K - 0 1",
            "e1g1",
            "4kr2/8/8/8/8/8/8/4K2R w K - 0 1",
            ILLEGAL,
        ),
        ("the other side's piece", START, "e7e5", START, ILLEGAL),
    ],
)
def test_a_move_has_the_verdict_of_the_rules(name, fen, uci, after, verdict_):
    truth = ruling_on(fen, uci, [uci])
    assert truth.fen == after
    assert (truth.reward, truth.terminated, truth.truncated) == verdict_


def test_published_samples_are_reproduced():
    truth = ruling_on(
        "1k1r2nr/1p4b1/2pP3p/q3N1P1/R1PP1B2/3B1N1P/1P3QP1/5RK1 b - - 0 22",
        "g8e7",
        ["c1f4", "b4a5", "e4f6", "e6e5", "f6d7", "f8g7", "d7e5", "c8b8", "a1a4", "g8e7"],
    )
    assert truth.fen == "1k1r3r/1p2n1b1/2pP3p/q3N1P1/R1PP1B2/3B1N1P/1P3QP1/5RK1 w - - 1 23"
    assert (truth.reward, truth.terminated, truth.truncated) == LEGAL


SHUFFLE = ["g1f3", "g8f6", "f3g1", "f6g8"]


def test_the_fifth_repetition_ends_the_game_when_the_history_shows_it():
    board = chess.Board()
    for uci in SHUFFLE * 4:
        board.push_uci(uci)
    last = board.pop()
    history = SHUFFLE * 4
    truth = ruling_on(board.fen(), last.uci(), history)
    assert truth == ruling(board, last)
    assert (truth.reward, truth.terminated, truth.truncated) == DRAW
    # Ten half-moves hold at most three of the five: the text alone does not end the game.
    assert not ruling_on(board.fen(), last.uci(), history[-10:]).terminated


def test_a_threefold_repetition_is_only_a_claim():
    board = chess.Board()
    for uci in (SHUFFLE * 2)[:-1]:
        board.push_uci(uci)
    assert board.copy().can_claim_threefold_repetition()
    assert not ruling_on(board.fen(), "f6g8", SHUFFLE * 2).terminated


def test_a_history_is_rebuilt_as_far_as_it_was_reversible():
    board = chess.Board()
    moves = ["e2e4", "e7e5", "g1f3", "b8c6", "f1e2", "g8f6", "e1g1"]
    for uci in moves[:-1]:
        board.push_uci(uci)
    game = rebuild(chess.Board(board.fen()), moves[:-1])
    assert game == board
    # The pawn moves reset the clock, so the game is known from there on and no further.
    assert [move.uci() for move in game.move_stack] == moves[2:-1]
    board.push_uci("e1g1")
    assert not rebuild(chess.Board(board.fen()), moves).move_stack


def test_a_history_that_cannot_have_been_played_is_left_out():
    board = chess.Board("4k3/8/8/8/8/8/8/R3K3 w - - 20 40")
    for history in (["a1a2"], ["h8h7"], ["nonsense"], ["e8e8"], ["e1e8"], ["e7e8q"], ["a8e8"]):
        assert not rebuild(board, history).move_stack
    assert [move.uci() for move in rebuild(board, ["d7e8", "d8e8"]).move_stack] == ["d8e8"]
    # A clock of 0 says that the last move was a capture or a pawn's: it cannot be taken back from the text.
    assert not rebuild(chess.Board("4k3/8/8/8/8/8/8/R3K3 w - - 0 40"), ["d8e8"]).move_stack


def test_the_verdict_of_the_text_is_that_of_the_game():
    rng = np.random.default_rng(3)
    for fen in (START, "8/8/8/4k3/8/8/8/KQ6 w - - 0 1", "8/P7/8/4k3/8/2n5/p7/4K2R w K - 0 1"):
        board = chess.Board(fen)
        for _ in range(60):
            if board.outcome() is not None or board.is_repetition(3):
                break
            move = random_legal_move(board, rng)
            history = [m.uci() for m in board.move_stack[-9:]] + [move.uci()]
            assert ruling_on(board.fen(), move.uci(), history) == ruling(board, move)
            board.push(move)


def test_positions_of_played_games_carry_the_moves_that_led_to_them():
    positions = draw_distinct(RandomGames("both"), np.random.default_rng(0), "train", 50)
    assert max(len(p.history) for p in positions) == 9
    assert any(rebuild(chess.Board(p.fen), p.history).move_stack for p in positions)
    for a, b in itertools.pairwise(positions):
        assert a.key != b.key


def test_a_notational_en_passant_square_is_normalised_and_a_wrong_one_is_not():
    truth = ruling_on(START, "e2e4", ["e2e4"])
    printed = truth.fen.replace("KQkq -", "KQkq e3")
    assert truth.normalise(printed) == truth.fen
    assert truth.normalise(truth.fen) == truth.fen
    assert truth.normalise(truth.fen.replace("KQkq -", "KQkq d3")) != truth.fen
    real = ruling_on("4k3/8/8/8/3p4/8/4P3/4K3 w - - 0 1", "e2e4")
    assert real.normalise(real.fen) == real.fen
    assert real.normalise(real.fen.replace("e3", "-")) != real.fen


@pytest.mark.parametrize(
    ("fen", "uci", "history", "complaint"),
    [
        ("what", "e2e4", [], "what"),
        (START, "e4", [], "e4"),
        (START, "e2e4", ["d2d4"], "must end with"),
        ("8/8/8/8/8/8/8/K7 w - - 0 1", "a1a2", [], "impossible"),
    ],
)
def test_what_cannot_be_judged_is_refused(fen, uci, history, complaint):
    with pytest.raises(DataError, match=complaint):
        ruling_on(fen, uci, history)
