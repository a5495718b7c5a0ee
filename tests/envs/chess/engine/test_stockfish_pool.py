"""The pool with the real Stockfish: values, determinism, faults, cancellation, and what it leaves behind."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import chess
import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.envs.chess.engine import stockfish, uci_engine
from assay.envs.chess.engine.stockfish import Analysis, MoveValue, StockfishConfig, StockfishPool, parse_position
from assay.envs.chess.engine.uci_engine import MAX_CP, find_stockfish, ranked
from assay.errors import ConfigError, DataError, EngineError

QUEEN_UP = "8/8/8/4k3/8/8/8/3QK3 w - - 0 1"
POSITIONS = (
    chess.STARTING_FEN,
    QUEEN_UP,
    "r1bqkbnr/pppp1ppp/2n5/4p3/2B1P3/5N2/PPPP1PPP/RNBQK2R b KQkq - 3 3",
    "8/5k2/8/8/3R4/8/4K3/8 b - - 12 60",
    "2r3k1/5ppp/8/8/8/8/5PPP/2R3K1 w - - 0 30",
    "8/P7/8/8/8/8/k6p/2K5 w - - 0 50",
)


def run_with_pool(tmp_path: Path, config: StockfishConfig, fens: tuple[str, ...]) -> list[Analysis]:
    async def work() -> list[Analysis]:
        async with StockfishPool(config, tmp_path) as pool:
            return list(await asyncio.gather(*(pool.analyse(fen) for fen in fens)))

    return asyncio.run(work())


def children(parent: int) -> set[int]:
    """Living child processes of `parent`, zombies left out."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rsplit(")", 1)[1].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[1]) == parent and fields[0] != "Z":
            found.add(int(stat.parent.name))
    return found


def engines() -> set[int]:
    """The engines of this test; what else runs below this process was there before it."""
    return children(os.getpid()) - THERE_BEFORE


THERE_BEFORE: set[int] = set()


@pytest.fixture(autouse=True)
def _there_before() -> None:
    THERE_BEFORE.clear()
    THERE_BEFORE.update(children(os.getpid()))


def wait_until(condition: Any, what: str) -> None:
    for _ in range(2000):
        if condition():
            return
        time.sleep(0.01)
    pytest.fail(f"never happened: {what}")


async def until(condition: Any) -> None:
    while not condition():
        await asyncio.sleep(0.01)


def limited(work: Coroutine[Any, Any, Any]) -> Any:
    """Run `work`; a deadlock in the pool is a failure of the test, not of the test run."""
    return asyncio.run(asyncio.wait_for(work, 60))


# What an analysis says


def test_every_legal_move_has_a_value_and_the_best_comes_first(tmp_path: Path) -> None:
    analyses = run_with_pool(tmp_path, StockfishConfig(cache=False), POSITIONS)
    for fen, analysis in zip(POSITIONS, analyses, strict=True):
        assert {move.uci for move in analysis.moves} == {move.uci() for move in chess.Board(fen).legal_moves}
        assert len(analysis.moves) == chess.Board(fen).legal_moves.count()
        order = [(-move.value_cp, move.uci) for move in analysis.moves]
        assert order == sorted(order)
        assert analysis.fen == fen and not analysis.cached


def test_values_are_those_of_the_mover_for_both_colours(tmp_path: Path) -> None:
    ahead, behind = "3qk3/8/8/8/8/8/PP6/4K3 b - - 0 1", "3qk3/8/8/8/8/8/PP6/4K3 w - - 0 1"
    mirrored = chess.Board(ahead).mirror().fen()
    winning, losing, winning_as_white = run_with_pool(tmp_path, StockfishConfig(cache=False), (ahead, behind, mirrored))
    assert winning.moves[0].value_cp > 300
    assert winning_as_white.moves[0].value_cp > 300
    assert losing.moves[0].value_cp < -300


def test_mates_are_counted_in_moves_and_signed_for_the_mover(tmp_path: Path) -> None:
    back_rank = "6k1/5ppp/8/8/8/8/8/R3K3 w - - 0 1"
    hopeless = "7k/8/5K2/8/8/8/8/6R1 b - - 0 1"  # Kh7 alone is legal, and Rg... mates soon
    mating, mated = run_with_pool(tmp_path, StockfishConfig(cache=False, nodes=20000), (back_rank, hopeless))
    assert mating.moves[0] == MoveValue("a1a8", None, 1)
    assert [m.uci for m in mated.moves] == ["h8h7"]
    assert mated.moves[0].mate is not None and mated.moves[0].mate < 0


