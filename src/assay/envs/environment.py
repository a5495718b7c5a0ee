"""`Environment`: an environment in one short class, with what every data set needs done around it.

    class LargestDigit(Environment):
        def tasks(self):
            return [Task.of(f"{n}=", answer=max(str(n))) for n in range(100)]

        def score(self, task, text):
            return text == task.answer

`tasks` and `score` are enough for tasks that one answer ends. `env` plays several turns, `group` shares work within a
group, `build` does everything else.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

import chz

from assay import plugins
from assay.config import AtLeast, AtMost, UsedWhen, fact
from assay.envs.base import (
    BuildContext,
    DatasetBuilder,
    Env,
    EnvData,
    EnvGroupBuilder,
    Example,
    StepResult,
    TokenizerCorpus,
)
from assay.envs.splits import Splits, held_apart, held_out
from assay.envs.tasks import ExampleTexts, TaskBatches
from assay.errors import ConfigError
from assay.rewards.functions.returned import score_of
from assay.types import Json, Message, Task

TRAIN, TEST = "train", "test"
"""The splits that `tasks` is asked for."""
PIECES = r"\d| ?[^\W\d_]+|\s|[^\w\s]|_"
"""What a tokenizer made from tasks may merge into one token: words; digits and signs stay single."""
_MOST_SHOWN = 80


@chz.chz
class Environment(DatasetBuilder):
    """Tasks and a score for an answer. Subclasses define `tasks` and `score`; typed fields are settings."""

    num_epochs: Annotated[int, AtLeast(1)] = 1
    """Passes over the training tasks."""
    shuffle: bool = True
    """Reorder the training tasks in every epoch."""
    test_fraction: Annotated[float, AtLeast(0), AtMost(0.9)] = 0.1
    """Share of the tasks that is held out if `tasks` does not take a split; the same tasks for every seed."""
    max_turns: Annotated[int, AtLeast(1), UsedWhen("goes_on")] = 1
    """Most turns of a rollout, where `env` plays several."""

    run_settings: ClassVar[Mapping[str, Json]] = {}
    """Defaults of the whole run that suit the environment, such as `{"learning_rate": 3e-3}`; others outrank them."""

    def tasks(self, *args: Any, **kwargs: Any) -> Iterable[Task]:
        """The tasks, as `tasks(self)` or as `tasks(self, split)` with `split` "train" and "test".

        Called once, or once per split.
        """
        raise ConfigError(f"{type(self).__name__} defines no tasks(self). Define it to return a list of Task.of(...).")

    def score(self, task: Task, text: str) -> Any:
        """The score of the answer `text`: a number, a bool, a `Score`, or None where it cannot be judged.

        May be `async`. What it raises makes the rollout errored, and never a 0.
        """
        raise ConfigError(f"{type(self).__name__} defines no score(self, task, text), and no env(self, task).")

    def env(self, task: Task) -> Any:
        """An `Env` that plays one rollout of the task; by default one answer, judged by `score`. May be `async`."""
        return OneAnswer(task, self)

    def group(self, task: Task) -> EnvGroupBuilder:
        """Makes the envs of one group, and does the work that they share. By default `env`, once per rollout."""
        return EachByItself(task, self)

    def gold(self, task: Task) -> str | None:
        """A best answer, where one is known: by default the task's `answer`. `assay check` plays it."""
        return gold_text(task.answer)

    def texts(self) -> Iterable[str]:
        """Texts beside prompts and best answers that a model from scratch must read or write: what `env` says."""
        return ()

    def turns(self, max_turns: int) -> int:
        """See `DatasetBuilder.turns`."""
        if not self.goes_on:
            return 1
        return self.max_turns if self.max_turns > 1 else max_turns

    @fact("the environment defines what follows an answer", cure="Define env(self, task)")
    def goes_on(self) -> bool:
        """Whether a rollout may have more than one turn: without `env`, `group` or `build`, one answer ends it."""
        own = type(self)
        return any(getattr(own, name) is not getattr(Environment, name) for name in ("env", "group", "build"))

    def build(self, context: BuildContext) -> EnvData:
        """See `DatasetBuilder.build`."""
        return self.data(context, self.group)

    def data(self, context: BuildContext, group: Callable[[Task], EnvGroupBuilder]) -> EnvData:
        """The data sets of the tasks, whose groups `group` makes.

        Raises:
            ConfigError, DataError: there are no tasks.
        """
        splits = self.splits()
        return EnvData(
            train=TaskBatches(splits.train, group, self.batch_size, self.num_epochs, self.shuffle, context.seed),
            heldout=TaskBatches(splits.test, group, self.batch_size),
            tokenizer_corpus=TokenizerCorpus(ExampleTexts(lambda: self._corpus(splits)), PIECES, ""),
            notes=splits.removed,
        )

    def splits(self) -> Splits:
        """The tasks of both splits, named and without duplicates; removals are logged.

        Raises:
            ConfigError: `tasks` raises, or returns no tasks.
        """
        said = f"{type(self).__name__}.tasks"
        if _takes_split(type(self)):
            default = chz.chz_fields(type(self))["test_fraction"]._default
            if self.test_fraction != default:
                raise ConfigError(
                    f"test_fraction={self.test_fraction:g} would have no effect: {said}(split) makes the splits itself."
                )
            train, test = (self._named(f"{said}({split!r})", split) for split in (TRAIN, TEST))
            return held_apart(train, test, said)
        return held_out(self._named(f"{said}()"), self.test_fraction, f"{said}()")

    def _named(self, said: str, *split: str) -> list[Task]:
        """The tasks as they are returned, each with the environment's name and an id."""
        with plugins.calling(said):
            found = self.tasks(*split)
            tasks = list(found) if isinstance(found, Iterable) and not isinstance(found, str | Mapping) else None
        if tasks is None:
            close(found)
            raise ConfigError(f"{said} returned {_shown(found)}, not a list of Task. {_where(type(self), 'tasks')}")
        return [self._task(task, place, said) for place, task in enumerate(tasks)]

    def _task(self, task: object, place: int, said: str) -> Task:
        if not isinstance(task, Task):
            raise ConfigError(
                f"{said} gave {_shown(task)} at place {place}, not a Task. Make one with Task.of(prompt)."
                f" {_where(type(self), 'tasks')}"
            )
        named = dataclasses.replace(task, env=task.env or type(self).__name__)
        try:
            key = named.key
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"{said} gave a Task at place {place} whose payload is not plain data ({error}), so it cannot be kept. "
                f"Use texts, numbers, lists and dictionaries. {_where(type(self), 'tasks')}"
            ) from None
        return named if named.id else dataclasses.replace(named, id=key)

    def _corpus(self, splits: Splits) -> list[Example]:
        """Prompts and best answers as separate texts, so that no token spans the two."""
        tasks = (*splits.train, *splits.test)
        with plugins.calling(f"{type(self).__name__}.gold()"):
            answers = [text for task in tasks if (text := self.gold(task)) is not None]
        with plugins.calling(f"{type(self).__name__}.texts()"):
            further = list(self.texts())
        prompts = [Example(task.prompt, "") for task in tasks]
        return [*prompts, *(Example((), text) for text in (*answers, *further))]


