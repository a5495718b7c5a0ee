import chess
import numpy as np
import pytest

from assay.envs.chess.positions.position_files import read_source
from assay.errors import DataError

ENDGAME = "4k3/8/8/8/8/8/4P3/4K3 w - - 0 1"
MATED = "R5k1/5ppp/8/8/8/8/8/4K3 b - - 1 1"
OPENINGS = "eco\tname\tpgn\nB00\tKing's Pawn\t1. e4\nC20\tOpen Game\t1. e4 e5\nA40\tQueen's Pawn\t1. d4 d5 2. c4\n"
GAMES = """[Event "One"]
[Result "1-0"]

1. e4 {a comment} e5 2. Bc4 (2. Nf3 Nc6) Nc6 $1 3. Qh5 Nf6?? 4. Qxf7# 1-0

[Event "Two"]
[SetUp "1"]
[FEN "4k3/8/8/8/8/8/4P3/4K3 w - - 0 1"]

1. e4 Kd7 *
"""


def write(tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def fens(source):
    rng = np.random.default_rng(0)
    return {p.fen for split in ("train", "validation", "final") for p in source.draw(rng, split)}


def test_fen_lines_become_positions_and_comments_and_finished_games_do_not(tmp_path):
    path = write(tmp_path, "a.fen", f"# endgames\n\n{ENDGAME}\n{MATED}\n{ENDGAME}\n")
    assert fens(read_source("fen", path, "both")) == {ENDGAME}
    assert fens(read_source("fen", write(tmp_path, "bom.fen", f"\ufeff{ENDGAME}\r\n"), "white")) == {ENDGAME}


def test_epd_lines_may_carry_operations(tmp_path):
    path = write(tmp_path, "a.epd", '4k3/8/8/8/8/8/4P3/4K3 w - - bm e4; id "one";\n')
    assert fens(read_source("epd", path, "both")) == {ENDGAME}


def test_an_openings_table_gives_every_position_along_its_lines(tmp_path):
    found = fens(read_source("openings", write(tmp_path, "o.tsv", OPENINGS), "both"))
    board, expected = chess.Board(), {chess.STARTING_FEN}
    for line in (["e2e4", "e7e5"], ["d2d4", "d7d5", "c2c4"]):
        board.reset()
        for uci in line:
            board.push_uci(uci)
            expected.add(board.fen())
    assert found == expected


def test_pgn_games_give_the_positions_of_their_main_lines(tmp_path):
    source = read_source("pgn", write(tmp_path, "g.pgn", GAMES), "both")
    found = fens(source)
    # Seven half-moves and the start, less the mate; the second game has its own start and two more positions.
    assert len(found) == 7 + 3
    assert "4k3/8/8/8/4P3/8/8/4K3 b - - 0 1" in found
    assert not any(chess.Board(fen).is_game_over() for fen in found)
    histories = [p.history for p in source.draw(np.random.default_rng(0), "train")]
    assert ("e2e4", "e7e5") in histories or ("e2e4",) in histories


def test_a_game_is_read_up_to_its_first_threefold_repetition(tmp_path):
    moves = "1. Nf3 Nf6 2. Ng1 Ng8 3. Nf3 Nf6 4. Ng1 Ng8 5. e4 e5 *"
    found = fens(read_source("pgn", write(tmp_path, "g.pgn", f'[Event "x"]\n\n{moves}\n'), "both"))
    assert not any("4P3" in fen for fen in found)


def test_only_the_wanted_side_to_move_is_kept(tmp_path):
    path = write(tmp_path, "g.pgn", GAMES)
    assert {fen.split()[1] for fen in fens(read_source("pgn", path, "black"))} == {"b"}
    white_only = write(tmp_path, "w.fen", ENDGAME)
    with pytest.raises(DataError, match="none of them playable with side=black"):
        read_source("fen", white_only, "black")


@pytest.mark.parametrize(
    ("kind", "text", "line", "content"),
    [
        ("fen", f"{ENDGAME}\nhello\n", 2, "hello"),
        ("fen", "4k3/8/8/8/8/8/4P3/4K3 w - -\n", 1, "4k3"),
        ("fen", f"{ENDGAME}\n\n8/8/8/8/8/8/8/4K3 w - - 0 1\n", 3, "impossible position"),
        ("fen", "4k3/8/8/8/8/8/4R3/4K3 w - - 0 1\n", 1, "impossible position"),
        ("epd", "4k3/8/8/8/8/8/4P3/4K3 w - - bm e4;\nnonsense w - -\n", 2, "nonsense"),
        ("epd", "4k3/8/8/8/8/8/4P3/4K3 w\n", 1, "four fields"),
        ("openings", "eco\tname\nA00\tx\n", 1, "pgn"),
        ("openings", OPENINGS + "A00\tBroken\n", 5, "2 columns instead of 3"),
        ("openings", OPENINGS + "A00\tBroken\t1. e4 e4\n", 5, "illegal san"),
        ("openings", OPENINGS + "A00\tEmpty\t1.\n", 5, "without moves"),
        ("pgn", GAMES + '\n[Event "Three"]\n\n1. e4 e4 *\n', 12, "illegal san"),
        ("pgn", "just some text\n", 1, "just some text"),
        ("pgn", '[Event "x"]\n[FEN "garbage"]\n\n1. e4 *\n', 1, "in the game that starts here"),
        ("pgn", '[Event "x"]\n[Variant "Atomic"]\n\n1. e4 *\n', 1, "not standard chess"),
    ],
)
def test_damage_is_reported_with_file_line_and_content(tmp_path, kind, text, line, content):
    path = write(tmp_path, f"broken.{kind}", text)
    with pytest.raises(DataError) as error:
        read_source(kind, path, "both")
    assert f"broken.{kind}, line {line}:" in str(error.value)
    assert content in str(error.value)


def test_files_that_cannot_be_opened_or_decoded_are_reported(tmp_path):
    with pytest.raises(DataError, match=r"none\.fen.*Check source_path"):
        read_source("fen", tmp_path / "none.fen", "both")
    binary = tmp_path / "binary.pgn"
    binary.write_bytes(b"\xff\xfe\x00chess")
    with pytest.raises(DataError, match="not UTF-8"):
        read_source("pgn", binary, "both")
    with pytest.raises(DataError, match="has 0 positions"):
        read_source("pgn", write(tmp_path, "empty.pgn", "\n\n"), "both")