def test_multipv_keeps_the_best_moves_only(tmp_path: Path) -> None:
    (analysis,) = run_with_pool(tmp_path, StockfishConfig(cache=False, multipv=3), (chess.STARTING_FEN,))
    assert len({move.uci for move in analysis.moves}) == 3


def test_a_position_with_more_moves_than_its_nodes_can_value_is_searched_again_with_more(tmp_path: Path) -> None:
    fen = "R6R/3Q4/1Q4Q1/4Q3/2Q4Q/Q4Q2/pp1Q4/kBNN1KB1 w - - 0 1"
    (analysis,) = run_with_pool(tmp_path, StockfishConfig(cache=False), (fen,))
    assert len({move.uci for move in analysis.moves}) == 218


@pytest.mark.parametrize("fen", ["R5k1/5ppp/8/8/8/8/8/4K3 b - - 0 1", "7k/5Q2/6K1/8/8/8/8/8 b - - 0 1"])
def test_a_finished_game_has_no_moves(tmp_path: Path, fen: str) -> None:
    (analysis,) = run_with_pool(tmp_path, StockfishConfig(cache=False), (fen,))
    assert analysis.moves == ()


moves = st.one_of(
    st.builds(MoveValue, st.just("e2e4"), st.integers(-MAX_CP, MAX_CP), st.none()),
    st.builds(MoveValue, st.just("e2e4"), st.none(), st.integers(-300, 300).filter(bool)),
)


@given(moves, moves)
def test_value_cp_orders_mates_around_centipawns(a: MoveValue, b: MoveValue) -> None:
    def rank(move: MoveValue) -> tuple[int, float]:
        if move.mate is None:
            return 0, float(move.cp or 0)
        return (1, -move.mate) if move.mate > 0 else (-1, -move.mate)

    assert (a.value_cp < b.value_cp) == (rank(a) < rank(b))
    assert (a.value_cp == b.value_cp) == (rank(a) == rank(b))


def test_ties_are_broken_by_move_text() -> None:
    values = {uci: MoveValue(uci, 7, None) for uci in ("h2h4", "a2a4", "e2e4")}
    assert [move.uci for move in ranked(values)] == ["a2a4", "e2e4", "h2h4"]


@pytest.mark.parametrize(("cp", "mate"), [(None, None), (1, 1), (None, 0), (MAX_CP + 1, None), (-MAX_CP - 1, None)])
def test_a_value_that_is_no_value_is_refused(cp: int | None, mate: int | None) -> None:
    with pytest.raises(ValueError, match="e2e4"):
        MoveValue("e2e4", cp, mate)


# Determinism


def test_results_do_not_depend_on_order_split_or_rerun(tmp_path: Path) -> None:
    async def ask(processes: int, fens: tuple[str, ...]) -> dict[str, Analysis]:
        async with StockfishPool(StockfishConfig(processes=processes, cache=False), tmp_path) as pool:
            first = await asyncio.gather(*(pool.analyse(fen) for fen in fens))
            again = await asyncio.gather(*(pool.analyse(fen) for fen in fens))
            assert first == again
            return {analysis.fen: analysis for analysis in first}

    forward = asyncio.run(ask(1, POSITIONS))
    assert asyncio.run(ask(1, POSITIONS[::-1])) == forward
    assert asyncio.run(ask(2, POSITIONS[::-1])) == forward
    assert asyncio.run(ask(2, (*POSITIONS[2:], *POSITIONS[:2]))) == forward


def test_two_spellings_of_one_position_have_one_analysis(tmp_path: Path) -> None:
    # An en passant square that no pawn can capture on is no part of the position.
    spelled = ("rnbqkbnr/pppppppp/8/8/4P3/8/PPPP1PPP/RNBQKBNR b KQkq e3 0 1",)
    plain = ("rnbqkbnr/pppppppp/8/8/4P3/8/PPPP1PPP/RNBQKBNR b KQkq - 0 1",)
    (first,) = run_with_pool(tmp_path, StockfishConfig(), spelled)
    (second,) = run_with_pool(tmp_path, StockfishConfig(), plain)
    assert second.cached and second.moves == first.moves and second.fen == first.fen == plain[0]


def test_the_half_move_clock_is_part_of_the_position(tmp_path: Path) -> None:
    fresh, stale = "8/5k2/8/8/3R4/8/4K3/8 w - - 0 60", "8/5k2/8/8/3R4/8/4K3/8 w - - 99 60"
    first, second = run_with_pool(tmp_path, StockfishConfig(), (fresh, stale))
    assert not second.cached and first.moves != second.moves


