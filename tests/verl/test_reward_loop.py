"""verl's reward loop, the real classes and real Ray workers, with our functions and our manager."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.common.judge_behaviour import Behaviour
from benchmarks.common.judge_server import JudgeServer
from omegaconf import OmegaConf
from verl.trainer.ppo.reward import load_reward_manager

from assay.errors import ConfigError, RewardError
from assay.integrations.verl.check import compose
from support.verl_data import KEY, KEY_ENV, place_and_value

LOCAL = ("+reward.custom_reward_function.reward_kwargs.reward=support.host_rewards:ShareOfWords",)
FUNCTION = (
    "reward.custom_reward_function.path=pkg://assay.integrations.verl",
    "reward.custom_reward_function.name=acompute_score",
)
MANAGER = (
    "reward.reward_manager.source=importlib",
    "reward.reward_manager.module.path=pkg://assay.integrations.verl.manager",
    "reward.reward_manager.name=AssayRewardManager",
)
SETUPS = {"acompute_score": (*FUNCTION, *LOCAL), "manager": (*MANAGER, *LOCAL)}


def config_of(*overrides: str) -> Any:
    """What verl's trainer would see; its `_target_`s are left unresolved, as there."""
    return OmegaConf.create(OmegaConf.to_container(compose(overrides), resolve=False))


async def run_all(manager: Any, data: Any) -> list[Any]:
    singles = (manager.run_single(data[i : i + 1]) for i in range(len(data)))
    return await asyncio.gather(*singles, return_exceptions=True)


def run_with(overrides: tuple[str, ...], tokenizer: Any, data: Any) -> list[Any]:
    async def made_and_run() -> list[Any]:
        return await run_all(load_reward_manager(config_of(*overrides), tokenizer), data)

    return asyncio.run(made_and_run())


def run(setup: str, tokenizer: Any, data: Any, *more: str) -> list[Any]:
    return run_with((*SETUPS[setup], *more), tokenizer, data)


@pytest.mark.parametrize("setup", SETUPS)
def test_run_single_gives_scores_and_equal_keys(setup: str, tokenizer: Any, batch: Any) -> None:
    extras = [{"index": 0}, {"other": 1}, {}]
    results = run(setup, tokenizer, batch(["a b", "", "c"], ["a", "a", ["c", "d"]], extras=extras))
    assert [r["reward_score"] for r in results] == [1.0, 0.0, 0.0]
    assert {tuple(r["reward_extra_info"]) for r in results} == {
        ("score", "found", "length", "assay_errored", "assay_invalid", "assay_cached")
    }
    assert [r["reward_extra_info"]["assay_invalid"] for r in results] == [0.0, 1.0, 0.0]


@pytest.mark.parametrize("setup", SETUPS)
def test_a_failed_sample_raises_and_the_others_are_scored(setup: str, tokenizer: Any, batch: Any) -> None:
    data = batch(["a", "BROKEN", "c"], ["a"] * 3, extras=[{}] * 3, uids=["p", "p", "p"])
    good, failed, bad = run(setup, tokenizer, data)
    assert (good["reward_score"], bad["reward_score"]) == (1.0, 0.0)
    assert isinstance(failed, RewardError)
    assert "leaves this rollout out of its group" in str(failed)


@pytest.mark.parametrize("setup", SETUPS)
def test_a_judge_that_is_down_is_no_reward(setup: str, tokenizer: Any, batch: Any, tmp_path: Path) -> None:
    with JudgeServer() as server:
        address = server.base_url
    kwargs = "+reward.custom_reward_function.reward_kwargs"
    judge = (
        f"{kwargs}.reward=support.host_rewards:EchoedScore",
        f"{kwargs}.judge.base_url={address}",
        f"{kwargs}.judge.api_key_env=''",
        f"{kwargs}.engine.call_deadline_s=0.3",
        f"{kwargs}.engine.cache_path={tmp_path / 'replies.sqlite'}",
    )
    data = batch(["a", "b"], ["a", "a"], extras=[{}, {}])
    results = run_with((FUNCTION if setup == "acompute_score" else MANAGER) + judge, tokenizer, data)
    assert [type(result) for result in results] == [RewardError, RewardError]
    assert all("connection" in str(result) for result in results)


def test_the_manager_knows_groups_by_their_uid(tokenizer: Any, batch: Any) -> None:
    data = batch(["a", "BROKEN", "c", "BROKEN"], ["a"] * 4, extras=[{}] * 4, uids=["p", "p", "p", "q"])
    policy = "+reward.custom_reward_function.reward_kwargs.engine.on_failure=group_mean"
    *scored, alone = run("manager", tokenizer, data, policy)
    assert [r["reward_score"] for r in scored] == [1.0, 0.5, 0.0]
    assert [r["reward_extra_info"]["assay_errored"] for r in scored] == [0.0, 1.0, 0.0]
    assert isinstance(alone, RewardError)  # its group has no score to take the mean of


