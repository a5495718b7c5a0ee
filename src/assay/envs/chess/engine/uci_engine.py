"""One Stockfish process behind UCI: started, asked for the values of moves, killed.

An answer is a function of the binary, the options and the FEN alone: one search thread, a node limit and `ucinewgame`
before every search. Whatever goes wrong with the process (missing, dead, hung, giving nonsense) is an `EngineError`,
after which the process must be killed and never asked again.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import re
import shutil
import signal
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import chess
import chess.engine

from assay.errors import EngineError

COMMON_PATHS = (
    "/usr/games/stockfish",
    "/usr/local/bin/stockfish",
    "/opt/homebrew/bin/stockfish",
    "/usr/bin/stockfish",
)
"""Where packages put Stockfish; Debian's folder is often missing from PATH."""

MATE_CP = 100_000
"""`MoveValue.value_cp` of a mate in 0 moves. Stockfish's own evaluations stay far below it."""
MAX_CP = 90_000
"""Largest centipawn value that is believed; anything beyond it could pass for a mate."""
MAX_DOUBLINGS = 8
"""How often the node limit is doubled for a position whose moves were not all valued within it."""
REAP_TIMEOUT_S = 5.0
"""How long to wait for a killed process to disappear before leaving it to the operating system."""

_RANK = re.compile(r" multipv (\d+) ")
_SCORED_MOVE = re.compile(r" score (cp|mate) (-?\d+) .*?\bpv ([a-h][1-8][a-h][1-8][qrbn]?)(?: |$)")


@dataclass(frozen=True, slots=True)
class MoveValue:
    """What the engine says of one legal move, from the mover's side: centipawns, or mate in `mate` moves.

    Exactly one of `cp` and `mate` is set. `mate` is positive when the mover mates and negative when it is mated.
    """

    uci: str
    cp: int | None
    mate: int | None

    def __post_init__(self) -> None:
        if (self.cp is None) == (self.mate is None) or self.mate == 0 or abs(self.cp or 0) > MAX_CP:
            raise ValueError(
                f"a MoveValue has either cp in -{MAX_CP}..{MAX_CP} or a mate other than 0, got {self.uci}: "
                f"cp={self.cp}, mate={self.mate}"
            )

    @property
    def value_cp(self) -> int:
        """Both kinds on one scale, higher = better for the mover: any mate beats any centipawns, faster beats slower,
        and being mated later beats being mated sooner."""
        if self.cp is not None:
            return self.cp
        assert self.mate is not None
        return MATE_CP - self.mate if self.mate > 0 else -MATE_CP - self.mate


def ranked(values: Mapping[str, MoveValue]) -> tuple[MoveValue, ...]:
    """Best first for the mover, ties broken by UCI text. The engine's own order mixes depths and is not used."""
    return tuple(sorted(values.values(), key=lambda move: (-move.value_cp, move.uci)))


def find_stockfish(path: str | None, setting: str = "stockfish.path") -> Path:
    """The Stockfish program: `path`, else the environment variable STOCKFISH_PATH, else PATH, else usual places.

    `setting` is the key that `path` was given under, for messages.

    Raises:
        EngineError: none there, or the one that was named is not an executable file.
    """
    for origin, named in ((setting, path), ("STOCKFISH_PATH", os.environ.get("STOCKFISH_PATH"))):
        if named:
            found = shutil.which(os.path.expanduser(named))
            if found is None:
                raise EngineError(
                    f"{origin}={named!r} is not an executable file, so chess moves cannot be verified. Name the "
                    "stockfish program itself, or unset it to search PATH and the usual places."
                )
            return Path(found).absolute()
    for candidate in ("stockfish", *COMMON_PATHS):
        found = shutil.which(candidate)
        if found is not None:
            return Path(found).absolute()
    raise EngineError(
        "Stockfish was not found in PATH or in " + ", ".join(COMMON_PATHS) + ", so chess moves cannot be verified. "
        "Install it (Debian/Ubuntu: apt-get install stockfish; macOS: brew install stockfish) or set STOCKFISH_PATH."
    )