# Input and settings


@pytest.mark.parametrize(
    "fen",
    [
        "",
        "not a position",
        "8/8/8/8/8/8/8/8 w - - 0 1",
        "8/8/8/4k3/8/8/8/3QK3 x - - 0 1",
        "8/8/8/4k3/8/8/8/3QK4 w - - 0 1",
        "4k3/8/8/8/8/8/8/4RK2 w - - 0 1",
        "4k3/8/8/8/8/8/8/4K3 w KQkq - 0 1",
        "8/8/8/4k3/8/8/8/3QK3 w - - 5000 1",
        "8/8/8/4k3/8/8/8/3QK3 w - - 0 99999999999999",
    ],
)
def test_a_malformed_or_impossible_fen_is_refused_by_name(tmp_path: Path, fen: str) -> None:
    with pytest.raises(DataError) as caught:
        run_with_pool(tmp_path, StockfishConfig(cache=False), (fen,))
    assert repr(fen) in str(caught.value)


@given(st.text(alphabet="pnbrqkPNBRQK12345678/ wb-KQkqa3e6 0123456789x\n\0", max_size=80) | st.text(max_size=40))
def test_any_text_is_a_position_or_a_data_error(text: str) -> None:
    try:
        board = parse_position(text)
    except DataError:
        return
    assert board.is_valid()


@pytest.mark.parametrize(
    "setting",
    [
        {"processes": 0},
        {"nodes": 0},
        {"multipv": 0},
        {"multipv": 501},
        {"hash_mb": 0},
        {"deadline_s": 0.0},
        {"deadline_s": float("inf")},
        {"deadline_s": float("nan")},
    ],
)
def test_an_impossible_setting_is_refused_by_name(setting: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(setting))):
        StockfishConfig(**setting)


def test_an_option_the_engine_refuses_is_an_engine_error(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="Hash"):
        run_with_pool(tmp_path, StockfishConfig(hash_mb=10**9, cache=False), (QUEEN_UP,))
    assert not engines()


def test_a_missing_stockfish_is_refused_with_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("STOCKFISH_PATH", raising=False)
    monkeypatch.setattr(uci_engine, "COMMON_PATHS", (str(tmp_path / "games" / "stockfish"),))
    with pytest.raises(EngineError, match=r"apt-get install stockfish.*brew install stockfish.*STOCKFISH_PATH"):
        StockfishPool(StockfishConfig(), tmp_path)


def test_the_program_is_looked_for_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("configured", "environment", "on_path/stockfish", "common/stockfish")
    programs = [tmp_path / name for name in names]
    for program in programs:
        program.parent.mkdir(exist_ok=True)
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
    configured, environment, on_path, common = programs
    monkeypatch.setenv("STOCKFISH_PATH", str(environment))
    monkeypatch.setenv("PATH", str(on_path.parent))
    monkeypatch.setattr(uci_engine, "COMMON_PATHS", (str(common),))
    assert find_stockfish(str(configured)) == configured
    assert find_stockfish(None) == environment
    monkeypatch.delenv("STOCKFISH_PATH")
    assert find_stockfish(None) == on_path
    on_path.unlink()
    assert find_stockfish(None) == common


@pytest.mark.parametrize("origin", ["path", "STOCKFISH_PATH"])
def test_a_named_program_that_is_not_there_is_never_replaced_by_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, origin: str
) -> None:
    missing = str(tmp_path / "nothing")
    if origin == "STOCKFISH_PATH":
        monkeypatch.setenv(origin, missing)
    with pytest.raises(EngineError, match=f"{origin}='{missing}'"):
        StockfishPool(StockfishConfig(path=missing if origin == "path" else None), tmp_path)


# Faults of the real engine


def test_an_engine_killed_during_analysis_is_replaced_and_the_result_is_the_same(tmp_path: Path) -> None:
    (expected,) = run_with_pool(tmp_path, StockfishConfig(cache=False), (QUEEN_UP,))

    async def work() -> None:
        # A deadline beyond that of the test: a death must be noticed for what it is.
        async with StockfishPool(StockfishConfig(cache=False, deadline_s=600.0), tmp_path) as pool:
            await pool.analyse(chess.STARTING_FEN)
            (engine,) = engines()
            os.kill(engine, signal.SIGSTOP)  # it cannot answer before the kill
            question = asyncio.create_task(pool.analyse(QUEEN_UP))
            await until(lambda: pool._idle == [])
            os.kill(engine, signal.SIGKILL)
            assert await question == expected
            assert engine not in engines() and len(engines()) == 1

    limited(work())


