"""Real healthy runs for `benchmarks/health.py`: tiny ones that learn, slowly or quickly, with little or much noise.

Each setting differs from the others in what alarms might mistake for trouble: few rollouts, a reward that is mostly
chance, no KL penalty, reused rollouts, a low or high rate (within what learns), tasks that are nearly solved.

A run counts as healthy by its reward alone, whatever its entropy, its KL or its share of constant groups: over its last
fifty steps the intended reward is at most 0.1 below its best mean over fifty steps, and above that of its first fifty.
Runs that are not are named, and their steps and alarms are not counted. (Training prompts are as good as held out
here: each is seen once.)
"""

from __future__ import annotations

import json
import math
import statistics
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from assay.grpo.config import AlgorithmConfig
from assay.grpo.health.config import HealthConfig
from common.health_runs import REWARDS, WATCHING, RewardedBuilder, balanced, tiny_run
from support.health_series import Step

STEPS = 500


def halves(text: str, step: int) -> dict[str, float]:
    """Whether an answer is about half a's: all or nothing."""
    return {"right": float(balanced(text, step)["right"] > 0.5)}


def shaky(text: str, step: int) -> dict[str, float]:
    """What is meant, beside as much chance, a different one at each step."""
    chance = zlib.crc32(f"{step} {text}".encode()) / 2**32
    return balanced(text, step) | {"chance": chance}


REWARDS.update({"halves": halves, "shaky": shaky})
NO_PENALTY = {"kl_penalty_coef": 0.0, "grpo": AlgorithmConfig(health=HealthConfig(report_every=0, actions=WATCHING))}
SETTINGS: Mapping[str, tuple[str, int, int, Mapping[str, Any]]] = {
    "as documented": ("balanced", 4, 8, {}),
    "small groups": ("balanced", 4, 4, {}),
    "few groups": ("balanced", 2, 8, {}),
    "slow": ("balanced", 2, 8, {"learning_rate": 1e-4}),
    "quick": ("balanced", 2, 8, {"learning_rate": 2e-3}),
    "all or nothing": ("halves", 2, 8, {"learning_rate": 5e-4}),
    "noisy": ("shaky", 2, 8, {"learning_rate": 3e-4}),
    "no penalty": ("balanced", 2, 8, {"learning_rate": 1e-4, **NO_PENALTY}),
    "reused rollouts": ("balanced", 2, 8, {"rollout_epochs": 2, "loss_fn": "grpo", "learning_rate": 5e-4}),
    "off policy": ("balanced", 2, 8, {"max_steps_off_policy": 2, "learning_rate": 5e-4}),
    "plain ratio": ("balanced", 4, 4, {"loss_fn": "ppo", "learning_rate": 5e-4}),
    "two updates": ("balanced", 4, 4, {"num_substeps": 2, "loss_fn": "ppo", "learning_rate": 3e-4}),
    "warm": ("balanced", 4, 4, {"temperature": 1.3, "learning_rate": 5e-4}),
    "strong penalty": ("balanced", 4, 4, {"kl_penalty_coef": 0.3}),
    "all a's": ("all_a", 4, 4, {"learning_rate": 2e-4}),
    "little noise": ("shaky", 4, 4, {"learning_rate": 5e-4}),
    "two plateaus": ("brief_a", 8, 4, {"learning_rate": 4e-3, "kl_penalty_coef": 0.05, "max_tokens": 10}),
}
"""Name -> reward, groups, rollouts a group, settings that differ from those of `tiny_run`."""


# The last one is the undisturbed run of `health_rescue.py`: its KL multiplies at each step up.


def healthy_series(name: str, seed: int, folder: Path, steps: int = STEPS) -> list[Step]:
    """The observations of one run."""
    reward, groups, size, changes = SETTINGS[name]
    builder = RewardedBuilder(num_train=groups * steps, batch_size=groups, group_size=size, reward=reward)
    settings = {"trace_token_groups": 0, "max_tokens": 8, "dataset_builder": builder}
    return tiny_run(folder, reward, seed, steps, **(settings | dict(changes)))


def learned(series: list[Step]) -> bool:
    """Whether a run was healthy: see the module."""
    rewards = [step.get("part/right", math.nan) for step in series]
    span = min(50, len(rewards) // 2)
    means = [statistics.fmean(rewards[i : i + span]) for i in range(len(rewards) - span + 1)]
    return means[-1] > means[0] and means[-1] >= max(means) - 0.1


def store(path: Path, series: list[Step]) -> None:
    """Keep a series; not finite numbers are kept as Python writes them."""
    path.write_text(json.dumps(series))


def stored(path: Path) -> list[Step]:
    """A kept series."""
    found: list[Step] = json.loads(path.read_text())
    return found
