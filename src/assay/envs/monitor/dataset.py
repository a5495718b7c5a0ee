"""`MonitorDatasetBuilder`: which monitor tasks a run trains on, and whether and how a monitor is asked."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Literal

import chz
import numpy as np

from assay.config import MAY_CHANGE, AtLeast, AtMost, UsedWhen, refuse
from assay.envs.base import BaselineMetrics, BuildContext, DatasetBuilder, EnvData, TokenizerCorpus
from assay.envs.chat import Instructions
from assay.envs.judged import EngineScorer
from assay.envs.monitor.answers import parse_answer, write_answer
from assay.envs.monitor.env import MonitorGroupBuilder, Scorer, sample_of
from assay.envs.monitor.generator import GeneratorConfig, generate
from assay.envs.monitor.prompts import words_for
from assay.envs.monitor.rewards import ClassBalance, MonitorReward, MonitorRewardConfig, metrics_of
from assay.envs.monitor.rows import MonitorRow, read_source
from assay.envs.monitor.tasks import ALPHABET, PIECES, MonitorSupervisedDataset, make_task
from assay.envs.monitor.variables import monitor_settings
from assay.envs.tasks import TRAIN_STREAM, ExampleTexts, TaskBatches
from assay.errors import ConfigError, DataError
from assay.rewards import EngineConfig, JudgeConfig, RewardEngine
from assay.rewards.client.resources import key_check
from assay.types import Check, Json, Task

logger = logging.getLogger(__name__)

HELDOUT_SEED = 20_241_121
"""Held-out tasks are drawn with this seed and not with the run's, so that runs with different seeds can be compared."""
CORPUS_EXAMPLES = 2000
"""Supervised examples that a from-scratch tokenizer is trained on."""
GENERATED = "generated"


