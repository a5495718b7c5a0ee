"""A conversation that is rebuilt each turn is trained turn by turn, as it was sampled."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np
import pytest

from assay.envs.base import StepResult
from assay.grpo.config import GRPOConfig
from assay.grpo.datum import trajectory_data
from assay.grpo.trainer import GRPOTrainer
from assay.types import TrajectoryGroup
from support.off_policy import Recorder
from support.scripted import ScriptedGroup, play, share_of_a, task, tiny_backend


def rebuilt(text: str, sample: int, turn: int) -> StepResult:
    """The next prompt shows the last answer's length, and nothing else of what was said."""
    found = share_of_a(text, sample, turn)
    start = task("ab" * (len(text) % 3 + 1) + str(turn + 1)).prompt
    return replace(found, done=turn == 2, messages=start, replace=True)


def last_turn_only(text: str, sample: int, turn: int) -> StepResult:
    """The second turn extends the first; the third begins anew."""
    return replace(rebuilt(text, sample, turn), replace=turn == 1)


@pytest.mark.parametrize(("judge", "sequences"), [(rebuilt, 3), (last_turn_only, 2)])
def test_a_step_is_taken_on_every_turn(judge: object, sequences: int) -> None:
    backend = tiny_backend()
    groups: list[TrajectoryGroup] = play(
        backend,
        [ScriptedGroup(task(prompt), judge) for prompt in ("abc", "c 1")],  # type: ignore[arg-type]
        max_turns=3,
    )
    rollouts = [rollout for group in groups for rollout in group.trajectories]
    for rollout in rollouts:
        parts = trajectory_data(rollout, [1.0] * 3)
        assert len(parts) == sequences
        said = [token for turn in rollout.transitions for token in turn.completion.tokens]
        assert [int(t) for d in parts for t in d.targets[d.mask > 0]] == said
    recorder = Recorder(backend)
    config = GRPOConfig(loss_fn="ppo", kl_coef=0.0, learning_rate=1e-3, remove_constant_reward_groups=False)
    metrics = asyncio.run(GRPOTrainer.over(backend, config).update(groups)).metrics
    assert metrics["optimizer_steps"] == 1 and backend.policy_version == 1 and metrics["grad_norm"] > 0
    assert metrics["ratio_error"] < 1e-5, "trained under the prompts that were sampled under"
    assert metrics["tokens"] == sum(len(t.completion.tokens) for r in rollouts for t in r.transitions)
    (data,) = recorder.data
    assert len(data) == len(rollouts) * sequences
    assert np.isfinite(metrics["loss"])
