"""Metrics, tags, traces and figures of kernel rollouts, from made-up rollouts whose figures are known."""

from __future__ import annotations

from dataclasses import replace

import pytest

from assay.envs.kernelbench.evaluation.figures import means
from assay.envs.kernelbench.evaluation.outcomes import of_rollouts
from assay.envs.kernelbench.records import (
    NAMES,
    batch_metrics,
    charts,
    kernel_records,
    show_kernels,
    tags,
    trace_fields,
)
from assay.envs.kernelbench.rewards import evaluation
from assay.kernels.verdicts import Verdict
from assay.training.metrics.names import is_possible
from assay.types import Trajectory, TrajectoryGroup
from support.kernel_policies import RIGHT, reply
from support.kernel_turns import TASK, WRONG, fast, rollout, turn

FAILED = Trajectory(TASK, (turn(WRONG),), "errored", 0, "no grader")
GROUPS = [
    TrajectoryGroup(TASK, (rollout(None, WRONG, fast(1.5)), rollout(fast(2.0)))),
    TrajectoryGroup(TASK, (rollout(Verdict("cheat", "rules"), Verdict("compile_error", "compile")), FAILED)),
]


def test_metrics_of_several_turns() -> None:
    found = batch_metrics(GROUPS, several_turns=True)
    rewards = [t.score.value for g in GROUPS for r in g.trajectories[:2] if r is not FAILED for t in r.transitions]
    expected = {
        "mode": 1,
        "batch/num_groups": 2,
        "batch/num_trajectories": 4,
        "batch/total_steps": 7,
        "kernel/format_rate": 5 / 6,
        "kernel/compile_rate": 3 / 6,
        "kernel/correct_rate": 2 / 6,
        "kernel/cheat_rate": 1 / 6,
        "kernel/format_ok": 5,
        "kernel/compiled": 3,
        "kernel/correct": 2,
        "kernel/mean_speedup": 1.75,
        "multiturn/format_rate": 5 / 6,
        "multiturn/compile_rate": 3 / 6,
        "multiturn/correct_rate": 2 / 6,
        "multiturn/step_score_mean": sum(r or 0 for r in rewards) / 6,
        "multiturn/max_correct_per_trajectory": 2 / 3,
        "multiturn/success_rate": 2 / 3,
        "multiturn/avg_turns": 2,
        "multiturn/best_speedup_mean": 1.75,
        "multiturn/best_speedup_max": 2.0,
        "multiturn/turn_0/compile_rate": 1 / 3,
        "multiturn/turn_0/correct_rate": 1 / 3,
        "multiturn/turn_0/count": 3,
        "multiturn/turn_1/compile_rate": 1 / 2,
        "multiturn/turn_1/correct_rate": 0,
        "multiturn/turn_1/count": 2,
        "multiturn/turn_2/compile_rate": 1,
        "multiturn/turn_2/correct_rate": 1,
        "multiturn/turn_2/count": 1,
    }
    assert {name: found[name] for name in expected} == pytest.approx(expected)
    rest = set(found) - set(expected)
    assert rest == {"multiturn/step_score_std", *(f"multiturn/turn_{n}/score_mean" for n in range(3))}
    assert all(is_possible(name) and is_possible(f"eval/{name}") for name in found)


def test_metrics_of_one_turn_and_of_nothing() -> None:
    found = batch_metrics(GROUPS, several_turns=False)
    assert found["mode"] == 0 and not any(name.startswith("multiturn/") for name in found)
    assert set(batch_metrics([], several_turns=True)) == {
        "mode",
        *(f"batch/{name}" for name in ("num_groups", "num_trajectories", "total_steps")),
    }
    assert "kernel/format_rate" not in batch_metrics([TrajectoryGroup(TASK, (FAILED,))], several_turns=False)


