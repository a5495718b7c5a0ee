"""Metrics, tags, traces and figures of kernel rollouts, from made-up rollouts whose figures are known."""

from __future__ import annotations

import pytest

from assay.envs.kernelbench.records import NAMES, batch_metrics, kernel_records, show_kernels, tags, trace_fields
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
    assert found["eval/tag/level1/compiled"] == "Eval/Level1/CompileRate"
    distributions = {"reward", "speedup", "advantage"}
    assert all(is_possible(name) for name in found if name not in distributions)
    assert all(is_possible(name) and is_possible(also) for name, also in NAMES.items())


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
