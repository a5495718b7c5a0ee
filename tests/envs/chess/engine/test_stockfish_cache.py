"""The cache file: damage, crowding, sudden death, and places where nothing can be written."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
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


# Damage


def damage_header(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(b"this is no database" * 10)


def damage_pages(path: Path) -> None:
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(100)
        file.write(b"\xa5" * (size - 100))


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2 + 17)


def filled(folder: Path, entries: int = 300) -> AnalysisCache:
    cache = AnalysisCache(folder)
    for i in range(entries):
        cache.put("engine", f"position {i}", "x" * 200)
    return cache


@pytest.mark.parametrize("damage", [damage_header, damage_pages, truncate])
def test_a_damaged_file_is_moved_aside_and_a_new_one_begun(
    tmp_path: Path, damage: object, caplog: pytest.LogCaptureFixture
) -> None:
    filled(tmp_path).close()
    assert callable(damage)
    damage(tmp_path / FILE_NAME)
    damaged = (tmp_path / FILE_NAME).read_bytes()
    cache = AnalysisCache(tmp_path)
    for i in range(300):
        cache.get("engine", f"position {i}")
        cache.put("engine", f"position {i}", "y")
    assert [cache.get("engine", f"position {i}") for i in range(300)] == ["y"] * 300
    cache.close()
    assert caplog.text.count("is damaged") == 1
    assert (tmp_path / f"{FILE_NAME}.damaged-1").read_bytes() == damaged
    assert sqlite3.connect(tmp_path / FILE_NAME).execute("PRAGMA integrity_check").fetchone() == ("ok",)


def test_damage_while_in_use_is_noticed_and_every_damaged_file_is_kept(tmp_path: Path) -> None:
    for number in (1, 2):
        filled(tmp_path, 3000).close()
        cache = AnalysisCache(tmp_path)
        damage_pages(tmp_path / FILE_NAME)
        for i in range(3000):
            cache.get("engine", f"position {i}")
        cache.put("engine", "after", "z")
        assert cache.get("engine", "after") == "z"
        cache.close()
        assert (tmp_path / f"{FILE_NAME}.damaged-{number}").exists()


def test_a_file_that_another_process_replaced_already_is_not_moved_aside_again(tmp_path: Path) -> None:
    filled(tmp_path, 3000).close()
    late = AnalysisCache(tmp_path)
    damage_pages(tmp_path / FILE_NAME)
    early = AnalysisCache(tmp_path)
    early.put("engine", "saved", "1")
    for i in range(3000):
        late.get("engine", f"position {i}")
    assert late.get("engine", "saved") == "1"
    assert [path.name for path in tmp_path.glob("*.damaged-*") if path.suffix[-1].isdigit()] == [
        f"{FILE_NAME}.damaged-1"
    ]
    early.close()
    late.close()


@pytest.mark.parametrize("text", ["nonsense", '[["e2e4", null, null]]'])
def test_an_unreadable_entry_is_computed_again_and_written_anew(
    tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    good = analyse(tmp_path)
    with sqlite3.connect(tmp_path / FILE_NAME) as db:
        assert db.execute("UPDATE analysis_v1 SET moves = ?", (text,)).rowcount == 1
    db.close()
    again = analyse(tmp_path)
    assert not again.cached and again.moves == good.moves
    assert "is unreadable" in caplog.text
    assert analyse(tmp_path).cached


# Several processes and sudden death

WRITER = """
import sys
import time
from pathlib import Path
from assay.envs.chess.engine.analysis_cache import AnalysisCache

folder, name, count = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
print("ready", flush=True)
sys.stdin.readline()
cache = AnalysisCache(folder)
for i in range(count):
    cache.put("engine", f"{name} {i}", f"value {i}")
    print(i, flush=True)
"""


def writer(folder: Path, name: str, count: int) -> subprocess.Popen[str]:
    """A process that is ready to write, and begins at the first line it is sent."""
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(folder), name, str(count)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None and process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize("damaged", [False, True])
def test_several_processes_begin_one_file_together_and_lose_nothing(tmp_path: Path, damaged: bool) -> None:
    if damaged:
        filled(tmp_path).close()
        damage_header(tmp_path / FILE_NAME)
    writers = [writer(tmp_path, name, 50) for name in "abc"]
    for process in writers:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    for process in writers:
        process.communicate(timeout=60)
        assert process.returncode == 0
    assert len(list(tmp_path.glob("*.damaged-?"))) == damaged
    cache = AnalysisCache(tmp_path)
    for name in "abc":
        assert [cache.get("engine", f"{name} {i}") for i in range(50)] == [f"value {i}" for i in range(50)]
    cache.close()


def test_a_file_is_begun_by_one_process_at_a_time(tmp_path: Path) -> None:
    with (tmp_path / f"{FILE_NAME}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        process = writer(tmp_path, "a", 1)
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
        time.sleep(0.3)
        assert not (tmp_path / FILE_NAME).exists()
    assert process.communicate(timeout=60)[0] == "0\n"


def test_what_was_stored_before_a_sigkill_is_still_there(tmp_path: Path) -> None:
    process = writer(tmp_path, "a", 10**9)
    assert process.stdout is not None and process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()
    for _ in range(500):
        last = int(process.stdout.readline())
    process.send_signal(signal.SIGKILL)
    last = max([last, *map(int, process.stdout.read().split()[:-1])])
    process.wait()
    process.stdout.close()
    process.stdin.close()
    cache = AnalysisCache(tmp_path)
    assert [cache.get("engine", f"a {i}") for i in range(last + 1)] == [f"value {i}" for i in range(last + 1)]
    cache.close()
    db = sqlite3.connect(tmp_path / FILE_NAME)
    assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
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
