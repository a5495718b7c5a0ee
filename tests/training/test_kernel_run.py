"""Whole runs on kernels with the real grader: what is recorded, that turns are played, and that a kill is undone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from assay.cli.runs.eval import measure
from assay.envs.kernelbench.dataset import MultiTurnKernelBenchDatasetBuilder
from support.kernel_run import builder, kernels
from support.sandboxes import needs_walls
from support.tensorboard import laid_out, read_events
from support.tiny_run import assert_same_run, kill, read_lines, run

pytestmark = needs_walls
RECORDED = """
progress/batch progress/done_frac optim/lr mode
time/rollout time/discount_returns time/assemble_data time/train time/save_checkpoint time/total
time/eval_mean time/eval_max time/step_mean time/step_max time/ref_load_mean time/ref_load_max
reward/mean reward/std reward/min reward/max
kernel/format_rate kernel/compile_rate kernel/correct_rate kernel/cheat_rate
multiturn/format_rate multiturn/compile_rate multiturn/correct_rate multiturn/step_score_mean multiturn/step_score_std
multiturn/max_correct_per_trajectory multiturn/success_rate multiturn/avg_turns
multiturn/turn_0/compile_rate multiturn/turn_0/correct_rate multiturn/turn_2/compile_rate multiturn/turn_2/correct_rate
batch/num_groups batch/num_trajectories batch/total_steps
eval/kernel/pass@1 eval/kernel/fast_0 eval/tag/level1/pass@1
"""
"""Metrics that users of trainers of kernels look for, in `metrics.jsonl`."""
TAGS = """
Reward/Mean Reward/StdDev Reward/Min Reward/Max
Kernel/FormatRate Kernel/CompileRate Kernel/CorrectRate Kernel/CheatRate
Progress/CompletionFraction Optimizer/LearningRate Batch/NumGroups Batch/NumTrajectories
Timing/Total Timing/Rollout Timing/Assemble_Data Timing/Train Timing/Save_Checkpoint
Timing/Eval_Mean Timing/Ref_Load_Mean
Distributions/Rewards Distributions/Advantages Counts/format_ok Counts/compiled Counts/correct
PerLevel/Level1/RewardMean PerLevel/Level1/CorrectRate PerLevel/Level1/CompileRate
Advantage/Mean Advantage/Std Advantage/Min Advantage/Max
RewardComponents/Format RewardComponents/Compile RewardComponents/Correctness RewardComponents/Speed
RewardComponents/Length RewardComponents/Thinking
Eval/All/Pass@1 Eval/Level1/Pass@1 Eval/Level1/CompileRate Eval/Level1/CorrectRate
"""
CHARTS = ("Reward/Summary", "Kernel/QualityRates", "Timing/Breakdown", "Eval/Level1/QualityOverview")
"""The same in TensorBoard, but for those that need a GPU to time kernels on (`Distributions/Speedups`, `Fast1x`)."""
TRACED = """
mode level problem_id backend dataset_src prompt_option raicl_k turn renderer response eval_result reward
reward_breakdown metrics stop_condition max_turns state run step group sample messages advantage
"""
TURNS = {"mode": "multi_turn", "max_turns": 3}


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


KILLS: Sequence[tuple[str, str, int]] = (
    ("support.kernel_run", "Scripted.sample_stream", 5),
    ("assay.kernels.pool", "GradingPool._grade", 2),
    ("assay.backends.local.backend", "TorchBackend.optim_step", 1),
    ("assay.grpo.trainer", "GRPOTrainer.update", 2),
    ("assay.training.run.directory", "RunDirectory.commit", 1),
)
"""While answers are sampled, while kernels are graded, in the first optimizer step, between the steps, and after the
second, before it is committed."""


def test_a_run_of_several_turns_records_them_under_their_names_and_is_the_same_after_kills(tmp_path: Path) -> None:
    # First the run that is killed, so that its kernels are really graded; the other one finds their verdicts.
    cut = kernels(tmp_path / "cut", **TURNS, max_batches=2)
    for bomb in KILLS:
        kill(cut, *bomb)
    run(cut)
    config = kernels(tmp_path / "whole", **TURNS, max_batches=2)
    run(config)
    assert_same_run(tmp_path / "cut", tmp_path / "whole")
    again = measure(config.log_path, config, None)["figures"]["level1"]
    assert again["problems"] == 1 and {one["turns"] for one in again["best_at"]} <= {1, 2, 3}
    steps = [line for line in read_lines(tmp_path / "whole/metrics.jsonl") if line["phase"] == "rl"]
    first = steps[0]
    assert first["batch/num_trajectories"] == 4 and first["mode"] == 1 and first["progress/done_frac"] == 0.5
    assert first["multiturn/turn_0/correct_rate"] < first["multiturn/success_rate"] == 1, "later turns are better"
    assert first["multiturn/avg_turns"] == first["rollout/turns"] > 1
    assert first["time/rollout"] == first["perf/rollout_s"] and first["optim/lr"] == first["train/learning_rate"]
    assert 0 < first["time/eval_mean"] <= first["time/eval_max"] <= first["time/step_max"] < first["time/total"]
    assert first["time/save_checkpoint"] > 0, "of the checkpoint before the first step"
    assert first["advantage/min"] < 0 < first["advantage/max"]
    assert steps[-1]["eval/kernel/correct_rate"] >= 0, "the held-out problem was evaluated"
    traces = [line for line in read_lines(tmp_path / "whole/traces.jsonl") if line["split"] == "train"]
    measured = [line for line in read_lines(tmp_path / "whole/traces.jsonl") if line["split"] == "eval"]
    assert {trace["problem_id"] for trace in traces} == {1} and {trace["problem_id"] for trace in measured} == {2}
    for trace in traces:
        assert set(TRACED.split()) <= trace.keys()
        assert trace["eval_result"]["metadata"]["kind"] and trace["messages"], "each turn has its whole prompt"
    last = max(traces, key=lambda trace: trace["turn"])
    assert last["turn"] == 2 and "Attempt 2 of 3" in last["messages"][-1]["content"]
    (board,) = (tmp_path / "whole/tensorboard").iterdir()
    shown = {value.tag for event in read_events(board) for value in event.summary.value}
    assert set(TAGS.split()) - shown == set() and set(CHARTS) <= laid_out(board).keys()
    assert set(RECORDED.split()) - {name for line in steps for name in line} == set()


def test_a_builder_of_its_own_decides_on_turns(tmp_path: Path) -> None:
    own = builder()
    several = MultiTurnKernelBenchDatasetBuilder(
        **{name: getattr(own, name) for name in ("dataset_src", "use_modal", "end_problem", "batch_size", "grader")},
        **{"num_correct_trials": 1, "prompt_option": "zero_shot", "renderer_name": "auto"},
        **{"max_turns": 2, "group_size": 2, "early_stop_on_correct": False},
    )
    config = kernels(tmp_path / "run", mode="multi_turn", multiturn_dataset_builder=several, eval_every=0)
    run(config)
    (step,) = [line for line in read_lines(tmp_path / "run/metrics.jsonl") if line["phase"] == "rl"]
    assert step["rollout/turns"] == 2, "a right kernel does not end a rollout here, and its own number of turns does"
