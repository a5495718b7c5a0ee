from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.training.metrics.intervals import mean_ci95, paired_difference_ci95, wilson_ci95
from assay.training.report.charts import MINUS
from assay.training.report.comparison import Policy, difference, exact_policy, measured_policy, signed, verdict
from assay.training.run.reader import Answer, HeldoutTask, Measurement

VALUES = st.lists(st.floats(-1, 1).map(lambda x: round(x, 3)), min_size=2, max_size=30)


def policy(label: str, values: list[float], metric: str = "legal", exact: bool = False) -> Policy:
    return Policy(label, {metric: {f"task {i}": value for i, value in enumerate(values)}}, exact)


def measurement(*values: dict[str, float]) -> Measurement:
    answers = (Answer("x", "scored", 1.0),)
    return Measurement(5, "rl", 2, tuple(HeldoutTask(i, f"key{i}", answers, v) for i, v in enumerate(values)))


def test_estimates_run_over_tasks() -> None:
    assert policy("p", [0.0, 0.5, 0.25]).estimate("legal") == mean_ci95([0.0, 0.5, 0.25])
    assert policy("p", [0.0]).estimate("best") is None


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_a_share_of_0_or_1_is_not_certain(value: float) -> None:
    interval = policy("p", [value] * 20).estimate("legal")
    assert interval == wilson_ci95(round(value * 20), 20)
    assert interval.half_width > 0.05


def test_differences_pair_tasks_by_their_identity() -> None:
    after = Policy("after", {"legal": {"a": 1.0, "b": 0.5, "c": 0.25, "only after": 0.0}})
    before = Policy("before", {"legal": {"c": 0.25, "b": 0.0, "a": 0.0, "only before": 1.0}})
    assert difference(after, before, "legal") == paired_difference_ci95([0.0, 0.0, 0.25], [1.0, 0.5, 0.25])
    assert difference(after, Policy("other", {"legal": {"a": 1.0}}), "legal") is None
    assert difference(after, before, "best") is None


def test_pairing_narrows_the_interval_where_tasks_differ() -> None:
    hard_to_easy = [i / 20 for i in range(20)]
    better = policy("after", [v + 0.04 + 0.001 * (i % 3) for i, v in enumerate(hard_to_easy)])
    assert difference(better, policy("before", hard_to_easy), "legal").low > 0
    assert better.estimate("legal").low < mean_ci95(hard_to_easy).mean


def test_exact_values_are_paired_only_where_they_are_of_the_same_tasks() -> None:
    measured = measured_policy("p", measurement({"legal": 1.0, "keeps": 1.0}, {"legal": 0.0}, {"legal": 0.5}))
    exact = exact_policy("random", {"legal": [0.5, 0.5, 0.0], "keeps": [0.1, 0.2]}, measured)
    assert difference(measured, exact, "legal").mean == pytest.approx((0.5 - 0.5 + 0.5) / 3)
    assert difference(measured, exact, "keeps") is None
    assert exact.estimate("keeps").mean == pytest.approx(0.15)


def test_equal_tasks_at_different_places_stay_apart() -> None:
    answers = (Answer("x", "scored", 1.0),)
    twins = Measurement(0, "rl", 0, tuple(HeldoutTask(i, "same", answers, {"legal": float(i)}) for i in range(2)))
    assert measured_policy("p", twins).estimate("legal").n == 2


@given(VALUES, st.data())
def test_nothing_is_claimed_whose_interval_includes_0(values: list[float], data: st.DataObject) -> None:
    others = data.draw(st.lists(st.floats(-1, 1), min_size=len(values), max_size=len(values)))
    ours, theirs = policy("GRPO", values), policy("the control", others)
    interval = difference(ours, theirs, "legal")
    text = verdict(ours, theirs, {"legal": "legal moves"})
    assert ("higher in" in text) == (interval.low > 1e-9)
    assert ("lower in" in text) == (interval.high < -1e-9)
    assert ("not shown to differ in" in text) == (interval.low <= 1e-9 and interval.high >= -1e-9)


def test_a_verdict_says_everything_once() -> None:
    tasks = [f"task {i}" for i in range(10)]

    def values(**columns: float) -> dict[str, dict[str, float]]:
        return {n: {t: v + 0.01 * (i % 2) for i, t in enumerate(tasks)} for n, v in columns.items()}

    ours = Policy("GRPO", values(legal=0.9, reward=0.5, best=0.1, keeps=0.2))
    theirs = Policy("warm-up", values(legal=0.4, reward=0.2, best=0.4) | {"keeps": {"other": 1.0}})
    words = {"legal": "legal moves", "reward": "reward", "best": "best moves", "keeps": "wins kept", "none": "nothing"}
    flat = Policy("warm-up", {"best": {t: 0.1 + 0.02 * (i % 3 - 1) for i, t in enumerate(tasks)}})
    assert verdict(ours, theirs, words) == (
        "GRPO, against warm-up: higher in legal moves by 0.500 ± 0.000 and reward by 0.300 ± 0.000; "
        "lower in best moves by 0.300 ± 0.000; not comparable in wins kept and nothing."
    )
    assert verdict(ours, flat, {"best": "best moves"}).startswith("GRPO, against warm-up: not shown to differ in best")
    assert verdict(Policy("after RL", {}), flat, {}) == "After RL, against warm-up: nothing was measured."


def test_no_difference_at_all_is_no_claim() -> None:
    for same in (0.5, 0.5 + 1e-15):
        text = verdict(policy("a", [0.5] * 9), policy("b", [same] * 9), {"legal": "legal moves"})
        assert "not shown to differ" in text


def test_a_difference_has_its_sign() -> None:
    interval = paired_difference_ci95([0.5, 0.75], [0.25, 0.5])
    assert signed(interval) == f"{MINUS}0.250 ± 0.000"
    assert math.isclose(interval.half_width, 0, abs_tol=1e-12)
