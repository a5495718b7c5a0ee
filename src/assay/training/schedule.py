"""Learning rates as pure functions of the step, so that a resumed run needs no scheduler state."""

from __future__ import annotations

import math

from assay.training.config import TrainingConfig


def sft_learning_rate(config: TrainingConfig, step: int) -> float:
    """Rate of SFT step `step` (0-based): a linear rise, then a linear fall that ends at 0 after the last step."""
    sft = config.sft
    return sft.learning_rate * _rise(step, sft.lr_warmup_steps) * (1 - step / sft.num_steps)


def rl_learning_rate(config: TrainingConfig, batch: int, num_batches: int) -> float:
    """Rate of RL batch `batch` (0-based) of `num_batches`."""
    optimizer = config.optimizer
    done = batch / num_batches
    fall = {"constant": 1.0, "linear": 1 - done, "cosine": (1 + math.cos(math.pi * done)) / 2}[optimizer.lr_schedule]
    return config.learning_rate * _rise(batch, optimizer.lr_warmup_steps) * fall


def _rise(step: int, steps: int) -> float:
    return min(1.0, (step + 1) / steps) if steps else 1.0