def test_the_manager_shows_rewards_the_prompt_and_copies_extras(tokenizer: Any, batch: Any) -> None:
    from assay.integrations.verl.manager import AssayRewardManager

    extras = [{"index": 0}]
    data = batch(["a"], ["a"], extras=extras, uids=["p"], prompts=[[{"role": "user", "content": "ask a"}]])

    async def read() -> Any:
        manager = AssayRewardManager(config_of(*SETUPS["manager"]), tokenizer)
        return await manager._read(data)

    sample, group = asyncio.run(read())
    assert (sample.response, sample.ground_truth, sample.data_source, group) == ("a", "a", "words", "p")
    assert [(m.role, m.content) for m in sample.prompt] == [("user", "ask a")]
    assert extras == [{"index": 0}]


def test_a_reward_function_that_would_never_be_called_is_refused(tokenizer: Any) -> None:
    from assay.integrations.verl.manager import AssayRewardManager

    async def make() -> None:
        path = "reward.custom_reward_function.path=elsewhere.py"
        AssayRewardManager(config_of(*SETUPS["manager"], path), tokenizer)

    with pytest.raises(ConfigError, match=r"elsewhere\.py would never be called"):
        asyncio.run(make())


def test_a_reward_worker_with_the_manager_fills_the_right_tensor(
    ray_cluster: None, tokenizer_folder: Path, batch: Any
) -> None:
    from verl.experimental.reward_loop import RewardLoopManager

    config = config_of(*SETUPS["manager"], f"actor_rollout_ref.model.path={tokenizer_folder}", "reward.num_workers=1")
    responses = ["a b", "", "c", "d d d d", "a d d"]
    data = batch(responses, ["a", "a", "a", "d", "d"], extras=[{"index": i} for i in range(5)], uids=list("pqrst"))
    manager = RewardLoopManager(config)
    try:
        result = manager.compute_rm_score(data)
    finally:
        end_workers(manager)
    assert place_and_value(result.batch["rm_scores"]) == [([1], [1.0]), ([], []), ([], []), ([3], [1.0]), ([2], [1.0])]
    assert result.non_tensor_batch["length"].tolist() == [2.0, 0.0, 1.0, 4.0, 3.0]
    assert torch.isfinite(result.batch["rm_scores"]).all()


def test_two_reward_workers_with_the_function_fill_the_right_tensor_and_pay_once_for_equal_calls(
    ray_cluster: None, tokenizer_folder: Path, batch: Any, tmp_path: Path
) -> None:
    from verl.experimental.reward_loop import RewardLoopManager

    kwargs = "+reward.custom_reward_function.reward_kwargs"
    with JudgeServer(Behaviour(latency_s=0.02, api_key=KEY, replies=("0.25", "0.75"))) as server:
        config = config_of(
            *FUNCTION,
            f"actor_rollout_ref.model.path={tokenizer_folder}",
            "reward.num_workers=2",
            f"{kwargs}.reward=support.host_rewards:EchoedScore",
            f"{kwargs}.judge.base_url={server.base_url}",
            f"{kwargs}.judge.api_key_env={KEY_ENV}",
            f"{kwargs}.engine.cache_path={tmp_path / 'replies.sqlite'}",
            f"{kwargs}.engine.hedge_fraction=0.0",
        )
        # What one worker asks the other asks too. The batch is odd: verl pads it to its workers.
        responses = ["a " * (i % 5) + f"w{i % 10}" for i in range(21)]
        data = batch(responses, ["a"] * 21, extras=[{"index": i} for i in range(21)])
        manager = RewardLoopManager(config)
        try:
            result = manager.compute_rm_score(data)
        finally:
            end_workers(manager)
        stats = server.stats()
    places, values = zip(*place_and_value(result.batch["rm_scores"]), strict=True)
    assert places == tuple([i % 5] for i in range(21))
    assert values[:10] == values[10:20] and values[20] == values[0]
    assert {value for (value,) in values} == {0.25, 0.75}
    assert not result.non_tensor_batch["assay_errored"].any()
    assert (stats["answered"], stats["paid_twice"]) == (10, 0)


def end_workers(manager: Any) -> None:
    import ray

    for worker in manager.reward_loop_workers:
        ray.kill(worker)


@pytest.mark.parametrize("setup", [FUNCTION, MANAGER])
def test_a_plain_function_of_a_file(setup: tuple[str, ...], tokenizer: Any, batch: Any, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def right(completion, answer, bonus):\n    return float(completion == answer) + bonus\n")
    named = f"+reward.custom_reward_function.reward_kwargs.reward={file}:right"
    data = batch(["a b", "c"], ["a b", "a"], extras=[{"bonus": 0.5}, {"bonus": 0.0}])
    assert [found["reward_score"] for found in run_with((*setup, named), tokenizer, data)] == [1.5, 0.0]
