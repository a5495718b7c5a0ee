"""Figures of kernel writers: turns, samples, levels, what was not measured; and evaluations as files."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from assay.envs.kernelbench.evaluation.figures import means, notes, per_problem, summary, tag_of
from assay.envs.kernelbench.evaluation.outcomes import (
    KernelEvaluation,
    Outcome,
    ProblemOutcomes,
    of_rollouts,
)
from assay.errors import DataError
from assay.kernels.verdicts import Verdict
from assay.types import TrajectoryGroup
from support.kernel_turns import TASK, WRONG, rollout

BAD = Outcome("wrong", True)
SLOW, EVEN, FAST = (Outcome("ok", True, {"eager": s}, {"eager": 0.9 * s}) for s in (0.8, 1.0, 2.5))
WITHHELD = Outcome("ok", True)
PROBLEMS = (
    ProblemOutcomes(1, 1, "a", ((BAD, FAST), (BAD, BAD))),
    ProblemOutcomes(1, 2, "b", ((EVEN,), (SLOW,))),
    ProblemOutcomes(2, 7, "c", ((WITHHELD,), (Outcome("cheat", True),)), errored=1),
    ProblemOutcomes(2, 8, "d", (), errored=2),
)
TIMED = KernelEvaluation(PROBLEMS, ("eager",))


def mean(value: Any) -> float:
    found: float = value["mean"]
    return found


def test_each_figure_is_the_mean_over_problems_of_what_its_samples_say() -> None:
    found = summary(TIMED)["all"]
    assert (found["problems"], found["judged_problems"], found["samples"], found["errored_samples"]) == (4, 3, 6, 3)
    assert {k: mean(v) for k, v in found["pass_at"].items()} == pytest.approx({"1": 2 / 3, "2": 1.0})
    fast = {p: mean(v) for p, v in found["fast_p"]["eager"].items()}
    # a: one of two samples, by its second turn. b: right, and neither is above 1. c: right, and no speed.
    assert fast == pytest.approx({"0": 2 / 3, "1": 1 / 6, "1.2": 1 / 6, "2": 1 / 6})
    assert mean(found["cheat_rate"]) == pytest.approx(1 / 6)
    assert mean(found["speedup"]["eager"]["mean"]) == pytest.approx((2.5 + 0.9) / 2)
    assert mean(found["speedup"]["eager"]["geometric_mean"]) == pytest.approx((2.5 * 0.8**0.5) ** 0.5)
    assert found["speedup"]["eager"]["withheld"] == 1
    lower = {p: mean(v) for p, v in found["fast_p_lower"]["eager"].items()}
    assert lower == pytest.approx({"1": 1 / 6, "1.2": 1 / 6, "2": 1 / 6})


def test_best_at_takes_the_first_turns_of_k_samples() -> None:
    found = {(one["turns"], one["samples"]): mean(one["correct"]) for one in summary(TIMED)["all"]["best_at"]}
    assert found == pytest.approx({(1, 1): 0.5, (1, 2): 2 / 3, (2, 1): 2 / 3, (2, 2): 1.0})
    fast = {(o["turns"], o["samples"]): mean(o["fast_p"]["eager"]["2"]) for o in summary(TIMED)["all"]["best_at"]}
    assert fast == pytest.approx({(1, 1): 0, (1, 2): 0, (2, 1): 1 / 6, (2, 2): 1 / 3})


def test_levels_stand_alone() -> None:
    found = summary(TIMED, (1,))
    assert list(found) == ["all", "level1", "level2"]
    assert mean(found["level1"]["pass_at"]["1"]) == 0.75 and mean(found["level2"]["pass_at"]["1"]) == 0.5


def test_speed_that_was_not_measured_is_null_and_said() -> None:
    untimed = KernelEvaluation(PROBLEMS)
    found = summary(untimed)["all"]
    for name in ("eager", "compile"):
        assert found["fast_p"][name] == {"0": found["pass_at"]["1"], "1": None, "1.2": None, "2": None}
        assert found["speedup"][name] is None
    assert any("not measured against eager PyTorch or torch.compile" in note for note in notes(untimed))
    assert any("not measured against torch.compile" in note for note in notes(TIMED))
    assert any("1 of 4 problems have no sample" in note for note in notes(TIMED))
    assert not any("fast_1" in name or "speedup" in name for name in means(untimed))
    tags = {tag_of(name): value for name, value in means(TIMED).items()}
    assert tags["Eval/Level1/Pass@1"] == 0.75 and tags["Eval/All/Fast2x"] == pytest.approx(1 / 6)
    assert tags["Eval/Level1/GeometricMeanSpeedup"] == pytest.approx((2.5 * 0.8**0.5) ** 0.5)
    assert tags["Eval/All/CheatRate"] == pytest.approx(summary(TIMED)["all"]["cheat_rate"]["mean"])


def test_a_measured_baseline_without_a_right_kernel_is_zero_and_not_null() -> None:
    found = summary(KernelEvaluation((ProblemOutcomes(1, 1, "a", ((BAD,),)),), ("eager",)))["all"]
    assert mean(found["fast_p"]["eager"]["1"]) == 0 and found["speedup"]["eager"]["mean"] is None


def test_rollouts_become_outcomes_with_the_speed_against_each_baseline() -> None:
    timing = {"baseline": "eager", "speedup": 2.0, "rewardable": 1.8, "quarantine": None}
    others = {"compile": {"baseline": "compile", "speedup": 1.1, "rewardable": None, "quarantine": "too fast"}}
    right = Verdict("ok", "timing", tests_passed=2, tests_total=2, timing={**timing, "others": others})
    broken = Verdict("infra_error", "numerics", "gone")
    group = TrajectoryGroup(TASK, (rollout(WRONG, right), rollout(None)))
    found = of_rollouts([group], ("eager", "compile"))
    (problem,) = found.problems
    assert (problem.key, problem.name) == ("1/1", "1_<Snake>")
    assert problem.samples[0] == (BAD, Outcome("ok", True, {"eager": 2.0}, {"eager": 1.8}))
    assert problem.samples[1][0].kind == "format_error"
    assert broken.errored


def test_an_evaluation_comes_back_from_its_file() -> None:
    assert KernelEvaluation.from_json(TIMED.to_json(), "f") == TIMED


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.pop("problems"), "no evaluation of kernels"),
        (lambda d: d.update(version=9), "format version 9"),
        (lambda d: d["problems"][0].pop("level"), "'level'"),
        (lambda d: d["problems"][0]["samples"][0][0].update(kind="fine"), "'fine' is no kind"),
        (lambda d: d["problems"][1]["samples"][0][0].update(speedups={"eager": -1}), "no speedup"),
        (lambda d: d["problems"][1]["samples"][0][0].update(speedups={"x": 1}), "baselines are"),
        (lambda d: d["problems"][0]["samples"].append([]), "without a turn"),
        (lambda d: d["problems"].append(d["problems"][0]), "twice"),
        (lambda d: d.update(timed=["me"]), "baselines are"),
    ],
)
def test_a_damaged_file_is_one_line(change: Any, message: str) -> None:
    data = copy.deepcopy(TIMED.to_json())
    change(data)
    with pytest.raises(DataError, match=message):
        KernelEvaluation.from_json(data, "f.json")


def test_metrics_per_problem_pair_up() -> None:
    found = per_problem(TIMED, (1, 2))
    assert list(found)[:2] == ["correct", "pass@2"]
    assert found["correct"] == {"1/1": 0.5, "1/2": 1.0, "2/7": 0.5}
    assert found["fast_1.2 (eager)"] == {"1/1": 0.5, "1/2": 0.0, "2/7": 0.0}
    assert set(found["log2 speedup (eager)"]) == {"1/1", "1/2"}
