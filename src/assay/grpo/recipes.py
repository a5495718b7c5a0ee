"""The recipe of a loss name: a surrogate with its thresholds, a baseline, a scale and an aggregation.

`RECIPES` has one row for each name, and everything that lists losses reads it. A row's surrogate is a function of that
name in `assay.backends.local.losses`, which a hosted service computes by the same name. One of your own is a `Recipe`
around a function, given by reference (`loss_fn=mine.py:RECIPE`) or, in Python, as an object.

Every part can be set separately; a setting that is null keeps the recipe's value. Imports no torch.
"""

from __future__ import annotations

import inspect
import math
import numbers
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from assay.backends.base import Surrogate, surrogate_name
from assay.errors import ConfigError
from assay.plugins import Kind, find, signature

Baseline = Literal["mean", "leave_one_out", "turn"]
Aggregation = Literal["token", "sequence", "constant"]
Ratio = Literal["token", "sequence"]

CLIP = ("clip_low_threshold", "clip_high_threshold")
"""Thresholds of these names are ratios between which nothing is clipped; with both, `fraction_clipped` is measured."""
ARGUMENTS = ("logprobs", "behaviour", "advantages", "sequences")
"""What a surrogate is called with by position; its thresholds follow by name."""


def _is_number(value: object) -> bool:
    return not isinstance(value, bool) and isinstance(value, numbers.Real) and math.isfinite(value)


@dataclass(frozen=True, slots=True)
class Recipe:
    """The parts of a policy-gradient algorithm.

    Raises:
        ConfigError: a part is not valid.
    """

    surrogate: str | Surrogate
    """The loss of each token: the name of a surrogate in `RECIPES`, or a function of your own, see `Surrogate`."""
    thresholds: Mapping[str, float] = field(default_factory=dict)
    """Settings of the surrogate that differ from its own defaults."""
    baseline: Baseline = "mean"
    by_std: bool = False
    """Whether centred rewards are divided by their group's standard deviation."""
    aggregation: Aggregation = "token"
    count_constant_groups: bool = False
    """Whether the divisor of `aggregation` counts groups with equal rewards, which have no gradient: the loss is then a
    mean over all that was sampled."""
    ratio: Ratio = "token"
    """What the clip thresholds are compared with: each token's ratio, or the geometric mean over its sequence."""
    source: str = ""
    """Where it comes from."""

    def __post_init__(self) -> None:
        problems = [
            f"{name}={getattr(self, name)!r} is not one of {', '.join(get_args(allowed))}"
            for name, allowed in (("baseline", Baseline), ("aggregation", Aggregation), ("ratio", Ratio))
            if getattr(self, name) not in get_args(allowed)
        ]
        problems += [f"{n}={v!r} is not a number" for n, v in self.thresholds.items() if not _is_number(v)]
        surrogate: object = self.surrogate
        if not isinstance(surrogate, str) and not callable(surrogate):
            problems.append(f"surrogate={surrogate!r} is neither a name nor a function")
        switches: dict[str, object] = {n: getattr(self, n) for n in ("by_std", "count_constant_groups")}
        problems += [f"{n}={v!r} is neither True nor False" for n, v in switches.items() if not isinstance(v, bool)]
        if problems:
            raise ConfigError(f"A Recipe cannot be made of this: {'; '.join(problems)}.")

    @property
    def name(self) -> str:
        """The surrogate's name, for messages."""
        return surrogate_name(self.surrogate)


def clip(low: float, high: float) -> Mapping[str, float]:
    """The clip thresholds, as absolute ratios."""
    return dict(zip(CLIP, (low, high), strict=True))


RECIPES: Mapping[str, Recipe] = {
    "importance_sampling": Recipe("importance_sampling", source="Tinker"),
    "ppo": Recipe("ppo", clip(0.8, 1.2), source="Tinker"),
    "cispo": Recipe("cispo", clip(0.0, 4.0), by_std=True, source="arXiv 2506.13585"),
    "grpo": Recipe("ppo", by_std=True, aggregation="sequence", count_constant_groups=True, source="arXiv 2402.03300"),
    "dr_grpo": Recipe("ppo", aggregation="constant", count_constant_groups=True, source="arXiv 2503.20783"),
    "dapo": Recipe("ppo", {"clip_high_threshold": 1.28}, by_std=True, source="arXiv 2503.14476"),
    "gspo": Recipe(
        "gspo",
        clip(1 - 3e-4, 1 + 4e-4),
        by_std=True,
        aggregation="sequence",
        count_constant_groups=True,
        ratio="sequence",
        source="arXiv 2507.18071",
    ),
    "rloo": Recipe(
        "importance_sampling",
        baseline="leave_one_out",
        aggregation="constant",
        count_constant_groups=True,
        source="arXiv 2402.14740",
    ),
}
"""Name -> recipe. The row of a surrogate's own name has its thresholds with their defaults, and its kind of ratio."""

LOSS = Kind("loss", {name: f"{__name__}:RECIPES.{name}" for name in RECIPES}, lambda found: isinstance(found, Recipe))
"""What `loss_fn` may name."""


