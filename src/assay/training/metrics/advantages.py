"""What the turns of a batch were trained with, as numbers: their advantages. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from assay.grpo.group_data import TurnPlace, TurnTraining
from assay.training.metrics.token_traces import mean_of


def turn_advantages(turns: Mapping[TurnPlace, TurnTraining]) -> list[float]:
    """The advantage of each turn that was trained on, the mean over its tokens."""
    found = [mean_of(turn.advantages) for turn in turns.values() if turn.advantages is not None]
    return [value for value in found if value is not None]


def advantage_metrics(turns: Mapping[TurnPlace, TurnTraining]) -> dict[str, float]:
    """`advantage/...` over these turns; none where nothing was trained on."""
    values = turn_advantages(turns)
    if not values:
        return {}
    return {
        "advantage/mean": float(np.mean(values)),
        "advantage/std": float(np.std(values)),
        "advantage/min": min(values),
        "advantage/max": max(values),
    }
