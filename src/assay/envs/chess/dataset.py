"""`ChessDatasetBuilder`: which chess tasks a run trains on, from which positions, and how they are rewarded."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import chz
import numpy as np

from assay.config import AtLeast, AtMost, UsedWhen, fact, refuse
from assay.envs.base import BaselineMetrics, BuildContext, DatasetBuilder, EnvData
from assay.envs.chat import Instructions
from assay.envs.chess.baselines import known_policies
from assay.envs.chess.corpus import corpus_of
from assay.envs.chess.engine.engine_check import engine_check
from assay.envs.chess.engine.stockfish import StockfishConfig, StockfishPool
from assay.envs.chess.env import ChessGroupBuilder, Referee
from assay.envs.chess.figures import draw_task
from assay.envs.chess.grammar import POLICY_PROMPT, AnswerForm, given_label
from assay.envs.chess.positions.base import FixedSource, PositionSource, draw_distinct
from assay.envs.chess.positions.endgames import EndgameSource, parse_material
from assay.envs.chess.positions.position_files import read_source
from assay.envs.chess.positions.selfplay import EngineGames, RandomGames
from assay.envs.chess.rewards import ArbiterWeights, PolicyWeights
from assay.envs.chess.supervised import ChessSupervisedDataset
from assay.envs.chess.tasks import TaskStyle, make_tasks
from assay.envs.tasks import TRAIN_STREAM, TaskBatches
from assay.errors import ConfigError, EngineError
from assay.types import Check, Task

HELDOUT_SEED = 20_241_120
"""Held-out tasks are drawn with this seed and not with the run's, so that runs with different seeds can be compared."""
CORPUS_EXAMPLES = 2000
"""Supervised examples that a from-scratch tokenizer is trained on."""
MOST_LEGAL_MOVES = 218
"""No legal position has more."""


