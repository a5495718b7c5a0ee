"""The pool with a small UCI engine of our own that hangs, dies or talks nonsense on demand."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import chess
import pytest

from assay.envs.chess.engine.stockfish import Analysis, StockfishConfig, StockfishPool
from assay.envs.chess.engine.uci_engine import UciEngine
from assay.errors import EngineError

FENS = (
    "8/8/8/4k3/8/8/8/3QK3 w - - 0 1",
    "8/5k2/8/8/3R4/8/4K3/8 b - - 12 60",
    "rnbqkbnr/pppppppp/8/8/4P3/8/PPPP1PPP/RNBQKBNR b KQkq - 0 1",
)
SHORT_S = 0.8
"""Deadline of tests that wait for it to pass."""

ENGINE = """#!{python}
# {comment}
import os, sys, time
behaviours = {behaviours!r}
legal = {legal!r}
multipv = 1
for line in sys.stdin:
    words = line.split()
    if words[0] == "uci":
        print("id name {name}")
        print("option name Threads type spin default 1 min 1 max 8")
        print("option name Hash type spin default 16 min 1 max 64")
        print("option name MultiPV type spin default 1 min 1 max 500")
        print("uciok", flush=True)
    elif words[0] == "isready":
        print("readyok", flush=True)
    elif words[0] == "position":
        moves = list(legal[" ".join(words[2:8])])
    elif words[:3] == ["setoption", "name", "MultiPV"]:
        multipv = int(words[4])
    elif words[0] == "go":
        with open({log!r}, "a+") as log:
            log.write(line)
            log.seek(0)
            count = len(log.readlines())
        best, moves = moves[0], moves[:multipv]
        do = behaviours[min(count, len(behaviours)) - 1]
        if do == "hang":
            time.sleep(3600)
        if do == "die":
            os._exit(3)
        if do == "partial":
            moves = moves[:-1]
        if do == "illegal":
            moves[0] = "a1h7"
        if do == "twice":
            moves[1] = moves[0]
        if do == "chatter":
            print("hello there\\ninfo\\ninfo string pv score multipv\\ninfo depth x score y pv z\\nreadyok\\n" * 100)
        if do == "binary":
            sys.stdout.buffer.write(b"info \\xff\\xfe score pv multipv\\n")
        for i, move in enumerate(moves, 1):
            value = "cp 99999999" if do == "absurd" else "cp %d" % (100 - i)
            if do != "mute":
                print("info depth 1 multipv %d score %s nodes 9 pv %s" % (i, value, move))
        print("bestmove " + ("a1h7" if do == "bestmove" else best), flush=True)
    elif words[0] == "quit":
        break
