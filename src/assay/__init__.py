"""Reinforcement learning for language models from rewards that can be verified."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from assay.grpo.buffer import RolloutBuffer
    from assay.grpo.config import GRPOConfig
    from assay.grpo.health.config import HealthConfig
    from assay.grpo.recipes import Recipe
    from assay.grpo.standalone.step_data import Rollout, RolloutGroup, StepData
    from assay.grpo.trainer import GRPOTrainer

__all__ = [
    "GRPOConfig",
    "GRPOTrainer",
    "HealthConfig",
    "Recipe",
    "Rollout",
    "RolloutBuffer",
    "RolloutGroup",
    "StepData",
]

_HOMES = {
    "GRPOConfig": "assay.grpo.config",
    "GRPOTrainer": "assay.grpo.trainer",
    "HealthConfig": "assay.grpo.health.config",
    "Recipe": "assay.grpo.recipes",
    "Rollout": "assay.grpo.standalone.step_data",
    "RolloutBuffer": "assay.grpo.buffer",
    "RolloutGroup": "assay.grpo.standalone.step_data",
    "StepData": "assay.grpo.standalone.step_data",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is asked for, so that `import assay` stays light."""
    if name not in _HOMES:
        raise AttributeError(f"module 'assay' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
