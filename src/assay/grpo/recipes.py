"""What a loss name stands for: a surrogate with its thresholds, a baseline, a scale and an aggregation.

    name                  surrogate            thresholds        baseline        scale  aggregation
    grpo                  ppo                  0.8, 1.2          mean            std    sequence      arXiv 2402.03300
    dr_grpo               ppo                  0.8, 1.2          mean            none   constant      arXiv 2503.20783
    dapo                  ppo                  0.8, 1.28         mean            std    token         arXiv 2503.14476
    gspo                  gspo                 1 - 3e-4, 1 + 4e-4  mean          std    sequence      arXiv 2507.18071
    cispo                 cispo                0, 4              mean            none   token         arXiv 2506.13585
    rloo                  importance_sampling  none              leave one out   none   constant      arXiv 2402.14740
    ppo                   ppo                  0.8, 1.2          mean            none   token         Tinker
    importance_sampling   importance_sampling  none              mean            none   token         Tinker

Every part can be set by itself; a setting that is null is the recipe's. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from assay.backends.base import LossName

Algorithm = Literal["importance_sampling", "ppo", "cispo", "grpo", "dr_grpo", "dapo", "gspo", "rloo"]
ALGORITHMS: tuple[Algorithm, ...] = get_args(Algorithm)
Baseline = Literal["mean", "leave_one_out"]
Aggregation = Literal["token", "sequence", "constant"]


@dataclass(frozen=True, slots=True)
class Recipe:
    """The parts of a policy-gradient algorithm."""

    surrogate: LossName
    thresholds: Mapping[str, float] = field(default_factory=dict)
    """Settings of the surrogate that differ from its own defaults."""
    baseline: Baseline = "mean"
    by_std: bool = False
    """Whether centred rewards are divided by their group's standard deviation."""
    aggregation: Aggregation = "token"


RECIPES: Mapping[Algorithm, Recipe] = {
    "importance_sampling": Recipe("importance_sampling"),
    "ppo": Recipe("ppo"),
    "cispo": Recipe("cispo"),
    "grpo": Recipe("ppo", by_std=True, aggregation="sequence"),
    "dr_grpo": Recipe("ppo", aggregation="constant"),
    "dapo": Recipe("ppo", {"clip_high_threshold": 1.28}, by_std=True),
    "gspo": Recipe("gspo", by_std=True, aggregation="sequence"),
    "rloo": Recipe("importance_sampling", baseline="leave_one_out", aggregation="constant"),
}


def resolve(
    algorithm: Algorithm,
    thresholds: Mapping[str, float],
    baseline: Baseline | None,
    by_std: bool | None,
    aggregation: Aggregation | None,
) -> Recipe:
    """The recipe of an algorithm with everything that is set (not None) in its place."""
    recipe = RECIPES[algorithm]
    return replace(
        recipe,
        thresholds={**recipe.thresholds, **thresholds},
        baseline=recipe.baseline if baseline is None else baseline,
        by_std=recipe.by_std if by_std is None else by_std,
        aggregation=recipe.aggregation if aggregation is None else aggregation,
    )
