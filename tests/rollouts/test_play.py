"""One rollout: turns that extend the conversation or replace it, and how it ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from assay.envs.base import StepResult
from assay.rollouts.play import play
from assay.rollouts.renderers.base import PlainRenderer
from assay.rollouts.seeds import derive, turn_seed
from assay.types import Completion, Message, SamplingParams, Score, Trajectory
from support import virtual_time
from support.scripted import scored, task
from support.scripted_backend import Letters

PARAMS = SamplingParams(8)


class Says:
    """A policy that says the same in every turn, and remembers what it saw."""

    context_length = 40

    def __init__(self, said: str = "ab") -> None:
        self.said = said
        self.asked: list[tuple[str, int, bool]] = []
        self.params: list[SamplingParams] = []

    def room(self, prompt: Sequence[int]) -> int:
        return self.context_length - len(prompt)

    async def complete(self, prompt: Sequence[int], params: SamplingParams, seed: int, *, last: bool) -> Completion:
        self.asked.append(("".join(map(chr, prompt)), seed, last))
        self.params.append(params)
        tokens = (*map(ord, self.said), 0)
        return Completion(tokens, (-0.5,) * len(tokens), "stop", 3)


class Judged:
    """An env that answers its n-th turn with the n-th result; an exception is raised."""

    def __init__(self, *results: StepResult | BaseException, start: str = "go") -> None:
        self.results = list(results)
        self.start = start

    async def reset(self) -> list[Message]:
        return [Message("user", self.start)]

    async def step(self, text: str) -> StepResult:
        await asyncio.sleep(1)
        found = self.results.pop(0)
        if isinstance(found, BaseException):
            raise found
        return found


def told(text: str, *, replace: bool = False) -> StepResult:
    messages = (Message("user", text),) if text else ()
    return StepResult(Score("scored", 1.0), done=False, messages=messages, replace=replace)


def rollout(env: Any, policy: Says | None = None, *, max_turns: int = 3, **changes: Any) -> Trajectory:
    renderer = changes.get("renderer", PlainRenderer(Letters()))
    return virtual_time.play(
        play(env, policy or Says(), renderer, PARAMS, task=task("go"), max_turns=max_turns, seed=(7, 1, 2))
    )


def test_a_turn_extends_what_was_seen_and_said() -> None:
    policy = Says()
    found = rollout(Judged(told("x"), told("y"), scored(2.0, done=False)), policy)
    assert [prompt for prompt, _, _ in policy.asked] == ["go", "goab\0x", "goab\0xab\0y"]
    assert [seed for _, seed, _ in policy.asked] == [turn_seed((7, 1, 2), turn) for turn in range(3)]
    assert [last for _, _, last in policy.asked] == [False, False, True]
    assert {params.stop for params in policy.params} == {(0,)}, "the renderer's stop tokens are added"
    assert (found.stop_reason, found.seed, found.reward) == ("max_turns", derive(7, 1, 2), 4.0)
    assert [turn.completion.policy_version for turn in found.transitions] == [3, 3, 3]


def test_a_turn_may_replace_the_conversation() -> None:
    policy = Says()
    found = rollout(Judged(told("anew", replace=True), told("y"), scored(0.0)), policy)
    assert [prompt for prompt, _, _ in policy.asked] == ["go", "anew", "anewab\0y"]
    assert [bytes(turn.prompt_tokens).decode() for turn in found.transitions] == ["go", "anew", "anewab\0y"]
    assert found.stop_reason == "done"


def test_a_replaced_conversation_has_the_context_to_itself() -> None:
    grows = rollout(Judged(*(told("x" * 12) for _ in range(9))), max_turns=9)
    assert (grows.stop_reason, len(grows.transitions)) == ("length", 3)
    assert all(len(turn.prompt_tokens) < Says.context_length for turn in grows.transitions)
    anew = rollout(Judged(*(told("x" * 12, replace=True) for _ in range(9))), max_turns=9)
    assert (anew.stop_reason, len(anew.transitions)) == ("max_turns", 9)
    too_long = rollout(Judged(told("x" * 40, replace=True)))
    assert (too_long.stop_reason, too_long.reward) == ("length", 1.0)


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (StepResult(Score("scored", 1.0, evidence={"x": object()}), done=True), "evidence that cannot be recorded"),
        (StepResult(Score("scored", 1.0), done=True, metrics={"m": "x"}), "metric m is 'x', not a number"),  # type: ignore[dict-item]
        (StepResult(1.0, done=True), "whose score is 1.0, not a Score"),  # type: ignore[arg-type]
    ],
)
def test_a_result_that_could_not_be_recorded_costs_its_rollout_alone(result: StepResult, words: str) -> None:
    found = rollout(Judged(result))
    assert found.errored and words in found.failure


def unrenderable(messages: Sequence[Message]) -> list[int]:
    if messages[0].content == "??":
        raise KeyError("no such role")
    return [1]


@pytest.mark.parametrize("result", [told("", replace=True), told("??", replace=True)], ids=["nothing", "unrenderable"])
def test_what_cannot_be_shown_to_the_policy_is_the_env_s_failure(
    result: StepResult,
) -> None:
    renderer = PlainRenderer(Letters())
    renderer.start = unrenderable  # type: ignore[method-assign]
    found = rollout(Judged(result), renderer=renderer)
    assert (found.stop_reason, found.errored, len(found.transitions)) == ("errored", True, 1)
    assert found.failure == found.error and found.error.startswith(
        ("KeyError: 'no such role' (", "ValueError: StepResult")
    )


FAILURES: list[Callable[[], BaseException]] = [lambda: ValueError("no board"), lambda: asyncio.CancelledError()]


@pytest.mark.parametrize("failing", FAILURES, ids=["raises", "met a cancellation"])
def test_a_failing_env_ends_its_rollout(failing: Callable[[], BaseException]) -> None:
    found = rollout(Judged(told("x"), failing()))
    assert (found.stop_reason, found.reward, len(found.transitions)) == ("errored", None, 2)
    error = found.transitions[1].score.evidence["error"]
    assert type(failing()).__name__ in error and f"({__file__}, line " in error and found.failure == error


@pytest.mark.parametrize("failing", FAILURES, ids=["raises", "met a cancellation"])
def test_an_env_that_cannot_start_asks_nothing_of_the_policy(failing: Callable[[], BaseException]) -> None:
    class Unresettable(Judged):
        async def reset(self) -> list[Message]:
            raise failing()

    policy = Says()
    for env in (Unresettable(), None):
        found = rollout(env, policy)
        assert (found.stop_reason, found.transitions, found.errored) == ("errored", (), True)
    assert not policy.asked


def test_a_rollout_that_is_cancelled_is_no_errored_one() -> None:
    async def run() -> None:
        rollout = asyncio.create_task(
            play(Judged(told("x")), Says(), PlainRenderer(Letters()), PARAMS, task=task("a"), max_turns=1, seed=(0,))
        )
        await asyncio.sleep(0.5)
        rollout.cancel()
        with pytest.raises(asyncio.CancelledError):
            await rollout

    virtual_time.play(run())


def test_a_policy_that_fails_is_no_data() -> None:
    class Broken(Says):
        async def complete(self, *_: Any, **__: Any) -> Completion:
            raise RuntimeError("no weights")

    with pytest.raises(RuntimeError, match="no weights"):
        rollout(Judged(told("x")), Broken())
