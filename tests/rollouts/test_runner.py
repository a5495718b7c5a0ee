"""Rollouts of scripted and chess environments under a real, tiny, untrained policy."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from assay.backends.config import LocalBackend, ScratchModel
from assay.backends.local.backend import TorchBackend
from assay.envs.base import BuildContext, Env, StepResult, TokenizerCorpus
from assay.envs.chess.corpus import ALPHABET, PIECES
from assay.envs.chess.dataset import ChessDatasetBuilder
from assay.errors import ModelError
from assay.rollouts.renderers.base import PlainRenderer
from assay.rollouts.runner import prepare, run_groups
from assay.types import Completion, Message, SamplingParams, Score, Trajectory, TrajectoryGroup
from support.scripted import RankedGroup, ScriptedGroup, play, scored, share_of_a, task, tiny_backend

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


def test_results_are_ordered_and_equal_however_long_each_env_takes(backend: TorchBackend) -> None:
    prompt = play(backend, builders(judge=insist), max_turns=2)
    late = [replace(b, delays_s=(0.03, 0.0, 0.02, 0.01)) for b in builders(judge=insist)]
    late[0].delays_s = (0.05,)
    assert play(backend, late, max_turns=2) == prompt
    values = [[t.transitions[1].score.value for t in g.trajectories] for g in prompt]
    assert values == [[1.0, 1.1, 1.2, 1.3]] * 3


def test_a_sample_depends_on_its_place_and_the_seed_and_not_on_the_others(backend: TorchBackend) -> None:
    whole = play(backend, builders())
    alone = play(backend, builders()[:1], group_size=2)
    assert said(alone) == said(whole)[:2]
    np.testing.assert_allclose(logprobs(alone), logprobs(whole)[: len(logprobs(alone))], atol=1e-5)
    assert said(play(backend, builders(), seed=1)) != said(whole)
    assert len({t.seed for t in flat(whole)}) == 12
    same_prompt = play(backend, [ScriptedGroup(task("abc")), ScriptedGroup(task("abc"))])
    assert len({t.transitions[0].text for t in flat(same_prompt)}) > 4


def test_every_turn_of_every_sample_has_a_seed_of_its_own(
    backend: TorchBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[int] = []
    sample = backend.sample

    async def recording(
        prompts: Sequence[Sequence[int]], params: SamplingParams, seeds: Sequence[int]
    ) -> list[Completion]:
        used.extend(seeds)
        return await sample(prompts, params, seeds)

    monkeypatch.setattr(backend, "sample", recording)
    play(backend, builders(judge=insist), max_turns=3)
    assert len(used) == len(set(used)) == 3 * 4 * 3


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
    assert evidence["error"] == "ValueError('no verdict on turn 1')" and "in failing" in evidence["traceback"]
    assert "An env failed to score" in caplog.text
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
