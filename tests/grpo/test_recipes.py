"""The table of losses: every row has its function and all thresholds of it, and the page shows the rows."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from assay import GRPOConfig, Recipe
from assay.backends.local.losses import SURROGATES
from assay.errors import ConfigError
from assay.grpo.recipes import ARGUMENTS, CLIP, LOSS, RECIPES, clip, recipe_of, resolve
from assay.plugins import find
from support.losses import SQUARE, own_loss
from support.off_policy import LENGTH, a_backend, rollouts, update

PAGE = Path(__file__).parents[2] / "docs" / "grpo.md"
SUPERVISED = {"cross_entropy"}
"""Surrogates that no policy-gradient algorithm uses."""
MEAN_OVER = {"token": "tokens", "sequence": "sequences", "constant": "sequences times a constant length"}
BASELINES = {"mean": "group mean", "leave_one_out": "mean of the others"}
DIVISOR = {True: "all that was sampled", False: "groups with a gradient"}


def test_every_row_names_a_function_and_every_function_has_a_row() -> None:
    assert {row.surrogate for row in RECIPES.values()} == set(SURROGATES) - SUPERVISED


@pytest.mark.parametrize("surrogate", sorted(set(SURROGATES) - SUPERVISED))
def test_the_row_of_a_surrogate_has_all_its_thresholds(surrogate: str) -> None:
    parameters = inspect.signature(SURROGATES[surrogate]).parameters
    assert tuple(parameters)[:4] == ARGUMENTS
    row = RECIPES[surrogate]
    assert row.surrogate == surrogate
    assert set(row.thresholds) == set(parameters) - set(ARGUMENTS)
    assert all(p.default is p.empty for p in parameters.values()), "defaults are said in the row"


@pytest.mark.parametrize("name", RECIPES)
def test_a_name_leads_to_its_row_with_the_defaults_of_its_surrogate(name: str) -> None:
    assert find(name, LOSS, "loss_fn") is RECIPES[name]
    recipe = recipe_of(name)
    assert set(recipe.thresholds) == set(inspect.signature(SURROGATES[recipe.name]).parameters) - set(ARGUMENTS)
    assert {**RECIPES[recipe.name].thresholds, **RECIPES[name].thresholds} == recipe.thresholds
    assert recipe.ratio == RECIPES[recipe.name].ratio


def table() -> list[str]:
    """The table of losses as the page has to show it."""
    lines = [
        "| `loss_fn` | Surrogate | Thresholds | Ratio | Baseline | By std | Mean over | of | Source |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name in RECIPES:
        row = recipe_of(name)
        cells = [
            *(f"`{name}`", f"`{row.name}`", ", ".join(f"{value:g}" for value in row.thresholds.values())),
            *(row.ratio, BASELINES[row.baseline], "yes" if row.by_std else "no"),
            *(MEAN_OVER[row.aggregation], DIVISOR[row.count_constant_groups], row.source),
        ]
        lines.append("| " + " | ".join(cells).replace("|  |", "| |") + " |")
    return lines


def test_the_page_shows_the_rows() -> None:
    shown = PAGE.read_text(encoding="utf-8").split("## Losses", 1)[1].split("\n#", 1)[0]
    found = [line for line in shown.splitlines() if line.startswith("|")]
    assert found == table(), "put this into docs/grpo.md:\n" + "\n".join(table())


@pytest.mark.parametrize("name", [name for name in RECIPES if recipe_of(name).thresholds])
def test_the_clip_fraction_is_of_the_ratio_that_the_row_says(name: str) -> None:
    low, high = 0.7, 1.3
    case = {"loss_fn": name, **(LENGTH if RECIPES[name].aggregation == "constant" else {})}
    recorder = update(a_backend(), rollouts(1.0), {**case, "loss_fn_config": clip(low, high)})
    active: list[bool] = []
    outside = 0
    for datum, now in zip(recorder.data[0], recorder.outputs[0].logprobs, strict=True):
        gaps = (now - datum.logprobs)[datum.mask > 0].astype(np.float64)
        ratios = np.exp(np.full_like(gaps, gaps.mean()) if name == "gspo" else gaps)
        for ratio, advantage in zip(ratios, datum.advantages[datum.mask > 0], strict=True):
            outside += not low <= ratio <= high
            pushed = name == "cispo" or (ratio - 1) * advantage > 0
            active.append(not low <= ratio <= high and bool(pushed))
    assert recorder.reports[0].metrics["fraction_clipped"] == pytest.approx(np.mean(active))
    assert 0 < sum(active) < len(active) and (name == "cispo" or sum(active) < outside)


# Recipes of one's own


def test_a_recipe_of_ones_own_may_use_a_surrogate_by_name() -> None:
    mine = Recipe("gspo", {CLIP[1]: 1.5}, baseline="leave_one_out")
    config = GRPOConfig(loss_fn=mine, loss_fn_config={CLIP[0]: 0.5})
    assert config.loss.surrogate == "gspo" and config.recipe.ratio == "sequence"
    assert config.loss.config == {CLIP[0]: 0.5, CLIP[1]: 1.5}
    assert (config.recipe.baseline, config.recipe.aggregation) == ("leave_one_out", "token")


def test_what_is_set_goes_over_the_recipe_and_this_over_the_function(tmp_path: Path) -> None:
    reference = own_loss(tmp_path, SQUARE)
    plain = resolve(reference, {}, None, None, None, None)
    assert plain.thresholds == {"pull": 0.5, "scale": 2.0} and plain.name == "square"
    changed = resolve(reference, {"pull": 1.0}, "mean", True, "constant", True)
    assert changed.count_constant_groups and not plain.count_constant_groups
    assert changed.thresholds == {"pull": 1.0, "scale": 2.0}
    assert (changed.baseline, changed.by_std, changed.aggregation) == ("mean", True, "constant")
    own = GRPOConfig(loss_fn=Recipe(lambda p, q, a, s, low=0.5, high=2: -p * a, {"high": 3.0}))
    assert own.loss.config == {"low": 0.5, "high": 3.0}


def test_equal_references_give_equal_losses(tmp_path: Path) -> None:
    one, other = (GRPOConfig(loss_fn=own_loss(tmp_path, name=name)).loss for name in ("a.py", "a.py"))
    assert one == other and one != GRPOConfig(loss_fn=own_loss(tmp_path, name="b.py")).loss
    assert one != GRPOConfig(loss_fn="ppo").loss


def no_default(logprobs: Any, behaviour: Any, advantages: Any, sequences: Any, *, needed: float) -> Any:
    raise AssertionError("is not called")


def three(logprobs: Any, behaviour: Any, advantages: Any) -> Any:
    raise AssertionError("is not called")


WRONG: dict[str, tuple[Callable[[], object], str]] = {
    "no function": (lambda: Recipe(3), "surrogate=3 is neither a name nor a function"),  # type: ignore[arg-type]
    "baseline": (lambda: Recipe("ppo", baseline="median"), "'median' is not one of mean, leave_one_out, turn"),  # type: ignore[arg-type]
    "aggregation": (lambda: Recipe("ppo", aggregation="sum"), "'sum' is not one of token, sequence, constant"),  # type: ignore[arg-type]
    "std": (lambda: Recipe("ppo", by_std=1), "by_std=1 is neither True nor False"),  # type: ignore[arg-type]
    "threshold": (lambda: Recipe("ppo", {CLIP[0]: "0.8"}), "clip_low_threshold='0.8' is not a number"),  # type: ignore[dict-item]
    "name": (
        lambda: GRPOConfig(loss_fn="cross_entropy"),
        "among importance_sampling, ppo, .*One of your own is",
    ),
    "type": (lambda: GRPOConfig(loss_fn=3), "loss_fn=3: expected text or a Recipe"),
    "surrogate": (
        lambda: GRPOConfig(loss_fn=Recipe("grpo")),
        "'grpo'.* not one of importance_sampling, ppo, cispo, g",
    ),
    "supervised": (lambda: GRPOConfig(loss_fn=Recipe("cross_entropy")), "'cross_entropy', which is not one of"),
    "unread": (
        lambda: GRPOConfig(loss_fn="ppo", loss_fn_config={"clip_high": 1.2}),
        "ppo reads: clip_low_threshold",
    ),
    "unread by any": (
        lambda: GRPOConfig(loss_fn="importance_sampling", loss_fn_config={CLIP[0]: 0.8}),
        "loss_fn_config sets clip_low_threshold, which importance_sampling does not read.*reads: no settings",
    ),
    "unread of a recipe": (
        lambda: GRPOConfig(loss_fn=Recipe("ppo", {"x": 1})),
        "The recipe sets x, which ppo does",
    ),
    "order": (
        lambda: GRPOConfig(loss_fn="ppo", loss_fn_config={CLIP[0]: 1.5}),
        "clip_low_threshold <= clip_high_threshold",
    ),
    "unread by a function": (
        lambda: GRPOConfig(loss_fn=Recipe(no_default, {"needed": 1}), loss_fn_config={"neded": 2}),
        "loss_fn_config sets neded, which no_default does not read.*no_default reads: needed",
    ),
    "no value": (
        lambda: GRPOConfig(loss_fn=Recipe(no_default)),
        "missing a required argument: 'needed'.*a value",
    ),
    "too few": (
        lambda: GRPOConfig(loss_fn=Recipe(three)),
        r"cannot call three\(logprobs.*too many positional",
    ),
    "no signature": (lambda: GRPOConfig(loss_fn=Recipe(max)), "the parameters of max cannot be read.*Wrap it"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_no_recipe_is_refused_in_one_line(case: str) -> None:
    make, message = WRONG[case]
    with pytest.raises(ConfigError, match=message) as caught:
        make()
    assert "\n" not in str(caught.value)
