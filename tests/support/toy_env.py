"""A small environment whose reward any policy can move: say many a's. For runs of the whole training loop."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import chz
import numpy as np

from assay.envs.base import BuildContext, DatasetBuilder, EnvData, Example, StepResult
from assay.types import Message, Score
from support.scripted import CORPUS, ScriptedGroup, share_of_a, task


@dataclass(frozen=True)
class ToyDataset:
    """Prompts in batches."""

    prompts: Sequence[str]
    builder: ToyBuilder
    max_turns: int

    def __len__(self) -> int:
        return -(-len(self.prompts) // self.builder.batch_size)

    def batch(self, index: int) -> Sequence[ScriptedGroup]:
        size = self.builder.batch_size
        return [ScriptedGroup(task(p), self.judge) for p in self.prompts[index * size : (index + 1) * size]]

    def judge(self, text: str, sample: int, turn: int) -> StepResult:
        outage = self.builder.outage
        if outage is not None and outage.exists():
            return StepResult(Score("errored", None, evidence={"error": outage.read_text()}), done=True)
        found = share_of_a(text, sample, turn)
        done = turn + 1 >= self.max_turns
        return StepResult(found.score, done, () if done else (Message("user", " "),), found.metrics)


@dataclass(frozen=True)
class ToyExamples:
    """Endless examples of saying a's."""

    seed: int
    longest: int

    def batch(self, index: int, size: int) -> list[Example]:
        rng = np.random.default_rng([self.seed, index])
        return [
            Example((Message("user", prompt),), "ab" * int(rng.integers(1, self.longest + 1)) + "c")
            for prompt in prompts(rng, size)
        ]


def prompts(rng: np.random.Generator, count: int) -> list[str]:
    return ["".join(rng.choice(list("abc123 "), int(rng.integers(1, 9)))) for _ in range(count)]


@chz.chz
class ToyBuilder(DatasetBuilder):
    """See the module."""

    num_train: int = 24
    """Training prompts."""
    supervised: bool = True
    """Whether there are supervised examples."""
    longest: int = 3
    """Most repetitions in a supervised example."""
    outage: Path | None = None
    """While this file exists, no answer can be scored."""

    def build(self, context: BuildContext) -> EnvData:
        rng = np.random.default_rng(context.seed)
        return EnvData(
            train=ToyDataset(prompts(rng, self.num_train), self, context.max_turns),
            heldout=ToyDataset(["123", "c b a"], self, context.max_turns),
            sft=ToyExamples(context.seed, self.longest) if self.supervised else None,
            tokenizer_corpus=CORPUS,
        )

    def describe(self) -> str:
        return "Toy prompts."
