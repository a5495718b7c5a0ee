"""`ChessDatasetBuilder`: which chess tasks a run trains on, from which positions, and how they are rewarded."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import chz

from assay.envs.base import DatasetBuilder
from assay.envs.chess.grammar import POLICY_PROMPT, AnswerForm
from assay.envs.chess.rewards import ArbiterWeights, PolicyWeights
from assay.envs.chess.stockfish import StockfishConfig


@chz.chz
class ChessDatasetBuilder(DatasetBuilder):
    """Chess as two text tasks: P: (choose a move, judged by Stockfish) and A: (make a move, judged by the rules)."""

    task: Literal["policy", "arbiter", "mixed"] = "policy"
    """`policy` (P:), `arbiter` (A:), or `mixed` (both)."""
    arbiter_fraction: float = 0.2
    """Share of A: tasks when `task=mixed`."""
    answer: AnswerForm = "best"
    """Form of a P: answer: `best` (`B: e2e4`) or `full` (`M: ... E: ... B: ...`)."""
    prompt_template: str = POLICY_PROMPT
    """P: prompt with `{fen}`; it may end with the label that the answer would start with (`M:` or `B:`)."""
    source: Literal["endgames", "random", "engine", "openings", "fen", "epd", "pgn"] = "endgames"
    """Where positions come from: `endgames` (random placements of `material`), self-play (`random` legal moves, or
    `engine` moves), or a file at `source_path`."""
    material: str = "KQk,KRk"
    """Comma-separated material of `endgames`, drawn evenly; upper case is White, lower case Black."""
    side: Literal["white", "black", "both"] = "white"
    """Whose turn it is in the positions that are used."""
    source_path: Path | None = None
    """File of `openings` (tab-separated `eco`, `name`, `pgn`), `fen`, `epd` or `pgn` positions."""
    batch_size: int = 16
    """Prompts per batch."""
    group_size: int = 16
    """Rollouts per prompt."""
    num_epochs: int = 1
    """Passes over the training positions."""
    num_train: int = 3200
    """Training positions."""
    num_heldout: int = 200
    """Held-out positions; the same for every seed of a run."""
    heldout_split: Literal["validation", "final"] = "validation"
    """Which held-out positions to evaluate on: `validation` while tuning, `final` once, for the reported result."""
    shuffle: bool = True
    """Reorder the training positions in every epoch."""
    illegal_fraction: float = 0.1
    """Share of A: tasks whose move is illegal."""
    renderer_name: str = "plain"
    """How messages become tokens; `plain` writes their bare text, as the grammar of these tasks wants."""
    policy_weights: PolicyWeights = chz.field(default_factory=PolicyWeights)
    """Rewards of P: answers."""
    arbiter_weights: ArbiterWeights = chz.field(default_factory=ArbiterWeights)
    """Rewards of A: answers."""
    stockfish: StockfishConfig = chz.field(default_factory=StockfishConfig)
    """The engine that judges P: answers."""
