"""The contract of our reward function for TRL, without a trainer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from assay.errors import ConfigError, DataError, RewardError
from assay.integrations.common.scoring import close_all
from assay.integrations.trl import reward_func
from support.host_rewards import ShareOfWords

LOCAL = "support.host_rewards:ShareOfWords"


@pytest.fixture(autouse=True)
def engines_end() -> Iterator[None]:
    yield
    close_all()


def call(function: Any, completions: list[Any], **columns: Any) -> tuple[list[float | None], dict[str, Any]]:
    """Call a reward function as the trainer does; its rewards, and what it logged."""
    logged: dict[str, Any] = {}
    rewards = asyncio.run(
        function(
            prompts=[f"prompt {i}" for i in range(len(completions))],
            completions=completions,
            completion_ids=[[1]] * len(completions),
            trainer_state=None,
            log_extra=logged.__setitem__,
            log_metric=logged.__setitem__,
            **columns,
        )
    )
    return rewards, logged


def test_rewards_come_in_order_and_a_failure_is_none() -> None:
    function = reward_func(LOCAL)
    rewards, logged = call(function, ["a b", "BROKEN", ""], ground_truth=["a", "a", "a"])
    assert rewards == [1.0, None, 0.0]
    assert function.__name__ == "words"
    assert logged["words_status"] == ["scored", "errored", "invalid"]
    assert logged["rewards/words/found"] == 0.5  # of the two that have a score
    assert logged["rewards/words/errored"] == pytest.approx(1 / 3)


def test_conversations_are_read_as_what_the_assistant_says() -> None:
    completion = [
        {"role": "assistant", "content": "a"},
        {"role": "tool", "content": "c"},
        {"role": "assistant", "content": [{"type": "text", "text": "b"}]},
    ]
    rewards, _ = call(reward_func(ShareOfWords()), [completion], ground_truth=["a b c"])
    assert rewards == [pytest.approx(2 / 3)]


def test_a_group_is_the_completions_of_one_prompt() -> None:
    function = reward_func(LOCAL, engine={"on_failure": "group_mean"})
    rewards = asyncio.run(function(["p", "p", "q"], ["a", "BROKEN", "BROKEN"], ground_truth=["a", "a", "a"]))
    assert rewards == [1.0, 1.0, None]


def test_on_failure_raise_ends_the_step() -> None:
    with pytest.raises(RewardError, match="on_failure=raise"):
        call(reward_func(LOCAL, engine={"on_failure": "raise"}), ["a", "BROKEN"], ground_truth=["a", "a"])


def test_a_missing_column_is_named_with_those_there_are() -> None:
    with pytest.raises(DataError, match=r"no column 'ground_truth'.*Columns: truth"):
        call(reward_func(LOCAL), ["a"], truth=["a"])
    assert call(reward_func(LOCAL, ground_truth="truth", name="mine"), ["a"], truth=["a"])[0] == [1.0]


def test_answer_is_the_ground_truth_where_no_column_has_its_name() -> None:
    assert call(reward_func(LOCAL), ["a b"], answer=["a b"])[0] == [1.0]
    assert call(reward_func(LOCAL), ["a b"], answer=["x y"], ground_truth=["a b"])[0] == [1.0]
    with pytest.raises(DataError, match="no column 'truth'"):
        call(reward_func(LOCAL, ground_truth="truth"), ["a b"], answer=["a b"])


def test_columns_of_different_lengths_are_refused() -> None:
    with pytest.raises(DataError, match="different lengths"):
        call(reward_func(LOCAL), ["a", "b"], ground_truth=["a"])


def test_options_of_a_reward_that_is_made_already() -> None:
    with pytest.raises(ConfigError, match="already an object"):
        reward_func(ShareOfWords(), options={"scale": 2})


def test_the_monitors_variables_are_no_matter_of_another_reward(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MONITOR_CORRECT_REWARD", "this is read for the reward `monitor` alone")
    monkeypatch.setenv("MONITOR_CACHE", "neither is this")
    rewards, _ = call(reward_func(ShareOfWords()), ["a"], ground_truth=["a"])
    assert rewards == [1.0]
