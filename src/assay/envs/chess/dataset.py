"""`ChessDatasetBuilder`: which chess tasks a run trains on, from which positions, and how they are rewarded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Literal

import chz
import numpy as np

from assay.envs.base import (
    BaselineMetrics,
    BuildContext,
    DatasetBuilder,
    EnvData,
    EnvGroupBuilder,
    Example,
)
from assay.envs.chess.corpus import corpus_of
from assay.envs.chess.endgames import EndgameSource, parse_material
from assay.envs.chess.env import ChessGroupBuilder, Judge, find_truth
from assay.envs.chess.grammar import POLICY_PROMPT, AnswerForm
from assay.envs.chess.positions import Position, PositionSource, draw_distinct
from assay.envs.chess.rewards import ArbiterWeights, PolicyTruth, PolicyWeights, outlook, score_policy
from assay.envs.chess.grammar import ParsedPolicy
from assay.envs.chess.stockfish import StockfishConfig, StockfishPool
from assay.envs.chess.tasks import TaskStyle, policy_example, policy_task
from assay.errors import ConfigError
from assay.types import Task

HELDOUT_SEED = 20_240_601
TRAIN_STREAM, SFT_STREAM, ORDER_STREAM = 1, 2, 3
CORPUS_EXAMPLES = 2000


@dataclass(frozen=True)
class ChessRLDataset:
    """Batches of group builders over `num_epochs` passes through `tasks`."""

    tasks: Sequence[Task]
    judge: Judge
    batch_size: int
    num_epochs: int
    shuffle: bool
    seed: int
    max_turns: int

    def __len__(self) -> int:
        return -(-len(self.tasks) * self.num_epochs // self.batch_size)

    def batch(self, index: int) -> Sequence[EnvGroupBuilder]:
        """Builders of batch `index`; batches run on over the end of an epoch, only the last one may be smaller."""
        if not 0 <= index < len(self):
            raise IndexError(f"batch {index} of {len(self)}")
        start = index * self.batch_size
        stop = min(start + self.batch_size, len(self.tasks) * self.num_epochs)
        orders = {epoch: self._order(epoch) for epoch in {start // len(self.tasks), (stop - 1) // len(self.tasks)}}
        return [
            ChessGroupBuilder(self.tasks[orders[place // len(self.tasks)][place % len(self.tasks)]], self.judge, self.max_turns)
            for place in range(start, stop)
        ]

    def _order(self, epoch: int) -> Sequence[int]:
        if not self.shuffle:
            return range(len(self.tasks))
        order: list[int] = np.random.default_rng([self.seed, ORDER_STREAM, epoch]).permutation(len(self.tasks)).tolist()
        return order


@dataclass(frozen=True)
class ChessSupervisedDataset:
    """Endless supervised examples on fresh positions of the train side of the split."""

    source: PositionSource
    style: TaskStyle
    seed: int

    def batch(self, index: int, size: int) -> list[Example]:
        """See `SupervisedDataset.batch`."""
        rng = np.random.default_rng([self.seed, SFT_STREAM, index])
        positions = islice(self.source.draw(rng, "train"), size)
        return [policy_example(position, self.style, rng) for position in positions]


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

    def build(self, context: BuildContext) -> EnvData:
        """See `DatasetBuilder.build`."""
        source = EndgameSource(self.material, self.side)
        style = TaskStyle(self.answer, self.prompt_template, self.illegal_fraction)
        pool = StockfishPool(self.stockfish, context.cache_dir)
        judge = Judge(pool, self.policy_weights, self.arbiter_weights)
        train = draw_distinct(source, np.random.default_rng([context.seed, TRAIN_STREAM]), "train", self.num_train)
        heldout = draw_distinct(source, np.random.default_rng(HELDOUT_SEED), self.heldout_split, self.num_heldout)
        heldout_tasks = [policy_task(p, style) for p in heldout]
        sft = ChessSupervisedDataset(source, style, context.seed)

        async def baselines() -> BaselineMetrics:
            return await random_mover_metrics(heldout_tasks, judge)

        return EnvData(
            train=ChessRLDataset(
                [policy_task(p, style) for p in train], judge, self.batch_size, self.num_epochs, self.shuffle,
                context.seed, context.max_turns,
            ),
            heldout=ChessRLDataset(heldout_tasks, judge, self.batch_size, 1, False, 0, context.max_turns),
            sft=sft,
            tokenizer_corpus=corpus_of(sft.batch(0, CORPUS_EXAMPLES)),
            baseline_policies=baselines,
            close=pool.close,
        )

    def describe(self) -> str:
        """See `DatasetBuilder.describe`."""
        return f"{self.num_train} {self.source} positions"


async def random_mover_metrics(tasks: Sequence[Task], judge: Judge) -> BaselineMetrics:
    """Expected metrics of the uniform random legal mover on P: tasks in short form."""
    metrics: dict[str, list[float]] = {"reward": [], "legal": [], "best": [], "keeps_win": []}
    for task in tasks:
        truth = (await find_truth(task, judge.pool)).policy
        if truth is None:
            continue
        scores = [
            score_policy(truth, ParsedPolicy((), (), uci, ()), judge.policy_weights, "best") for uci in truth.values
        ]
        mean = lambda xs: sum(xs) / len(scores)
        metrics["reward"].append(mean(s.value or 0.0 for s in scores))
        metrics["legal"].append(1.0)
        metrics["best"].append(mean(s.parts["best"] for s in scores))
        if outlook(truth.best_value, judge.policy_weights.win_cp) == "won":
            metrics["keeps_win"].append(mean(s.parts["keeps"] for s in scores))
    return {"random_legal": metrics}
