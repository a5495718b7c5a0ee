"""What failures mean: what a host is given in their place, and when they are too many."""

from __future__ import annotations

import threading

import pytest

from assay.errors import ConfigError, RewardError
from assay.rewards import EngineConfig, rewards_of
from assay.rewards.failures import SMALL_BATCH, WINDOW, FailureWatch
from assay.types import Score


def scored(value: float) -> Score:
    return Score("scored", value)


def errored(kind: str = "timeout") -> Score:
    return Score("errored", None, evidence={"failure": kind, "message": f"it was a {kind}"})


SCORES = [scored(1.0), errored(), Score("invalid", -1.0), scored(0.0), errored("server")]


def test_nothing_missing_is_passed_on_as_it_is() -> None:
    for config in (EngineConfig(), EngineConfig(on_failure="raise"), EngineConfig(on_failure="group_mean")):
        assert rewards_of([scored(1.0), scored(0.0)], config) == [1.0, 0.0]
    assert rewards_of([], EngineConfig()) == []


def test_drop_leaves_the_sample_out() -> None:
    assert rewards_of(SCORES, EngineConfig()) == [1.0, None, -1.0, 0.0, None]


def test_raise_says_how_many_and_why() -> None:
    with pytest.raises(RewardError, match=r"2 of 5 samples .*1 timeout, 1 server.*it was a timeout.*on_failure=raise"):
        rewards_of(SCORES, EngineConfig(on_failure="raise"))


def test_constant_stands_in() -> None:
    config = EngineConfig(on_failure="constant", failure_value=-0.5)
    assert rewards_of(SCORES, config) == [1.0, -0.5, -1.0, 0.0, -0.5]


def test_the_group_stands_in_for_its_own() -> None:
    config = EngineConfig(on_failure="group_mean")
    assert rewards_of(SCORES, config, ["a", "a", "a", "b", "b"]) == [1.0, 0.0, -1.0, 0.0, 0.0]
    assert rewards_of(SCORES, config, ["a", "a", "c", "d", "e"]) == [1.0, 1.0, -1.0, 0.0, None]
    with pytest.raises(RewardError, match="form a group"):
        rewards_of(SCORES, config)
    with pytest.raises(ValueError, match="shorter"):
        rewards_of(SCORES, config, ["a"])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"on_failure": "constant"}, "failure_value, which is not set"),
        ({"failure_value": 1.0}, "read only when on_failure is constant"),
        ({"on_failure": "zero"}, "zero"),
        ({"max_failure_rate": 1.5}, "at most 1"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EngineConfig(**settings)


def test_a_batch_may_lose_its_share_and_no_more() -> None:
    watch = FailureWatch(0.25)
    watch.check_batch([errored()] * 8, 32)
    with pytest.raises(RewardError, match=r"9 of 32 .*9 timeout.*max_failure_rate=0\.25 of 32"):
        watch.check_batch([errored()] * 9, 32)
    watch.check_batch([errored()] * (SMALL_BATCH - 1), SMALL_BATCH - 1)
    FailureWatch(1.0).check_batch([errored()] * 32, 32)
    with pytest.raises(RewardError):
        FailureWatch(0.0).check_batch([errored()], 1000)


def test_single_failures_count_over_a_window() -> None:
    watch = FailureWatch(0.25)
    for _ in range(WINDOW // 2 - 1):
        watch.check_one(errored())
    with pytest.raises(RewardError, match=f"{WINDOW // 2} of {WINDOW // 2}"):
        watch.check_one(errored())
    for _ in range(WINDOW // 2 - 1):  # it begins anew, so that a host may go on once the judge is back
        watch.check_one(errored())


def test_a_good_sample_raises_for_nobody() -> None:
    watch = FailureWatch(0.25)
    for _ in range(WINDOW // 2 - 1):
        watch.check_one(errored())
    for _ in range(3 * WINDOW):
        watch.check_one(scored(1.0))
    for _ in range(WINDOW // 4):
        watch.check_one(errored())
    with pytest.raises(RewardError):
        watch.check_one(errored())


def test_hosts_in_many_threads_share_one_watch() -> None:
    watch = FailureWatch(1.0)
    raised: list[BaseException] = []

    def use() -> None:
        try:
            for number in range(3000):
                watch.check_one(errored() if number % 2 else scored(0.0))
        except RuntimeError as error:
            raised.append(error)

    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not raised
