"""verl's legacy reward managers, the real classes, call `compute_score`: right tensors, whatever the batch is like."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from verl.workers.reward_manager import get_reward_manager_cls

from assay.errors import DataError, RewardError
from assay.integrations.verl import compute_score
from support.verl_data import place_and_value

SETTINGS: dict[str, Any] = {"reward": "support.host_rewards:ShareOfWords"}
score = partial(compute_score, **SETTINGS, details=True)


@pytest.mark.parametrize("manager", ["naive", "batch"])
def test_rewards_stand_at_the_last_token_of_each_response(manager: str, tokenizer: Any, batch: Any) -> None:
    data = batch(["a b c", "b", "a d d d"], ["a c", "a", "a"], extras=[{"index": i} for i in range(3)])
    result = get_reward_manager_cls(manager)(tokenizer, 0, score)(data, return_dict=True)
    assert place_and_value(result["reward_tensor"]) == [([2], [1.0]), ([], []), ([3], [1.0])]
    extra = result["reward_extra_info"]
    assert extra["found"] == [1.0, 0.0, 1.0]
    assert extra["length"] == [3.0, 1.0, 4.0]
    assert {len(column) for column in extra.values()} == {3}


@pytest.mark.parametrize("manager", ["naive", "batch"])
def test_ragged_extras_and_empty_responses(manager: str, tokenizer: Any, batch: Any) -> None:
    extras = [{"index": 0, "split": "train"}, {"other": [1, 2]}, {}]
    data = batch(["a", "", "a"], ["a", "a", ["a", "b"]], extras=extras)
    result = get_reward_manager_cls(manager)(tokenizer, 0, score)(data, return_dict=True)
    assert result["reward_tensor"].shape == (3, 6)
    assert result["reward_extra_info"]["assay_invalid"] == [0.0, 1.0, 0.0]
    assert result["reward_extra_info"]["length"] == [1.0, 0.0, 1.0]  # the empty response's score has no such part
    assert torch.isfinite(result["reward_tensor"]).all()


def test_batches_without_extras(tokenizer: Any, batch: Any) -> None:
    rewards = get_reward_manager_cls("batch")(tokenizer, 0, score)(batch(["a", "b"], ["a", "a"]))
    assert place_and_value(rewards) == [([0], [1.0]), ([], [])]


def test_manager_keywords_become_settings(tokenizer: Any, batch: Any) -> None:
    manager = get_reward_manager_cls("batch")(tokenizer, 0, compute_score, **SETTINGS, options={"scale": 2.0})
    assert place_and_value(manager(batch(["a"], ["a"]))) == [([0], [2.0])]


def test_a_failed_sample_takes_the_mean_of_its_group_and_says_so(tokenizer: Any, batch: Any) -> None:
    responses, truths = ["a", "BROKEN", "c", "a"], ["a"] * 4
    data = batch(responses, truths, extras=[{"index": 7}, {"index": 7}, {"index": 7}, {"index": 8}])
    result = get_reward_manager_cls("batch")(tokenizer, 0, score)(data, return_dict=True)
    assert result["reward_tensor"].sum(1).tolist() == [1.0, 0.5, 0.0, 1.0]
    assert result["reward_extra_info"]["assay_errored"] == [0.0, 1.0, 0.0, 0.0]


def test_a_failed_sample_without_a_known_group_raises(tokenizer: Any, batch: Any) -> None:
    data = batch(["a", "BROKEN"], ["a", "a"], extras=[{}, {}])
    with pytest.raises(RewardError, match=r"group_by.*no 'index' to know groups by"):
        get_reward_manager_cls("batch")(tokenizer, 0, score)(data)


def test_a_failed_sample_alone_raises_under_naive(tokenizer: Any, batch: Any) -> None:
    data = batch(["BROKEN"], ["a"], extras=[{"index": 1}])
    with pytest.raises(RewardError, match="this response breaks the reward"):
        get_reward_manager_cls("naive")(tokenizer, 0, score)(data)


def test_constant_stands_in_where_it_is_asked_for(tokenizer: Any, batch: Any) -> None:
    settings = SETTINGS | {"engine": {"on_failure": "constant", "failure_value": -1.0}, "details": True}
    data = batch(["BROKEN", "a"], ["a", "a"], extras=[{}, {}])
    result = get_reward_manager_cls("naive")(tokenizer, 0, partial(compute_score, **settings))(data, return_dict=True)
    assert result["reward_tensor"].sum(1).tolist() == [-1.0, 1.0]
    assert result["reward_extra_info"]["assay_errored"] == [1.0, 0.0]


def test_dropping_is_refused_where_nothing_can_be_dropped(tokenizer: Any, batch: Any) -> None:
    settings = SETTINGS | {"engine": {"on_failure": "drop"}}
    manager = get_reward_manager_cls("batch")(tokenizer, 0, partial(compute_score, **settings))
    with pytest.raises(RewardError, match="cannot leave one out"):
        manager(batch(["a", "BROKEN"], ["a", "a"], extras=[{"index": 1}, {"index": 1}]))


def test_wrong_lengths_are_refused_before_anything_is_scored() -> None:
    with pytest.raises(DataError, match="solution_strs has 2, ground_truths has 3, data_sources has 2"):
        score(data_sources=["s"] * 2, solution_strs=["a"] * 2, ground_truths=["a"] * 3, extra_infos=None)


def test_the_extras_of_the_caller_stay_as_they_are(tokenizer: Any, batch: Any) -> None:
    extras = [{"index": 0, "deep": {"list": [1]}}]
    data = batch(["a"], ["a"], extras=extras)
    get_reward_manager_cls("batch")(tokenizer, 0, score)(data)
    assert extras[0] == {"index": 0, "deep": {"list": [1]}, "rollout_reward_scores": {}}  # the last one is verl's


def test_prime_is_given_verls_order_and_a_number(tokenizer: Any, batch: Any) -> None:
    """Not through its process pool, which would start 64 processes: through the same positional call."""
    data = batch(["a b"], ["a c"], extras=[{"index": 0}])
    row = data[0].non_tensor_batch
    arguments = row["data_source"], "a b", row["reward_model"]["ground_truth"], row["extra_info"]
    assert compute_score(*arguments, **SETTINGS, order="verl") == 0.5
    assert score(*("a b", "a c", "words", {})) == score(solution_str="a b", ground_truth="a c", data_source="words")
    with pytest.raises(DataError, match="order=verl"):
        score("words", "a b", ["a", "c"], {"index": 0})  # verl's order, not declared: the third is no data source
    assert compute_score.__module__ == "assay.integrations.verl.score"  # can be sent to a process


@pytest.mark.parametrize("manager", ["naive", "batch"])
def test_a_plain_function_of_a_file(manager: str, tokenizer: Any, batch: Any, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def right(completion, answer, bonus):\n    return float(completion == answer) + bonus\n")
    data = batch(["a b", "c"], ["a b", "a"], extras=[{"bonus": 0.5}, {"bonus": 0.0}])
    rewards = get_reward_manager_cls(manager)(tokenizer, 0, partial(compute_score, reward=f"{file}:right"))(data)
    assert rewards.sum(1).tolist() == [1.5, 0.0]
