"""Levels and trends of the metrics of the last steps. Pure; imports no torch."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

Observation = Mapping[str, float]
"""The metrics of one training step by name; what was not measured is absent."""
History = Sequence[Observation]
"""The last steps, oldest first."""

LEAST_VALUES = 10
"""Fewest values that make a trend or a typical gradient norm."""


@dataclass(frozen=True, slots=True)
class Trend:
    """A straight line through a metric's values over steps."""

    slope: float
    """Change per step."""
    significance: float
    """Slope in standard errors; infinite when the values lie on the line."""
    last: float
    """The line's value at the last step."""
    change: float
    """Change of the line from the first step to the last."""


def points(history: History, metric: str) -> tuple[list[int], list[float]]:
    """Places in the history, and values, of a metric where it is known and finite."""
    found = [(i, o[metric]) for i, o in enumerate(history) if metric in o and math.isfinite(o[metric])]
    return [i for i, _ in found], [value for _, value in found]


def values(history: History, metric: str) -> list[float]:
    """The known finite values of a metric, oldest first."""
    return points(history, metric)[1]


def fit_trend(steps: Sequence[float], series: Sequence[float]) -> Trend | None:
    """Least-squares line; None for fewer than ten values or for values without any change.

    The standard error counts the values as fewer where residuals resemble their predecessors (lag-1 correlation r:
    n (1 - r) / (1 + r)), so that slow wandering is not taken for a trend.
    """
    n = len(series)
    if n < LEAST_VALUES:
        return None
    x = np.asarray(steps, float) - fmean(steps)
    mean = fmean(series)
    y = np.asarray(series, float) - mean
    slope = float(x @ y / (x @ x))
    residuals = y - slope * x
    squares = float(residuals @ residuals)
    if slope == 0:
        return None
    correlation = float(residuals[1:] @ residuals[:-1]) / squares if squares > 0 else 0.0
    correlation = min(max(correlation, 0.0), 0.9)
    effective = max(n * (1 - correlation) / (1 + correlation) - 2, 1.0)
    error = math.sqrt(squares / effective / float(x @ x))
    significance = slope / error if error > 0 else math.copysign(math.inf, slope)
    return Trend(slope, significance, mean + slope * float(x[-1]), slope * float(x[-1] - x[0]))
