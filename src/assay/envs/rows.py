"""`dataset_builder=rows`: a table of prompts and answers, judged by rewards."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import chz

from assay.config import DATA, MAY_CHANGE, AtLeast, Code, UsedWhen, fact, refuse
from assay.envs.base import BuildContext, Env, EnvData, StepResult
from assay.envs.environment import TEST, TRAIN, Environment
from assay.envs.judged import EngineScorer
from assay.envs.splits import Splits, held_apart, held_out
from assay.errors import ConfigError, DataError
from assay.rewards import EngineConfig, JudgeConfig, RewardEngine, Sample
from assay.rewards.named import REWARD, find_rewards
from assay.storage.records import ABSENT, SUFFIXES, Record, column, first_of, records_of
from assay.types import Json, Message, Task, messages_of

logger = logging.getLogger(__name__)

_FIELD = re.compile(r"\{\{|\}\}|\{(\w+(?:\.\w+)*)\}")


@chz.chz
class RowsDatasetBuilder(Environment):
    """Prompts and answers from JSON lines, CSV, parquet or a Hugging Face data set, judged by rewards."""

    path: Annotated[str, DATA] = ""
    """A `.jsonl`, `.json`, `.csv`, `.tsv` or `.parquet` file; a folder that `datasets` wrote, or one with
    `train.jsonl` (or another kind); or the id of a Hugging Face data set."""
    subset: Annotated[str | None, UsedWhen("has_subsets")] = None
    """Configuration of a hub data set that has several."""
    train_split: Annotated[str, UsedWhen("has_splits")] = "train"
    """Which rows of a folder or a hub data set to train on."""
    test_path: Annotated[str | None, DATA] = None
    """Where held-out rows are; null means `path`."""
    test_split: Annotated[str | None, UsedWhen("has_test_splits")] = None
    """Which rows of a folder or a hub data set are held out. If neither this nor `test_path` is set, `test_fraction` of
    the rows are held out."""
    prompt_column: Annotated[str, UsedWhen("template", None)] = "prompt"
    """Column of the prompt: text, or messages with `role` and `content`. Not read with `template`."""
    answer_column: str | None = "answer"
    """Column of the right answer, which rewards get as `answer`; null if rows have none. A dot leads into a
    nested column, here and wherever else a column is named: `reward_model.ground_truth`."""
    template: str | None = None
    """The prompt, with columns in braces: `{question} Answer with a number.` Double any other brace."""
    system: str | None = None
    """A system message before each prompt."""
    tag_columns: tuple[str, ...] = ()
    """Columns by whose values metrics are split."""
    max_rows: Annotated[int, AtLeast(1)] = 100_000
    """Most rows to read of each split; a warning says if there are more."""
    reward: Annotated[tuple[str, ...], Code(REWARD)] = ()
    """How an answer is scored: a function `path.py:name` or `package.module:name`, or a built-in reward. Several
    make a weighted sum: `rewards.py:correct,rewards.py:short*0.2`."""
    options: Mapping[str, Json] = chz.field(default_factory=dict)
    """Keyword arguments of the reward; of several rewards `NAME.KEY`, where NAME is what follows the colon."""
    judge: JudgeConfig = chz.field(default_factory=JudgeConfig)
    """The judge, for rewards that ask one."""
    engine: Annotated[EngineConfig, MAY_CHANGE] = chz.field(default_factory=EngineConfig)
    """Speed, limits and budget of the judge's calls."""

    @fact("rows are read from a folder or a hub data set", "path", cure="Give such a path")
    def has_splits(self) -> bool:
        """Whether training rows are one of several splits; a single file has none."""
        return not _is_file(self.path)

    @fact("rows are read from the hub", "path", "test_path", cure="Give the id of a hub data set")
    def has_subsets(self) -> bool:
        """Whether rows may be of one of several configurations."""
        return any(path and not _is_file(path) and not _is_folder(path) for path in (self.path, self.test_path))

    @fact("held-out rows are read from a folder or a hub data set", "path", "test_path", cure="Give such a test_path")
    def has_test_splits(self) -> bool:
        """Whether held-out rows are one of several splits."""
        return not _is_file(self.test_path or self.path)

    @fact("an environment plays several turns", cure="Write an Environment of your own")
    def goes_on(self) -> bool:
        """Never: the answer to a row ends it."""
        return False

    @chz.validate
    def _consistent(self) -> None:
        refuse(_impossible(self))

    def build(self, context: BuildContext) -> EnvData:
        """See `DatasetBuilder.build`."""
        if not self.path:
            raise ConfigError("path is not set, so there are no rows. Set it to a file, a folder or a hub id.")
        if not self.reward:
            raise ConfigError(
                "reward is not set, so answers would have no reward. Set it to something like rewards.py:correct, "
                "where correct(completion, answer) returns a number."
            )
        engine = RewardEngine(
            find_rewards(self.reward, self.options, self.judge), self.judge, self.engine, cache_dir=context.cache_dir
        )
        scorer = EngineScorer(engine)
        data = self.data(context, lambda task: RowGroup(task, scorer))
        return replace(data, counters=scorer.counters, close=scorer.close)

    def splits(self) -> Splits:
        """See `Environment.splits`."""
        train = self._read(self.path, self.train_split, TRAIN)
        if self.test_path is None and self.test_split is None:
            return held_out(train, self.test_fraction, self.path)
        test = self._read(self.test_path or self.path, self.test_split or "test", TEST)
        return held_apart(train, test, self.path, by_prompt=True)

    def describe(self) -> str:
        """See `DatasetBuilder.describe`."""
        if self.test_path is None and self.test_split is None:
            held = f"{self.test_fraction:.0%} of them"
        else:
            held = " ".join(filter(None, [self.test_path, self.test_split]))
        return f"Rows of {self.path}; held out: {held}. Rewarded by {' + '.join(self.reward)}."

    def _read(self, path: str, split: str, side: str) -> list[Task]:
        rows, more = first_of(records_of(path, split, self.subset), self.max_rows)
        if not rows:
            raise DataError(f"path={path} has no {side} rows.")
        if more:
            logger.warning("path=%s has more than max_rows=%d %s rows; the others are not read.", path, len(rows), side)
        return [self._row(place, row) for place, row in rows]

    def _row(self, place: str, row: Record) -> Task:
        """The task of a row.

        Raises:
            DataError: a column is missing, or the prompt is not one.
        """
        wanted = {"prompt_column": self.prompt_column} if self.template is None else {}
        if self.answer_column is not None:
            wanted["answer_column"] = self.answer_column
        wanted |= {f"tag_columns={name}": name for name in self.tag_columns}
        for setting, name in wanted.items():
            if column(row, name) is ABSENT:
                cure = " Set it, or set answer_column=null if the rows have no answers." * (name == self.answer_column)
                raise DataError(f"{place} has no column {name!r} ({setting}). It has {_columns(row)}.{cure}")
        prompt = column(row, self.prompt_column) if self.template is None else fill(self.template, row, place)
        try:
            messages = messages_of(prompt)
            "".join(message.content for message in messages).encode()
        except (TypeError, ValueError) as error:
            raise DataError(f"{place}, column {self.prompt_column}: {str(error)[:200]}.") from None
        if self.system is not None:
            messages = (Message("system", self.system), *messages)
        answer = column(row, self.answer_column) if self.answer_column is not None else None
        rest = {name: value for name, value in row.items() if name not in (self.prompt_column, self.answer_column)}
        tags = [str(column(row, name)) for name in self.tag_columns]
        return self._task(Task.of(messages, answer, tags=tags, env="rows", row=rest), 0, place)


