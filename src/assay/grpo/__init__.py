"""The mathematics of group-relative policy optimisation, and the trainer that applies it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from assay.grpo.buffer import RolloutBuffer
    from assay.grpo.config import AlgorithmConfig, GRPOConfig
    from assay.grpo.health.config import HealthConfig
    from assay.grpo.recipes import Recipe
    from assay.grpo.standalone.step_data import Rollout, RolloutGroup, StepData
    from assay.grpo.trainer import GRPOTrainer, StepReport
else:
    from assay.exports import lazy_exports

    __getattr__, __dir__ = lazy_exports(__name__)

__all__ = [
    "AlgorithmConfig",
    "GRPOConfig",
    "GRPOTrainer",
    "HealthConfig",
    "Recipe",
    "Rollout",
    "RolloutBuffer",
    "RolloutGroup",
    "StepData",
    "StepReport",
]
