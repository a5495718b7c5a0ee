from itertools import islice

import chess
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from assay.envs.chess.arbiter import rebuild
from assay.envs.chess.positions.base import (
    FixedSource,
    canonical_key,
    draw_distinct,
    draw_forever,
    is_playable,
    position_of,
    split_of,
)
from assay.envs.chess.positions.endgames import EndgameSource, invent_past, parse_material
from assay.envs.chess.positions.selfplay import MAX_PLIES, RandomGames
from assay.errors import ConfigError, DataError

ENDGAMES = EndgameSource("KQk,KRk,KPk,KRkp,KBNk", "both")


def draw(source, seed, split, count):
    return draw_distinct(source, np.random.default_rng(seed), split, count)


@st.composite
def boards(draw_value):
    """Positions of random games and of endgames."""
    rng = np.random.default_rng(draw_value(st.integers(0, 10_000)))
    source = draw_value(st.sampled_from([RandomGames("both"), ENDGAMES]))
    return next(source.draw(rng, "train")).board


@settings(max_examples=60, deadline=None)
@given(boards())
def test_positions_that_are_the_same_to_the_mover_have_one_key(board):
    key = canonical_key(board)
    assert canonical_key(board.mirror()) == key
    aged = board.copy()
    aged.halfmove_clock, aged.fullmove_number = 49, 99
    assert canonical_key(aged) == key
    rights = board.clean_castling_rights()
    flipped = board.transform(chess.flip_horizontal)
    assert (canonical_key(flipped) == key) == (not rights or canonical_key(board) == canonical_key(flipped))
    if not rights:
        assert canonical_key(flipped) == key
        if not board.pawns:
            for symmetry in (chess.flip_vertical, chess.flip_diagonal, chess.flip_anti_diagonal):
                assert canonical_key(board.transform(symmetry)) == key


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("4k3/8/8/8/8/8/8/4K2R w K - 0 1", "4k3/8/8/8/8/8/8/4K2R w - - 0 1"),
        ("r3k3/8/8/8/8/8/8/4K2R w K - 0 1", "r3k3/8/8/8/8/8/8/4K2R w Kq - 0 1"),
        ("4k3/8/8/8/3pP3/8/8/4K3 b - e3 0 1", "4k3/8/8/8/3pP3/8/8/4K3 b - - 0 1"),
        ("4k3/8/8/8/2pPp3/8/8/4K3 b - - 0 1", "4k3/8/8/8/2pPp3/8/8/4K3 b - d3 0 1"),
        ("8/8/8/3k4/8/8/8/KQ6 w - - 0 1", "8/8/8/3k4/8/8/8/KQ6 b - - 0 1"),
        ("8/8/8/3k4/8/8/P7/K7 w - - 0 1", "7K/7P/8/8/4k3/8/8/8 w - - 0 1"),
        ("8/8/8/3k4/8/8/8/KQ6 w - - 0 1", "8/8/8/3k4/8/8/8/KR6 w - - 0 1"),
    ],
)
def test_positions_that_differ_in_kind_have_different_keys(one, other):
    assert canonical_key(chess.Board(one)) != canonical_key(chess.Board(other))


def test_an_en_passant_square_without_a_legal_capture_does_not_change_the_key():
    plain = chess.Board("rnbqkbnr/pppppppp/8/8/4P3/8/PPPP1PPP/RNBQKBNR b KQkq - 0 1")
    printed = chess.Board("rnbqkbnr/pppppppp/8/8/4P3/8/PPPP1PPP/RNBQKBNR b KQkq e3 0 1")
    assert canonical_key(plain) == canonical_key(printed)
    left = chess.Board("4k3/8/8/8/3pP3/8/8/4K3 b - e3 0 1")
    assert canonical_key(left) == canonical_key(left.transform(chess.flip_horizontal))


@pytest.mark.parametrize("source", [ENDGAMES, RandomGames("both")], ids=["endgames", "random"])
def test_train_validation_and_final_share_no_position_nor_a_mirror_image(source):
    train, validation, final = (draw(source, 5, split, 60) for split in ("train", "validation", "final"))
    sides = [{canonical_key(chess.Board(p.fen)) for p in side} for side in (train, validation, final)]
    assert [len(side) for side in sides] == [60, 60, 60]
    assert not sides[0] & sides[1] and not sides[0] & sides[2] and not sides[1] & sides[2]
    for split, side in zip(("train", "validation", "final"), (train, validation, final), strict=True):
        for position in side:
            assert split_of(canonical_key(chess.Board(position.fen).mirror())) == split


def test_the_split_is_a_property_of_the_position_alone():
    few, many = draw(ENDGAMES, 1, "train", 20), draw(ENDGAMES, 1, "train", 200)
    assert few == many[:20]
    shares = [split_of(bytes([a, b])) for a in range(64) for b in range(64)]
    for split, share in (("train", 0.8), ("validation", 0.1), ("final", 0.1)):
        assert shares.count(split) / len(shares) == pytest.approx(share, abs=0.02)


