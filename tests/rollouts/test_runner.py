"""Rollouts of scripted and chess environments under a real, tiny, untrained policy."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from assay.backends.base import AdamParams, Backend
from assay.backends.config import LocalBackend, ScratchModel
from assay.backends.local.backend import TorchBackend
from assay.envs.base import BuildContext, Env, StepResult, TokenizerCorpus
from assay.envs.chess.corpus import ALPHABET, PIECES
from assay.envs.chess.dataset import ChessDatasetBuilder
from assay.errors import ModelError
from assay.rollouts.in_flight import InFlight
from assay.rollouts.renderers.base import PlainRenderer
from assay.rollouts.runner import prepare, run_groups
from assay.rollouts.seeds import derive, turn_seed
from assay.types import Completion, Message, SamplingParams, Score, Trajectory, TrajectoryGroup
from support import virtual_time
from support.scripted import (
    RankedGroup,
    ScriptedEnv,
    ScriptedGroup,
    play,
    scored,
    share_of_a,
    task,
    tiny_backend,
)
from support.scripted_backend import ScriptedBackend

PROMPTS = ["abc", "ab abc 123", "c"]


@pytest.fixture(scope="module")
def backend() -> TorchBackend:
    return tiny_backend()


def builders(**settings: object) -> list[ScriptedGroup]:
    return [ScriptedGroup(task(prompt), **settings) for prompt in PROMPTS]  # type: ignore[arg-type]


def insist(text: str, sample: int, turn: int) -> StepResult:
    """Never satisfied; tells the policy so."""
    return scored(turn + sample / 10, done=False, say=" 3 ")


def flat(groups: list[TrajectoryGroup]) -> list[Trajectory]:
    return [trajectory for group in groups for trajectory in group.trajectories]


def said(groups: list[TrajectoryGroup]) -> list[list[tuple[int, ...]]]:
    """The tokens of every turn of every rollout."""
    return [[turn.completion.tokens for turn in trajectory.transitions] for trajectory in flat(groups)]


def logprobs(groups: list[TrajectoryGroup]) -> list[float]:
    return [p for trajectory in flat(groups) for turn in trajectory.transitions for p in turn.completion.logprobs]


def test_one_turn_is_what_the_policy_saw_said_and_earned(backend: TorchBackend) -> None:
    groups = play(backend, builders())
    renderer = PlainRenderer(backend.tokenizer)
    assert [g.task.id for g in groups] == PROMPTS
    for group in groups:
        assert len(group.trajectories) == 4
        for trajectory in group.trajectories:
            (turn,) = trajectory.transitions
            assert turn.prompt_tokens == tuple(renderer.start(group.task.prompt))
            assert turn.text == renderer.text(turn.completion.tokens)
            assert len(turn.completion.tokens) == len(turn.completion.logprobs) <= 8
            assert turn.score == share_of_a(turn.text, 0, 0).score
            assert turn.metrics == {"length": len(turn.text)}
            assert trajectory.stop_reason == "done"
            assert trajectory.reward == turn.score.value


def late(builders: list[ScriptedGroup], seed: int) -> list[ScriptedGroup]:
    """The same groups, whose envs answer after random times."""
    rng = np.random.default_rng(seed)
    return [replace(b, delays_s=tuple(rng.uniform(0, 0.03, 4))) for b in builders]


def uneven(text: str, sample: int, turn: int) -> StepResult:
    """Some rollouts end early, as their texts have it; others go on with a conversation that is rebuilt."""
    found = scored(turn + sample / 10, done=text.startswith("a"), say=" 3 ")
    return replace(found, replace=sample == 1)


@pytest.mark.parametrize("cohort", [1, 2, 5, 12])
def test_results_are_ordered_and_equal_to_the_bit_however_long_each_verdict_takes(cohort: int) -> None:
    groups = builders(judge=uneven)
    prompt = play(tiny_backend(cohort_tokens=cohort * 8), groups, max_turns=4)
    for seed in range(2):
        assert play(tiny_backend(cohort_tokens=cohort * 8), late(groups, seed), max_turns=4) == prompt
    assert len({len(t.transitions) for t in flat(prompt)}) > 1, "rollouts must end at different turns"
    values = [[t.transitions[0].score.value for t in g.trajectories] for g in prompt]
    assert values == [[0.0, 0.1, 0.2, 0.3]] * 3


@pytest.mark.parametrize("invariant", [True, False])
def test_a_backend_that_answers_in_any_order_gives_the_same_results(invariant: bool) -> None:
    groups = builders(judge=uneven)
    found = [
        play(ScriptedBackend(batch_invariant=invariant, most_s=most_s), some, max_turns=4, run_in=virtual_time.play)
        for most_s, some in ((0.0, groups), (1.0, late(groups, 0)), (0.01, late(groups, 1)))
    ]
    assert found[0] == found[1] == found[2]
    assert {len(t.transitions) for t in flat(found[0])} >= {1, 4}


def test_what_is_sampled_together_is_decided_by_the_run_alone() -> None:
    def calls(seed: int) -> list[tuple[tuple[int, ...], ...]]:
        backend = ScriptedBackend(batch_invariant=False, cohort_tokens=4 * 8)
        play(backend, late(builders(judge=uneven), seed), max_turns=4, run_in=virtual_time.play)
        return sorted(tuple(call.prompts) for call in backend.calls)

    assert calls(0) == calls(1) == calls(2)
    assert len(calls(0)) > 4


class Watched(ScriptedEnv):
    """Notes what the backend has in flight when a verdict is asked for."""

    backend: ScriptedBackend
    in_flight: ClassVar[list[int]] = []

    async def step(self, text: str) -> StepResult:
        self.in_flight.append(self.backend.open)
        return await super().step(text)


def test_scoring_begins_while_others_are_sampled() -> None:
    backend = ScriptedBackend(batch_invariant=False)
    Watched.backend = backend
    Watched.in_flight.clear()

    class WatchedGroup(ScriptedGroup):
        async def make(self, n: int) -> list[Env]:
            return [Watched(self.task, self.judge, i) for i in range(n)]

    play(backend, [WatchedGroup(task(prompt)) for prompt in PROMPTS], run_in=virtual_time.play)
    assert len(backend.calls) == 1
    assert Watched.in_flight.count(1) >= 11, "all but the last are scored before the call ends"


def test_a_group_is_scored_as_a_whole_when_it_is_complete() -> None:
    backend, seen = ScriptedBackend(), []

    def rank(trajectories: Sequence[Trajectory]) -> list[Score]:
        seen.append((trajectories[0].task.id, asyncio.get_running_loop().time()))
        return by_length(list(trajectories))

    groups = [RankedGroup(task(p), rank=rank, delays_s=(d,)) for p, d in (("slow", 50), ("fast", 1), ("faster", 0))]
    play(backend, groups, run_in=virtual_time.play)
    assert [name for name, _ in seen] == ["faster", "fast", "slow"]
    assert seen[2][1] - seen[1][1] > 40


def test_a_sample_depends_on_its_place_and_the_seed_and_not_on_the_others(backend: TorchBackend) -> None:
    whole = play(backend, builders())
    alone = play(backend, builders()[:1], group_size=2)
    assert said(alone) == said(whole)[:2]
    np.testing.assert_allclose(logprobs(alone), logprobs(whole)[: len(logprobs(alone))], atol=1e-5)
    assert said(play(backend, builders(), seed=1)) != said(whole)
    assert len({t.seed for t in flat(whole)}) == 12
    same_prompt = play(backend, [ScriptedGroup(task("abc")), ScriptedGroup(task("abc"))])
    assert len({t.transitions[0].text for t in flat(same_prompt)}) > 4


def test_every_turn_of_every_sample_has_a_seed_of_its_own() -> None:
    backend = ScriptedBackend()
    groups = play(backend, builders(judge=insist), max_turns=3, run_in=virtual_time.play)
    used = [seed for call in backend.calls for seed in call.seeds]
    assert len(used) == len(set(used)) == 3 * 4 * 3
    assert set(used) == {turn_seed((0, g, s), turn) for g in range(3) for s in range(4) for turn in range(3)}
    assert [t.seed for t in flat(groups)] == [derive(0, g, s) for g in range(3) for s in range(4)]


def test_later_turns_extend_the_tokens_that_were_sampled(backend: TorchBackend) -> None:
    groups = play(backend, builders(judge=insist), max_turns=3)
    tokenizer, (eos,) = backend.tokenizer, PlainRenderer(backend.tokenizer).stop
    told = tuple(tokenizer.encode(" 3 ", add_special_tokens=False))
    differs = 0
    for trajectory in flat(groups):
        assert (len(trajectory.transitions), trajectory.stop_reason) == (3, "max_turns")
        for before, after in pairwise(trajectory.transitions):
            stopped = before.completion.stop_reason == "stop"
            closed = () if stopped else (eos,)
            assert after.prompt_tokens == (*before.prompt_tokens, *before.completion.tokens, *closed, *told)
            body = before.completion.tokens[:-1] if stopped else before.completion.tokens
            differs += tuple(tokenizer.encode(before.text, add_special_tokens=False)) != body
    assert differs, "sampled tokens must be some that encoding their text would not give"
    assert len({t.transitions[0].completion.logprobs for t in flat(groups)}) == 12


def test_an_env_that_is_done_leaves_the_others_playing(backend: TorchBackend) -> None:
    def judge(text: str, sample: int, turn: int) -> StepResult:
        return scored(1.0, done=turn == sample, say="a")

    (group,) = play(backend, [ScriptedGroup(task("abc"), judge)], max_turns=3)
    assert [len(t.transitions) for t in group.trajectories] == [1, 2, 3, 3]
    assert [t.stop_reason for t in group.trajectories] == ["done", "done", "done", "max_turns"]


def test_a_conversation_that_fills_the_context_ends_and_keeps_its_scores() -> None:
    backend = tiny_backend(context=24)
    groups = play(backend, builders(judge=insist), max_turns=50, max_tokens=6)
    for trajectory in flat(groups):
        assert trajectory.stop_reason == "length"
        assert trajectory.reward is not None
        last = trajectory.transitions[-1]
        assert len(last.prompt_tokens) + len(last.completion.tokens) <= 24


def test_a_first_prompt_without_room_for_an_answer_is_refused() -> None:
    with pytest.raises(ModelError, match="A prompt has 30 tokens and the model's context is 24"):
        play(tiny_backend(context=24), [ScriptedGroup(task(" " * 30))])


def failing(text: str, sample: int, turn: int) -> StepResult:
    if sample == 2 and turn == 1:
        raise ValueError(f"no verdict on turn {turn}")
    return scored(1.0, done=False, say="b")


def test_an_env_that_fails_makes_its_rollout_errored_and_no_other(
    backend: TorchBackend, caplog: pytest.LogCaptureFixture
) -> None:
    (group,) = play(backend, [ScriptedGroup(task("abc"), failing)], max_turns=3)
    (sound,) = play(backend, [ScriptedGroup(task("abc"), lambda *_: scored(1.0, done=False, say="b"))], max_turns=3)
    assert [t.errored for t in group.trajectories] == [False, False, True, False]
    broken = group.trajectories[2]
    assert (broken.stop_reason, broken.reward, len(broken.transitions)) == ("errored", None, 2)
    evidence = broken.transitions[1].score.evidence
    assert evidence["error"].startswith(f"ValueError: no verdict on turn 1 ({__file__}, line ")
    assert "in failing" in evidence["traceback"]
    assert "1 of 4 rollouts could not be scored: 1 x ValueError: no verdict on turn 1 (" in caplog.text
    assert said([group])[:2] + said([group])[3:] == said([sound])[:2] + said([sound])[3:]


def test_a_verifier_that_says_errored_ends_the_rollout(backend: TorchBackend) -> None:
    def judge(text: str, sample: int, turn: int) -> StepResult:
        return StepResult(Score("errored", None, evidence={"error": "engine died"}), done=False)

    (group,) = play(backend, [ScriptedGroup(task("abc"), judge)], max_turns=3)
    assert [(t.stop_reason, len(t.transitions)) for t in group.trajectories] == [("errored", 1)] * 4


class Unresettable(ScriptedGroup):
    """The second env of the group cannot start."""

    async def make(self, n: int) -> list[Env]:
        envs = await super().make(n)

        async def broken() -> list[Message]:
            raise OSError("no such board")

        envs[1].reset = broken  # type: ignore[method-assign]
        return envs


class Unmakeable(ScriptedGroup):
    """No env of the group can be made."""

    async def make(self, n: int) -> list[Env]:
        raise ConnectionError("verifier is down")


def test_envs_that_cannot_start_or_be_made_leave_the_others_alone(
    backend: TorchBackend, caplog: pytest.LogCaptureFixture
) -> None:
    first, second, third = builders()
    sound = play(backend, [first, second, third])
    groups = play(backend, [Unmakeable(first.task), Unresettable(second.task), third])
    assert [(t.stop_reason, t.transitions) for t in groups[0].trajectories] == [("errored", ())] * 4
    assert [t.errored for t in groups[1].trajectories] == [False, True, False, False]
    assert said(groups)[7:] == said(sound)[7:]
    assert "verifier is down" in caplog.text and "no such board" in caplog.text


def by_length(trajectories: list[Trajectory]) -> list[Score]:
    """Rank 1 for the longest answer."""
    lengths = [len(t.transitions[-1].text) for t in trajectories]
    return [Score("scored", sum(other > own for other in lengths) + 1.0) for own in lengths]


def test_a_group_can_be_scored_as_a_whole(backend: TorchBackend) -> None:
    (group,) = play(backend, [RankedGroup(task("abc"), insist, rank=by_length)], max_turns=2)  # type: ignore[arg-type]
    ranks = by_length(list(group.trajectories))
    assert [t.transitions[-1].score for t in group.trajectories] == ranks
    assert [t.transitions[0].score.value for t in group.trajectories] == [0.0, 0.1, 0.2, 0.3]


def test_a_group_whose_scores_are_none_is_errored_with_the_scorers_name(backend: TorchBackend) -> None:
    numbers: Any = lambda trajectories: [1.0] * len(trajectories)  # noqa: E731
    (group,) = play(backend, [RankedGroup(task("abc"), insist, rank=numbers)], max_turns=2)  # type: ignore[arg-type]
    assert {t.failure.partition(" (")[0] for t in group.trajectories} == {
        "TypeError: a score of RankedGroup.score_group() is 1.0, not a Score"
    }


def test_errored_rollouts_are_not_ranked_and_stay_errored(backend: TorchBackend) -> None:
    seen: list[int] = []

    def rank(trajectories: list[Trajectory]) -> list[Score]:
        seen.append(len(trajectories))
        return by_length(trajectories)

    class Broken(Unresettable, RankedGroup):
        pass

    (group,) = play(backend, [Broken(task("abc"), failing, rank=rank)], max_turns=2)  # type: ignore[arg-type]
    assert seen == [2]
    assert [t.errored for t in group.trajectories] == [False, True, True, False]
    assert all(t.reward is None for t in group.trajectories if t.errored)


@pytest.mark.parametrize("fault", ["raises", "miscounts", "errored"])
def test_a_ranking_that_fails_makes_the_group_errored(
    backend: TorchBackend, fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    def rank(trajectories: list[Trajectory]) -> list[Score]:
        if fault == "raises":
            raise TimeoutError("judge is silent")
        return [Score("errored", None)] * (4 if fault == "errored" else 3)

    ranked = RankedGroup(task("abc"), rank=rank)  # type: ignore[arg-type]
    broken, sound = play(backend, [ranked, ScriptedGroup(task("c"))])
    assert all(t.errored and t.stop_reason == "errored" and t.reward is None for t in broken.trajectories)
    assert not any(t.errored for t in sound.trajectories)
    assert ("judge is silent" in caplog.text) == (fault == "raises")


def test_extra_stop_tokens_end_a_completion_too(backend: TorchBackend) -> None:
    renderer = PlainRenderer(backend.tokenizer)
    (a,) = backend.tokenizer.encode("a", add_special_tokens=False)

    async def run() -> list[TrajectoryGroup]:
        groups = await prepare(builders(), 16)
        return await run_groups(groups, backend, renderer, SamplingParams(16, stop=(a,)), max_turns=1, seed=0)

    ends = {t.transitions[0].completion.tokens[-1] for t in flat(asyncio.run(run()))}
    assert {a, renderer.stop[0]} <= ends


# How it ends before its end


class Stuck(ScriptedEnv):
    """Never gives a verdict, and swallows its first cancellation."""

    left: ClassVar[list[int]] = []

    async def step(self, text: str) -> StepResult:
        self.left.append(self.sample)
        try:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.sleep(1e9)
            await asyncio.sleep(1e9)
        finally:
            self.left.remove(self.sample)
        raise AssertionError("nobody waits so long")


class StuckGroup(ScriptedGroup):
    async def make(self, n: int) -> list[Env]:
        return [Stuck(self.task, self.judge, i) for i in range(n)]


async def start(backend: Backend, some: list[ScriptedGroup], **settings: Any) -> asyncio.Task[list[TrajectoryGroup]]:
    renderer = PlainRenderer(backend.tokenizer)
    options = {"max_turns": 2, "seed": 0, **settings}
    return asyncio.create_task(run_groups(await prepare(some, 4), backend, renderer, SamplingParams(8), **options))


def test_a_cancelled_run_leaves_nothing_running() -> None:
    backend = ScriptedBackend()

    async def cancelled(after_s: float) -> None:
        Stuck.left.clear()
        running = await start(backend, [StuckGroup(task("abc")), *builders(judge=insist)])
        await asyncio.sleep(after_s)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert backend.open == 0 and not Stuck.left

    for after_s in (0.0, 0.4, 1.5, 100.0):
        virtual_time.play(cancelled(after_s))


def test_the_local_backend_goes_on_after_a_cancelled_run() -> None:
    backend = tiny_backend(cohort_tokens=16)
    prompt = play(backend, builders(judge=insist), max_turns=3)

    async def cancelled(turns: int) -> None:
        running = await start(backend, builders(judge=insist), max_turns=50)
        for _ in range(turns):
            await asyncio.sleep(0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await backend.optim_step(AdamParams(0.0))

    for turns in (0, 1, 3, 10, 100, 1000):
        asyncio.run(cancelled(turns))
    again = play(backend, builders(judge=insist), max_turns=3)
    assert said(again) == said(prompt) and logprobs(again) == logprobs(prompt)


class Failing(ScriptedBackend):
    """Fails in its second call."""

    async def sample_stream(self, *args: Any) -> AsyncGenerator[tuple[int, Completion], None]:
        async for found in super().sample_stream(*args):
            if len(self.calls) > 1:
                raise ModelError("the device is gone")
            yield found


def test_a_backend_that_fails_ends_the_run_with_what_it_said() -> None:
    backend = Failing()

    async def run() -> None:
        Stuck.left.clear()
        with pytest.raises(ModelError, match="the device is gone"):
            await (await start(backend, [StuckGroup(task("abc")), *builders(judge=insist)]))
        assert backend.open == 0 and not Stuck.left

    virtual_time.play(run())


def test_a_batch_in_flight_says_when_nothing_more_is_sampled() -> None:
    backend = ScriptedBackend(batch_invariant=False)

    async def run() -> None:
        prepared = await prepare([ScriptedGroup(task("abc"), insist, delays_s=(100.0,))], 4)
        renderer, params = PlainRenderer(backend.tokenizer), SamplingParams(8)
        flight = InFlight(
            lambda sampled: run_groups(prepared, backend, renderer, params, max_turns=2, seed=0, sampled=sampled)
        )
        await flight.sampled()
        now = asyncio.get_running_loop().time()
        assert [len(call.yielded) for call in backend.calls] == [4, 4] and backend.open == 0
        (group,) = await flight.result()
        assert [len(t.transitions) for t in group.trajectories] == [2] * 4
        assert asyncio.get_running_loop().time() - now > 90
        await flight.stop()

    virtual_time.play(run())


def test_a_batch_in_flight_that_fails_keeps_nobody_waiting() -> None:
    async def run() -> None:
        prepared = await prepare(builders(judge=insist), 4)
        backend = Failing()
        renderer, params = PlainRenderer(backend.tokenizer), SamplingParams(8)
        flight = InFlight(
            lambda sampled: run_groups(prepared, backend, renderer, params, max_turns=2, seed=0, sampled=sampled)
        )
        with pytest.raises(ModelError, match="the device is gone"):
            await flight.sampled()
        with pytest.raises(ModelError, match="the device is gone"):
            await flight.result()
        await flight.stop()

    virtual_time.play(run())


def test_stopping_a_batch_in_flight_leaves_nothing_running() -> None:
    backend = ScriptedBackend()

    async def run() -> None:
        Stuck.left.clear()
        prepared = await prepare([StuckGroup(task("abc"))], 4)
        renderer, params = PlainRenderer(backend.tokenizer), SamplingParams(8)
        flight = InFlight(
            lambda sampled: run_groups(prepared, backend, renderer, params, max_turns=1, seed=0, sampled=sampled)
        )
        await flight.sampled()
        assert len(Stuck.left) >= 3
        await flight.stop()
        assert not Stuck.left

    virtual_time.play(run())


def test_the_chess_environment_plays_several_turns(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    builder = ChessDatasetBuilder(task="arbiter", num_train=2, num_heldout=1, batch_size=2)
    data = builder.build(BuildContext(seed=0, max_turns=3, cache_dir=tmp_path))
    shape = ScratchModel(hidden_size=32, num_layers=1, context_length=512)
    corpus = TokenizerCorpus(["A: 8/8/8/k7/2Q5/4K3/8/8 w - - 149 94+c4d5+c4d5+"], PIECES, ALPHABET)
    backend = TorchBackend.create("scratch", 0, LocalBackend(device="cpu"), shape, corpus, 0)
    groups = play(backend, data.train.batch(0), group_size=3, max_turns=3)
    renderer = PlainRenderer(backend.tokenizer)
    for trajectory in flat(groups):
        assert [t.score.status for t in trajectory.transitions] == ["invalid"] * 3, (
            "an untrained policy knows no answer"
        )
        assert trajectory.stop_reason == "done"
        for before, after in pairwise(trajectory.transitions):
            seen = (*before.prompt_tokens, *before.completion.tokens)
            assert after.prompt_tokens[: len(seen)] == seen
            assert "Invalid answer" in renderer.text(after.prompt_tokens[len(seen) :])
    assert not caplog.records
    asyncio.run(data.close())
