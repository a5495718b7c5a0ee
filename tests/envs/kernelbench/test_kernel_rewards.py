"""What verdicts are worth, as properties that hold for every verdict and all weights."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from assay.envs.kernelbench.rewards import (
    PARTS,
    UNJUDGED,
    KernelRewardConfig,
    RewardRules,
    RewardShapes,
    Signals,
    evaluation,
    rewardable_speedup,
    score_of,
    signals_of,
    speed,
    unjudged,
)
from assay.errors import ConfigError
from assay.kernels.verdicts import Stage, Verdict, VerdictKind

CODE = "x" * 600
weights = st.floats(0, 10, allow_nan=False)
shapes = st.builds(
    lambda partial, shape, cap: replace_shape(RewardShapes(partial_correctness=partial), shape, cap),
    st.booleans(),
    st.sampled_from(["minus_one", "ratio", "log"]),
    st.floats(0.1, 20),
)
signals = st.builds(
    Signals,
    format_ok=st.booleans(),
    compiled=st.booleans(),
    correct=st.booleans(),
    cheat=st.booleans(),
    tests_passed=st.integers(0, 9),
    tests_total=st.integers(0, 9),
    speedup=st.none() | st.floats(0, 60),
    code_characters=st.integers(0, 20_000),
    thought_characters=st.integers(0, 9_000),
)


def replace_shape(shapes: RewardShapes, shape: Any, cap: float) -> RewardShapes:
    return RewardShapes(partial_correctness=shapes.partial_correctness, speed_shape=shape, speed_cap=cap)


rules = st.builds(RewardRules, st.fixed_dictionaries(dict.fromkeys(PARTS, weights)), shapes)


def timed(**timing: Any) -> Verdict:
    return Verdict("ok", "timing", tests_passed=5, tests_total=5, timing={"rewardable": 2.0, **timing})


def value(signals: Signals, rules: RewardRules) -> float:
    found = score_of(signals, rules).value
    assert found is not None
    return found


@pytest.mark.parametrize("kind", ["crash", "timeout", "wrong"])
def test_host_code_that_fails_before_kernels_run_is_not_paid_for_compiling(kind: VerdictKind) -> None:
    config = KernelRewardConfig()
    before, after = (signals_of(Verdict(kind, stage), code=CODE) for stage in ("record", "numerics"))
    assert not before.compiled and after.compiled
    assert score_of(before, config.rules).status == "invalid"
    assert value(before, config.rules) < value(after, config.rules)
    assert not signals_of(Verdict(kind, "numerics", compiled=False), code=CODE).compiled


@given(signals, rules)
def test_a_cheat_and_a_reply_without_a_kernel_earn_nothing(found: Signals, rules: RewardRules) -> None:
    assert value(replace(found, cheat=True), rules) == 0
    assert value(replace(found, format_ok=False), rules) == 0
    gated = replace(rules, shapes=RewardShapes(mode="gated"))
    assert value(replace(found, correct=False), gated) == 0


@given(signals, rules)
def test_every_stage_that_is_reached_pays_at_least_as_much(found: Signals, rules: RewardRules) -> None:
    honest = replace(found, cheat=False, compiled=False, correct=False)
    ladder = [
        replace(honest, format_ok=False),
        replace(honest, format_ok=True),
        replace(honest, format_ok=True, compiled=True),
        replace(honest, format_ok=True, compiled=True, correct=True, speedup=None),
        replace(honest, format_ok=True, compiled=True, correct=True, speedup=found.speedup),
    ]
    for each in (rules, replace(rules, shapes=RewardShapes(mode="gated"))):
        earned = [value(one, each) for one in ladder]
        assert earned == sorted(earned)


@given(st.floats(0, 60), st.floats(0, 60), shapes)
def test_a_larger_speedup_never_earns_less_and_never_more_than_the_cap(
    a: float, b: float, shapes: RewardShapes
) -> None:
    slow, fast = sorted((a, b))
    assert 0 <= speed(slow, shapes) <= speed(fast, shapes) <= shapes.speed_cap


@pytest.mark.parametrize(("shape", "earned"), [("minus_one", 3.0), ("ratio", 4.0), ("log", 2.0)])
def test_what_the_shapes_of_speed_are(shape: Any, earned: float) -> None:
    assert speed(4.0, RewardShapes(speed_shape=shape)) == pytest.approx(earned)
    assert speed(0.5, RewardShapes(speed_shape=shape)) == (0.5 if shape == "ratio" else 0.0)


@given(st.integers(0, 9), st.integers(1, 9))
def test_a_wrong_kernel_earns_its_share_and_less_than_a_right_one(passed: int, total: int) -> None:
    weights = RewardRules({**dict.fromkeys(PARTS, 0.0), "correctness": 1.0}, RewardShapes(partial_correctness=True))
    wrong = value(signals_of(Verdict("wrong", "numerics", tests_passed=passed, tests_total=total), code=CODE), weights)
    assert wrong == pytest.approx(min(passed, total - 1) / total) and wrong < 1
    assert value(signals_of(Verdict("ok", "numerics"), code=CODE), weights) == 1
    whole = replace(weights, shapes=RewardShapes())
    assert value(signals_of(Verdict("wrong", "numerics", tests_passed=passed, tests_total=total)), whole) == 0


@pytest.mark.parametrize("kind", sorted(set(get_args(VerdictKind)) - UNJUDGED))
@pytest.mark.parametrize("compiled", [True, None, False])
def test_what_each_verdict_is_worth_with_the_default_weights(kind: VerdictKind, compiled: bool | None) -> None:
    stage: Stage = "compile" if kind == "compile_error" else "numerics"
    verdict = Verdict(kind, stage, compiled=compiled)
    score = score_of(signals_of(verdict, code="x" * 100, thought="plan"), KernelRewardConfig().rules)
    past = kind != "compile_error" and compiled is not False
    earned = 0.0 if kind == "cheat" else (1.45 if kind == "ok" else 0.45) if past else 0.2
    assert score.value == pytest.approx(earned)
    assert score.status == ("scored" if past or kind == "cheat" else "invalid")


@pytest.mark.parametrize("kind", sorted(UNJUDGED))
def test_what_could_not_be_judged_has_no_score(kind: VerdictKind) -> None:
    score = unjudged(Verdict(kind, "numerics", "the grader fell over"), "1/3", {"kernel": "k"})
    assert (score.status, score.value) == ("errored", None)
    assert f"problem 1/3 could not be graded ({kind}): the grader fell over" in score.evidence["message"]


def test_the_speedup_is_the_lower_bound_and_no_more_than_the_roofline_allows() -> None:
    assert rewardable_speedup(timed(speedup=3.0)) == 2.0
    assert rewardable_speedup(timed(rewardable=None, speedup=3.0)) is None, "withheld"
    assert rewardable_speedup(timed(baseline_ms=1.0, floor_ms=0.8)) == pytest.approx(1.25)
    assert rewardable_speedup(timed(baseline_ms=1.0, floor_ms=None)) == 2.0
    assert rewardable_speedup(replace(timed(), kind="wrong")) is None
    assert rewardable_speedup(Verdict("ok", "numerics")) is None
    for odd in (math.inf, math.nan, -1.0, "2", True, 1e300):
        assert rewardable_speedup(timed(rewardable=odd)) is None, odd


def test_the_parts_for_length_and_thinking_fall_along_lines() -> None:
    def parts(code: int, thought: int) -> dict[str, float]:
        found = signals_of(Verdict("ok", "numerics"), code="c" * code, thought="t" * thought)
        return dict(score_of(found, KernelRewardConfig().rules).parts)

    assert [parts(n, 1)["length"] for n in (500, 4250, 8000)] == pytest.approx([1, 0.5, 0])
    assert [parts(1, n)["thinking"] for n in (0, 1, 2000, 3000, 9000)] == pytest.approx([0.5, 1, 1, 0.85, 0.7])


@pytest.mark.parametrize("part", PARTS)
def test_every_weight_pays_its_part(part: str) -> None:
    found = signals_of(timed(), code=CODE, thought="plan")
    given: dict[str, Any] = {f"reward_{one}_weight": 2.0 if one == part else 0.0 for one in PARTS}
    score = score_of(found, KernelRewardConfig(**given).rules)
    assert score.value == pytest.approx(2.0 * score.parts[part]) and score.value


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"length_min": 9000}, "length_min=9000 must be below length_max=8000"),
        ({"thinking_soft_max": 4000}, "thinking_soft_max=4000 must be below"),
        ({"speed_cap": 0.0}, "speed_cap=0.0 must be above 0"),
        ({"mode": "gated", "partial_correctness": True}, "partial_correctness=true is set, but"),
    ],
)
def test_shapes_that_cannot_be_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        RewardShapes(**settings)


def test_the_record_of_an_evaluation() -> None:
    others = {"compile": {"speedup": 9.0, "rewardable": None, "quarantine": "too fast"}}
    right = evaluation(timed(candidate_ms=0.5, baseline_ms=1.5, speedup=2.5, baseline="eager", others=others), "code")
    assert right == {
        "format_ok": True,
        "compiled": True,
        "correctness": True,
        "tests_passed": 5,
        "tests_total": 5,
        "speedup": 2.0,
        "runtime_ms": 0.5,
        "baseline_runtime_ms": 1.5,
        "cheated": False,
        "error_message": None,
        "code_length": 4,
        "metadata": {
            "kind": "ok",
            "stage": "timing",
            "cheat": "",
            "speedups": {"eager": {"speedup": 2.5, "lower": 2.0}, "compile": {"withheld": "too fast"}},
        },
    }
    none = evaluation(None, "", "no code")
    assert (none["format_ok"], none["compiled"], none["error_message"]) == (False, False, "no code")
    assert none["metadata"]["kind"] == "format_error"
    assert evaluation(Verdict("cheat", "rules", "no", "torch"), "c")["cheated"]