def test_every_tag_is_that_of_a_metric_or_a_distribution_and_none_is_given_twice() -> None:
    found = tags((1, 2))
    assert len(set(found.values())) == len(found)
    assert found["tag/level2/correct"] == "PerLevel/Level2/CorrectRate"
    assert found["eval/tag/level1/compile_rate"] == "Eval/Level1/CompileRate"
    assert found["eval/kernel/pass@5"] == "Eval/All/Pass@5" and found["eval/tag/level2/fast_2"] == "Eval/Level2/Fast2x"
    distributions = {"reward", "speedup", "advantage"}
    assert all(is_possible(name) for name in found if name not in distributions)
    assert all(is_possible(name) and is_possible(also) for name, also in NAMES.items())


def test_an_evaluation_has_pass_at_k_and_fast_p_of_all_and_of_each_level() -> None:
    record = evaluation(fast(1.5), "") | {"metadata": {"kind": "ok", "speedups": {"eager": {"speedup": 1.5}}}}
    timed = turn(fast(1.5))
    timed = replace(timed, score=replace(timed.score, evidence={"eval_result": record}))
    groups = [TrajectoryGroup(TASK, (Trajectory(TASK, (timed,), "done", 0), rollout(WRONG)))]
    found = kernel_records([1], 1, ("eager",)).evaluation(groups)
    for below in ("kernel", "tag/level1"):
        expected = {"pass@1": 0.5, "pass@2": 1, "fast_0": 0.5, "fast_1": 0.5, "fast_1.2": 0.5, "fast_2": 0}
        expected |= {"speedup_mean": 1.5, "speedup_geometric_mean": 1.5, "compile_rate": 1, "correct_rate": 0.5}
        assert {name: found[f"{below}/{name}"] for name in expected} == pytest.approx(expected)
    assert all(is_possible(f"eval/{name}") and f"eval/{name}" in tags([1]) for name in found)
    assert "kernel/fast_1" not in kernel_records([1], 1).evaluation(groups), "speed that was not measured has no figure"


def test_a_share_in_an_evaluation_is_the_one_that_assay_eval_gives() -> None:
    other = replace(TASK, id="1/2:Other", payload={**TASK.payload, "problem_id": 2, "name": "Other"})
    tried = Trajectory(other, tuple(turn(None) for _ in range(3)), "done", 0)
    groups = [TrajectoryGroup(TASK, (rollout(WRONG),)), TrajectoryGroup(other, (tried,))]
    found = kernel_records([1], 3).of_evaluation(groups)
    assert found["eval/kernel/compile_rate"] == means(of_rollouts(groups, ()))["all/compile_rate"] == 0.5
    assert found["eval/multiturn/compile_rate"] == 0.25, "over the turns, as in training"


def test_charts_are_of_tags_that_there_are() -> None:
    assert {tag for chart in charts([1, 2]).values() for tag in chart} <= set(tags([1, 2]).values())


def test_distributions_of_speedups() -> None:
    assert kernel_records([1], 3).histograms(GROUPS) == {"speedup": [1.5, 2.0]}


def test_the_fields_of_a_trace() -> None:
    one = GROUPS[0].trajectories[0]
    last = kernel_records([1], 3).trace(one, 2)
    assert (last["mode"], last["level"], last["problem_id"], last["backend"]) == ("multi_turn", 1, 1, "triton")
    assert last["response"]["thought"] == "plan" and last["response"]["format_ok"]
    assert last["eval_result"]["speedup"] == 1.5 and last["eval_result"]["runtime_ms"] == 0.5
    assert last["reward_breakdown"]["reward_correctness"] == 1.0
    assert last["reward_breakdown"]["reward_total"] == one.transitions[2].score.value
    assert (last["stop_condition"], trace_fields(one, 0, "multi_turn")["stop_condition"]) == ("done", None)
    empty = Trajectory(TASK, (), "errored", 0, "no grader")
    assert trace_fields(empty, 0, "single_turn")["level"] == 1


def test_kernels_in_the_report_are_text() -> None:
    hostile = RIGHT.replace("s = tl.sin", "# <script>alert(1)</script>\n    s = tl.sin")
    page = show_kernels(TASK, [reply(hostile), reply(hostile), "none", reply(RIGHT)])
    assert "<script" not in page and "&lt;script&gt;" in page and "1_&lt;Snake&gt;" in page
    assert page.count("<pre>") == 2 and "Kernel 2 of 2" in page
    assert show_kernels(TASK, ["none"]) == ""
