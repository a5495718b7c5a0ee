"""Analyses on disk: found by their whole key, and never in a run's way where nothing can be written.

Damage, crowding and sudden death are the store's (tests/storage/test_keyed_store_faults.py).
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.envs.chess.engine.analysis_cache import FILE_NAME, AnalysisCache
from assay.envs.chess.engine.stockfish import (
    Analysis,
    MoveValue,
    StockfishConfig,
    StockfishPool,
    decode_moves,
    encode_moves,
)

FEN = "8/8/8/4k3/8/8/8/3QK3 w - - 0 1"


def analyse(folder: Path) -> Analysis:
    async def work() -> Analysis:
        async with StockfishPool(StockfishConfig(), folder) as pool:
            return await pool.analyse(FEN)

    return asyncio.run(asyncio.wait_for(work(), 60))


@given(st.lists(st.builds(MoveValue, st.just("e2e4"), st.integers(-90_000, 90_000), st.none())))
def test_moves_survive_the_file_format(moves: list[MoveValue]) -> None:
    mate = MoveValue("e7e8q", None, -3)
    assert decode_moves(encode_moves((*moves, mate))) == (*moves, mate)


@pytest.mark.parametrize("text", ["", "nonsense", "3", "[[1]]", "[1]", '{"a": 1}', '[["e2e4", null, null]]'])
def test_text_that_is_no_list_of_moves_is_refused(text: str) -> None:
    with pytest.raises((ValueError, TypeError)):
        decode_moves(text)


def test_entries_are_found_again_by_their_whole_key(tmp_path: Path) -> None:
    cache = AnalysisCache(tmp_path / "new" / "folder")
    cache.put("engine a", FEN, "1")
    cache.put("engine a", FEN, "2")
    cache.close()
    cache.close()
    cache = AnalysisCache(tmp_path / "new" / "folder")
    assert cache.get("engine a", FEN) == "2"
    assert cache.get("engine b", FEN) is None
    assert cache.get("engine a", FEN.replace("0 1", "1 1")) is None
    cache.close()
    assert cache.get("engine a", FEN) is None


@pytest.mark.parametrize("text", ["nonsense", '[["e2e4", null, null]]'])
def test_an_unreadable_entry_is_computed_again_and_written_anew(
    tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    good = analyse(tmp_path)
    cache = AnalysisCache(tmp_path)
    assert cache.get(good.fingerprint, FEN) == encode_moves(good.moves)
    cache.put(good.fingerprint, FEN, text)
    cache.close()
    again = analyse(tmp_path)
    assert not again.cached and again.moves == good.moves
    assert "is unreadable" in caplog.text
    assert analyse(tmp_path).cached


def test_a_file_of_an_older_version_is_moved_aside_whole(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with sqlite3.connect(tmp_path / FILE_NAME) as db:
        db.execute("CREATE TABLE analysis_v1 (fingerprint TEXT, fen TEXT, moves TEXT NOT NULL) ")
        db.execute("INSERT INTO analysis_v1 VALUES ('engine', ?, '[]')", (FEN,))
    db.close()
    assert not analyse(tmp_path).cached
    assert analyse(tmp_path).cached
    assert caplog.text.count("older Assay") == 1
    db = sqlite3.connect(tmp_path / f"{FILE_NAME}.foreign-1")
    assert db.execute("SELECT fen, moves FROM analysis_v1").fetchall() == [(FEN, "[]")]
    db.close()


# Nowhere to write


def test_a_folder_that_cannot_be_made_costs_a_warning_only(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("in the way")
    assert analyse(tmp_path / "file" / "cache").moves
    assert caplog.text.count("cannot be written") == 1


POOL = """
import asyncio, json, logging, resource, sys
from pathlib import Path
from assay.envs.chess.engine.stockfish import StockfishConfig, StockfishPool

async def work():
    async with StockfishPool(StockfishConfig(), Path(sys.argv[1])) as pool:
        return [await pool.analyse(fen) for fen in sys.argv[2].split(",")]

logging.basicConfig(format="%(message)s")
limit = int(sys.argv[3])
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)) if limit >= 0 else None
print(json.dumps([[len(analysis.moves), analysis.cached] for analysis in asyncio.run(work())]))
"""

OTHER = tuple(f"8/8/8/4k3/8/8/8/3QK3 w - - {clock} 40" for clock in range(8))


def run_pool(folder: Path, fens: tuple[str, ...], limit: int, prefix: tuple[str, ...] = ()) -> tuple[list[object], str]:
    done = subprocess.run(
        [*prefix, sys.executable, "-c", POOL, str(folder), ",".join(fens), str(limit)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


@pytest.mark.parametrize("limit", [16384, 33000])
def test_a_full_disk_costs_a_warning_and_nothing_that_was_stored(tmp_path: Path, limit: int) -> None:
    analyse(tmp_path)
    # Files of this process cannot grow past the limit: for SQLite a disk that is full at once, or after some entries.
    answers, log = run_pool(tmp_path, (FEN, *OTHER), limit)
    assert answers == [[21, True]] + [[21, False]] * len(OTHER)
    assert log.count("cannot be written") == 1
    assert analyse(tmp_path).cached


@pytest.mark.skipif(os.geteuid() == 0 and shutil.which("setpriv") is None, reason="root can write anywhere")
@pytest.mark.parametrize("readable", [True, False])
def test_a_read_only_folder_is_read_and_costs_a_warning(tmp_path: Path, readable: bool) -> None:
    # Root without its privileges obeys the permissions of its own files.
    prefix = ("setpriv", "--inh-caps=-all", "--bounding-set=-all") if os.geteuid() == 0 else ()
    folder = tmp_path / "cache"
    folder.mkdir()
    if readable:
        analyse(folder)
        (folder / f"{FILE_NAME}.lock").unlink()
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    folder.chmod(0o555)
    try:
        answers, log = run_pool(folder, (FEN, *OTHER[:1]), -1, prefix)
    finally:
        folder.chmod(0o755)
    assert answers == [[21, readable], [21, False]]
    assert log.count("cannot be written") == 1
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
