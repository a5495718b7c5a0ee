"""A task of verifiers scored by our reward: the real package where it is installed (`pip install verifiers`)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

vf = pytest.importorskip("verifiers.v1", reason="verifiers needs an environment of its own")

from assay.errors import DataError  # noqa: E402
from assay.integrations.common.scoring import close_all  # noqa: E402
from assay.integrations.verifiers import reward  # noqa: E402


@pytest.fixture(autouse=True)
def engines_end() -> Iterator[None]:
    yield
    close_all()


class Question(vf.TaskData):
    answer: str


class WordTask(vf.Task[Question, vf.State, vf.TaskConfig]):
    words = reward("support.host_rewards:ShareOfWords", name="words", weight=2.0)


class OtherTask(vf.Task[Question, vf.State, vf.TaskConfig]):
    words = reward("support.host_rewards:ShareOfWords", ground_truth="solution")


def scored(task: Any, reply: str) -> Any:
    """A finished trace of the task, scored as verifiers does it."""
    trace = vf.Trace.model_construct(root_reply=reply, rewards={}, metrics={}, nodes=[], errors=[], info={})
    asyncio.run(task.score(trace))
    return trace


def test_the_reward_and_its_parts_are_on_the_trace() -> None:
    trace = scored(WordTask(Question(prompt="Which letters?", answer="a b")), "a c")
    assert (trace.rewards["words"].score, trace.rewards["words"].weight) == (0.5, 2.0)
    assert trace.metrics == {"words/found": 0.5, "words/length": 2.0, "words/cached": 0.0}


def test_a_failure_is_an_error_of_the_rollout_and_no_reward() -> None:
    trace = vf.Trace.model_construct(root_reply="BROKEN", rewards={}, metrics={}, nodes=[], errors=[], info={})
    with pytest.raises(vf.TaskError, match="this response breaks the reward"):
        asyncio.run(WordTask(Question(prompt="q", answer="a")).score(trace))
    assert trace.rewards == {"words": None}


def test_a_missing_field_is_named_with_those_there_are() -> None:
    with pytest.raises(vf.TaskError, match="no field 'solution'") as caught:
        scored(OtherTask(Question(prompt="q", answer="a")), "a")
    assert isinstance(caught.value.__cause__, DataError)


def near(completion: str, solution: str, prompt: str) -> float:
    return float(completion == solution and prompt == "q")


class Solved(vf.TaskData):
    solution: str


class FunctionTask(vf.Task[Solved, vf.State, vf.TaskConfig]):
    given = reward(near)
    named = reward(f"{__file__}:near", name="named")


def test_a_plain_function_takes_fields_by_their_names() -> None:
    trace = scored(FunctionTask(Solved(prompt="q", solution="4")), "4")
    assert {name: found.score for name, found in trace.rewards.items()} == {"near": 1.0, "named": 1.0}
