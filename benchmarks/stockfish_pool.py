"""Analyses per second of the Stockfish pool with one and two processes, cached lookups per second, and determinism.

    python benchmarks/stockfish_pool.py [--positions N] [--repeats R]

Half of the positions are endgames (king and one or two pieces each side at random), half come from random play. Every
legal move is valued, at the default node limit, with the cache off. The arms of one and two processes take turns, each
time on the same positions in a new order, and every result must equal the first. Figures are medians over the repeats;
`spread` gives the lowest and the highest. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import chess

from assay.envs.chess.engine.stockfish import MoveValue, StockfishConfig, StockfishPool

SEED = 0
MEMORY_LOOKUPS = 20_000
PIECES = ("Q", "R", "QR", "RB", "RN", "BN")
Results = dict[str, tuple[MoveValue, ...]]


def endgame(rng: random.Random) -> str:
    """A legal position of kings and a few pieces at random squares, with at least one legal move."""
    while True:
        board = chess.Board(None)
        pieces = "Kk" + rng.choice(PIECES) + rng.choice(("", "r", "b", "n"))
        for square, piece in zip(rng.sample(chess.SQUARES, len(pieces)), pieces, strict=True):
            board.set_piece_at(square, chess.Piece.from_symbol(piece))
        board.turn = rng.choice(chess.COLORS)
        if board.is_valid() and not board.is_game_over():
            return board.fen()


def midgame(rng: random.Random) -> str:
    """The position after 10 to 50 random plies."""
    while True:
        board = chess.Board()
        for _ in range(rng.randint(10, 50)):
            if board.is_game_over():
                break
            board.push(rng.choice(list(board.legal_moves)))
        if not board.is_game_over():
            return board.fen()


def positions(count: int) -> dict[str, list[str]]:
    """Distinct positions by kind, `count` in all."""
    rng = random.Random(SEED)
    found: dict[str, list[str]] = {"endgame": [], "midgame": []}
    for (kind, fens), make, wanted in zip(
        found.items(), (endgame, midgame), (count - count // 2, count // 2), strict=True
    ):
        while len(fens) < wanted:
            if (fen := make(rng)) not in fens:
                fens.append(fen)
        print(f"{len(fens)} {kind} positions", file=sys.stderr)
    return found


async def timed(pool: StockfishPool, fens: Sequence[str]) -> tuple[float, Results]:
    """Analyses per second over `fens`, all asked for at once, and what was answered."""
    begin = time.perf_counter()
    analyses = await asyncio.gather(*(pool.analyse(fen) for fen in fens))
    rate = len(fens) / (time.perf_counter() - begin)
    return rate, {analysis.fen: analysis.moves for analysis in analyses}


async def warm_up(pool: StockfishPool, processes: int) -> None:
    """Start every engine, so that starting is not measured."""
    clocks = (f"4k3/8/8/8/8/8/4P3/4K3 w - - {clock} 60" for clock in range(4 * processes))
    await asyncio.gather(*(pool.analyse(fen) for fen in clocks))


async def measure_engines(
    fens: dict[str, list[str]], repeats: int, folder: Path
) -> tuple[dict[str, list[float]], bool, str]:
    """Rates by arm (`one`, `two`, and by kind of position), whether all results agreed, and the fingerprint."""
    rng = random.Random(SEED)
    rates: dict[str, list[float]] = {}
    expected: Results = {}
    deterministic = True
    async with (
        StockfishPool(StockfishConfig(processes=1, cache=False), folder) as one,
        StockfishPool(StockfishConfig(processes=2, cache=False), folder) as two,
    ):
        await warm_up(one, 1)
        await warm_up(two, 2)
        for repeat in range(repeats):
            arms = [("one", one), ("two", two)]
            for name, pool in arms if repeat % 2 == 0 else arms[::-1]:
                seconds = 0.0
                for kind, group in fens.items():
                    rate, results = await timed(pool, rng.sample(group, len(group)))
                    rates.setdefault(f"{name}_{kind}", []).append(rate)
                    seconds += len(group) / rate
                    for fen, moves in results.items():
                        deterministic &= expected.setdefault(fen, moves) == moves
                rates.setdefault(name, []).append(sum(map(len, fens.values())) / seconds)
                print(f"repeat {repeat + 1}/{repeats} {name}: {rates[name][-1]:.1f} analyses/s", file=sys.stderr)
        return rates, deterministic, one.fingerprint


async def measure_memory(fens: Sequence[str], repeats: int, folder: Path) -> list[float]:
    """Lookups per second of positions that the same pool has analysed. Leaves the cache file filled."""
    rates = []
    async with StockfishPool(StockfishConfig(processes=2), folder) as pool:
        await asyncio.gather(*(pool.analyse(fen) for fen in fens))
        for _ in range(repeats):
            begin = time.perf_counter()
            for index in range(MEMORY_LOOKUPS):
                await pool.analyse(fens[index % len(fens)])
            rates.append(MEMORY_LOOKUPS / (time.perf_counter() - begin))
    return rates


async def read_cache(folder: Path) -> None:
    """The part of a fresh process: look up the FENs on standard input once, print lookups per second."""
    fens = sys.stdin.read().splitlines()
    async with StockfishPool(StockfishConfig(), folder) as pool:
        _ = pool.fingerprint
        begin = time.perf_counter()
        cached = [(await pool.analyse(fen)).cached for fen in fens]
        rate = len(fens) / (time.perf_counter() - begin)
    if not all(cached):
        raise SystemExit("a position that had been analysed was not in the cache file")
    print(rate)


def measure_file(fens: Sequence[str], repeats: int, folder: Path) -> list[float]:
    """Lookups per second from the cache file, each time in a fresh process."""
    command = [sys.executable, __file__, "--read-cache", str(folder)]
    text = "\n".join(fens)
    return [
        float(subprocess.run(command, input=text, stdout=subprocess.PIPE, text=True, check=True).stdout)
        for _ in range(repeats)
    ]


def report(rates: dict[str, list[float]]) -> dict[str, object]:
    """Medians under the arms' names, and the lowest and highest under `spread`."""
    medians: dict[str, object] = {name: round(statistics.median(values), 1) for name, values in rates.items()}
    medians["spread"] = {name: [round(min(values), 1), round(max(values), 1)] for name, values in rates.items()}
    ratios = [two / one for one, two in zip(rates["one"], rates["two"], strict=True)]
    medians["two_over_one"] = round(statistics.median(ratios), 2)
    return medians


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--positions", type=int, default=80, help="distinct positions, half of each kind (default 80)")
    parser.add_argument("--repeats", type=int, default=5, help="how often each arm is measured (default 5)")
    parser.add_argument("--read-cache", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.read_cache is not None:
        asyncio.run(read_cache(options.read_cache))
        return
    if options.positions < 2 or options.repeats < 1:
        parser.error("--positions must be at least 2 and --repeats at least 1")
    load_before = os.getloadavg()[0]
    fens = positions(options.positions)
    every_fen = [fen for group in fens.values() for fen in group]
    with tempfile.TemporaryDirectory() as folder:
        rates, deterministic, fingerprint = asyncio.run(measure_engines(fens, options.repeats, Path(folder)))
        rates["cached_per_s"] = asyncio.run(measure_memory(every_fen, options.repeats, Path(folder)))
        rates["cached_file_per_s"] = measure_file(every_fen, options.repeats, Path(folder))
    machine = {
        "cpus": os.cpu_count(),
        "processor": platform.machine(),
        "python": platform.python_version(),
        "load_before": round(load_before, 2),
    }
    result = report(rates) | {
        "deterministic": deterministic,
        "positions": options.positions,
        "repeats": options.repeats,
        "engine": fingerprint,
        "machine": machine,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
