"""Made-up rollouts of a kernel problem, from verdicts."""

from __future__ import annotations

from assay.envs.kernelbench.env import metrics_of
from assay.envs.kernelbench.reply import KernelReply
from assay.envs.kernelbench.rewards import KernelRewardConfig, evaluation, score_of, signals_of
from assay.kernels.verdicts import Verdict
from assay.types import Completion, Score, Task, Trajectory, Transition

TASK = Task(
    "kernelbench",
    "1/1:Snake",
    (),
    {"level": 1, "problem_id": 1, "name": "1_<Snake>", "backend": "triton", "dataset_src": "shipped"},
    ("level1",),
)
WRONG = Verdict("wrong", "numerics", tests_passed=1, tests_total=2)


def fast(speedup: float) -> Verdict:
    return Verdict("ok", "timing", tests_passed=2, tests_total=2, timing={"rewardable": speedup, "candidate_ms": 0.5})


def turn(verdict: Verdict | None) -> Transition:
    known = KernelReply("plan", "kernel" if verdict else "", verdict is not None)
    score = score_of(signals_of(verdict, code=known.kernel), KernelRewardConfig().rules)
    score = Score(score.status, score.value, score.parts, {"eval_result": evaluation(verdict, known.kernel)})
    success = verdict is not None and verdict.ok
    said = Completion((1,), (0.0,), "stop", 0)
    return Transition((), said, "<think>plan</think>x", score, metrics_of(known, verdict, success=success))


def rollout(*verdicts: Verdict | None) -> Trajectory:
    return Trajectory(TASK, tuple(turn(verdict) for verdict in verdicts), "done", 0)
