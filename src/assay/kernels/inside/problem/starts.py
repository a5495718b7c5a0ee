"""Parameters whose values at the start give something away that training does not keep.

A candidate may hold weights under names of its own, and then no call changes them. Its kernels may lean on what is so
at the start alone: on an identity, on a gain that is the norm of other weights, on layers that start alike. So a
candidate must have such parameters under their names, and one call changes them all.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import nn

from assay.kernels.inside.construction import ConstructionTrace
from assay.kernels.inside.problem.weights import is_constant

OTHERS = 2
"""Further constructions, each from another seed, that a parameter is compared with."""
FEW = 8
"""So many different elements at most are labels, which may be alike by chance."""

Build = Callable[[int], tuple[nn.Module, ConstructionTrace]]
"""Constructs the model from a seed."""


def telling(build: Build, seed: int) -> list[str]:
    """The parameters of the model from a seed that all are one number, hold elements that are the same from any seed,
    or depend on each other."""
    model, trace = build(seed)
    weights = dict(model.named_parameters())
    if not weights:
        return []
    others = [dict(build(seed + number)[0].named_parameters()) for number in range(1, 1 + OTHERS)]
    alone = {name for name, weight in weights.items() if _is_known(weight, [other.get(name) for other in others])}
    return [name for name in weights if name in alone | _dependent(weights, trace)]


def _is_known(weight: torch.Tensor, others: Sequence[torch.Tensor | None]) -> bool:
    """Whether something of a parameter is known without its seed."""
    if is_constant(weight):
        return True
    made = [weight, *(other for other in others if other is not None and other.shape == weight.shape)]
    if len(made) <= OTHERS or weight.is_complex():
        return False
    same = torch.stack([weight == other for other in made[1:]]).all(0)
    return bool(same.all()) or (bool(same.any()) and torch.unique(weight.detach()).numel() > FEW)


def _dependent(weights: Mapping[str, torch.Tensor], trace: ConstructionTrace) -> set[str]:
    """Parameters that come from the same draws as others, whose elements depend on each other, or of which fewer
    numbers were drawn than they have; and all that come from the draws of one."""
    origins = {name: trace.origin_of(weight) for name, weight in weights.items()}
    of_draw: dict[int, set[str]] = defaultdict(set)
    for name, origin in origins.items():
        for draw in origin.draws:
            of_draw[draw].add(name)
    found: set[str] = set()
    for name, origin in origins.items():
        related = set[str]().union(*(of_draw[draw] for draw in origin.draws))
        if len(related) > 1 or origin.mixed or (origin.draws and origin.drawn < weights[name].numel()):
            found |= related
    return found
