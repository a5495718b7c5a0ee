"""What a run keeps of kernel rollouts beside what it keeps of all: metrics of kernels and of turns, the names under
which TensorBoard shows them, fields of traces, and kernels in the report. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

import numpy as np

from assay.envs.base import Records
from assay.envs.kernelbench.evaluation.figures import FIGURES, means, tag_of
from assay.envs.kernelbench.evaluation.outcomes import of_rollouts
from assay.envs.kernelbench.reply import read_reply
from assay.types import Json, Task, Trajectory, TrajectoryGroup, Transition

RATES = {"format_rate": "format", "compile_rate": "compiled", "correct_rate": "correct", "cheat_rate": "cheat"}
"""Name of a rate -> the metric of a turn that it is the mean of."""
NAMES: Mapping[str, str] = {
    "train/learning_rate": "optim/lr",
    "perf/wall_s": "time/total",
    "perf/rollout_s": "time/rollout",
    "perf/update_s": "time/train",
    "perf/returns_s": "time/discount_returns",
    "perf/assemble_s": "time/assemble_data",
    "perf/checkpoint_s": "time/save_checkpoint",
    "reward_engine/grader/grade_mean_s": "time/eval_mean",
    "reward_engine/grader/grade_max_s": "time/eval_max",
    "reward_engine/grader/turn_mean_s": "time/step_mean",
    "reward_engine/grader/turn_max_s": "time/step_max",
    "reward_engine/grader/reference_mean_s": "time/ref_load_mean",
    "reward_engine/grader/reference_max_s": "time/ref_load_max",
    "reward_engine/grader/modal_mean_s": "time/modal_eval_mean",
    "reward_engine/grader/modal_max_s": "time/modal_eval_max",
}
"""Metric of every run -> the name under which runs on kernels record it too."""
_TAGS: Mapping[str, str] = {
    "reward/mean": "Reward/Mean",
    "reward/std": "Reward/StdDev",
    "reward/min": "Reward/Min",
    "reward/max": "Reward/Max",
    "kernel/format_rate": "Kernel/FormatRate",
    "kernel/compile_rate": "Kernel/CompileRate",
    "kernel/correct_rate": "Kernel/CorrectRate",
    "kernel/cheat_rate": "Kernel/CheatRate",
    "kernel/mean_speedup": "Kernel/MeanSpeedup",
    "kernel/format_ok": "Counts/format_ok",
    "kernel/compiled": "Counts/compiled",
    "kernel/correct": "Counts/correct",
    "progress/done_frac": "Progress/CompletionFraction",
    "train/learning_rate": "Optimizer/LearningRate",
    "batch/num_groups": "Batch/NumGroups",
    "batch/num_trajectories": "Batch/NumTrajectories",
    "time/total": "Timing/Total",
    "time/rollout": "Timing/Rollout",
    "time/train": "Timing/Train",
    "time/discount_returns": "Timing/Discount_Returns",
    "time/assemble_data": "Timing/Assemble_Data",
    "time/save_checkpoint": "Timing/Save_Checkpoint",
    "time/eval_mean": "Timing/Eval_Mean",
    "time/eval_max": "Timing/Eval_Max",
    "time/step_mean": "Timing/Step_Mean",
    "time/step_max": "Timing/Step_Max",
    "time/ref_load_mean": "Timing/Ref_Load_Mean",
    "time/ref_load_max": "Timing/Ref_Load_Max",
    "time/modal_eval_mean": "Timing/Modal_Eval_Mean",
    "time/modal_eval_max": "Timing/Modal_Eval_Max",
    "reward": "Distributions/Rewards",
    "speedup": "Distributions/Speedups",
    "advantage": "Distributions/Advantages",
    "advantage/mean": "Advantage/Mean",
    "advantage/std": "Advantage/Std",
    "advantage/min": "Advantage/Min",
    "advantage/max": "Advantage/Max",
    "multiturn/success_rate": "MultiTurn/SuccessRate",
    "multiturn/avg_turns": "MultiTurn/AvgTurns",
    "multiturn/best_speedup_mean": "MultiTurn/BestSpeedupMean",
    **{f"part/{part}": f"RewardComponents/{part.capitalize()}" for part in ("format", "compile", "correctness")},
    **{f"part/{part}": f"RewardComponents/{part.capitalize()}" for part in ("speed", "length", "thinking")},
}
_OF_LEVEL = {"reward": "RewardMean", "correct": "CorrectRate", "compiled": "CompileRate", "speedup": "MeanSpeedup"}
_CHARTS: Mapping[str, Sequence[str]] = {
    "Reward/Summary": ("Reward/Mean", "Reward/Min", "Reward/Max"),
    "Kernel/QualityRates": ("Kernel/FormatRate", "Kernel/CompileRate", "Kernel/CorrectRate", "Kernel/CheatRate"),
    "Timing/Breakdown": ("Timing/Rollout", "Timing/Assemble_Data", "Timing/Train", "Timing/Save_Checkpoint"),
}
"""Chart -> the tags that it shows together."""
_OVERVIEW = ("Pass@1", "CompileRate", "CorrectRate", "Fast1x")
MOST_KERNELS = 3
"""Kernels of a task that the report shows."""
MOST_CHARACTERS = 6000
"""Of each."""


def kernel_records(levels: Sequence[int], max_turns: int, timed: Sequence[str] = ()) -> Records:
    """What a run of the environment keeps.

    Args:
        levels: the levels of its problems.
        max_turns: most turns of a rollout.
        timed: what right kernels are timed against.
    """
    mode = "multi_turn" if max_turns > 1 else "single_turn"
    return Records(
        metrics=lambda groups: batch_metrics(groups, several_turns=max_turns > 1),
        evaluation=lambda groups: evaluation_metrics(groups, timed),
        histograms=lambda groups: {"speedup": _values(_turns(groups), "speedup")},
        trace=lambda rollout, turn: trace_fields(rollout, turn, mode),
        tags=tags(levels),
        charts=charts(levels),
        names=NAMES,
    )


def tags(levels: Sequence[int]) -> dict[str, str]:
    """Metric -> a further tag under which TensorBoard shows it."""
    parts = [f"level{level}" for level in levels]
    trained = {
        f"tag/{part}/{metric}": f"PerLevel/{part.capitalize()}/{name}"
        for part in parts
        for metric, name in _OF_LEVEL.items()
    }
    rewards = {f"eval/tag/{part}/reward": f"Eval/{part.capitalize()}/RewardMean" for part in parts}
    figures = {f"eval/{_below(part)}/{name}": tag_of(f"{part}/{name}") for part in ("all", *parts) for name in FIGURES}
    return {**_TAGS, **trained, **rewards, **figures}


def charts(levels: Sequence[int]) -> dict[str, Sequence[str]]:
    """Chart -> the tags that TensorBoard shows in it."""
    heads = [f"Eval/{part}" for part in ("All", *(f"Level{level}" for level in levels))]
    return {**_CHARTS, **{f"{head}/QualityOverview": [f"{head}/{name}" for name in _OVERVIEW] for head in heads}}


def evaluation_metrics(groups: Sequence[TrajectoryGroup], timed: Sequence[str]) -> dict[str, float]:
    """The figures of an evaluation (`evaluation.figures.means`): `kernel/pass@1`, `tag/level1/fast_1`, ..."""
    found = {tuple(name.split("/")): value for name, value in means(of_rollouts(groups, timed)).items()}
    return {f"{_below(part)}/{name}": value for (part, name), value in found.items()}


def _below(part: str) -> str:
    """Where the metrics of all problems, or of a level, stand."""
    return "kernel" if part == "all" else f"tag/{part}"


def batch_metrics(groups: Sequence[TrajectoryGroup], *, several_turns: bool) -> dict[str, float]:
    """Metrics of the kernels of a batch, over the turns that were judged; with several turns, of the rollouts too."""
    rollouts = [rollout for group in groups for rollout in group.trajectories]
    judged = [rollout for rollout in rollouts if not rollout.errored and rollout.transitions]
    turns = [turn for rollout in judged for turn in rollout.transitions]
    found = {
        "mode": float(several_turns),
        "batch/num_groups": float(len(groups)),
        "batch/num_trajectories": float(len(rollouts)),
        "batch/total_steps": float(sum(len(rollout.transitions) for rollout in rollouts)),
    }
    if not turns:
        return found
    found |= {f"kernel/{name}": value for name, value in _rates(turns).items()}
    counts = {"format_ok": "format", "compiled": "compiled", "correct": "correct"}
    found |= {f"kernel/{name}": sum(_values(turns, metric)) for name, metric in counts.items()}
    if speedups := _values(turns, "speedup"):
        found["kernel/mean_speedup"] = float(np.mean(speedups))
    return found | (_of_turns(judged, turns) if several_turns else {})


def _of_turns(judged: Sequence[Trajectory], turns: Sequence[Transition]) -> dict[str, float]:
    """Metrics of rollouts of several turns, and of their first turns, their second ones, and so on."""
    values = [turn.score.value for turn in turns if turn.score.value is not None]
    success = [max(_values(rollout.transitions, "success"), default=0.0) for rollout in judged]
    found = {f"multiturn/{name}": value for name, value in _rates(turns).items() if name != "cheat_rate"}
    found |= {
        "multiturn/step_score_mean": float(np.mean(values)),
        "multiturn/step_score_std": float(np.std(values)),
        "multiturn/max_correct_per_trajectory": float(
            np.mean([max(_values(rollout.transitions, "correct"), default=0.0) for rollout in judged])
        ),
        "multiturn/success_rate": float(np.mean(success)),
        "multiturn/avg_turns": len(turns) / len(judged),
    }
    best = [max(speedups) for rollout in judged if (speedups := _values(rollout.transitions, "speedup"))]
    if best:
        found |= {"multiturn/best_speedup_mean": float(np.mean(best)), "multiturn/best_speedup_max": max(best)}
    for place in range(max(len(rollout.transitions) for rollout in judged)):
        there = [rollout.transitions[place] for rollout in judged if place < len(rollout.transitions)]
        rates = _rates(there)
        found |= {f"multiturn/turn_{place}/{name}": rates[name] for name in ("compile_rate", "correct_rate")}
        scores = [turn.score.value for turn in there if turn.score.value is not None]
        found |= {
            f"multiturn/turn_{place}/score_mean": float(np.mean(scores)),
            f"multiturn/turn_{place}/count": float(len(there)),
        }
    return found


def _rates(turns: Sequence[Transition]) -> dict[str, float]:
    return {name: float(np.mean(_values(turns, metric) or [0.0])) for name, metric in RATES.items()}


def _turns(groups: Sequence[TrajectoryGroup]) -> list[Transition]:
    return [turn for group in groups for rollout in group.trajectories for turn in rollout.transitions]


def _values(turns: Sequence[Transition], metric: str) -> list[float]:
    """A metric of the turns that have it."""
    return [float(turn.metrics[metric]) for turn in turns if metric in turn.metrics]


def trace_fields(rollout: Trajectory, place: int, mode: str) -> dict[str, Json]:
    """Fields of the trace of a turn: the problem and how it was posed, what the reply holds, and what came of it."""
    payload = rollout.task.payload
    fields: dict[str, Json] = {"mode": mode}
    fields |= {
        name: payload.get(name)
        for name in ("level", "problem_id", "backend", "dataset_src", "prompt_option", "raicl_k", "renderer")
    }
    if place >= len(rollout.transitions):
        return fields
    turn = rollout.transitions[place]
    evidence, thought = turn.score.evidence, turn.thought
    result = evidence.get("eval_result") or {}
    if thought is None:
        thought = read_reply(turn.text).thought
    return {
        **fields,
        "response": {
            "raw": turn.text,
            "thought": thought,
            "kernel": evidence.get("kernel", ""),
            "format_ok": result.get("format_ok", False),
        },
        "eval_result": result,
        "reward_breakdown": {
            **{f"reward_{part}": value for part, value in turn.score.parts.items()},
            "reward_total": turn.score.value,
        },
        "max_turns": (evidence.get("state") or {}).get("max_turns"),
        "state": evidence.get("state"),
        "stop_condition": rollout.stop_reason if place + 1 == len(rollout.transitions) else None,
    }


def show_kernels(task: Task, answers: Sequence[str]) -> str:
    """An HTML fragment with the kernels of some answers to a task, each once."""
    kernels = list(dict.fromkeys(kernel for text in answers if (kernel := read_reply(text).kernel)))
    shown = "".join(
        f"<details><summary>Kernel {number} of {len(kernels)}, {len(kernel.splitlines())} lines</summary>"
        f"<pre>{escape(kernel[:MOST_CHARACTERS])}</pre></details>"
        for number, kernel in enumerate(kernels[:MOST_KERNELS], start=1)
    )
    name = escape(f"{task.payload.get('level')}/{task.payload.get('problem_id')} {task.payload.get('name')}")
    return f'<figure class="kernels">{shown}<figcaption><code>{name}</code></figcaption></figure>' if shown else ""
