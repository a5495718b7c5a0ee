"""Stockfish as a verifier: a pool of processes that values every legal move of a position, with a cache.

Results depend on the engine, its options and the FEN alone: not on the number of processes, the order of requests or
what was asked before. The pool lives in a thread with its own event loop, so it serves any number of callers' loops and
goes on while they are busy. An engine that dies or hangs is replaced and the analysis repeated once; after that the
answer is an `EngineError`, never a guess, and it is not cached.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import threading
from collections import OrderedDict
from collections.abc import Coroutine
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

import chess
import chz

from assay.config import MAY_CHANGE, Above, AtLeast, AtMost, Settings
from assay.envs.chess.engine.analysis_cache import AnalysisCache
from assay.envs.chess.engine.uci_engine import MATE_CP, MoveValue, UciEngine, find_stockfish
from assay.errors import DataError, EngineError

__all__ = ["MATE_CP", "Analysis", "MoveValue", "StockfishConfig", "StockfishPool"]

logger = logging.getLogger(__name__)
T = TypeVar("T")

MEMORY_ENTRIES = 8192
"""Analyses kept in memory, in front of the file: about 6 kB each; the least recently used are dropped first."""
MAX_MULTIPV = 500
"""Stockfish's own limit; no position has more than 218 legal moves."""
MAX_HALFMOVE_CLOCK = 150
"""After 75 moves of each side without a capture or pawn move a game ends by itself."""
MAX_FULLMOVE_NUMBER = 10_000
"""No game is longer: the longest possible one has fewer than 8,900 moves."""

_GONE = "was closed, or made before a fork, so it has no engines. Make a new one."


@chz.chz
class StockfishConfig(Settings):
    """How Stockfish is run. `nodes`, `multipv` and `hash_mb` change its verdicts; the other fields do not."""

    path: str | None = None
    """The stockfish program; null looks in STOCKFISH_PATH, in PATH and in the usual places."""
    processes: Annotated[int, AtLeast(1), MAY_CHANGE] = 1
    """Engine processes, each with one thread, started when first needed."""
    nodes: Annotated[int, AtLeast(1)] = 2000
    """Search limit of one analysis. Nodes, unlike time, give the same verdict on every machine."""
    multipv: Annotated[int, AtLeast(1), AtMost(MAX_MULTIPV)] = 500
    """Number of moves to value, best first; 500 values every legal move."""
    hash_mb: Annotated[int, AtLeast(1)] = 16
    """Transposition table of each process, in MiB."""
    deadline_s: Annotated[float, Above(0), MAY_CHANGE] = 10.0
    """An engine that is silent for so long during a search counts as hung: it is killed and replaced."""
    cache: Annotated[bool, MAY_CHANGE] = True
    """Keep analyses in memory and in the cache folder."""


@dataclass(frozen=True, slots=True)
class Analysis:
    """The engine's verdict on one position: `moves` best first for the mover, ties broken by UCI text.

    `fen` is in python-chess's normal form. `moves` is empty where no move is legal. `fingerprint` identifies engine and
    options; `cached` says that no engine was asked.
    """

    fen: str
    moves: tuple[MoveValue, ...]
    fingerprint: str
    cached: bool


@dataclass(slots=True)
class _Flight:
    """An analysis under way and the number of callers that wait for it."""

    task: asyncio.Task[tuple[tuple[MoveValue, ...], bool]]
    waiters: int = 0


def parse_position(fen: str) -> chess.Board:
    """The position of a FEN; one that chess does not allow, on which an engine may crash, is refused.

    Raises:
        DataError: `fen` cannot be read, or describes a position that no game reaches (no king, the waiting side in
            check, castling rights without a rook, a half-move clock above 150, ...).
    """
    try:
        board = chess.Board(fen)
    except ValueError as error:
        raise DataError(f"{fen!r} is not a FEN ({error}), so there is no position to analyse.") from error
    status = board.status()
    if status != chess.STATUS_VALID:
        raise DataError(f"{fen!r} is not a possible position ({status!r}); an engine may crash on it. Correct the FEN.")
    if board.halfmove_clock > MAX_HALFMOVE_CLOCK or board.fullmove_number > MAX_FULLMOVE_NUMBER:
        raise DataError(
            f"{fen!r} has counters that no game reaches (half-move clock above {MAX_HALFMOVE_CLOCK} or move number "
            f"above {MAX_FULLMOVE_NUMBER}); engines misread them. Correct the FEN."
        )
    # Rebuilt from its normal form: the engine must see exactly what the cache is keyed by.
    return chess.Board(board.fen())