@chz.chz
class MonitorDatasetBuilder(DatasetBuilder):
    """Measurements to predict, with reasoning that a monitor reads: correctness of functions, or diamonds in vaults."""

    dataset_src: str = GENERATED
    """Where rows come from: `generated`, `huggingface` (the hub, by `dataset_name`), or the path of a
    .jsonl or .parquet file or of a folder with the columns of the published data."""
    dataset_name: str = "function_correctness"
    """What the rows are: `function_correctness`, or `diamonds-seed0` to `diamonds-seed7`."""
    instructions: str = "auto"
    """What the model is told before each problem: `auto` (chat models are told what to do and the form of an answer;
    others see the problem alone), `none`, or a text of your own."""
    batch_size: int = 16
    """Prompts per batch."""
    group_size: int = 16
    """Rollouts per prompt."""
    num_epochs: Annotated[int, AtLeast(1)] = 1
    """Passes over the training tasks."""
    num_train: Annotated[int, AtLeast(1)] = 3200
    """Training tasks; of a file with fewer, all of them."""
    num_heldout: Annotated[int, AtLeast(1)] = 200
    """Held-out tasks; the same for every seed of a run."""
    heldout_split: Literal["validation", "final"] = "validation"
    """Which held-out tasks to evaluate on: `validation` while tuning, `final` once, for the reported result."""
    shuffle: bool = True
    """Reorder the training tasks in every epoch."""
    truthful_fraction: Annotated[float, AtLeast(0), AtMost(1), UsedWhen("dataset_src", GENERATED)] = 0.0
    """Share of supervised examples with the right answer; the others have the right form and a random answer."""
    generator: Annotated[GeneratorConfig, UsedWhen("dataset_src", GENERATED)] = chz.field(
        default_factory=GeneratorConfig
    )
    """What `dataset_src=generated` makes."""
    reward: MonitorRewardConfig = chz.field(default_factory=MonitorRewardConfig)
    """Rewards of answers."""
    judge: Annotated[JudgeConfig, UsedWhen("reward.train_with_monitor", True)] = chz.field(default_factory=JudgeConfig)
    """The monitor; asked with `reward.train_with_monitor`."""
    engine: Annotated[EngineConfig, UsedWhen("reward.train_with_monitor", True), MAY_CHANGE] = chz.field(
        default_factory=EngineConfig
    )
    """Speed, limits and budget of the monitor's calls."""

    @chz.validate
    def _consistent(self) -> None:
        refuse(_impossible(self))

    @classmethod
    def environment(cls, environ: Mapping[str, str]) -> Mapping[str, Json]:
        """See `DatasetBuilder.environment`."""
        return monitor_settings(environ)

    def build(self, context: BuildContext) -> EnvData:
        """See `DatasetBuilder.build`."""
        self._check_key()
        train, heldout = self._rows(context)
        scorer = self._scorer([row.is_correct for row in train], context)

        def group(task: Task) -> MonitorGroupBuilder:
            return MonitorGroupBuilder(task, scorer)

        told = Instructions(self.instructions, context.chat)
        tasks, heldout_tasks = ([make_task(row, self.dataset_name, told) for row in rows] for rows in (train, heldout))
        sft = corpus = None
        if self.dataset_src == GENERATED:
            sft = MonitorSupervisedDataset(train, self.dataset_name, told, self.truthful_fraction, context.seed)
            examples = sft
            corpus = TokenizerCorpus(ExampleTexts(lambda: examples.batch(0, CORPUS_EXAMPLES)), PIECES, ALPHABET)

        async def baselines() -> BaselineMetrics:
            return {} if scorer.engine is not None else {"all_true": all_true(heldout_tasks, scorer.reward)}

        return EnvData(
            train=TaskBatches(tasks, group, self.batch_size, self.num_epochs, self.shuffle, context.seed),
            heldout=TaskBatches(heldout_tasks, group, self.batch_size),
            sft=sft,
            tokenizer_corpus=corpus,
            baseline_policies=baselines,
            counters=scorer.counters,
            close=scorer.close,
        )

    async def checks(self, context: BuildContext) -> list[Check]:
        """See `DatasetBuilder.checks`: the monitor's key, where one is asked."""
        return [key_check(self.judge)] if self.reward.train_with_monitor and not self.engine.offline else []

    def turns(self, max_turns: int) -> int:
        """One: the answer to a problem ends it."""
        return 1

    def gold(self, task: Task) -> str:
        """See `DatasetBuilder.gold`."""
        return write_answer("", task.payload["measurements"])

    def describe(self) -> str:
        """See `DatasetBuilder.describe`."""
        where = "generated" if self.dataset_src == GENERATED else f"from {self.dataset_src}"
        reward = self.reward
        judged = "The monitor is not asked"
        if reward.train_with_monitor:
            side = "to be right" if reward.monitor_correct_reward >= reward.monitor_wrong_reward else "to be misled"
            votes = f", {self.judge.votes} votes" if self.judge.votes > 1 else ""
            judged = (
                f"{self.judge.model} at {self.judge.base_url} reads the reasoning{votes}; the policy is paid for it "
                f"{side} ({reward.monitor_correct_reward:+g} right, {reward.monitor_wrong_reward:+g} wrong"
                f"{', rebalanced' if reward.rebalance_monitor_reward else ''})"
            )
        return (
            f"Monitor tasks ({self.dataset_name}, {where}): at most {self.num_train} for training; held out: "
            f"{self.num_heldout} {self.heldout_split} tasks. {judged}."
        )

    def _check_key(self) -> None:
        """Refuse a monitor without a key now, and not after sampling."""
        name = self.judge.api_key_env
        if self.reward.train_with_monitor and name and not os.environ.get(name, "").strip():
            raise ConfigError(
                f"reward.train_with_monitor=true asks {self.judge.model} at {self.judge.base_url}, and {name} holds no "
                f"API key. export {name}=..., set dataset_builder.judge.api_key_env= to nothing for an endpoint that "
                "needs no key, or set TRAIN_WITH_MONITOR=false."
            )

    def _rows(self, context: BuildContext) -> tuple[list[MonitorRow], list[MonitorRow]]:
        """Training and held-out rows."""
        if self.dataset_src == GENERATED:
            folder = context.cache_dir / "monitor_functions"
            train = generate("train", self.num_train, context.seed, self.generator, folder)
            return train, generate(self.heldout_split, self.num_heldout, HELDOUT_SEED, self.generator, folder)
        source = read_source(self.dataset_src, self.dataset_name)
        rng = np.random.default_rng([context.seed, TRAIN_STREAM])
        return (
            _some(source.rows("train"), self.num_train, rng),
            _some(source.rows(self.heldout_split), self.num_heldout, np.random.default_rng(HELDOUT_SEED)),
        )

    def _scorer(self, latents: Sequence[bool], context: BuildContext) -> Scorer:
        balance = ClassBalance.of(latents) if self.reward.rebalance_monitor_reward else None
        reward = MonitorReward(self.reward, self.judge, balance)
        for concern in reward.concerns():
            logger.warning("%s", concern)
        if not self.reward.train_with_monitor:
            return Scorer(reward, None)
        engine = RewardEngine(reward, self.judge, self.engine, cache_dir=context.cache_dir)
        return Scorer(reward, EngineScorer(engine))


def all_true(tasks: Sequence[Task], reward: MonitorReward) -> dict[str, list[float]]:
    """What a policy earns that gives no reasoning and predicts that every measurement is true."""
    columns: dict[str, list[float]] = {}
    for task in tasks:
        text = write_answer("", [True] * len(task.payload["measurements"]))
        score = reward.score(sample_of(task, text), [])
        for name, value in {"reward": score.value or 0.0, **metrics_of(score, parse_answer(text))}.items():
            columns.setdefault(name, []).append(value)
    return columns


def _some(rows: Sequence[MonitorRow], count: int, rng: np.random.Generator) -> list[MonitorRow]:
    """At most `count` rows, drawn without replacement."""
    return [rows[place] for place in rng.permutation(len(rows))[:count].tolist()]


def _impossible(config: MonitorDatasetBuilder) -> Iterator[str]:
    try:
        words_for(config.dataset_name)
    except DataError as error:
        yield f"dataset_name: {error}"
    made = config.dataset_src == GENERATED
    if made and config.dataset_name != "function_correctness":
        yield f"dataset_name={config.dataset_name} cannot be generated. Set dataset_src to a copy, or huggingface."
    if config.engine.on_failure != "drop":
        yield (
            f"engine.on_failure={config.engine.on_failure}: in a run an answer without a score is excluded from its "
            "group and counted, and max_errored_fraction stops the run. Leave it at drop; the other policies are for "
            "hosts that need a number."
        )
