"""Runs: config, the training loop, the run directory, metrics and evaluation."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from assay.training.config import EvalConfig, OptimizerConfig, SFTConfig, TrainingConfig, load_config
    from assay.training.loop import train
    from assay.training.run.rollouts import open_rollouts, read_rollouts
else:
    from assay.exports import lazy_exports

    __getattr__, __dir__ = lazy_exports(__name__)

__all__ = [
    "EvalConfig",
    "OptimizerConfig",
    "SFTConfig",
    "TrainingConfig",
    "load_config",
    "open_rollouts",
    "read_rollouts",
    "train",
]