def encode_moves(moves: tuple[MoveValue, ...]) -> str:
    """Compact JSON of an analysis' moves, in order: `[[uci, cp, mate], ...]`."""
    return json.dumps([[m.uci, m.cp, m.mate] for m in moves], separators=(",", ":"))


def decode_moves(text: str) -> tuple[MoveValue, ...]:
    """Inverse of `encode_moves`.

    Raises:
        ValueError, TypeError: `text` is something else.
    """
    try:
        return tuple(MoveValue(uci, cp, mate) for uci, cp, mate in json.loads(text))
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


class StockfishPool:
    """Answers `analyse` with up to `config.processes` engines. Close it, or use it as an async context manager.

    Callers may live in any thread and any event loop. Processes that the pool leaves behind when its own process is
    killed end by themselves, at the end of their input.

    `setting` is the key that the config stands at, for messages.

    Raises:
        EngineError: Stockfish is not installed.
    """

    def __init__(self, config: StockfishConfig, cache_dir: Path, setting: str = "stockfish") -> None:
        self.config = config
        self.path = find_stockfish(config.path, f"{setting}.path")
        self._cache_dir = cache_dir
        self._memory: OrderedDict[str, Analysis] = OrderedDict()
        self._lock = threading.Lock()
        self._pool_thread: tuple[threading.Thread, asyncio.AbstractEventLoop] | None = None
        self._pid = os.getpid()
        self._closed = False
        # From here on: touched only in the pool's own thread.
        self._cache: AnalysisCache | None = None
        self._identity: str | None = None
        self._identity_lock = asyncio.Lock()
        self._slots = asyncio.Semaphore(config.processes)
        self._idle: list[UciEngine] = []
        self._flights: dict[str, _Flight] = {}
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def fingerprint(self) -> str:
        """Engine name and version, hash of its binary, and every option that affects results.

        The first use starts an engine and blocks until it has named itself.
        """
        if self._identity is None:
            self._submit(self._identify()).result()
        return self._fingerprint()

    async def analyse(self, fen: str) -> Analysis:
        """The value of every legal move of `fen` (of the best `multipv` ones).

        Calls for one position at the same time share one analysis. Cancelling the last of them stops it.

        Raises:
            DataError: `fen` is unreadable or impossible.  EngineError: the engine failed twice.
        """
        known = self._recall(fen)
        if known is not None:
            return known
        analysis = await asyncio.wrap_future(self._submit(self._answer(fen)))
        if self.config.cache:
            self._remember(fen, replace(analysis, cached=True))
        return analysis

    async def close(self) -> None:
        """Kill the engines, close the cache file and end the thread; what is under way fails. Safe to repeat."""
        with self._lock:
            self._closed = True
            pool_thread, self._pool_thread = self._pool_thread, None
        if pool_thread is not None and os.getpid() == self._pid:
            thread, loop = pool_thread
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._shut_down(), loop))
            loop.call_soon_threadsafe(loop.stop)
            thread.join()

    async def __aenter__(self) -> StockfishPool:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _recall(self, fen: str) -> Analysis | None:
        with self._lock:
            known = self._memory.get(fen)
            if known is not None:
                self._memory.move_to_end(fen)
            return known

    def _remember(self, fen: str, analysis: Analysis) -> None:
        with self._lock:
            self._memory[fen] = analysis
            self._memory.move_to_end(fen)
            while len(self._memory) > MEMORY_ENTRIES:
                self._memory.popitem(last=False)

    def _submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run `work` in the pool's thread, which starts with the first call."""
        with self._lock:
            if self._closed or os.getpid() != self._pid:
                work.close()
                raise EngineError(f"this StockfishPool {_GONE}")
            if self._pool_thread is None:
                loop = asyncio.new_event_loop()
                thread = threading.Thread(target=_run_loop, args=(loop,), name="stockfish-pool", daemon=True)
                thread.start()
                self._pool_thread = (thread, loop)
            return asyncio.run_coroutine_threadsafe(self._serve(work), self._pool_thread[1])

    # Everything below runs in the pool's thread.

    def _fingerprint(self) -> str:
        config = self.config
        return f"{self._identity} Threads=1 Hash={config.hash_mb} nodes={config.nodes} multipv={config.multipv}"

    async def _serve(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` for one caller, who gets an `EngineError` when the pool is closed meanwhile."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(_take_error)
        try:
            return await work
        except asyncio.CancelledError:
            if self._closed:
                raise EngineError(f"this StockfishPool {_GONE}") from None
            raise
        finally:
            self._tasks.discard(task)

    async def _answer(self, fen: str) -> Analysis:
        board = parse_position(fen)
        key = board.fen()
        moves, cached = await self._join(key, board)
        return Analysis(key, moves, self._fingerprint(), cached)

    async def _identify(self) -> None:
        """Start the first engine, whose identity the pool's verdicts and cache entries carry."""
        async with self._identity_lock:
            if self._identity is None:
                async with self._slots:
                    self._idle.append(await self._start())

    async def _join(self, key: str, board: chess.Board) -> tuple[tuple[MoveValue, ...], bool]:
        """The outcome of the one analysis under way for `key`, which ends with its last waiter."""
        flight = self._flights.get(key)
        if flight is None:
            flight = self._flights[key] = _Flight(asyncio.create_task(self._run(key, board)))
            self._tasks.add(flight.task)
            flight.task.add_done_callback(self._tasks.discard)
        flight.waiters += 1
        try:
            return await asyncio.shield(flight.task)
        finally:
            flight.waiters -= 1
            if flight.waiters == 0:
                del self._flights[key]
                flight.task.cancel()

    async def _run(self, key: str, board: chess.Board) -> tuple[tuple[MoveValue, ...], bool]:
        """Moves of a position, and whether they came from the cache."""
        await self._identify()
        if not any(board.legal_moves):
            return (), False
        moves = self._load(key)
        if moves is not None:
            return moves, True
        async with self._slots:
            try:
                moves = await self._ask(board, self._take_idle())
            except EngineError as first:
                logger.warning("%s Trying once more with a new engine.", first)
                try:
                    moves = await self._ask(board, None)
                except EngineError as second:
                    raise EngineError(
                        f"{self.path} failed twice, so {key} has no verdict: {first} Then: {second} If this repeats, "
                        "check this machine's memory, load and version of Stockfish."
                    ) from second
        if self._cache is not None:
            self._cache.put(self._fingerprint(), key, encode_moves(moves))
        return moves, False

    def _take_idle(self) -> UciEngine | None:
        """The engine used last, passing over those that died in the meantime."""
        while self._idle:
            engine = self._idle.pop()
            if engine.alive:
                return engine
        return None

    async def _ask(self, board: chess.Board, engine: UciEngine | None) -> tuple[MoveValue, ...]:
        """One attempt, with a new engine if none is given. The engine is kept only if it answered in full."""
        engine = engine or await self._start()
        answered = False
        try:
            config = self.config
            moves = await engine.analyse(board, config.nodes, config.multipv, config.deadline_s)
            answered = True
        finally:
            if answered:
                self._idle.append(engine)
            else:
                await engine.kill()
        return moves

    async def _start(self) -> UciEngine:
        options = {"Threads": 1, "Hash": self.config.hash_mb}
        engine = await UciEngine.start(self.path, options, self.config.deadline_s)
        if self._identity not in (None, engine.identity):
            await engine.kill()
            raise EngineError(
                f"{self.path} changed while in use: it was {self._identity} and is now {engine.identity}. Verdicts of "
                "both must not mix; start the run again."
            )
        self._identity = engine.identity
        return engine

    def _load(self, key: str) -> tuple[MoveValue, ...] | None:
        """The cached moves of a position; an unreadable entry counts as missing and is written again."""
        if not self.config.cache:
            return None
        if self._cache is None:
            self._cache = AnalysisCache(self._cache_dir)
        text = self._cache.get(self._fingerprint(), key)
        if text is None:
            return None
        try:
            return decode_moves(text)
        except (ValueError, TypeError) as error:
            logger.warning("the cached analysis of %s is unreadable (%s); it is computed again.", key, error)
            return None

    async def _shut_down(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(engine.kill() for engine in self._idle))
        self._idle.clear()
        if self._cache is not None:
            self._cache.close()


def _take_error(task: asyncio.Task[Any]) -> None:
    """Take note of how a task ended, for a caller that was interrupted: asyncio prints errors that nobody asked for."""
    if not task.cancelled():
        task.exception()


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Body of a pool's thread. Holds no reference to the pool."""
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        loop.close()
