"""Rollouts are answered as soon as the backend yields, in the calls that its capabilities ask for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from typing import Any

import pytest

from assay.errors import ModelError
from assay.rollouts.sampling import Sampling
from assay.types import Completion, SamplingParams
from support.scripted_backend import ScriptedBackend
from support.virtual_time import play

PARAMS = SamplingParams(8)
Rollout = Callable[[int, Any], Coroutine[Any, Any, None]]


def run(backend: ScriptedBackend, count: int, rollout: Rollout, sampled: Callable[[], None] | None = None) -> None:
    """Every rollout gets its seat, in virtual time."""

    async def seated(sampling: Sampling, place: int) -> None:
        with sampling.seat(place) as policy:
            await rollout(place, policy)

    async def all_of_them() -> None:
        async with Sampling(backend, count, PARAMS.max_tokens, sampled) as sampling:
            await asyncio.gather(*(seated(sampling, place) for place in range(count)))

    play(all_of_them())
    assert backend.open == 0


def test_each_is_answered_when_its_completion_is_there() -> None:
    backend, answered = ScriptedBackend(), []

    async def rollout(place: int, policy: Any) -> None:
        completion = await policy.complete([place], PARAMS, place, last=True)
        assert completion == backend.answer([place], PARAMS, place)
        answered.append((asyncio.get_running_loop().time(), place))

    run(backend, 9, rollout)
    (call,) = backend.calls
    assert call.prompts == [(place,) for place in range(9)], "what is asked in one go is one call"
    assert [place for _, place in answered] == call.yielded != sorted(call.yielded)
    assert len({time for time, _ in answered}) == 9


def test_a_batch_invariant_backend_gets_a_later_turn_at_once() -> None:
    backend = ScriptedBackend()

    async def rollout(place: int, policy: Any) -> None:
        for turn in range(3):
            await policy.complete([place, turn], PARAMS, 10 * place + turn, last=turn == 2)
            await asyncio.sleep(100 if place == 0 and turn == 0 else 0.5)

    run(backend, 3, rollout)
    slow = next(i for i, call in enumerate(backend.calls) if (0, 1) in call.prompts)
    ahead = [prompt for call in backend.calls[:slow] for prompt in call.prompts]
    assert {(1, 2), (2, 2)} <= set(ahead), "nobody waits for another's verdict"


def test_other_backends_get_cohorts() -> None:
    backend = ScriptedBackend(batch_invariant=False, cohort_tokens=2 * PARAMS.max_tokens)

    async def rollout(place: int, policy: Any) -> None:
        for turn in range(3):
            await policy.complete([place, turn], PARAMS, 10 * place + turn, last=turn == 2)
            await asyncio.sleep(100 if place == 0 else 0.5)

    run(backend, 4, rollout)
    prompts = [call.prompts for call in backend.calls]
    assert prompts == [
        [(0, 0), (1, 0), (2, 0), (3, 0)],
        [(2, 1), (3, 1)],
        [(2, 2), (3, 2)],
        [(0, 1), (1, 1)],
        [(0, 2), (1, 2)],
    ]


def test_different_limits_are_calls_of_their_own() -> None:
    backend = ScriptedBackend(batch_invariant=False)

    async def rollout(place: int, policy: Any) -> None:
        await policy.complete([place], SamplingParams(8 + place % 2), place, last=True)

    run(backend, 4, rollout)
    assert [call.prompts for call in backend.calls] == [[(0,), (2,)], [(1,), (3,)]]


def test_it_is_said_once_when_nothing_more_will_be_sampled() -> None:
    backend, said, verdicts = ScriptedBackend(batch_invariant=False), [], []

    def sampled() -> None:
        said.append((backend.open, list(verdicts), [len(call.yielded) for call in backend.calls]))

    async def rollout(place: int, policy: Any) -> None:
        if place == 2:
            return
        turns = 1 if place == 0 else 2
        for turn in range(turns):
            await policy.complete([place], PARAMS, 10 * place + turn, last=turn == 1)
            await asyncio.sleep(5)
        verdicts.append(place)

    run(backend, 3, rollout, sampled)
    # The rollout that ended early has its verdict, and the other one's last is out.
    assert said == [(0, [0], [2, 1])]


class Faulty(ScriptedBackend):
    """Fails, or says nothing, of the second prompt of a call."""

    def __init__(self, error: Exception | None) -> None:
        super().__init__()
        self.error = error

    async def sample_stream(
        self, prompts: Sequence[Sequence[int]], params: SamplingParams, seeds: Sequence[int]
    ) -> AsyncGenerator[tuple[int, Completion], None]:
        async for place, completion in super().sample_stream(prompts, params, seeds):
            if place != 1:
                yield place, completion
            elif self.error is not None:
                raise self.error


@pytest.mark.parametrize("error", [ModelError("out of memory"), None])
def test_nobody_waits_for_a_call_that_failed(error: Exception | None) -> None:
    told: dict[int, str] = {}

    async def rollout(place: int, policy: Any) -> None:
        try:
            await policy.complete([place], PARAMS, place, last=True)
        except ModelError as caught:
            told[place] = str(caught)

    backend = Faulty(error)
    run(backend, 4, rollout)
    assert 1 in told
    if error is None:
        assert set(told) == {1} and told[1].startswith("The backend answered 3 of 4 prompts")
        with pytest.raises(ModelError, match="answered 3 of 4"):
            play(backend.sample([[0], [1], [2], [3]], PARAMS, range(4)))
    else:
        assert set(told.values()) == {"out of memory"}
        assert set(told) == set(range(4)) - set(backend.calls[0].yielded) | {1}


def test_leaving_ends_the_calls_in_flight() -> None:
    backend = ScriptedBackend()

    async def leave() -> None:
        async with Sampling(backend, 2, 8) as sampling:
            with sampling.seat(0) as policy:
                with pytest.raises(TimeoutError):
                    await asyncio.wait_for(policy.complete([1], PARAMS, 5, last=False), backend.seconds(5) / 2)
                assert backend.open == 1
        assert backend.open == 0

    play(leave())
