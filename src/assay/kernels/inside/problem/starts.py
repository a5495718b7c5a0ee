"""Parameters and buffers whose values at the start give something away that training does not keep.

A candidate may hold weights under names of its own, and then no call changes them. Its kernels may lean on what is so
at the start alone: on an identity, on signs, on a gain that is the norm of other weights, on layers that start alike.
So only those may go without their names whose elements are numbers of a continuous draw, each of its own. All others a
candidate must have under their names, and one call changes them all.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from assay.kernels.inside.construction import ConstructionTrace
from assay.kernels.inside.problem.weights import is_constant, movable_buffers

OTHERS = 2
"""Further constructions, each from another seed, that a parameter is compared with."""
FEW = 8
"""So many different elements at most are labels, which may be alike by chance."""
MOST_LOOKED_AT = 1 << 12
"""Elements of a tensor in which repeated values are looked for."""
MOST_SORTED = 1 << 10
"""Elements of a tensor whose order is compared with that of others."""
LEAST_SORTED = 16
"""Fewer may be in the same order by chance."""

Build = Callable[[int], tuple[nn.Module, ConstructionTrace]]
"""Constructs the model from a seed."""
Fractions = npt.NDArray[np.float64]
Made = Sequence[torch.Tensor]
"""A parameter or buffer as it is made from one seed, and from others."""


def telling(build: Build, seed: int) -> tuple[list[str], list[str]]:
    """The parameters, and the buffers of fractions that are not constant, of the model from a seed of which the start
    may give something away.

    Of buffers those tell nothing that are the same from any seed (tables) or hold few different values (masks): no
    training changes them.
    """
    model, trace = build(seed)
    weights, buffers = dict(model.named_parameters()), movable_buffers(model)
    buffers = {name: buffer for name, buffer in buffers.items() if not is_constant(buffer)}
    if not weights and not buffers:
        return [], []
    others = [build(seed + number)[0] for number in range(1, 1 + OTHERS)]
    there = [dict((*other.named_parameters(), *other.named_buffers())) for other in others]
    made = {name: _made(name, tensor.detach(), there) for name, tensor in {**weights, **buffers}.items()}
    origins = trace.origins({**weights, **dict(model.named_buffers())})
    free = {name for name in made if origins[name].own and not origins[name].shared and not _is_told(made[name])}
    free -= _in_one_order({name: tensors[0] for name, tensors in made.items()})
    moving = [name for name in buffers if not _is_fixed(made[name]) and _different(made[name][0]) > FEW]
    return [name for name in weights if name not in free], [name for name in moving if name not in free]


def _made(name: str, tensor: torch.Tensor, there: Sequence[Mapping[str, torch.Tensor]]) -> Made:
    others = (other.get(name) for other in there)
    return [tensor, *(other.detach() for other in others if other is not None and other.shape == tensor.shape)]


def _is_told(made: Made) -> bool:
    """Whether something of a tensor is known without its seed: its values are a defence behind its origin."""
    return is_constant(made[0]) or len(made) <= OTHERS or _is_known(made) or _repeats(made)


def _is_fixed(made: Made) -> bool:
    """Whether a tensor is the same from any seed."""
    return len(made) > OTHERS and all(torch.equal(made[0], other) for other in made[1:])


def _is_known(made: Made) -> bool:
    """Whether elements are the same from any seed, and not because there are few values."""
    same = torch.stack([made[0] == other for other in made[1:]]).all(0)
    return bool(same.all()) or (bool(same.any()) and _different(made[0]) > FEW)


def _repeats(made: Made) -> bool:
    """Whether values are whole numbers, many of them come twice, or some again and again, as saturated ones do."""
    looked = [_some(tensor, MOST_LOOKED_AT) for tensor in made]
    own, together = looked[0], np.concatenate(looked)
    if np.all(own == np.round(own)) or own.size - np.unique(own).size > 3 + own.size // 8:
        return True
    return bool(np.unique(together, return_counts=True)[1].max() > 3 + together.size // 256)


def _in_one_order(tensors: Mapping[str, torch.Tensor]) -> set[str]:
    """Tensors whose elements rise and fall together: copies, and functions of each other."""
    alike: dict[tuple[int, bytes], set[str]] = defaultdict(set)
    for name, tensor in tensors.items():
        if tensor.numel() >= LEAST_SORTED:
            order = np.argsort(_some(tensor, MOST_SORTED), kind="stable").astype(np.int16)
            alike[tensor.numel(), min(order.tobytes(), order[::-1].tobytes())].add(name)
    return set[str]().union(*(names for names in alike.values() if len(names) > 1))


def _some(tensor: torch.Tensor, most: int) -> Fractions:
    """Elements of a tensor, spread evenly; the parts of complex ones."""
    flat = (torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor).flatten()
    found: Fractions = flat[:: -(-flat.numel() // most) or 1].double().cpu().numpy()
    return found


def _different(tensor: torch.Tensor) -> int:
    return int(np.unique(_some(tensor, MOST_LOOKED_AT)).size)
