"""Kernels to imitate before RL: solved problems of a data set, or right kernels of a run, as supervised examples.

Right kernels of a run (`assay export --samples`) keep the prompt that they answered and the reply as it was sampled.
Other data sets hold a problem and a kernel: the problem is posed as the run poses it, and the answer is the kernel in
the form that prompts ask for. They hold no thought, so their prompts ask for none.

A solution of a problem that is held out is never imitated, nor is one of a problem like it; nor is an answer to a
prompt that shows one, such as a run with `prompt_option=raicl` on other problems may have written.
"""

from __future__ import annotations

import logging
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from assay.envs.base import Example
from assay.envs.kernelbench.prompts import PromptStyle, exclusion_of, prompt_of
from assay.envs.kernelbench.reply import read_reply
from assay.envs.tasks import SFT_STREAM
from assay.errors import DataError
from assay.kernels.problems.sources import Problem
from assay.retrieval.code_text import code_hash
from assay.retrieval.corpora import Reading, corpus_of
from assay.retrieval.entries import Entry
from assay.retrieval.exclusion import Reason, Screen
from assay.retrieval.pairs import Pair, fenced

logger = logging.getLogger(__name__)

_CLASS = re.compile(r"^class[ \t]+(\w+)", re.MULTILINE)


@dataclass(frozen=True)
class KernelExamples:
    """Supervised examples, each once in every pass, in an order of its own."""

    examples: Sequence[Example]
    seed: int

    def batch(self, index: int, size: int) -> list[Example]:
        """See `SupervisedDataset`."""
        count = len(self.examples)
        places = range(index * size, (index + 1) * size)
        passes = {p: self._order(p) for p in range(places[0] // count, places[-1] // count + 1)}
        return [self.examples[passes[place // count][place % count]] for place in places]

    def _order(self, number: int) -> Sequence[int]:
        order: list[int] = (
            np.random.default_rng([self.seed, SFT_STREAM, number]).permutation(len(self.examples)).tolist()
        )
        return order


def read_examples(path: str, style: PromptStyle, heldout: Sequence[Problem], most: int) -> list[Example]:
    """The examples of a file or data set.

    Args:
        path: as `assay index build --corpus` takes it.
        style: how problems are posed.
        heldout: problems whose solutions are not to be imitated.
        most: characters of prompt and answer together; longer examples are left out.

    Raises:
        ConfigError, DataError: there is no such thing, it cannot be read, or nothing in it can be imitated.
        MissingDependencyError: a package that reads it is not installed.
    """
    reading, screen = Reading(corpus_of(path)), Screen(exclusion_of(heldout))
    bare = replace(style, option="zero_shot", thinks=False)
    passed_over: Counter[str] = Counter()
    found: list[Example] = []
    for pair in reading:
        if pair.solution is None:
            raise DataError(
                f"{path} holds problems without solutions, so there is nothing to imitate. Give kernels in sft_path; "
                "problems to train on are given with dataset_src=corpus."
            )
        if pair.language != style.language:
            passed_over[f"in {pair.language}"] += 1
        elif reason := screen.reason(_entry(pair)):
            passed_over[f"solves a held-out problem ({reason.replace('_', ' ')})"] += 1
        elif reason := _shown(example := _example(pair, bare), pair, screen):
            passed_over[f"its prompt shows a held-out problem ({reason.replace('_', ' ')})"] += 1
        elif _length(example) > most:
            passed_over[f"over {most:,} characters"] += 1
        else:
            found.append(example)
    said = "; ".join(f"{count:,} {reason}" for reason, count in passed_over.most_common())
    if not found:
        raise DataError(f"{reading.summary()}. Nothing in it can be imitated{f': {said}' if said else ''}.")
    logger.info("Kernels to imitate: %d. %s%s", len(found), reading.summary(), f"; left out: {said}" if said else "")
    return found


def _entry(pair: Pair) -> Entry:
    solution = pair.solution or ""
    return Entry(
        pair.name,
        pair.language,
        pair.problem,
        solution,
        code_hash(pair.problem),
        pair.source,
        pair.correct,
        pair.speedup,
    )


def _shown(example: Example, pair: Pair, screen: Screen) -> Reason | None:
    """Why a prompt's worked examples may not be seen; None where they may.

    A prompt tells no name of its examples, so they go by those of their classes, as many data sets name them.
    """
    own = code_hash(pair.problem)
    for code in (block for message in example.prompt for block in fenced(message.content)):
        if code_hash(code) != own:
            for name in _CLASS.findall(code) or [""]:
                if reason := screen.reason(_entry(replace(pair, name=name, problem=code))):
                    return reason
    return None


def _length(example: Example) -> int:
    return sum(len(message.content) for message in example.prompt) + len(example.completion)


def _example(pair: Pair, style: PromptStyle) -> Example:
    """A pair as an example: its own conversation, where the reply gives its kernel in our form; or one made for it."""
    reply = pair.messages[-1].content if len(pair.messages) > 1 else ""
    if "<KERNEL>" in reply and read_reply(reply).kernel.strip() == (pair.solution or "").strip():
        return Example(pair.messages[:-1], reply)
    problem = Problem(0, 0, pair.name, pair.problem, pair.source)
    solution = (pair.solution or "").strip("\n")
    return Example(prompt_of(problem, style), f"<KERNEL>\n```python\n{solution}\n```\n</KERNEL>")