@dataclass
class RowEnv:
    """One rollout of a row: one answer, judged by the rewards."""

    task: Task
    scorer: EngineScorer

    async def reset(self) -> list[Message]:
        """The row's prompt."""
        return list(self.task.prompt)

    async def step(self, text: str) -> StepResult:
        """What the rewards say."""
        score = await self.scorer.score(sample_of(self.task, text))
        return StepResult(score, done=True, metrics=dict(score.parts))


@dataclass
class RowGroup:
    """Makes the envs of one row."""

    task: Task
    scorer: EngineScorer = field(repr=False)

    async def make(self, n: int) -> list[Env]:
        """`n` fresh envs."""
        return [RowEnv(self.task, self.scorer) for _ in range(n)]


def sample_of(task: Task, text: str) -> Sample:
    """An answer to a row, as rewards take it: its columns by name. Where it is from is its column `data_source`."""
    row = task.payload["row"]
    source = row.get("data_source")
    return Sample(text, task.answer, source if isinstance(source, str) else task.env, task.prompt, row)


def fill(template: str, row: Record, place: str) -> str:
    """A template with the columns of a row in it; `{{` is a brace.

    Raises:
        DataError: it names a column that the row lacks.
    """

    def value(match: re.Match[str]) -> str:
        name = match[1]
        if name is None:
            return match[0][0]
        if (found := column(row, name)) is ABSENT:
            raise DataError(
                f"{place} has no column {name!r}, which template has in braces. It has {_columns(row)}. A "
                "brace that is only a brace is doubled: {{."
            )
        return str(found)

    return _FIELD.sub(value, template)


def _is_file(path: str) -> bool:
    """Whether a path is that of a single file, there or not."""
    return Path(path).suffix in SUFFIXES and not _is_folder(path)


def _is_folder(path: str) -> bool:
    return Path(path).expanduser().is_dir()


def _columns(row: Record) -> str:
    names = ", ".join(row) or "none"
    return names if len(names) <= 300 else f"{names[:300]}..."


def _impossible(config: RowsDatasetBuilder) -> Iterator[str]:
    default: Any = chz.chz_fields(Environment)["test_fraction"]._default
    if (config.test_path or config.test_split) and config.test_fraction != default:
        yield "test_fraction would have no effect: test_path or test_split says which rows are held out. Remove one."
    if config.engine.on_failure != "drop":
        yield (
            f"engine.on_failure={config.engine.on_failure}: in a run an answer without a score is left out of its "
            "group and counted, and max_errored_fraction stops the run. Leave it at drop."
        )
