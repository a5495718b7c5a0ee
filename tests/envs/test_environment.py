"""`Environment`: tasks and a score in one class, and one clear line for whatever is wrong with it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from assay.config import resolved
from assay.envs import BuildContext, Env, EnvData, Environment, Message, Score, StepResult, Task, iter_builders
from assay.envs.base import build_data
from assay.errors import ConfigError
from assay.training.config import TrainingConfig, load_config

CONTEXT = BuildContext(seed=0, max_turns=1, cache_dir=Path("cache"))


class Digits(Environment):
    """The shortest form."""

    count: int = 40

    def tasks(self) -> list[Task]:
        return [Task.of(f"{n}=", answer=str(n % 10), tags=["odd" if n % 2 else "even"]) for n in range(self.count)]

    def score(self, task: Task, text: str) -> Any:
        return text == task.answer


def built(environment: Environment) -> EnvData:
    return build_data(environment, CONTEXT)


def tasks_of(data: EnvData) -> tuple[list[Task], list[Task]]:
    train, test = ([builder.task for builder in iter_builders(side)] for side in (data.train, data.heldout))
    return train, test


def played(environment: Environment, text: str) -> StepResult:
    """The verdict on the same answer to the first training task."""

    async def play() -> StepResult:
        (env,) = await next(iter_builders(built(environment).train)).make(1)
        assert [type(message) for message in await env.reset()] == [Message]
        return await env.step(text)

    return asyncio.run(play())


def test_tasks_are_named_split_and_batched() -> None:
    train, test = tasks_of(built(Digits(batch_size=8)))
    assert (len(train), len(test)) == (36, 4)
    assert {task.env for task in (*train, *test)} == {"Digits"}
    assert all(task.id == task.key for task in train) and train[0].answer == train[0].text[-2]
    assert not {task.key for task in train} & {task.key for task in test}


def test_which_tasks_are_held_out_depends_on_neither_seed_nor_order() -> None:
    class Ordered(Digits):
        backwards: bool = False

        def tasks(self) -> list[Task]:
            return super().tasks()[:: -1 if self.backwards else 1]

    def held(environment: Environment, seed: int = 0) -> set[str]:
        return {t.text for t in tasks_of(environment.build(BuildContext(seed, 1, Path("cache"))))[1]}

    first = held(Ordered())
    assert first == held(Ordered(), seed=5) == held(Ordered(backwards=True))
    assert held(Ordered(test_fraction=0.5)) > first, "a larger share holds out the same ones and more"
    assert held(Ordered(test_fraction=0)) == set()


@pytest.mark.parametrize(
    ("value", "wanted"),
    [(0.25, ("scored", 0.25)), (True, ("scored", 1.0)), (3, ("scored", 3.0)), (None, ("errored", None))],
)
def test_what_score_may_return(value: Any, wanted: tuple[str, float | None]) -> None:
    class Returning(Digits):
        def score(self, task: Task, text: str) -> Any:
            return value

    class Awaited(Digits):
        async def score(self, task: Task, text: str) -> Any:
            await asyncio.sleep(0)
            return value

    for environment in (Returning(), Awaited()):
        found = played(environment, "x").score
        assert (found.status, found.value) == wanted


def test_a_score_is_passed_through() -> None:
    class Parts(Digits):
        def score(self, task: Task, text: str) -> Score:
            return Score("invalid", -1.0, parts={"form": 0.0}, evidence={"said": text})

    assert played(Parts(), "x").score == Score("invalid", -1.0, parts={"form": 0.0}, evidence={"said": "x"})


@pytest.mark.parametrize("value", ["1.0", float("nan"), [1], {"score": 1}])
def test_a_wrong_value_is_errored_and_says_class_file_and_value(value: object) -> None:
    class Wrong(Digits):
        def score(self, task: Task, text: str) -> Any:
            return value

    found = played(Wrong(), "x").score
    assert found.status == "errored"
    said = str(found.evidence["message"])
    assert said.startswith(f"Wrong.score ({__file__}, line ") and str(value) in said and "\n" not in said


def returning(value: object) -> Callable[..., Any]:
    return lambda self: value


@pytest.mark.parametrize(
    ("tasks", "words"),
    [
        (returning("abc"), r"Own\.tasks\(\) returned 'abc', not a list of Task\."),
        (returning(None), r"Own\.tasks\(\) returned None, not a list of Task\."),
        (returning({"a": 1}), ", not a list of Task"),
        (returning([]), r"Own\.tasks\(\) returned no tasks\. There is nothing to train on"),
        (returning([("2+2=", "4")]), r"gave \('2\+2=', '4'\) at place 0, not a Task\. Make one with Task\.of"),
        (returning([Task.of("a", answer={1})]), r"at place 0 whose payload is not plain data \(Object of type set"),
        (returning([Task.of("a")]), "test_fraction=0.1 would leave none to train on"),
        (lambda self: [Task.of(3)], rf"raised TypeError: prompt=3 is neither .* \({__file__}, line \d+\)\."),
        (lambda self: [Task.of([{"role": "robot", "content": ""}])], "is not a message: it needs a role"),
        (lambda self: (1 / 0 for _ in "a"), rf"raised ZeroDivisionError: division by zero \({__file__}, line \d+\)\."),
        (lambda self: [Task.of("a", tags="easy")], "tags='easy' of a Task must be a list of texts"),
        (lambda self, split, size: [], r"Own\.tasks is tasks\(self, split, size\)\. Write tasks\(self\)"),
        (lambda self, split: [Task.of(split)] if split == "test" else [], r'Own\.tasks\("train"\) returned no tasks'),
        (
            lambda self, split: [Task.of(split)] if split == "train" else [],
            r'\("test"\) returned no tasks\. Nothing would',
        ),
        (lambda self, split: [Task.of("same")], r"All 1 task of Own\.tasks\('train'\) are held out too"),
    ],
)
def test_wrong_tasks_are_one_clear_line(tasks: Callable[..., Any], words: str) -> None:
    own = type("Own", (Environment,), {"tasks": tasks, "__module__": __name__})
    with pytest.raises(ConfigError, match=words) as caught:
        built(own())
    assert "\n" not in str(caught.value)


def test_an_async_tasks_is_refused_and_leaves_nothing_unawaited(recwarn: pytest.WarningsRecorder) -> None:
    class Late(Environment):
        async def tasks(self) -> list[Task]:
            return []

    with pytest.raises(ConfigError, match=r"Late\.tasks\(\) returned <coroutine"):
        built(Late())
    assert not recwarn.list


def test_what_is_missing_is_said() -> None:
    with pytest.raises(ConfigError, match=r"Own defines no tasks\(self\)"):
        built(type("Own", (Environment,), {})())
    silent = type("Own", (Environment,), {"tasks": lambda self: [Task.of("a"), Task.of("b")]})
    with pytest.raises(ConfigError, match=r"Own defines no score\(self, task, text\), and no env"):
        played(silent(), "x")


def test_a_split_with_a_default_is_asked_for_too() -> None:
    class Defaulted(Environment):
        def tasks(self, split: str = "train", size: int = 3) -> Iterable[Task]:
            return [Task.of(f"{split} {n}") for n in range(size)]

        def score(self, task: Task, text: str) -> float:
            return 1.0

    splits = Defaulted().splits()
    assert {task.text for task in splits.test} == {"test 0", "test 1", "test 2"} and len(splits.train) == 3


def test_repeats_and_problems_of_both_splits_are_removed_aloud(caplog: pytest.LogCaptureFixture) -> None:
    class Overlapping(Environment):
        def tasks(self, split: str) -> Iterable[Task]:
            numbers = [0, 1, 1, 2, 3] if split == "train" else [3, 4, 4]
            yield from (Task.of(f"{n}=", answer=n) for n in numbers)

    caplog.set_level(logging.WARNING)
    train, test = tasks_of(built(Overlapping()))
    assert {t.text for t in train} == {"0=", "1=", "2="} and [t.text for t in test] == ["3=", "4="]
    assert caplog.messages == [
        "Overlapping.tasks('train'): 1 of 5 tasks are duplicates (for instance '1=') and are left out.",
        "Overlapping.tasks('test'): 1 of 3 tasks are duplicates (for instance '4=') and are left out.",
        "Overlapping.tasks('train'): 1 of 4 tasks are held out too (for instance '3=') and are left out of training.",
    ]
    with pytest.raises(ConfigError, match=r"test_fraction=0\.3 would have no effect: Overlapping\.tasks\(split\)"):
        built(Overlapping(test_fraction=0.3))


def test_a_tokenizer_s_corpus_is_made_when_it_is_asked_for() -> None:
    class Spoken(Digits):
        def texts(self) -> list[str]:
            return ["higher", "lower"]

    corpus = built(Spoken()).tokenizer_corpus
    assert corpus is not None and corpus.alphabet == ""
    assert {*"0123456789=", *"higherlower"} == set().union(*corpus.texts)
    assert "7=" in corpus.texts and "7" in corpus.texts, "no token spans a prompt and its answer"


class Guess:
    """Told whether to go up, until it is right."""

    def __init__(self, secret: int) -> None:
        self.secret = secret

    async def reset(self) -> list[Message]:
        return [Message("user", "?")]

    async def step(self, text: str) -> StepResult:
        right = text == str(self.secret)
        return StepResult(Score("scored", float(right)), right, () if right else (Message("user", "up"),))


class Game(Digits):
    """Several turns."""

    max_turns = 3

    async def env(self, task: Task) -> Env:
        return Guess(int(task.answer))


def test_an_env_of_several_turns() -> None:
    found = played(Game(), "x")
    assert (found.done, found.messages) == (False, (Message("user", "up"),))
    own = f"{__name__}:Game"
    assert load_config(None, [f"dataset_builder={own}"]).build_context().max_turns == 3
    config = load_config(None, [f"dataset_builder={own}", "dataset_builder.max_turns=7", "mode=multi_turn", "gamma=1"])
    assert config.build_context().max_turns == 7
    with pytest.raises(ConfigError, match="only when the environment leaves the number of turns to the run, and") as it:
        load_config(None, [f"dataset_builder={own}", "mode=multi_turn", "max_turns=9"])
    assert "max_turns=9 is set" in str(it.value) and "Set dataset_builder.max_turns" in str(it.value)
    open_ended = [f"dataset_builder={__name__}:OpenEnded", "mode=multi_turn", "max_turns=9"]
    assert load_config(None, open_ended).build_context().max_turns == 9
    assert load_config(None, [f"dataset_builder={own}", "gamma=1"]).gamma == 1, "it plays turns in single-turn mode too"


class OpenEnded(Digits):
    """As many turns as the run says."""

    async def env(self, task: Task) -> Env:
        return Guess(int(task.answer))


def test_turns_of_an_environment_that_one_answer_ends_are_refused() -> None:
    simple = f"dataset_builder={__name__}:Digits"
    for setting in ("mode=multi_turn", "gamma=0.9", "dataset_builder.max_turns=3", "local.cohort_tokens=9"):
        with pytest.raises(ConfigError, match="is set, but it is read only when"):
            load_config(None, [simple, setting])


@pytest.mark.parametrize("value", ["abc", None, object()])
def test_what_is_no_env_is_said(value: object) -> None:
    class Own(Digits):
        def env(self, task: Task) -> Any:
            return value

    with pytest.raises(
        TypeError, match=r"Own\.env\(\) returned .*, which has no `async def reset` and no `async def s"
    ):
        played(Own(), "x")


def test_settings_and_suggestions_of_a_class_without_a_decorator() -> None:
    config = load_config(None, ["dataset_builder=" + f"{__name__}:Suggesting", "dataset_builder.count=30"])
    assert (config.model_name, config.learning_rate, config.scratch.hidden_size) == ("scratch", 1e-2, 16)
    assert isinstance(config, TrainingConfig) and config.dataset_builder.batch_size == 2
    assert resolved(config)["dataset_builder"]["count"] == 30
    assert "run_settings" not in resolved(config)["dataset_builder"]


class Suggesting(Digits):
    """With settings of the run, and a default of its own without its type."""

    batch_size = 2
    run_settings = {"model_name": "scratch", "lora_rank": 0, "learning_rate": 1e-2, "scratch": {"hidden_size": 16}}  # noqa: RUF012


def test_a_wrong_build_is_one_clear_line() -> None:
    class Short(Digits):
        def build(self) -> EnvData:  # type: ignore[override]
            raise AssertionError

    class Raising(Digits):
        def build(self, context: BuildContext) -> EnvData:
            raise KeyError("column")

    with pytest.raises(ConfigError, match=r"Short\.build\(\) -> .*: too many positional arguments\. Define build"):
        built(Short())
    with pytest.raises(ConfigError, match=rf"Raising\.build\(\) raised KeyError: 'column' \({__file__}, line"):
        built(Raising())