@dataclass
class OneAnswer:
    """One rollout of a task that one answer ends."""

    task: Task
    environment: Environment = field(repr=False)

    async def reset(self) -> list[Message]:
        """The task's prompt."""
        return list(self.task.prompt)

    async def step(self, text: str) -> StepResult:
        """What the environment's `score` says."""
        value = self.environment.score(self.task, text)
        if inspect.isawaitable(value):
            value = await value
        return StepResult(score_of(value, said_of(type(self.environment), "score")), done=True)


@dataclass
class EachByItself:
    """A group that shares nothing."""

    task: Task
    environment: Environment = field(repr=False)

    async def make(self, n: int) -> list[Env]:
        """`n` fresh envs.

        Raises:
            TypeError: what `env` returned is not an env.
        """
        return [await self._env() for _ in range(n)]

    async def _env(self) -> Env:
        made: Any = self.environment.env(self.task)
        if isinstance(made, Awaitable):
            made = await made
        lacking = [name for name in ("reset", "step") if not inspect.iscoroutinefunction(getattr(made, name, None))]
        if lacking:
            raise TypeError(
                f"{type(self.environment).__name__}.env() returned {_shown(made)}, which has no `async def "
                f"{' and no `async def '.join(f'{name}`' for name in lacking)}"
            )
        env: Env = made
        return env


def gold_text(answer: Json) -> str | None:
    """An answer as a policy would write it; None if it is neither text nor a number."""
    if isinstance(answer, bool) or not isinstance(answer, str | int | float):
        return None
    return str(answer)


def _takes_split(cls: type[Environment]) -> bool:
    """Whether `tasks` takes a split.

    Raises:
        ConfigError: it takes something else.
    """
    function: Callable[..., Any] = cls.tasks
    signature = inspect.signature(function)
    without, with_split = (object(),), (object(), TRAIN)
    # One that is called `split` is asked for both, also where it has a default.
    both = (with_split, without) if "split" in signature.parameters else (without, with_split)
    for arguments in both:
        try:
            signature.bind(*arguments)
        except TypeError:
            continue
        return len(arguments) == 2
    raise ConfigError(
        f"{cls.__name__}.tasks is tasks{signature}. Write tasks(self), or tasks(self, split). {_where(cls, 'tasks')}"
    )


def close(found: object) -> None:
    """Close a coroutine that will not be awaited."""
    if inspect.iscoroutine(found):
        found.close()


def said_of(cls: type, method: str) -> str:
    """A method of a user's class with its place: `LargestDigit.score (own_env.py, line 12)`."""
    code = getattr(getattr(cls, method), "__code__", None)
    place = f" ({code.co_filename}, line {code.co_firstlineno})" if code is not None else ""
    return f"{cls.__name__}.{method}{place}"


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."


def _where(cls: type, method: str) -> str:
    """Where a class says something, for a message."""
    code = getattr(getattr(cls, method), "__code__", None)
    return f"See {code.co_filename}, line {code.co_firstlineno}." if code is not None else ""
