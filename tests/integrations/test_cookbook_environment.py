"""The Tinker cookbook's own rollouts over Assay's environments: the real package where it is installed."""

from __future__ import annotations

import asyncio
import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tinker_cookbook", reason="the Tinker cookbook needs an environment of its own")

import torch
from tinker_cookbook.completers import TokensWithLogprobs
from tinker_cookbook.renderers import get_renderer
from tinker_cookbook.rl.data_processing import compute_advantages
from tinker_cookbook.rl.message_env import EnvFromMessageEnv
from tinker_cookbook.rl.rollout_strategy import RetryOnFailure
from tinker_cookbook.rl.rollouts import do_group_rollout, do_single_rollout

from assay.errors import RewardError
from assay.integrations.cookbook_environment import MessageTask, TaskGroup
from assay.integrations.environments import Budget, Prepared, close_environments, hosted_task, prepared, tasks_of
from support.hosts import GOLDEN, PLAYS, Play, Script, bytes_tokenizer, logprobs_of, prepared_play

FAILING = """
from assay.envs import Environment, Task

class Fails(Environment):
    def tasks(self):
        return [Task.of(f"{n}=", answer=str(n)) for n in range(4)]

    def score(self, task, text):
        if text == "!":
            raise RuntimeError("the judge is dead")
        return text == task.answer
"""


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        yield folder
        close_environments()


class Policy:
    """The cookbook's policy: the script of a play."""

    def __init__(self, play: Play, most: int = 1 << 20) -> None:
        self._script, self._most = Script(play), most
        self.asked = 0

    async def __call__(self, model_input: Any, stop: Any, **_: Any) -> TokensWithLogprobs:
        self.asked += 1
        tokens = self._script.tokens(model_input.to_ints(), self._most)
        return TokensWithLogprobs(tokens=tokens, maybe_logprobs=logprobs_of(tokens))


def groups(play: Play, one: Prepared, **how: Any) -> list[TaskGroup]:
    listed = sorted(tasks_of(one.environment, "train"), key=lambda row: row[0].key)[: play.tasks]
    return [TaskGroup(reference, one, bytes_tokenizer(), **how) for reference, _ in listed]


@pytest.mark.parametrize("name", ["own", "guess", "chess", "monitor", "kernels"])
def test_the_cookbook_plays_assays_own_tokens_and_rewards(name: str) -> None:
    play, policy = PLAYS[name], Policy(PLAYS[name])
    golden = json.loads((GOLDEN / f"{name}.json").read_text())
    for group, expected in zip(groups(play, prepared_play(play)), golden, strict=True):
        found = asyncio.run(do_group_rollout(group, policy))
        assert found.get_total_rewards() == [rollout["reward"] for rollout in expected["rollouts"]]
        for trajectory, rollout in zip(found.trajectories_G, expected["rollouts"], strict=True):
            said = [token for turn in trajectory.transitions for token in turn.ac.tokens]
            wanted = [
                token
                for row in rollout["rows"]
                for token, mask in zip(row["response_ids"], row["mask"], strict=True)
                if mask
            ]
            assert said == wanted


def fails(folder: Path, size: int = 3) -> Prepared:
    (folder / "fails.py").write_text(FAILING)
    settings = [f"dataset_builder={folder}/fails.py:Fails", "max_tokens=8", f"dataset_builder.group_size={size}"]
    return prepared(None, settings, bytes_tokenizer())


def test_what_could_not_be_scored_has_no_advantage(tmp_path: Path) -> None:
    play = Play((), {"": ("0", "!", "3")}, 3, 1)
    (group,) = groups(play, fails(tmp_path))
    found = asyncio.run(do_group_rollout(pickle.loads(pickle.dumps(group)), Policy(play)))
    assert [metrics["assay_errored"] for metrics in found.metrics_G] == [0.0, 1.0, 0.0]
    (advantages,) = compute_advantages([found])
    assert advantages[1] == 0 and torch.isclose(advantages.sum(), torch.zeros(()), atol=1e-6)