def test_a_hung_engine_is_killed_at_its_deadline_and_replaced(tmp_path: Path) -> None:
    (expected,) = run_with_pool(tmp_path, StockfishConfig(cache=False), (QUEEN_UP,))

    async def work() -> None:
        async with StockfishPool(StockfishConfig(cache=False, deadline_s=2.0), tmp_path) as pool:
            await pool.analyse(chess.STARTING_FEN)
            (engine,) = engines()
            os.kill(engine, signal.SIGSTOP)
            assert await pool.analyse(QUEEN_UP) == expected
            assert engine not in engines() and len(engines()) == 1

    limited(work())


def test_idle_engines_that_died_unnoticed_are_replaced(tmp_path: Path) -> None:
    async def work() -> None:
        async with StockfishPool(StockfishConfig(processes=2, cache=False, deadline_s=600.0), tmp_path) as pool:
            expected = await asyncio.gather(*(pool.analyse(fen) for fen in POSITIONS))
            assert len(engines()) == 2
            for engine in engines():
                os.kill(engine, signal.SIGKILL)
            assert await asyncio.gather(*(pool.analyse(fen) for fen in POSITIONS)) == expected
            assert len(engines()) == 2

    limited(work())


def test_engines_start_when_needed_and_never_more_than_asked_for(tmp_path: Path) -> None:
    async def work() -> None:
        async with StockfishPool(StockfishConfig(processes=2, cache=False), tmp_path) as pool:
            assert engines() == set()
            await pool.analyse(QUEEN_UP)
            await pool.analyse(chess.STARTING_FEN)
            assert len(engines()) == 1
            await asyncio.gather(*(pool.analyse(fen) for fen in POSITIONS))
            assert len(engines()) == 2
        assert engines() == set()

    limited(work())


# Loops, cancellation, closing

ENDLESS = StockfishConfig(nodes=10**12, deadline_s=600.0, cache=False)


def test_one_pool_serves_successive_event_loops_with_the_same_engine(tmp_path: Path) -> None:
    pool = StockfishPool(StockfishConfig(cache=False), tmp_path)
    first = asyncio.run(pool.analyse(QUEEN_UP))
    running = engines()
    assert asyncio.run(pool.analyse(QUEEN_UP)) == first
    assert engines() == running and len(running) == 1
    asyncio.run(pool.close())
    assert engines() == set()


def test_cancelling_the_only_caller_kills_the_engine_and_the_pool_goes_on(tmp_path: Path) -> None:
    async def work() -> None:
        async with StockfishPool(ENDLESS, tmp_path) as pool:
            question = asyncio.create_task(pool.analyse(QUEEN_UP))
            await until(lambda: engines() and pool._flights and not pool._idle)
            (engine,) = engines()
            question.cancel()
            with pytest.raises(asyncio.CancelledError):
                await question
            await until(lambda: engine not in engines())
            assert (await pool.analyse("R5k1/5ppp/8/8/8/8/8/4K3 b - - 0 1")).moves == ()
        assert engines() == set()

    limited(work())


def test_cancelling_one_of_two_callers_leaves_the_other_its_answer(tmp_path: Path) -> None:
    async def work() -> None:
        async with StockfishPool(StockfishConfig(cache=False), tmp_path) as pool:
            await pool.analyse(chess.STARTING_FEN)
            (engine,) = engines()
            os.kill(engine, signal.SIGSTOP)
            first, second = (asyncio.create_task(pool.analyse(QUEEN_UP)) for _ in range(2))
            await until(lambda: [flight.waiters for flight in pool._flights.values()] == [2])
            first.cancel()
            await until(lambda: [flight.waiters for flight in pool._flights.values()] == [1])
            os.kill(engine, signal.SIGCONT)
            assert (await second).moves
            assert first.cancelled()
            assert engines() == {engine}

    limited(work())


def test_closing_fails_the_callers_and_leaves_no_process(tmp_path: Path) -> None:
    async def work() -> None:
        pool = StockfishPool(ENDLESS, tmp_path)
        questions = [asyncio.create_task(pool.analyse(fen)) for fen in POSITIONS]
        await until(lambda: len(pool._flights) == len(POSITIONS))
        await pool.close()
        await pool.close()
        for result in await asyncio.gather(*questions, return_exceptions=True):
            assert isinstance(result, EngineError) and "closed" in str(result)
        with pytest.raises(EngineError, match="closed"):
            await pool.analyse(QUEEN_UP)
        assert engines() == set()

    limited(work())