def recipe_of(loss_fn: str | Recipe) -> Recipe:
    """The recipe that `loss_fn` is or names, with the surrogate's defaults in place.

    Raises:
        ConfigError: it does not exist, or its surrogate is neither a known name nor a function that can be inspected.
    """
    recipe: Recipe = loss_fn if isinstance(loss_fn, Recipe) else find(loss_fn, LOSS, "loss_fn")
    if callable(recipe.surrogate):
        defaults = {n: p.default for n, p in _parameters(recipe.surrogate).items() if _is_number(p.default)}
        return replace(recipe, thresholds={**defaults, **recipe.thresholds})
    own = RECIPES.get(recipe.surrogate)
    if own is None or own.surrogate != recipe.surrogate:
        names = ", ".join(name for name, row in RECIPES.items() if row.surrogate == name)
        raise ConfigError(
            f"The recipe of loss_fn={loss_fn} has surrogate={recipe.surrogate!r}, which is not one of {names}. One of "
            "your own is a function."
        )
    if recipe.ratio not in (own.ratio, "token"):  # "token" is the default of a recipe that does not set it
        raise ConfigError(
            f"The recipe of loss_fn={loss_fn} has ratio={recipe.ratio}, but the ratio of {recipe.surrogate} is per "
            f"{own.ratio}. Remove ratio: it is for functions of your own."
        )
    return replace(recipe, thresholds={**own.thresholds, **recipe.thresholds}, ratio=own.ratio)


def resolve(
    loss_fn: str | Recipe,
    thresholds: Mapping[str, float],
    baseline: Baseline | None,
    by_std: bool | None,
    aggregation: Aggregation | None,
    count_constant_groups: bool | None,
) -> Recipe:
    """The recipe of a loss with every setting that is not None in its place; `check_thresholds` checks the result.

    Raises:
        ConfigError: as `recipe_of`.
    """
    recipe = recipe_of(loss_fn)
    given = {
        "baseline": baseline,
        "by_std": by_std,
        "aggregation": aggregation,
        "count_constant_groups": count_constant_groups,
    }
    parts: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    return replace(recipe, thresholds={**recipe.thresholds, **thresholds}, **parts)


def check_thresholds(recipe: Recipe, given: Mapping[str, float]) -> None:
    """Refuse thresholds that the surrogate does not read, that are missing, or that are out of order.

    Args:
        recipe: as `recipe_of` returns it.
        given: `loss_fn_config`, which goes over the recipe's own.

    Raises:
        ConfigError: they are refused.
    """
    known, merged = _readable(recipe), {**recipe.thresholds, **given}
    if unknown := sorted(set(merged) - set(known)):
        where = "loss_fn_config" if set(unknown) & set(given) else "The recipe"
        raise ConfigError(
            f"{where} sets {', '.join(unknown)}, which {recipe.name} does not read, so it would have no effect. "
            f"{recipe.name} reads: {', '.join(known) or 'no settings'}."
        )
    if callable(recipe.surrogate):
        try:
            inspect.signature(recipe.surrogate).bind(*ARGUMENTS, **merged)
        except TypeError as error:
            raise ConfigError(
                f"loss_fn cannot call {recipe.name}{signature(recipe.surrogate)}: {error}. A surrogate takes "
                f"{', '.join(ARGUMENTS)} and then its thresholds, each with a default or a value in the recipe."
            ) from error
    if set(CLIP) <= set(merged) and not 0 <= merged[CLIP[0]] <= merged[CLIP[1]]:
        raise ConfigError(f"loss_fn_config {merged} needs 0 <= {CLIP[0]} <= {CLIP[1]}.")


def canonical(loss_fn: Any) -> Any:
    """The reference as a config keeps it, files by their absolute path; anything but text stays as it is."""
    return LOSS.canonical(loss_fn) if isinstance(loss_fn, str) else loss_fn


def _readable(recipe: Recipe) -> list[str]:
    """Names of the thresholds that the surrogate reads. A `**` parameter reads what the recipe has."""
    if not callable(recipe.surrogate):
        return list(RECIPES[recipe.surrogate].thresholds)
    parameters = _parameters(recipe.surrogate)
    starred = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    named = [name for name, p in parameters.items() if p.kind is not p.VAR_KEYWORD]
    return list(dict.fromkeys([*named, *(recipe.thresholds if starred else ())]))


def _parameters(surrogate: Surrogate) -> dict[str, inspect.Parameter]:
    """The parameters of a surrogate behind its first four."""
    try:
        parameters = list(inspect.signature(surrogate).parameters.values())
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"loss_fn: the parameters of {surrogate_name(surrogate)} cannot be read ({error}), so its thresholds are "
            "unknown. Wrap it in a function of your own."
        ) from error
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    taken = {p.name for p in positional[: len(ARGUMENTS)]}
    return {p.name: p for p in parameters if p.name not in taken and p.kind is not p.VAR_POSITIONAL}