def test_a_rollout_that_is_played_again_keeps_its_own_reward(tmp_path: Path) -> None:
    class Flaky(Policy):
        async def __call__(self, model_input: Any, stop: Any, **how: Any) -> TokensWithLogprobs:
            if self.asked == 1:
                self.asked += 1
                raise OSError("the connection broke")
            return await super().__call__(model_input, stop, **how)

    one = fails(tmp_path)
    answer = min(tasks_of(one.environment, "train"), key=lambda row: row[0].key)[1].answer
    play = Play((), {"": (answer, "x", "y")}, 3, 1)
    (group,) = groups(play, one)
    found = asyncio.run(do_group_rollout(group, Flaky(play), RetryOnFailure()))
    said = [bytes_tokenizer().decode(t.transitions[0].ac.tokens[:-1]) for t in found.trajectories_G]
    assert sorted(said) == sorted([answer, "x", "y"])
    assert found.get_total_rewards() == [float(text == answer) for text in said]
    assert all(metrics["assay_errored"] == 0 for metrics in found.metrics_G)


def test_a_group_that_is_played_twice_at_a_time_ends_each_play_for_itself(tmp_path: Path) -> None:
    play = Play((), {"": ("0", "1", "2")}, 3, 1)
    (group,) = groups(play, fails(tmp_path))

    async def leave() -> None:
        await group.make_envs()
        await group.cleanup()

    async def work() -> Any:
        envs = await group.make_envs()
        await asyncio.gather(*(env.initial_observation() for env in envs))
        await asyncio.create_task(leave())
        await asyncio.gather(*(env.step(list(b"0")) for env in envs))
        return await group.compute_group_rewards([], envs)

    assert [metrics["assay_errored"] for _, metrics in asyncio.run(work())] == [0.0] * 3


def test_a_group_without_a_score_raises(tmp_path: Path) -> None:
    play = Play((), {"": ("!",)}, 3, 1)
    (group,) = groups(play, fails(tmp_path))
    with pytest.raises(RewardError, match="the judge is dead"):
        asyncio.run(do_group_rollout(group, Policy(play)))


def test_a_prompt_over_budget_is_never_sampled(tmp_path: Path) -> None:
    play = Play((), {"": ("0",)}, 3, 1)
    (group,), policy = groups(play, fails(tmp_path), budget=Budget(1, 8)), Policy(play)
    with pytest.raises(RewardError, match="has 2 tokens"):
        asyncio.run(do_group_rollout(group, policy))
    assert policy.asked == 0


def test_an_empty_completion_is_judged(tmp_path: Path) -> None:
    play = Play((), {"": ("0",)}, 3, 1)
    (group,) = groups(play, fails(tmp_path))
    assert asyncio.run(do_group_rollout(group, Policy(play, most=0))).get_total_rewards() == [0.0] * 3


def test_messages_go_through_the_cookbooks_own_renderer(tmp_path: Path) -> None:
    class Says:
        async def __call__(self, model_input: Any, stop: Any, **_: Any) -> TokensWithLogprobs:
            tokens = bytes_tokenizer().encode(" 4\n\nUser:", add_special_tokens=False)
            return TokensWithLogprobs(tokens=tokens, maybe_logprobs=[0.0] * len(tokens))

    async def run() -> Any:
        play = PLAYS["guess"]
        (group, *_) = groups(play, prepared_play(play))
        (env,) = await (await hosted_task(group.reference)).make(1)
        renderer = get_renderer("role_colon", bytes_tokenizer())
        return await do_single_rollout(
            Says(), EnvFromMessageEnv(renderer, MessageTask(env, group.prepared.playing.max_turns))
        )

    found = asyncio.run(run())
    assert len(found.transitions) == 3 and sum(turn.reward for turn in found.transitions) == 0
    seen = bytes_tokenizer().decode(found.transitions[-1].ob.to_ints())
    assert seen.count("4\n\nUser: ") == 2 and ("<" in seen or ">" in seen)