class _UciProtocol(chess.engine.UciProtocol):
    """python-chess's UCI, made to notice every death and to keep the last `info` line of each rank unparsed.

    Parsing every variation of every depth, as `INFO_PV` would, costs more processor time than the search itself.
    """

    def __init__(self) -> None:
        super().__init__()
        self.last_info: dict[int, str] = {}
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_lost(self, exc: Exception | None) -> None:
        """Called when the process has ended and its output has been read."""
        # python-chess never ends an analysis whose engine dies before it starts, and raises here for one that was
        # cancelled: so what waits on the engine waits on `gone` as well.
        with contextlib.suppress(asyncio.InvalidStateError):
            super().connection_lost(exc)
        self.gone.set_result(None)

    def line_received(self, line: str) -> None:
        """Called by python-chess for every line of the engine's output."""
        if line.startswith("info ") and " score " in line and " pv " in line:
            rank = _RANK.search(line)
            self.last_info[int(rank[1]) if rank else 1] = line


class UciEngine:
    """One running engine process. Make it with `start`; `identity` is its UCI name and a hash of its binary."""

    def __init__(self, transport: asyncio.SubprocessTransport, protocol: _UciProtocol, identity: str) -> None:
        self._transport = transport
        self._protocol = protocol
        self.identity = identity
        protocol.gone.add_done_callback(lambda _: transport.close())

    @classmethod
    async def start(cls, path: Path, options: Mapping[str, int], deadline_s: float) -> UciEngine:
        """Start `path` and set `options`.

        Raises:
            EngineError: it cannot be started, is not a UCI engine, refuses an option, or is silent for `deadline_s`.
        """
        try:
            status = path.stat()
            digest = _digest(path, status.st_ino, status.st_size, status.st_mtime_ns)
            # A process group of its own: an interrupt typed at the terminal must reach the run, not its engines.
            opening = asyncio.ensure_future(_UciProtocol.popen(str(path), setpgrp=True))
            try:
                transport, protocol = await asyncio.shield(opening)
            except asyncio.CancelledError:
                # A process that is just starting would outlive its pool, so it is killed even when cancelled twice.
                while not opening.done():
                    with contextlib.suppress(asyncio.CancelledError):
                        await asyncio.shield(opening)
                await cls(*opening.result(), "").kill()
                raise
        except OSError as error:
            raise EngineError(f"the engine {path} cannot be started: {error}. Reinstall Stockfish.") from error
        engine = cls(transport, protocol, "")
        ready = False
        try:
            await engine._while_alive(_greet(protocol, options), deadline_s)
            ready = True
        except TimeoutError as error:
            raise EngineError(f"the engine {path} did not answer `uci` within {deadline_s:g} s.") from error
        except chess.engine.EngineError as error:
            raise EngineError(f"the engine {path} did not start with {dict(options)}: {error}.") from error
        finally:
            if not ready:
                await engine.kill()
        engine.identity = f"{protocol.id.get('name', path.name)} sha256:{digest}"
        return engine

    @property
    def alive(self) -> bool:
        """Whether the process still runs, as far as is known without asking it."""
        return not self._protocol.gone.done()

    @property
    def pid(self) -> int:
        """Process id."""
        return self._transport.get_pid()

    async def analyse(self, board: chess.Board, nodes: int, multipv: int, deadline_s: float) -> tuple[MoveValue, ...]:
        """Values of the best `multipv` moves, or of all when there are fewer, best first.

        In positions with very many moves a small node limit ends before each has a value; the search is then repeated
        from scratch with twice the nodes, which keeps the answer a function of the position and the options.

        Raises:
            EngineError: dead, silent for `deadline_s` (per search), or an answer that makes no sense.
        """
        legal = {move.uci() for move in board.legal_moves}
        wanted = min(multipv, len(legal))
        values: dict[str, MoveValue] = {}
        for doubling in range(MAX_DOUBLINGS + 1):
            values = await self._search(board, nodes << doubling, wanted, deadline_s)
            if not values.keys() <= legal:
                raise EngineError(f"the engine valued illegal moves {sorted(values.keys() - legal)} in {board.fen()}.")
            if len(values) == wanted:
                return ranked(values)
        raise EngineError(
            f"the engine valued {len(values)} of {wanted} moves of {board.fen()} in {nodes << MAX_DOUBLINGS} nodes."
        )

    async def _search(self, board: chess.Board, nodes: int, wanted: int, deadline_s: float) -> dict[str, MoveValue]:
        """One search after `ucinewgame`; move -> value for the ranks that the engine reported."""
        self._protocol.last_info.clear()
        search = self._protocol.analyse(
            board, chess.engine.Limit(nodes=nodes), multipv=wanted, game=object(), info=chess.engine.INFO_NONE
        )
        try:
            await self._while_alive(search, deadline_s)
            return _values(self._protocol.last_info)
        except TimeoutError as error:
            raise EngineError(f"the engine gave no answer for {board.fen()} within {deadline_s:g} s.") from error
        except (chess.engine.EngineError, ValueError) as error:
            raise EngineError(f"the engine failed on {board.fen()}: {error}.") from error

    async def _while_alive(self, work: Coroutine[Any, Any, object], deadline_s: float) -> None:
        """Await `work`, but no longer than the process lives.

        Raises:
            TimeoutError: after `deadline_s`.  chess.engine.EngineError: from `work`, or the process ended.
        """
        task = asyncio.create_task(work)
        try:
            async with asyncio.timeout(deadline_s):
                await asyncio.wait((task, self._protocol.gone), return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                raise chess.engine.EngineTerminatedError(f"exit status {self._transport.get_returncode()}")
            task.result()
        finally:
            task.cancel()

    async def kill(self) -> None:
        """End the process, and whatever it started, at once, and wait until it is gone; safe to repeat.

        It waits even when it is cancelled: closing the pool cancels a search twice, and an event loop that ends before
        its process does leaves the transport open.
        """
        if self._transport.get_returncode() is None:
            # The whole group, because the program may be a wrapper script around the engine. Not through the
            # transport, whose poll() can take the exit status away from asyncio's own watcher.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + REAP_TIMEOUT_S
        cancelled: asyncio.CancelledError | None = None
        while self.alive and loop.time() < deadline:
            try:
                await asyncio.wait((self._protocol.gone,), timeout=deadline - loop.time())
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is not None:
            raise cancelled


@lru_cache(maxsize=16)
def _digest(path: Path, *_status: int) -> str:
    """Start of the SHA-256 of a file, read once for each state (inode, size, time of change) that it is found in."""
    with path.open("rb") as binary:
        return hashlib.file_digest(binary, "sha256").hexdigest()[:16]


async def _greet(protocol: _UciProtocol, options: Mapping[str, int]) -> None:
    await protocol.initialize()
    await protocol.configure(dict(options))
    await protocol.ping()


def _values(last_info: Mapping[int, str]) -> dict[str, MoveValue]:
    """Move -> value, from the last `info` line of each rank.

    Nodes run out inside an iteration: moves searched before that carry its depth, the others the depth before it, and
    one may carry a bound instead of a value. Taken together these came closer to a search of 100 times the nodes than
    the values of the last complete iteration did.

    Raises:
        ValueError: a line without a value, or one move under two ranks.
    """
    values: dict[str, MoveValue] = {}
    for line in last_info.values():
        match = _SCORED_MOVE.search(line)
        if match is None:
            raise ValueError(f"no value of a move in {line!r}")
        kind, value, uci = match[1], int(match[2]), match[3]
        if uci in values:
            raise ValueError(f"{uci} appears under two ranks")
        values[uci] = MoveValue(uci, value, None) if kind == "cp" else MoveValue(uci, None, value)
    return values