def test_drawing_depends_on_the_seed_alone():
    for source in (ENDGAMES, RandomGames("both")):
        assert draw(source, 1, "train", 30) == draw(source, 1, "train", 30)
        assert draw(source, 1, "train", 30) != draw(source, 2, "train", 30)


@pytest.mark.parametrize("side", ["white", "black", "both"])
def test_drawn_positions_are_legal_unfinished_and_the_wanted_side_moves(side):
    colours = set()
    for source in (EndgameSource("KQk,KRkp", side), RandomGames(side)):
        for position in draw(source, 2, "train", 60):
            board = chess.Board(position.fen)
            assert is_playable(board)
            assert board.fen(en_passant="legal") == position.fen
            assert board == position.board
            assert canonical_key(board) == position.key
            assert len(position.history) < MAX_PLIES
            colours.add(board.turn)
    assert colours == {"white": {True}, "black": {False}, "both": {True, False}}[side]


def test_endgames_with_a_lone_king_to_move_are_never_mate_or_stalemate():
    assert all(is_playable(p.board) for p in draw(EndgameSource("KQk", "black"), 0, "train", 600))


def test_endgames_have_exactly_the_material_and_each_in_turn():
    found = [
        "".join(sorted(char for char in p.fen.split()[0] if char.isalpha())) for p in draw(ENDGAMES, 3, "train", 300)
    ]
    assert set(found) == {"KQk", "KRk", "KPk", "KRkp", "BKNk"}
    assert min(found.count(kind) for kind in set(found)) > 30


def test_both_orientations_of_a_position_are_drawn():
    files = {chess.square_file(p.board.king(chess.BLACK)) for p in draw(EndgameSource("KPk", "white"), 0, "train", 200)}
    assert files == set(range(8))


@pytest.mark.parametrize(
    "material", ["", "KQ", "KQq", "KKk", "KQkx", "Kk", "KBk", "Kkn", "KPPPPPPPPPk", "K" + "R" * 16 + "k"]
)
def test_impossible_material_is_refused(material):
    with pytest.raises(ConfigError, match="material"):
        parse_material(material)


def test_material_that_cannot_stand_is_reported_and_does_not_hang(monkeypatch):
    monkeypatch.setattr("assay.envs.chess.positions.endgames.BARREN_CHUNKS", 3)
    # With eight queens around, the side to move is nearly always one that could take the king.
    source = EndgameSource("K" + "Q" * 15 + "k", "white")
    with pytest.raises(ConfigError, match="no legal unfinished"):
        draw(source, 0, "train", 5)


def test_an_invented_past_leads_to_the_position():
    rng = np.random.default_rng(0)
    lengths, last = set(), 0
    for position in draw(EndgameSource("KQk,KRkp", "both"), 0, "train", 150):
        seasoned = invent_past(position, rng)
        board = chess.Board(seasoned.fen)
        assert is_playable(board)
        assert board.fen().split()[:4] == position.fen.split()[:4]
        assert seasoned.key == position.key == canonical_key(board)
        game = rebuild(board, seasoned.history)
        assert [move.uci() for move in game.move_stack] == list(seasoned.history)
        assert game == board
        lengths.add(len(seasoned.history))
        last += board.halfmove_clock == 149
    assert lengths == set(range(10))
    assert last > 0


def test_a_source_that_runs_dry_says_so():
    positions = draw(ENDGAMES, 0, "train", 5) + draw(ENDGAMES, 0, "validation", 2)
    source = FixedSource([*positions, *positions])
    assert {p.fen for p in draw(source, 1, "train", 5)} == {p.fen for p in positions[:5]}
    with pytest.raises(DataError, match=r"only 5 distinct positions on the train side .* 6 are asked"):
        draw(source, 1, "train", 6)
    endless = draw_forever(source, np.random.default_rng(0), "train")
    assert len({p.key for p in islice(endless, 15)}) == 5
    with pytest.raises(DataError, match="no position on the final side"):
        next(draw_forever(source, np.random.default_rng(0), "final"))
    tiny = EndgameSource("KQk", "white")
    tiny.draw = lambda rng, split: (positions[0] for _ in range(10**9))
    with pytest.raises(DataError, match="only 1 distinct"):
        draw(tiny, 0, "train", 2)


def test_equal_positions_of_a_fixed_source_are_kept_once():
    board = draw(ENDGAMES, 0, "train", 1)[0].board
    source = FixedSource([position_of(board), position_of(board.mirror())])
    assert [p.fen for p in source.draw(np.random.default_rng(0), "train")] == [board.fen()]
