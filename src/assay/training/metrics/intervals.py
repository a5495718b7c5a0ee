"""95 % intervals for held-out metrics. Pure, no dependencies.

Samples of one task are not independent, so the unit is the task: give one value per task (the mean over its samples).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, stdev

_Z = NormalDist().inv_cdf(0.975)


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate with its 95 % confidence interval; `n` is the number of independent units behind it."""

    mean: float
    low: float
    high: float
    n: int

    @property
    def half_width(self) -> float:
        """Half the width of the interval."""
        return (self.high - self.low) / 2


def mean_ci95(values_per_task: Sequence[float]) -> Interval:
    """Mean over tasks with Student's t interval (n - 1 degrees of freedom); unbounded for a single task.

    All values equal gives a width of 0, which overstates certainty near 0 % and 100 %; there use `wilson_ci95` on the
    tasks.

    Raises:
        ValueError: no values.
    """
    n = len(values_per_task)
    if n == 0:
        raise ValueError("a mean needs at least one task")
    mean = fmean(values_per_task)
    if n == 1:
        return Interval(mean, -math.inf, math.inf, 1)
    half = t_quantile_975(n - 1) * stdev(values_per_task) / math.sqrt(n)
    return Interval(mean, mean - half, mean + half, n)


def paired_difference_ci95(before: Sequence[float], after: Sequence[float]) -> Interval:
    """Mean of `after - before` over tasks measured both times, in the same order, with Student's t interval.

    Raises:
        ValueError: the lengths differ, or there are no values.
    """
    return mean_ci95([b - a for a, b in zip(before, after, strict=True)])


def wilson_ci95(successes: int, n: int) -> Interval:
    """Share of `successes` among `n` independent trials with Wilson's score interval (1927), which stays in [0, 1].

    Raises:
        ValueError: not 0 <= successes <= n with n >= 1.
    """
    if not 0 <= successes <= n or n < 1:
        raise ValueError(f"{successes} successes among {n} trials are not a proportion")
    share = successes / n
    scale = 1 + _Z**2 / n
    centre = (share + _Z**2 / (2 * n)) / scale
    half = _Z / scale * math.sqrt(share * (1 - share) / n + _Z**2 / (4 * n**2))
    low = centre - half if successes > 0 else 0.0
    high = centre + half if successes < n else 1.0
    return Interval(share, low, high, n)


def t_quantile_975(df: int) -> float:
    """97.5 % quantile of Student's t with `df` degrees of freedom, to about 1e-9.

    Bisection on the exact series of the distribution function up to 200 degrees of freedom (Abramowitz and Stegun
    26.7.3 and 26.7.4), and the expansion around the normal quantile above (26.7.5).

    Raises:
        ValueError: df below 1.
    """
    if df < 1:
        raise ValueError(f"degrees of freedom must be at least 1, got {df}")
    if df > 200:
        z = _Z
        terms = (
            (z**3 + z) / 4,
            (5 * z**5 + 16 * z**3 + 3 * z) / 96,
            (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
        )
        return z + sum(term / float(df) ** power for power, term in enumerate(terms, start=1))
    low, high = 0.0, math.pi / 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _t_inside(middle, df) < 0.95 else (low, middle)
    return math.tan((low + high) / 2) * math.sqrt(df)


def _t_inside(theta: float, df: int) -> float:
    """Probability that |t| is below `tan(theta) * sqrt(df)`."""
    sine, cosine = math.sin(theta), math.cos(theta)
    odd = df % 2 == 1
    term = cosine if odd else 1.0
    total = term if df > 1 else 0.0
    for k in range(3 if odd else 2, df - 1, 2):
        term *= cosine**2 * (k - 1) / k
        total += term
    return 2 / math.pi * (theta + sine * total) if odd else sine * total
