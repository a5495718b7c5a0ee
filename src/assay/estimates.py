"""Estimates from several samples of each of several problems. Pure.

The unit is the problem: samples of one problem are not independent, so each problem gives one value, and intervals and
tests resample problems.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from assay.types import Json

RESAMPLES = 10_000
EXACT_SIGNS = 12
"""Up to so many differences all of their signs are tried; beyond, `RESAMPLES` random choices of them."""
_CHUNK = 2_000_000
"""Numbers drawn at a time."""
Values = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over problems with its 95 % bootstrap interval.

    `low` and `high` are None where resampling says nothing: with one problem, and where all have one value.
    """

    mean: float
    low: float | None
    high: float | None
    n: int
    """Problems behind it."""

    def to_json(self) -> dict[str, Json]:
        """Plain data."""
        return {"mean": self.mean, "low": self.low, "high": self.high, "n": self.n}


def pass_at_k(samples: int, passed: int, k: int) -> float:
    """Unbiased estimate of the probability that one of k samples passes, from n samples of which c passed.

    1 - C(n - c, k) / C(n, k), as a product that does not overflow (Chen et al. 2021, arXiv 2107.03374).

    Raises:
        ValueError: not 0 <= passed <= samples, or not 1 <= k <= samples.
    """
    if not 0 <= passed <= samples or not 1 <= k <= samples:
        raise ValueError(f"pass@{k} of {passed} passed among {samples} samples is not defined")
    if samples - passed < k:
        return 1.0
    return 1.0 - float(np.prod(1.0 - k / np.arange(samples - passed + 1, samples + 1)))


def usual_ks(samples: int) -> tuple[int, ...]:
    """The k that are worth reporting of so many samples: powers of 2 below their number, and that number."""
    return tuple(sorted({2**power for power in range(samples.bit_length()) if 2**power <= samples} | {max(1, samples)}))


def estimate(values: Sequence[float]) -> Estimate | None:
    """The mean of one value per problem, with the percentiles of means of problems drawn again; None without values.

    The draws depend on the number of problems alone, so equal figures have equal intervals.
    """
    n = len(values)
    if n == 0:
        return None
    found = np.asarray(values, dtype=np.float64)
    mean = float(found.mean())
    if n == 1 or bool(np.all(found == found[0])):
        return Estimate(mean, None, None, n)
    low, high = np.quantile(_resampled_means(found), [0.025, 0.975])
    return Estimate(mean, float(low), float(high), n)


def _resampled_means(values: Values) -> Values:
    n = len(values)
    draw = np.random.default_rng([n, RESAMPLES])
    rows = max(1, _CHUNK // n)
    parts = [
        values[draw.integers(n, size=(min(rows, RESAMPLES - start), n))].mean(axis=1)
        for start in range(0, RESAMPLES, rows)
    ]
    return np.concatenate(parts)


def sign_flip_p(differences: Sequence[float]) -> float:
    """Two-sided p-value of a paired permutation test: how often differences of random sign have so large a mean.

    Args:
        differences: one per problem. Those of 0 change nothing.
    """
    found = np.asarray([d for d in differences if d], dtype=np.float64)
    n = len(found)
    if n == 0:
        return 1.0
    seen = abs(float(found.sum())) * (1 - 1e-12)
    if n <= EXACT_SIGNS:
        signs = 1 - 2 * ((np.arange(2**n)[:, None] >> np.arange(n)) & 1)
        return float(np.mean(np.abs(signs @ found) >= seen))
    draw = np.random.default_rng([n, RESAMPLES])
    rows = max(1, _CHUNK // n)
    hits = 0
    for start in range(0, RESAMPLES, rows):
        flips = draw.integers(0, 2, size=(min(rows, RESAMPLES - start), n), dtype=np.int8)
        hits += int(np.sum(np.abs((1.0 - 2.0 * flips) @ found) >= seen))
    return (hits + 1) / (RESAMPLES + 1)
