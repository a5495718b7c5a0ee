"""A group under a host's policy: what fails is kept apart, nobody waits for ever, and budgets hold."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from assay.envs.base import StepResult
from assay.errors import ModelError
from assay.integrations.environments import (
    Budget,
    Credit,
    GroupTable,
    HostGroup,
    PlayedGroup,
    Playing,
    Sampled,
    close_environments,
    hosted_task,
    tasks_of,
)
from assay.integrations.environments.group import play_group
from assay.integrations.environments.policy import completion_of
from assay.rollouts.renderers.base import PlainRenderer
from assay.types import Message, SamplingParams, Score, Trajectory
from support import virtual_time
from support.hosts import BUDGET, PLAYS, Script, bytes_tokenizer, prepared_play
from support.scripted import RankedGroup, ScriptedGroup, scored, share_of_a, task
from support.scripted_backend import END, Letters

RENDERER = PlainRenderer(Letters())
WIDE = Budget(100, 100)


def playing(max_turns: int = 1, max_tokens: int = 8) -> Playing:
    return Playing(SamplingParams(max_tokens), max_turns, Credit(1.0, False, "mean"))


class Says:
    """A policy that says its texts in order of asking."""

    def __init__(self, *texts: str, stop: bool = True) -> None:
        self.texts, self.stop = list(texts), stop
        self.asked: list[tuple[str, int]] = []

    async def sample(self, prompt_ids: Sequence[int], params: SamplingParams, seed: int) -> Sampled:
        self.asked.append(("".join(map(chr, prompt_ids)), params.max_tokens))
        tokens = [*map(ord, self.texts.pop(0)), *([END] if self.stop else [])][: params.max_tokens]
        return Sampled(tokens, [-0.5] * len(tokens))


def raising(text: str, sample: int, turn: int) -> StepResult:
    if text == "!":
        raise RuntimeError("the env fell over")
    return scored(float(text == "a"))


def played(builder: Any, policy: Any, size: int, budget: Budget = WIDE, **how: Any) -> PlayedGroup:
    async def run() -> PlayedGroup:
        return await play_group(HostGroup(builder, size, playing(**how), RENDERER), policy, budget)

    return virtual_time.play(run())


def test_an_env_that_raises_is_kept_apart_from_a_reward_of_0() -> None:
    found = played(ScriptedGroup(task("go"), raising), Says("a", "!", "b", "b"), 4)
    assert [found.rollout(i).reward for i in range(4)] == [1.0, None, 0.0, 0.0]
    assert found.advantages == (pytest.approx((2 / 3,)), (), pytest.approx((-1 / 3,)), pytest.approx((-1 / 3,)))
    assert found.rows(1) == []
    assert "the env fell over" in found.rollout(1).failure


def test_a_group_that_cannot_be_made_is_errored() -> None:
    class Broken(ScriptedGroup):
        async def make(self, n: int) -> list[Any]:
            raise OSError("no engine")

    found = played(Broken(task("go")), Says(), 2)
    assert [found.rollout(i).errored for i in range(2)] == [True, True]
    assert "no engine" in found.rollout(0).failure


def test_an_empty_completion_is_judged_and_has_no_row() -> None:
    found = played(ScriptedGroup(task("go"), share_of_a), Says("a", "", stop=False), 2)
    assert [found.rollout(i).reward for i in range(2)] == [1.0, 0.0]
    assert [len(found.rows(i)) for i in range(2)] == [1, 0]


def test_a_prompt_over_budget_is_errored_and_asks_nothing() -> None:
    policy = Says()
    found = played(ScriptedGroup(task("x" * 9)), policy, 2, Budget(8, 100))
    assert [found.rollout(i).errored for i in range(2)] == [True, True]
    assert "has 9 tokens" in found.rollout(0).failure and policy.asked == []


def test_turns_share_a_rows_budget_until_a_prompt_is_written_anew() -> None:
    def tells(text: str, sample: int, turn: int) -> StepResult:
        return StepResult(Score("scored", 1.0), False, (Message("user", "more"),), replace=turn == 1)

    policy = Says("aa", "bb", "cc", "dd", "ee")
    found = played(ScriptedGroup(task("go"), tells), policy, 1, Budget(4, 12), max_turns=5)
    assert policy.asked == [("go", 8), ("goaa\0more", 5), ("more", 8), ("morecc\0more", 5)]
    assert found.rollout(0).stop_reason == "length"
    rows = found.rows(0)
    assert [row.turns for row in rows] == [(0, 1), (2, 3)]
    assert rows[0].mask == (1, 1, 1, 0, 0, 0, 0, 1, 1, 1) and rows[0].rewards == (0, 0, 1, 0, 0, 0, 0, 0, 0, 1)
    assert all(len(row.response_ids) <= 12 and row.mask[-1] == 1 for row in rows)


def test_unknown_logprobs_are_none() -> None:
    class Silent(Says):
        async def sample(self, prompt_ids: Sequence[int], params: SamplingParams, seed: int) -> Sampled:
            return Sampled([ord("a"), END])

    assert played(ScriptedGroup(task("go")), Silent(), 1).rows(0)[0].logprobs is None


def test_a_group_is_scored_as_a_whole() -> None:
    def rank(trajectories: Sequence[Trajectory]) -> list[Score]:
        assert len(trajectories) == 2, "errored ones are left out"
        return [Score("scored", float(place)) for place in range(len(trajectories))]

    found = played(RankedGroup(task("go"), raising, rank=rank), Says("b", "!", "b"), 3)
    assert [found.rollout(i).reward for i in range(3)] == [0.0, None, 1.0]
    assert found.advantages == ((-0.5,), (), (0.5,))


def test_a_sibling_that_never_starts_is_errored() -> None:
    async def run() -> PlayedGroup:
        table = GroupTable()

        def made() -> HostGroup:
            return HostGroup(ScriptedGroup(task("go")), 3, playing(), RENDERER, start_s=60)

        async def member(number: int, delay_s: float) -> PlayedGroup:
            await asyncio.sleep(delay_s)
            group = table.join("uid", made)
            try:
                await group.play(number, Says("a" if number else "b"), WIDE)
                return await group.settled()
            finally:
                table.leave("uid")

        first, second = await asyncio.gather(member(0, 0), member(1, 30))
        assert first is second
        late = await member(2, 1)
        assert late is first and len(table) == 0, "one that comes late is not played, and does not wait"
        return first

    found = virtual_time.play(run())
    assert [found.rollout(i).reward for i in range(3)] == [0.0, 1.0, None]
    assert found.advantages == ((-0.5,), (0.5,), ())
    assert "had not begun 60 s" in found.rollout(2).failure


def test_a_policy_that_fails_is_raised_and_releases_its_siblings() -> None:
    class Fails(Says):
        async def sample(self, prompt_ids: Sequence[int], params: SamplingParams, seed: int) -> Sampled:
            raise ModelError("the server is gone")

    async def run() -> PlayedGroup:
        group = HostGroup(ScriptedGroup(task("go")), 2, playing(), RENDERER)
        with pytest.raises(ModelError, match="server is gone"):
            await group.play(0, Fails(), WIDE)
        await group.play(1, Says("a"), WIDE)
        return await group.settled()

    found = virtual_time.play(run())
    assert [found.rollout(i).reward for i in range(2)] == [None, 1.0]


@pytest.mark.parametrize(
    ("sampled", "said"),
    [
        (Sampled([1, 2, 3]), "at most 2"),
        (Sampled([1.0, 2]), "whole numbers"),  # type: ignore[list-item]
        (Sampled([-1]), "whole numbers"),
        (Sampled([1, 2], [-0.1]), "1 log-probabilities for 2 tokens"),
    ],
)
def test_what_a_host_samples_is_looked_at(sampled: Sampled, said: str) -> None:
    with pytest.raises(ModelError, match=said):
        completion_of(sampled, SamplingParams(2))


def test_a_dead_judge_is_no_reward(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("JUDGES_KEY", "a-key-of-the-judge-that-is-gone")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        gone = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
    play = replace(PLAYS["monitor"], tasks=1)
    one = prepared_play(
        play,
        *("dataset_builder.reward.train_with_monitor=true", "dataset_builder.judge.api_key_env=JUDGES_KEY"),
        *(f"dataset_builder.judge.base_url={gone}", "dataset_builder.engine.call_deadline_s=0.5"),
        f"cache_dir={tmp_path}",
    )
    reference, _ = tasks_of(one.environment, "train")[0]

    async def run() -> PlayedGroup:
        group = HostGroup(await hosted_task(reference), 4, one.playing, one.renderer(bytes_tokenizer()))
        return await play_group(group, Script(play), BUDGET)

    try:
        found = asyncio.run(run())
    finally:
        close_environments()
    rewards = [found.rollout(i).reward for i in range(4)]
    assert rewards[:2] == [None, None], "answers that the judge would have read"
    assert rewards[2:] == [-1.0, -1.0], "those that cannot be read need no judge"
    assert found.rows(0) == [] and "a-key-of" not in found.rollout(0).failure