"""


def make_engine(folder: Path, *behaviours: str, name: str = "Scripted 1", comment: str = "") -> str:
    """An engine whose n-th search (over all its processes) does `behaviours[n]`, and the last one ever after."""
    program = folder / "engine"
    legal = {fen: [move.uci() for move in chess.Board(fen).legal_moves] for fen in FENS}
    values = {"behaviours": behaviours, "legal": legal, "name": name, "comment": comment, "log": str(log_of(folder))}
    program.write_text(ENGINE.format(python=sys.executable, **values))
    program.chmod(0o755)
    return str(program)


def log_of(folder: Path) -> Path:
    return folder / "searches"


def searches(folder: Path) -> int:
    return len(log_of(folder).read_text().splitlines()) if log_of(folder).exists() else 0


def ask(folder: Path, config: StockfishConfig, *fens: str) -> list[Analysis | BaseException]:
    async def work() -> list[Analysis | BaseException]:
        async with StockfishPool(config, folder) as pool:
            return await asyncio.gather(*(pool.analyse(fen) for fen in fens), return_exceptions=True)

    return asyncio.run(asyncio.wait_for(work(), 60))


def living_engines(program: str) -> list[int]:
    found = []
    for cmdline in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if program.encode() in cmdline.read_bytes().split(b"\0"):
                found.append(int(cmdline.parent.name))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


FAULTS = ("die", "illegal", "twice", "absurd", "bestmove")


@pytest.mark.parametrize("fault", FAULTS)
def test_one_fault_is_repaired_by_one_retry(tmp_path: Path, fault: str, caplog: pytest.LogCaptureFixture) -> None:
    program = make_engine(tmp_path, fault, "answer")
    (analysis,) = ask(tmp_path, StockfishConfig(path=program, deadline_s=SHORT_S), FENS[0])
    assert isinstance(analysis, Analysis)
    assert [move.cp for move in analysis.moves] == list(range(99, 99 - len(analysis.moves), -1))
    assert len(analysis.moves) == chess.Board(FENS[0]).legal_moves.count()
    assert "Trying once more with a new engine" in caplog.text
    assert living_engines(program) == []


@pytest.mark.parametrize("fault", ["die", "illegal", "twice", "absurd", "partial", "mute"])
def test_a_fault_that_stays_is_an_engine_error_and_is_not_cached(tmp_path: Path, fault: str) -> None:
    program = make_engine(tmp_path, fault)
    config = StockfishConfig(path=program, deadline_s=SHORT_S)
    (error,) = ask(tmp_path, config, FENS[0])
    assert isinstance(error, EngineError)
    assert "failed twice" in str(error) and FENS[0] in str(error) and program in str(error)
    assert living_engines(program) == []
    log_of(tmp_path).unlink()
    (again,) = ask(tmp_path, config, FENS[0])
    assert isinstance(again, EngineError) and searches(tmp_path) >= 2


def test_an_engine_that_hangs_once_is_killed_and_the_analysis_repeated(tmp_path: Path) -> None:
    program = make_engine(tmp_path, "hang", "answer")
    (analysis,) = ask(tmp_path, StockfishConfig(path=program, deadline_s=SHORT_S), FENS[0])
    assert isinstance(analysis, Analysis) and analysis.moves
    assert searches(tmp_path) == 2
    assert living_engines(program) == []


def test_an_engine_that_always_hangs_is_an_engine_error(tmp_path: Path) -> None:
    program = make_engine(tmp_path, "hang")
    (error,) = ask(tmp_path, StockfishConfig(path=program, deadline_s=SHORT_S), FENS[0])
    assert isinstance(error, EngineError) and "no answer" in str(error) and f"{SHORT_S:g} s" in str(error)
    assert searches(tmp_path) == 2
    assert living_engines(program) == []


def test_an_engine_that_failed_is_never_asked_again(tmp_path: Path) -> None:
    program = make_engine(tmp_path, "illegal", "answer")

    async def work() -> None:
        async with StockfishPool(StockfishConfig(path=program), tmp_path) as pool:
            _ = pool.fingerprint
            (first,) = living_engines(program)
            await pool.analyse(FENS[0])
            assert len(living_engines(program)) == 1 and first not in living_engines(program)

    asyncio.run(asyncio.wait_for(work(), 60))


def test_the_engine_sees_the_position_in_the_form_that_the_cache_is_keyed_by(tmp_path: Path) -> None:
    # An en passant square that no pawn can capture on is no part of the position; this engine knows only the plain FEN.
    config = StockfishConfig(path=make_engine(tmp_path, "answer"))
    (analysis,) = ask(tmp_path, config, FENS[2].replace("KQkq -", "KQkq e3"))
    assert isinstance(analysis, Analysis) and analysis.fen == FENS[2]


def test_one_bad_position_does_not_disturb_the_others(tmp_path: Path) -> None:
    program = make_engine(tmp_path, "die", "die", "answer")
    error, analysis = ask(tmp_path, StockfishConfig(path=program), *FENS[:2])
    assert isinstance(error, EngineError)
    assert isinstance(analysis, Analysis) and analysis.moves


@pytest.mark.parametrize("noise", ["binary", "chatter"])
def test_noise_around_an_answer_is_passed_over(tmp_path: Path, noise: str) -> None:
    program = make_engine(tmp_path, noise)
    (analysis,) = ask(tmp_path, StockfishConfig(path=program), FENS[0])
    assert isinstance(analysis, Analysis) and analysis.moves
    assert searches(tmp_path) == 1


def test_calls_for_one_position_at_the_same_time_share_one_search(tmp_path: Path) -> None:
    answers = ask(tmp_path, StockfishConfig(path=make_engine(tmp_path, "answer"), processes=2), *FENS[:2] * 10)
    assert searches(tmp_path) == 2
    moves = [answer.moves for answer in answers if isinstance(answer, Analysis)]
    assert moves == moves[:2] * 10 and moves[0] != moves[1]


def test_calls_that_share_a_search_share_its_failure(tmp_path: Path) -> None:
    config = StockfishConfig(path=make_engine(tmp_path, "die"))
    assert all(isinstance(error, EngineError) for error in ask(tmp_path, config, *FENS[:1] * 5))
    assert searches(tmp_path) == 2


def test_without_a_cache_every_call_is_a_search_and_no_file_is_written(tmp_path: Path) -> None:
    config = StockfishConfig(path=make_engine(tmp_path, "answer"), cache=False)
    for _ in range(2):
        ask(tmp_path, config, FENS[0])
    assert searches(tmp_path) == 2
    assert not (tmp_path / "cache").exists()
    assert {path.name for path in tmp_path.iterdir()} == {"engine", "searches"}


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("#!/bin/sh\nexit 0\n", "did not start"),
        ("#!/bin/sh\nexec cat > /dev/null\n", "did not answer"),
        ("#!/nonexistent/interpreter\n", "cannot be started"),
        ("neither a script nor a program\n", "cannot be started"),
        ("#!/bin/sh\nread line\necho uciok\nexec cat > /dev/null\n", "did not start"),
    ],
)
def test_a_program_that_is_no_engine_is_an_engine_error(tmp_path: Path, program: str, reason: str) -> None:
    path = tmp_path / "engine"
    path.write_text(program)
    path.chmod(0o755)
    config = StockfishConfig(path=str(path), deadline_s=SHORT_S)
    (error,) = ask(tmp_path, config, FENS[0])
    assert isinstance(error, EngineError) and reason in str(error)
    with pytest.raises(EngineError, match=reason):
        _ = StockfishPool(config, tmp_path).fingerprint
    assert living_engines(str(path)) == []


def test_a_hung_engine_behind_a_wrapper_script_dies_with_it(tmp_path: Path) -> None:
    program = make_engine(tmp_path, "hang")
    wrapper = tmp_path / "wrapper"
    wrapper.write_text(f"#!/bin/sh\n'{program}'\n")
    wrapper.chmod(0o755)
    (error,) = ask(tmp_path, StockfishConfig(path=str(wrapper), deadline_s=SHORT_S), FENS[0])
    assert isinstance(error, EngineError)
    assert living_engines(program) == []


def test_an_engine_that_changes_under_the_pool_is_refused(tmp_path: Path) -> None:
    program = make_engine(tmp_path, "answer", "die")

    async def work() -> None:
        async with StockfishPool(StockfishConfig(path=program), tmp_path) as pool:
            await pool.analyse(FENS[0])
            make_engine(tmp_path, "answer", name="Scripted 2")
            with pytest.raises(EngineError, match=r"Scripted 1.*Scripted 2"):
                await pool.analyse(FENS[1])

    asyncio.run(asyncio.wait_for(work(), 60))


def test_killing_an_engine_is_not_cut_short_by_cancellation(tmp_path: Path) -> None:
    program = make_engine(tmp_path, "answer")

    async def work() -> None:
        engine = await UciEngine.start(Path(program), {"Threads": 1}, 10.0)
        killing = asyncio.create_task(engine.kill())
        for _ in range(3):
            await asyncio.sleep(0)
            killing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await killing
        assert not engine.alive

    asyncio.run(work())


def cached(folder: Path, config: StockfishConfig) -> bool:
    (analysis,) = ask(folder, config, FENS[0])
    assert isinstance(analysis, Analysis)
    return analysis.cached


def test_the_cache_outlives_the_pool_and_serves_one_engine_and_one_set_of_options(tmp_path: Path) -> None:
    program = make_engine(tmp_path, "answer")
    assert not cached(tmp_path, StockfishConfig(path=program))
    assert cached(tmp_path, StockfishConfig(path=program))
    assert cached(tmp_path, StockfishConfig(path=program, processes=2, deadline_s=20.0))
    for changed in ({"nodes": 2001}, {"multipv": 3}, {"hash_mb": 32}):
        assert not cached(tmp_path, StockfishConfig(path=program, **changed)), changed
    make_engine(tmp_path, "answer", comment="same name, another binary")
    assert not cached(tmp_path, StockfishConfig(path=program))
    make_engine(tmp_path, "answer", name="Scripted 2")
    assert not cached(tmp_path, StockfishConfig(path=program))


def test_a_cached_answer_equals_the_computed_one(tmp_path: Path) -> None:
    config = StockfishConfig(path=make_engine(tmp_path, "answer"))
    computed, stored = ask(tmp_path, config, FENS[0])[0], ask(tmp_path, config, FENS[0])[0]
    assert isinstance(computed, Analysis) and isinstance(stored, Analysis)
    assert (stored.fen, stored.moves, stored.fingerprint) == (computed.fen, computed.moves, computed.fingerprint)
    assert stored.cached and not computed.cached


def test_the_engine_is_found_by_its_environment_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STOCKFISH_PATH", make_engine(tmp_path, "answer"))
    (analysis,) = ask(tmp_path, StockfishConfig(), FENS[0])
    assert isinstance(analysis, Analysis) and "Scripted 1" in analysis.fingerprint
    assert os.environ["STOCKFISH_PATH"].startswith(str(tmp_path))
