"""Whether Stockfish is there and answers: found, started, and asked about one position."""

from __future__ import annotations

import tempfile
from pathlib import Path

import chess
import chz

from assay.envs.chess.engine.stockfish import StockfishConfig, StockfishPool
from assay.errors import EngineError
from assay.types import Check

CURE = "install Stockfish (Debian, Ubuntu: apt-get install stockfish; macOS: brew install stockfish) or set its path"


async def engine_check(config: StockfishConfig) -> Check:
    """Start the engine that a run would use, and have it value the moves of the first position."""
    asked = chz.replace(config, cache=False, processes=1, nodes=min(config.nodes, 1000))
    with tempfile.TemporaryDirectory() as nowhere:
        try:
            pool = StockfishPool(asked, Path(nowhere))
        except EngineError as error:
            return Check("engine", False, str(error), CURE)
        try:
            analysis = await pool.analyse(chess.STARTING_FEN)
        except EngineError as error:
            return Check("engine", False, str(error), CURE)
        finally:
            await pool.close()
    return Check("engine", True, f"{pool.path}, which values {len(analysis.moves)} moves of the first position")
