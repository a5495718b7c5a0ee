"""The reward `kernelbench`: what verdicts are worth, and a real grade of the example kernel."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from assay.envs.kernelbench.verdict_reward import UNJUDGED, KernelReward, score_of_verdict
from assay.errors import ConfigError, DataError
from assay.kernels.verdicts import Verdict, VerdictKind
from assay.rewards import EngineConfig, JudgeConfig, RewardEngine, Sample
from assay.rewards.named import find_reward
from support.sandboxes import needs_walls

KERNEL = Path(__file__).parents[3] / "examples" / "kernels" / "rms_norm.py"
GRADER = {"compile_check": "off", "cache": False, "num_correct_trials": 1, "draws": 1}
WEIGHTS = {"correct": 0.9, "format": 0.1}


@pytest.mark.parametrize("kind", get_args(VerdictKind))
def test_what_a_verdict_is_worth(kind: VerdictKind) -> None:
    score = score_of_verdict(Verdict(kind, "numerics", "why"), "1/3", WEIGHTS)
    if kind in UNJUDGED:
        assert score.status == "errored" and f"({kind}): why" in score.evidence["message"]
        return
    assert score.evidence["verdict"] == kind
    expected = {"ok": 1.0, "compile_error": 0.0}.get(kind, 0.1)
    assert score.value == pytest.approx(expected)
    assert score.status == ("invalid" if kind == "compile_error" else "scored")


@needs_walls
def test_a_completion_is_graded_for_the_problem_of_its_column() -> None:
    reward = find_reward("kernelbench", {"grader": GRADER, "format": 0.25}, JudgeConfig())
    fenced = f"Here it is:\n```python\n{KERNEL.read_text()}\n```\n"
    with RewardEngine(reward, config=EngineConfig(max_failure_rate=1.0)) as engine:
        right, none = engine.score_many_sync([Sample(t, extra={"problem": "1/3"}) for t in (fenced, "I cannot.")])
    assert (right.status, right.value, right.parts) == ("scored", 1.25, {"format": 1.0, "correct": 1.0}), right
    assert (none.status, none.value) == ("invalid", 0.0) and "no KERNEL block" in none.evidence["message"]
    assert right.fingerprint == reward.fingerprint != KernelReward().fingerprint


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({}, "columns are none"),
        ({"problem": "softmax"}, "'softmax'"),
        ({"problem": "1/9999"}, "problem 1/9999 does not exist"),
    ],
)
def test_a_sample_names_a_problem_that_there_is(columns: dict[str, str], message: str) -> None:
    with RewardEngine(KernelReward()) as engine, pytest.raises(DataError, match=message):
        engine.score_many_sync([Sample("x", extra=columns)])


def test_settings_of_the_grader_are_checked_at_once() -> None:
    with pytest.raises(ConfigError, match="num_trials"):
        KernelReward(grader={"num_trials": 3})