@chz.chz
class ChessDatasetBuilder(DatasetBuilder):
    """Chess as two text tasks: P: (choose a move, judged by Stockfish) and A: (make a move, judged by the rules)."""

    task: Literal["policy", "arbiter", "mixed"] = "policy"
    """`policy` (P:), `arbiter` (A:), or `mixed` (both)."""
    arbiter_fraction: Annotated[float, UsedWhen("task", "mixed")] = 0.2
    """Share of A: tasks when `task=mixed`."""
    answer: Annotated[AnswerForm, UsedWhen("task", "policy", "mixed")] = "best"
    """Form of a P: answer: `best` (`B: e2e4`) or `full` (`M: ... E: ... B: ...`)."""
    prompt_template: Annotated[str, UsedWhen("task", "policy", "mixed")] = POLICY_PROMPT
    """P: prompt with `{fen}`; it may end with the label that the answer would start with (`M:` or `B:`)."""
    instructions: str = "auto"
    """What the model is told before each task: `auto` (chat models are told what to do and the form of an answer, with
    an example; others see the bare grammar), `none`, or a text of your own."""
    source: Literal["endgames", "random", "engine", "openings", "fen", "epd", "pgn"] = "endgames"
    """Where positions come from: `endgames` (random placements of `material`), self-play (`random` legal moves, or
    `engine` moves), or a file at `source_path`."""
    material: Annotated[str, UsedWhen("source", "endgames")] = "KQk,KRk"
    """Comma-separated material of `endgames`, drawn evenly; upper case is White, lower case Black."""
    side: Literal["white", "black", "both"] = "white"
    """Side to move in the positions that are used."""
    source_path: Annotated[Path | None, UsedWhen("source", "openings", "fen", "epd", "pgn")] = None
    """File of `openings` (tab-separated columns, including `pgn`), `fen`, `epd` or `pgn` positions."""
    batch_size: int = 16
    """Prompts per batch."""
    group_size: int = 16
    """Rollouts per prompt."""
    num_epochs: Annotated[int, AtLeast(1)] = 1
    """Passes over the training positions."""
    num_train: Annotated[int, AtLeast(1)] = 3200
    """Training positions."""
    num_heldout: Annotated[int, AtLeast(1)] = 200
    """Held-out positions; the same for every seed of a run."""
    heldout_split: Literal["validation", "final"] = "validation"
    """Which held-out positions to evaluate on: `validation` while tuning, `final` once, for the reported result."""
    shuffle: bool = True
    """Reorder the training positions in every epoch."""
    illegal_fraction: Annotated[float, AtLeast(0), AtMost(1), UsedWhen("task", "arbiter", "mixed")] = 0.1
    """Share of A: tasks whose move is illegal."""
    policy_weights: Annotated[PolicyWeights, UsedWhen("task", "policy", "mixed")] = chz.field(
        default_factory=PolicyWeights
    )
    """Rewards of P: answers."""
    arbiter_weights: Annotated[ArbiterWeights, UsedWhen("task", "arbiter", "mixed")] = chz.field(
        default_factory=ArbiterWeights
    )
    """Rewards of A: answers."""
    stockfish: Annotated[StockfishConfig, UsedWhen("needs_engine")] = chz.field(default_factory=StockfishConfig)
    """The engine that judges P: answers."""

    @chz.validate
    def _consistent(self) -> None:
        refuse(_impossible(self))
        if self.source == "endgames":
            parse_material(self.material)

    def build(self, context: BuildContext) -> EnvData:
        """See `DatasetBuilder.build`."""
        pool = (
            StockfishPool(self.stockfish, context.cache_dir, "dataset_builder.stockfish") if self.needs_engine else None
        )
        referee = Referee(pool, self.policy_weights, self.arbiter_weights)
        style = self.style(context.chat)
        source = self._source(pool)
        train_rng = np.random.default_rng([context.seed, TRAIN_STREAM])
        train = draw_distinct(
            source, train_rng, "train", self.num_train, partial(context.progress, "training positions")
        )
        train_tasks = make_tasks(train, style, train_rng)
        heldout_rng = np.random.default_rng(HELDOUT_SEED)
        heldout = draw_distinct(
            source, heldout_rng, self.heldout_split, self.num_heldout, partial(context.progress, "held-out positions")
        )
        heldout_tasks = make_tasks(heldout, style, heldout_rng)
        # More engine games would cost more than supervised examples are worth.
        sft_source = FixedSource(train) if self.source == "engine" else source
        sft = ChessSupervisedDataset(sft_source, style, context.seed)

        def group(task: Task) -> ChessGroupBuilder:
            return ChessGroupBuilder(task, referee, context.max_turns)

        async def baselines() -> BaselineMetrics:
            return await known_policies(heldout_tasks, referee)

        async def close() -> None:
            if pool is not None:
                await pool.close()

        return EnvData(
            train=TaskBatches(train_tasks, group, self.batch_size, self.num_epochs, self.shuffle, context.seed),
            heldout=TaskBatches(heldout_tasks, group, self.batch_size),
            sft=sft,
            tokenizer_corpus=corpus_of(lambda: sft.batch(0, CORPUS_EXAMPLES)),
            baseline_policies=baselines,
            figure=draw_task,
            close=close,
        )

    async def checks(self, context: BuildContext) -> list[Check]:
        """See `DatasetBuilder.checks`: the engine, where one is asked."""
        return [await engine_check(self.stockfish)] if self.needs_engine else []

    def describe(self) -> str:
        """See `DatasetBuilder.describe`."""
        what = {
            "policy": f"choose a move (P:, {self.answer} form)",
            "arbiter": "make a move (A:)",
            "mixed": f"choose a move (P:, {self.answer} form), or make one (A:, {self.arbiter_fraction:.0%} of tasks)",
        }[self.task]
        where = self.material if self.source == "endgames" else self.source_path or f"{self.source} self-play"
        judges = " and ".join(
            (["python-chess"] if self.task != "policy" else [])
            + ([f"Stockfish at {self.stockfish.nodes} nodes"] if self.task != "arbiter" else [])
        )
        moving = "either side" if self.side == "both" else self.side.capitalize()
        return (
            f"Chess: {what}; {self.num_train} training positions from {where} with {moving} to move, judged by "
            f"{judges}; held out: {self.num_heldout} {self.heldout_split} positions."
        )

    def style(self, chat: bool = False) -> TaskStyle:
        """How positions are posed, to a chat model or to one that knows the bare grammar."""
        share = {"policy": 0.0, "arbiter": 1.0, "mixed": self.arbiter_fraction}[self.task]
        timeless, told = self.source == "endgames", Instructions(self.instructions, chat)
        return TaskStyle(self.answer, self.prompt_template, share, self.illegal_fraction, timeless, told)

    @fact("Stockfish is asked", "task", "source", cure="Set task=policy (or source=engine)")
    def needs_engine(self) -> bool:
        """Whether Stockfish is used at all."""
        return self.task != "arbiter" or self.source == "engine"

    def _source(self, pool: StockfishPool | None) -> PositionSource:
        if self.source == "endgames":
            return EndgameSource(self.material, self.side)
        if self.source == "random":
            return RandomGames(self.side)
        if self.source == "engine":
            if pool is None:
                raise EngineError("source=engine needs Stockfish")
            return EngineGames(pool, self.side)
        if self.source_path is None:
            raise ConfigError(f"source={self.source} needs source_path")
        return read_source(self.source, self.source_path, self.side)


def _impossible(config: ChessDatasetBuilder) -> Iterator[str]:
    if config.task == "mixed" and not 0 < config.arbiter_fraction < 1:
        yield (
            f"arbiter_fraction={config.arbiter_fraction} must lie strictly between 0 and 1 when task=mixed. "
            "Set task=policy or task=arbiter for one task alone."
        )
    if config.source in ("openings", "fen", "epd", "pgn") and config.source_path is None:
        yield f"source={config.source} reads a file, but source_path is not set. Set source_path to it."
    if config.prompt_template.count("{fen}") != 1 or "{" in config.prompt_template.replace("{fen}", ""):
        yield f"prompt_template {config.prompt_template!r} must hold {{fen}} once and no other brace: 'P: {{fen}}'."
    label = given_label(config.prompt_template)
    if label and label != ("B:" if config.answer == "best" else "M:"):
        yield (
            f"prompt_template ends with {label!r}, but no answer starts with it under answer={config.answer}. "
            "End it with 'B:' for answer=best, 'M:' for answer=full, or neither."
        )
    if config.task != "arbiter" and config.stockfish.multipv < MOST_LEGAL_MOVES:
        yield (
            f"stockfish.multipv={config.stockfish.multipv} leaves moves without a value, but P: answers are ranked "
            f"among all legal moves. Set it to at least {MOST_LEGAL_MOVES}."
        )
