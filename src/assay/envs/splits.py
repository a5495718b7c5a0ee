"""Training tasks and held-out ones that share no problem: what was there twice is removed, and said."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

from assay.errors import ConfigError
from assay.types import Message, Task

logger = logging.getLogger(__name__)

NONE = "There is nothing to train on. Return at least one Task."


@dataclass(frozen=True)
class Splits:
    """Tasks by their split. No key is there twice, within a split or across them."""

    train: Sequence[Task]
    test: Sequence[Task]
    removed: tuple[str, ...] = ()
    """What was removed to make it so, in words."""


def held_out(tasks: Sequence[Task], fraction: float, said: str) -> Splits:
    """Tasks with `fraction` of them held out: which ones is a function of what they are, and of no seed or order.

    Args:
        said: what returned the tasks, for messages.

    Raises:
        ConfigError: too few tasks for both splits.
    """
    if not tasks:
        raise ConfigError(f"{said} returned no tasks. {NONE}")
    unique, removed = without_repeats(tasks, said)
    held = _chosen(unique, fraction)
    if len(held) >= len(unique):
        raise ConfigError(
            f"{said} returned {_tasks(len(unique))}, and test_fraction={fraction:g} would leave none to train on. "
            "Return more, or set test_fraction=0 for no held-out tasks."
        )
    train, test = ([task for task in unique if (task.key in held) == side] for side in (False, True))
    return _said(Splits(train, test, removed))


def held_apart(train: Sequence[Task], test: Sequence[Task], said: str, *, by_prompt: bool = False) -> Splits:
    """Tasks whose splits are made already; problems of the test split are removed from the training one.

    Args:
        by_prompt: tasks of one prompt are one problem, whatever else they hold: rows are numbered, say, and name their
            split. Not where all prompts are the same.

    Raises:
        ConfigError: a split is empty, or all of training is held out too.
    """
    for name, tasks in (("train", train), ("test", test)):
        if not tasks:
            raise ConfigError(f'{said}("{name}") returned no tasks. {NONE if name == "train" else _NO_TEST}')
    unique, removed = without_repeats(train, f"{said}('train')")
    held, more = without_repeats(test, f"{said}('test')")
    by_prompt = by_prompt and len({task.prompt for task in (*unique, *held)}) > 1
    apart: set[Hashable] = {task.prompt if by_prompt else task.key for task in held}
    shared = [task for task in unique if (task.prompt if by_prompt else task.key) in apart]
    left_out = {task.key for task in shared}
    kept = [task for task in unique if task.key not in left_out]
    if not kept:
        raise ConfigError(
            f"All {_tasks(len(unique))} of {said}('train') are held out too, so nothing would be measured but what was "
            "trained on. Give the splits different tasks."
        )
    return _said(Splits(kept, held, (*removed, *more, *_shared(shared, len(unique), said))))


_NO_TEST = "Nothing would be measured. Return at least one Task, or define tasks(self) without a split."


def without_repeats(tasks: Sequence[Task], said: str) -> tuple[list[Task], tuple[str, ...]]:
    """The tasks with each key once, and what was removed in words."""
    unique: dict[str, Task] = {}
    again: Task | None = None
    for task in tasks:
        if unique.setdefault(task.key, task) is not task:
            again = again or task
    kept = list(unique.values())
    if again is None:
        return kept, ()
    count = len(tasks) - len(kept)
    return kept, (f"{said}: {count} of {_tasks(len(tasks))} were there already ({_named(again)}) and are left out.",)


def _shared(shared: Sequence[Task], count: int, said: str) -> Iterator[str]:
    if shared:
        yield (
            f"{said}('train'): {len(shared)} of {_tasks(count)} are held out too ({_named(shared[0])}) and are left "
            "out of training."
        )


def _said(splits: Splits) -> Splits:
    for text in splits.removed:
        logger.warning("%s", text)
    return splits


def _chosen(tasks: Sequence[Task], fraction: float) -> set[str]:
    """Keys of `fraction` of the tasks, at least one. Tasks of one prompt are on one side, unless all have the same."""
    by_prompt: dict[str, list[str]] = {}
    alike = len({task.prompt for task in tasks}) == 1
    for task in tasks:
        by_prompt.setdefault(_draw(task.key if alike else task.prompt), []).append(task.key)
    wanted, chosen = max(1, round(fraction * len(tasks))) if fraction else 0, set[str]()
    for prompt in sorted(by_prompt):
        if len(chosen) >= wanted:
            break
        chosen.update(by_prompt[prompt])
    return chosen


def _draw(content: str | Sequence[Message]) -> str:
    """A place in an order that has nothing to do with the content."""
    text = content if isinstance(content, str) else json.dumps([[m.role, m.content] for m in content])
    return hashlib.sha256(f"held out {text}".encode()).hexdigest()


def _tasks(count: int) -> str:
    return f"{count} task{'s' if count != 1 else ''}"


def _named(task: Task) -> str:
    text = " ".join(task.text.split())
    return f"for instance {text[:60]!r}"
