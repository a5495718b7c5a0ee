"""Reinforcement learning for language models from rewards that can be verified."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from assay.grpo import GRPOConfig, GRPOTrainer, HealthConfig, Recipe, Rollout, RolloutBuffer, RolloutGroup, StepData
    from assay.rewards.functions.options import reward
    from assay.training.config import TrainingConfig, load_config
    from assay.training.loop import train
else:
    from assay.exports import lazy_exports

    __getattr__, __dir__ = lazy_exports(__name__)

__all__ = [
    "GRPOConfig",
    "GRPOTrainer",
    "HealthConfig",
    "Recipe",
    "Rollout",
    "RolloutBuffer",
    "RolloutGroup",
    "StepData",
    "TrainingConfig",
    "load_config",
    "reward",
    "train",
]