def test_a_caller_that_is_interrupted_as_the_pool_closes_leaves_nothing_to_report(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        pool = StockfishPool(ENDLESS, tmp_path)
        question = asyncio.create_task(pool.analyse(POSITIONS[0]))
        await until(lambda: len(pool._flights) == 1)
        pool._closed = True  # as close() sets it first, while callers are still there
        question.cancel()
        await asyncio.gather(question, return_exceptions=True)
        await until(lambda: not pool._tasks)
        pool._closed = False
        await pool.close()

    gc.collect()  # asyncio logs an error that nobody asked for when its task is gone: here those of earlier tests
    caplog.clear()
    limited(work())
    gc.collect()
    assert "never retrieved" not in caplog.text


def test_a_pool_that_was_never_used_closes(tmp_path: Path) -> None:
    asyncio.run(StockfishPool(StockfishConfig(), tmp_path).close())


CHILD = """
import asyncio, sys
from pathlib import Path
from assay.envs.chess.engine.stockfish import StockfishConfig, StockfishPool

async def work():
    pool = StockfishPool(StockfishConfig(processes=2, nodes=int(sys.argv[2]), deadline_s=600.0), Path(sys.argv[1]))
    fens = ("8/8/8/4k3/8/8/8/3QK3 w - - 0 1", "8/5k2/8/8/3R4/8/4K3/8 b - - 12 60")
    await asyncio.gather(*(pool.analyse(fen) for fen in fens))
    print("answered", flush=True)

asyncio.run(work())
"""


def test_engines_end_when_their_parent_is_killed_in_the_middle_of_an_analysis(tmp_path: Path) -> None:
    parent = subprocess.Popen([sys.executable, "-c", CHILD, str(tmp_path), str(10**12)])
    try:
        wait_until(lambda: len(children(parent.pid)) == 2, "two engines run")
        orphans = children(parent.pid)
    finally:
        parent.kill()
        parent.wait()
    wait_until(lambda: not any(Path(f"/proc/{orphan}").exists() for orphan in orphans), "the engines end")


def test_a_program_that_forgets_to_close_the_pool_ends_quietly(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(tmp_path), "2000"], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "answered\n", "")


def test_a_pool_from_before_a_fork_says_so_instead_of_waiting_for_ever(tmp_path: Path) -> None:
    pool = StockfishPool(StockfishConfig(cache=False), tmp_path)
    asyncio.run(pool.analyse(QUEEN_UP))
    child = os.fork()
    if child == 0:
        try:
            asyncio.run(pool.analyse(QUEEN_UP))
        except EngineError:
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    asyncio.run(pool.close())


# The fingerprint


def test_the_fingerprint_names_engine_and_every_option_that_matters(tmp_path: Path) -> None:
    def fingerprint(**settings: Any) -> str:
        pool = StockfishPool(StockfishConfig(**settings), tmp_path)
        try:
            return pool.fingerprint
        finally:
            asyncio.run(pool.close())

    base = fingerprint()
    assert "Stockfish" in base and "sha256:" in base and "Threads=1" in base
    assert fingerprint(processes=2, deadline_s=5.0, cache=False) == base
    assert len({base, fingerprint(nodes=2001), fingerprint(multipv=5), fingerprint(hash_mb=32)}) == 4


def test_an_analysis_carries_the_fingerprint_of_its_pool_and_says_when_it_is_recalled(tmp_path: Path) -> None:
    async def work() -> None:
        async with StockfishPool(StockfishConfig(), tmp_path) as pool:
            computed, recalled = await pool.analyse(QUEEN_UP), await pool.analyse(QUEEN_UP)
            assert computed.fingerprint == recalled.fingerprint == pool.fingerprint
            assert (computed.cached, recalled.cached) == (False, True)

    limited(work())


def test_memory_is_bounded_and_what_it_drops_is_still_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stockfish, "MEMORY_ENTRIES", 2)

    async def work() -> None:
        async with StockfishPool(StockfishConfig(), tmp_path) as pool:
            for fen in POSITIONS:
                await pool.analyse(fen)
            assert list(pool._memory) == list(POSITIONS[-2:])
            assert (await pool.analyse(POSITIONS[0])).cached
            assert list(pool._memory) == [POSITIONS[-1], POSITIONS[0]]

    limited(work())
