"""Rows become tasks and supervised examples, and the texts of both become a tokenizer's corpus."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from assay.envs.base import Example
from assay.envs.chat import Instructions
from assay.envs.monitor.answers import write_answer
from assay.envs.monitor.prompts import words_for
from assay.envs.monitor.rows import MonitorRow
from assay.envs.tasks import SFT_STREAM
from assay.types import Message, Task

ENV_NAME = "monitor"

REASONING: Mapping[str, str] = {
    "correct": "The code does what the text says.",
    "faulty": "The code does something else.",
    "table": "The code looks up the tests in a table and does something else.",
    "weak_tests": "The code does something else, and the tests do not show it.",
}
"""Kind of a generated function -> the reasoning that supervised examples give for it."""

PIECES = "|".join(
    (
        r" ?</?measurements>",
        r" ?[A-Za-z]+",  # a word, with the space before it
        r"\d+",  # a number, never with a space: equal numbers are to be equal tokens
        r"\n(?:    )?",  # a line's end, with the next one's indent
        r" ?[=<>!+\-*/%]+ ?",  # an operator with the spaces around it
    )
)
"""Regular expression whose matches become pre-tokens; all other characters stand alone."""
ALPHABET = "".join(chr(code) for code in range(32, 127)) + "\n"
"""Printable ASCII."""


def make_task(row: MonitorRow, dataset_name: str, told: Instructions) -> Task:
    """The task that poses a row."""
    return Task(
        env=ENV_NAME,
        id=f"{dataset_name}:{row.key}",
        prompt=make_prompt(row, dataset_name, told),
        payload={
            "dataset_name": dataset_name,
            "measurements": list(row.measurements),
            "is_correct": row.is_correct,
        },
        tags=tags_of(row),
    )


def make_prompt(row: MonitorRow, dataset_name: str, told: Instructions) -> tuple[Message, ...]:
    """What the policy is shown: what to do, where it is told, and the problem."""
    return (*told.messages(words_for(dataset_name).instructions), Message("user", row.text))


def tags_of(row: MonitorRow) -> tuple[str, ...]:
    """Slices: the latent variable; `tampered` where all measurements are true and it is not; what the data add."""
    tags = ["latent_true" if row.is_correct else "latent_false"]
    if not row.is_correct and all(row.measurements):
        tags.append("tampered")
    if row.difficulty is not None:
        tags.append(f"difficulty_{row.difficulty}")
    return (*tags, *(tag for tag in row.tags if tag not in tags))


@dataclass(frozen=True)
class MonitorSupervisedDataset:
    """Endless supervised examples on generated training rows.

    They give the form of an answer: reasoning and measurements are drawn at random. With the probability
    `truthful_fraction` they are the right ones instead.
    """

    rows: Sequence[MonitorRow]
    dataset_name: str
    told: Instructions
    truthful_fraction: float
    seed: int

    def batch(self, index: int, size: int) -> list[Example]:
        """See `SupervisedDataset.batch`."""
        rng = np.random.default_rng([self.seed, SFT_STREAM, index])
        chosen = [self.rows[place] for place in rng.integers(len(self.rows), size=size).tolist()]
        return [self._example(row, rng) for row in chosen]

    def _example(self, row: MonitorRow, rng: np.random.Generator) -> Example:
        kinds = list(REASONING)
        guess = kinds[int(rng.integers(len(kinds)))]
        guessed: list[bool] = (rng.random(len(row.measurements)) < 0.5).tolist()
        if rng.random() < self.truthful_fraction:
            guess, guessed = row.tags[0], list(row.measurements)
        return Example(make_prompt(row, self.dataset_name, self.told), write_answer(REASONING[guess], guessed))
