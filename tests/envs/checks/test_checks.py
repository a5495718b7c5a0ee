"""What playing known answers finds: each kind of defect is seen, and a sound environment has none."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from assay.cli import main as cli
from assay.cli.tasks.check import describe
from assay.envs import BuildContext, Environment, Message, Score, StepResult, Task
from assay.envs.base import build_data
from assay.envs.checks.plays import builders_of, garbage, play_all
from assay.envs.checks.report import CheckReport, Earned, report_of
from assay.envs.environment import EachByItself
from assay.errors import ConfigError

CONTEXT = BuildContext(seed=0, max_turns=1, cache_dir=Path("cache"))


class Sound(Environment):
    """Nothing is wrong with it."""

    def tasks(self) -> Iterable[Task]:
        return [Task.of(f"{n}+1=", answer=n + 1) for n in range(20)]

    def score(self, task: Task, text: str) -> Any:
        return text.strip() == str(task.answer)


def checked(environment: Environment, tasks: int = 8) -> CheckReport:
    async def check() -> CheckReport:
        data = build_data(environment, CONTEXT)
        turns = environment.turns(1)
        return report_of(data, await play_all(builders_of(data, tasks), environment.gold, turns), turns)

    return asyncio.run(check())


def scoring(score: Callable[..., Any], **members: Any) -> Environment:
    made: Environment = type("Own", (Sound,), {"score": score, **members, "__module__": __name__})()
    return made


def kinds(report: CheckReport) -> list[str]:
    return [problem.kind for problem in report.problems]


def test_a_sound_environment_has_no_problems() -> None:
    report = checked(Sound())
    assert kinds(report) == [] and report.notes == []
    assert (report.train, report.heldout, report.played) == (18, 2, 8)
    assert {name: earned.mean for name, earned in report.earned.items()} == {
        "gold": 1.0,
        "shuffled": 0.0,
        "listed": 0.0,
        "garbage": 0.0,
        "empty": 0.0,
    }
    assert all(earned.plays == 16 for earned in report.earned.values())


def test_pay_for_anything_is_seen_without_best_answers() -> None:
    def no_gold(self: Any, task: Task) -> None:
        return None

    report = checked(scoring(lambda self, task, text: 1.0, gold=no_gold))
    assert kinds(report) == ["constant"] and "Garbage and an empty answer earned 1" in report.problems[0].message
    assert kinds(checked(scoring(lambda self, task, text: 0.0, gold=no_gold))) == []


def test_scores_of_a_group_are_said_not_to_be_played() -> None:
    class Ranked(EachByItself):
        async def score_group(self, trajectories: Any) -> list[Score]:
            raise NotImplementedError

    report = checked(scoring(Sound.score, group=lambda self, task: Ranked(task, self)))
    assert kinds(report) == [] and "score_group" in report.notes[0]


CALLS: list[int] = []


def unsteady(self: Any, task: Task, text: str) -> float:
    CALLS.append(1)
    return len(CALLS) / 1000 + (text == str(task.answer))


@pytest.mark.parametrize(
    ("score", "kind", "words"),
    [
        (lambda self, task, text: 0.5, "constant", "Every answer to every task earned 0.5"),
        (lambda self, task, text: text == task.answer, "constant", "earned 0, best answers and garbage alike"),
        (
            lambda self, task, text: str(task.answer) in text,
            "order",
            "On 8 of 8 tasks a list of several tasks' best answers earned as much as the best answer.",
        ),
        (unsteady, "unstable", "earned a different reward when played again, such as gold on '"),
        (
            lambda self, task, text: -len(text) if text != str(task.answer) else -99,
            "order",
            "earned more than the best",
        ),
        (lambda self, task, text: text in ("", str(task.answer)), "order", "On 8 of 8 tasks an empty answer earned as"),
        (
            lambda self, task, text: bool(text.strip("qxzjvkw#@~^|")),
            "order",
            "another task's best answer earned as much",
        ),
        (lambda self, task, text: "1.0", "errors", "Own.score ("),
        (lambda self, task, text: int(text), "errors", "ValueError: invalid literal for int() with base 10: ''"),
        (lambda self, task, text: None, "errors", "returned None"),
    ],
)
def test_each_defect_of_a_score_is_found(score: Callable[..., Any], kind: str, words: str) -> None:
    report = checked(scoring(score))
    assert kind in kinds(report)
    assert any(words in problem.message for problem in report.problems if problem.kind == kind), report.problems
    assert all(problem.cure for problem in report.problems)


def test_a_slow_score_is_found_by_what_step_took(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(10_000))
    monkeypatch.setattr(time, "perf_counter", lambda: 2.0 * next(clock))
    report = checked(Sound(), tasks=2)
    assert kinds(report) == ["slow"] and "One score takes 2.0 s (median; at most 2.0 s)." in report.problems[0].message


@pytest.mark.parametrize(
    ("tasks", "kind", "words"),
    [
        (lambda self: [Task.of("a", answer=n % 3) for n in range(9)], "repeats", "6 of 9 tasks are duplicates"),
        (lambda self: [Task.of("same", answer=n) for n in range(9)], "repeats", "are trained on too, such as 'same'"),
        (lambda self: [Task.of(" " * n, answer=n) for n in range(1, 9)], "prompts", "training prompts of 7 are empty"),
        (lambda self: [Task.of("x" * 33_000 + str(n), answer=n) for n in range(9)], "prompts", "at most 33,001."),
    ],
)
def test_what_is_wrong_with_tasks_is_found(tasks: Callable[..., Any], kind: str, words: str) -> None:
    environment = scoring(Sound.score, tasks=tasks)
    report = checked(environment)
    assert any(kind == problem.kind and words in problem.message for problem in report.problems), report.problems


class Talker:
    """Two turns, and words that no task has."""

    def __init__(self, task: Task) -> None:
        self.task, self.turn = task, 0

    async def reset(self) -> list[Message]:
        return list(self.task.prompt)

    async def step(self, text: str) -> StepResult:
        self.turn += 1
        right = text == str(self.task.answer)
        return StepResult(Score("scored", float(right)), self.turn == 2, (Message("user", "again!"),))


def test_several_turns_are_played_and_what_a_scratch_model_cannot_read_is_noted() -> None:
    alike = [Task.of("Guess.", answer=n) for n in range(9)]  # which is another game each time
    game = scoring(Sound.score, env=lambda self, task: Talker(task), max_turns=5, tasks=lambda self: alike)
    report = checked(game)
    assert report.earned["gold"].mean == 2.0 and not report.problems
    assert "characters that a model from scratch (model_name=scratch) could not read: '!agin'" in report.notes[0]


def test_without_best_answers_that_is_said_and_nothing_is_made_up() -> None:
    environment = scoring(lambda self, task, text: 0.0, tasks=lambda self: [Task.of(str(n)) for n in range(9)])
    report = checked(environment)
    assert kinds(report) == [] and "No best answers are known" in report.notes[0]
    own = scoring(Sound.score, gold=lambda self, task: str(task.answer) + " ")
    assert kinds(checked(own)) == []


@pytest.mark.parametrize(
    ("env", "words"),
    [
        (lambda self, task: "no env", "Own.env() returned 'no env', which has no `async def reset`"),
        (
            lambda self, task: type("E", (Talker,), {"reset": said("hello")})(task),
            "E.reset() returned 'hello', not a",
        ),
        (
            lambda self, task: type("E", (Talker,), {"step": said(1.0)})(task),
            "E.step() returned 1.0, not a",
        ),
    ],
)
def test_a_broken_env_is_one_problem(env: Callable[..., Any], words: str) -> None:
    report = checked(scoring(Sound.score, env=env))
    assert kinds(report) == ["errors"] and words in report.problems[0].message
    assert "80 of 80 plays (empty, garbage, gold, listed, shuffled)" in report.problems[0].message


def said(value: object) -> Callable[..., Any]:
    async def method(*arguments: object) -> Any:
        return value

    return method


def test_a_gold_that_raises_is_one_line() -> None:
    with pytest.raises(ConfigError, match=rf"gold\(\) raised ZeroDivisionError: division by zero \({__file__}, line"):
        checked(scoring(Sound.score, gold=lambda self, task: 1 / 0))


def test_garbage_is_the_same_each_time_and_differs_between_tasks() -> None:
    assert garbage(3) == garbage(3) != garbage(4)


@pytest.mark.parametrize(
    ("score", "metrics", "words"),
    [
        (
            lambda: Score("scored", 1.0, evidence={"x": object()}),
            {},
            "has evidence that cannot be recorded: a value of type object",
        ),
        (lambda: Score("scored", 1.0), {"kind": "text"}, "whose metric kind is 'text', not a number"),
        (lambda: Score("scored", 1.0, {"a": None}), {}, "must be real number, not NoneType"),  # type: ignore[dict-item]
        (lambda: 1.0, {}, "whose score is 1.0, not a Score"),
    ],
)
def test_what_a_run_could_not_average_or_record_is_an_error(
    score: Callable[[], Any], metrics: dict[str, Any], words: str
) -> None:
    class Odd(Sound):
        def env(self, task: Task) -> Any:
            return Turn(task)

    class Turn:
        def __init__(self, task: Task) -> None:
            self.task = task

        async def reset(self) -> list[Message]:
            return list(self.task.prompt)

        async def step(self, text: str) -> StepResult:
            return StepResult(score(), done=True, metrics=metrics)

    report = checked(Odd())
    assert kinds(report) == ["errors"] and words in report.problems[0].message


ROOT = Path(__file__).parents[3]
_README = re.search(r"echo '(def right\(.*)' > mine\.py", (ROOT / "README.md").read_text())
_PAGE = (ROOT / "docs/migrating.md").read_text()
_BATCH = re.search(r"(def correct\(completions, answer, \*\*kwargs\):\n    return .*)\n", _PAGE)
_ONE = re.search(r"`(def correct\(completion, answer\): return [^`]*)`", _PAGE)


@pytest.mark.parametrize("shown", [_README, _BATCH, _ONE], ids=["README", "migrating, a batch", "migrating, one"])
def test_first_rewards_that_the_docs_show_pass_the_check(
    shown: re.Match[str] | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert shown is not None
    (tmp_path / "mine.py").write_text(shown[1] + "\n")
    lines = [json.dumps({"prompt": f"{a} + {b} =", "answer": str(a + b)}) for a in range(5) for b in range(8)]
    (tmp_path / "rows.jsonl").write_text("\n".join(lines) + "\n")
    name = shown[1].partition("(")[0].removeprefix("def ")
    given = [f"path={tmp_path / 'rows.jsonl'}", f"reward={tmp_path / 'mine.py'}:{name}"]
    status = cli.main(["check", "rows", "model_name=nowhere", *(f"dataset_builder.{one}" for one in given)])
    out, err = capsys.readouterr()
    assert status == 0 and "Nothing wrong was found" in out, out + err


@pytest.mark.parametrize("reward", [1e15, -1e15, 1e-7, 123456.789, 0.5])
def test_columns_hold_rewards_of_any_size(reward: float) -> None:
    earned = Earned(8, 0, 0, mean=reward, low=-abs(reward), high=reward)
    report = CheckReport(1, 1, 1, {"gold": earned}, None, None, (), ())
    head, row = [line for line in describe("Mine", report).splitlines() if line.startswith(("answer", "gold"))]
    assert len(head) == len(row) and [float(figure) for figure in row.split()[1:4]] == pytest.approx(
        [reward, -abs(reward), reward], rel=1e-3
    )
