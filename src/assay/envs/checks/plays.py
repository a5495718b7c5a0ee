"""Plays known answers through fresh envs of an environment: what each earned, how long it took, what failed."""

from __future__ import annotations

import itertools
import logging
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from assay.envs.base import Env, EnvData, EnvGroupBuilder, RLDataset, StepResult, iter_builders
from assay.envs.checks.deadline import Begin, unlimited
from assay.envs.results import require_messages, require_result
from assay.envs.tasks import TaskBatches
from assay.plugins import calling, in_words
from assay.terminal import quoted
from assay.types import Task

logger = logging.getLogger(__name__)

Answer = Literal["gold", "shuffled", "listed", "garbage", "empty"]
"""What is played: a best answer, that of another task, a list of several tasks' with the right one among them, random
characters, nothing."""
LISTED = 4
"""Other answers in a list."""
ROUNDS = 2
"""Times that each answer is played, each time by envs of a group of its own."""
MOST_TASKS = 100_000
"""Tasks of a split that are looked at for repeats."""


@dataclass(frozen=True, slots=True)
class Play:
    """One answer to one task, played to its end."""

    task: Task
    answer: Answer
    text: str
    round: int
    status: Literal["scored", "invalid", "errored"]
    reward: float | None
    error: str
    """Why it is errored."""
    seconds: tuple[float, ...]
    """What each call of `step` took."""
    said: str
    """All that the env told the policy."""


def tasks_of(data: RLDataset) -> list[Task]:
    """The tasks of a split, each as often as it is in one epoch."""
    if isinstance(data, TaskBatches):
        return list(itertools.islice(data.tasks, MOST_TASKS))
    return list({b.task.key: b.task for b in itertools.islice(iter_builders(data), MOST_TASKS)}.values())


def builders_of(data: EnvData, count: int) -> list[EnvGroupBuilder]:
    """The builders of the first `count` tasks that training would pose."""
    found: dict[str, EnvGroupBuilder] = {}
    for builder in iter_builders(data.train):
        found.setdefault(builder.task.key, builder)
        if len(found) == count:
            break
    return list(found.values())


async def play_all(
    builders: Sequence[EnvGroupBuilder],
    gold: Callable[[Task], str | None],
    max_turns: int,
    begin: Begin = unlimited,
) -> list[Play]:
    """Every answer to every task, `ROUNDS` times; `begin` is told what is done next."""
    best: list[str | None] = []
    for builder in builders:
        begin(f"Finding a best answer to {shown(builder.task)}")
        best.append(await _gold(builder, gold))
    plays: list[Play] = []
    for place, builder in enumerate(builders):
        answers = list(_answers(place, best))
        for number in range(ROUNDS):
            plays += await _round(builder, answers, number, max_turns, begin)
    return plays


async def _gold(builder: EnvGroupBuilder, gold: Callable[[Task], str | None]) -> str | None:
    """A best answer to the builder's task: as the environment has it, or as an env that knows it says."""
    with calling("gold()"):
        text = gold(builder.task)
    if text is not None:
        return text
    try:
        (env,) = await builder.make(1)
    except Exception:
        logger.debug("An env could not be made; the report says so for its answers.", exc_info=True)
        return None
    with calling(f"{type(env).__name__}.gold()"):
        said: Any = getattr(env, "gold", None)
        return said() if callable(said) else None


def _answers(place: int, best: Sequence[str | None]) -> Iterator[tuple[Answer, str]]:
    """What is played for the task at `place`, given the best answers to all."""
    own = best[place]
    if own is not None:
        yield "gold", own
        around = (*best[place + 1 :], *best[:place])
        others = list(dict.fromkeys(text for text in around if text is not None and text != own))
        if others:
            yield "shuffled", others[0]
        if len(others) >= LISTED:
            half = LISTED // 2
            yield "listed", "\n".join([*others[:half], own, *others[half:LISTED]])
    yield "garbage", garbage(place)
    yield "empty", ""


def garbage(place: int) -> str:
    """Characters that mean nothing; the same ones for the same place."""
    return "".join(random.Random(place).choices("qxzjvkw#@~^|", k=24))


async def _round(
    builder: EnvGroupBuilder, answers: Sequence[tuple[Answer, str]], number: int, max_turns: int, begin: Begin
) -> list[Play]:
    """One play of each answer, by the envs of one group."""
    begin(f"Making the envs of {shown(builder.task)}")
    try:
        envs: Sequence[Env] = await builder.make(len(answers))
        if len(envs) != len(answers):
            raise ValueError(f"{type(builder).__name__}.make({len(answers)}) gave {len(envs)} envs")
    except Exception as error:
        logger.debug("The envs of a group could not be made.", exc_info=True)
        failed = in_words(error)
        return [Play(builder.task, kind, text, number, "errored", None, failed, (), "") for kind, text in answers]
    plays: list[Play] = []
    for env, (kind, text) in zip(envs, answers, strict=True):
        begin(f"Playing an answer ({kind}) to {shown(builder.task)}")
        plays.append(await _play(builder.task, env, kind, text, number, max_turns))
    return plays


def shown(task: Task) -> str:
    """The beginning of a task's prompt, on one line."""
    return quoted(" ".join(task.text.split()), 50)


async def _play(task: Task, env: Env, kind: Answer, text: str, number: int, max_turns: int) -> Play:
    results: list[StepResult] = []
    seconds: list[float] = []
    said: list[str] = []
    error = ""
    try:
        messages = await env.reset()
        require_messages(messages, f"{type(env).__name__}.reset() returned")
        said += [message.content for message in messages]
        while len(results) < max_turns and not (results and results[-1].done):
            started = time.perf_counter()
            result = await env.step(text)
            seconds.append(time.perf_counter() - started)
            results.append(require_result(result, f"{type(env).__name__}.step()"))
            if result.score.status == "errored":
                error = result.score.why or "the score gives no reason"
                break
            said += [message.content for message in result.messages]
    except Exception as raised:
        logger.debug("An env failed to play an answer.", exc_info=True)
        error = in_words(raised)
    if error:
        return Play(task, kind, text, number, "errored", None, error, tuple(seconds), "".join(said))
    status: Literal["scored", "invalid"] = "invalid" if results[-1].score.status == "invalid" else "scored"
    reward = sum(result.score.value or 0.0 for result in results)
    return Play(task, kind, text, number, status, reward, "", tuple(seconds), "".join(said))
