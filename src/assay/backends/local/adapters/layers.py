"""Linear layers through which each pass takes the adapters that it is told to: none, one, or one for each row.

The base weights are shared and frozen, the adapters lie beside them, and nothing is swapped. A pass of one adapter has
gradients for its own weights alone. A pass of many (sampling) takes rows of different adapters in one product with all
their matrices side by side, in which each row keeps only what its own adapter gave, so that clients with adapters of
their own share a batch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

SIDE_BY_SIDE = 1024
"""Most ranks, summed over adapters, that are computed side by side; beyond, each adapter has a product of its own."""

Pair = tuple[Tensor, Tensor]
"""A [r, in] and B [out, r] of one layer."""


@dataclass(frozen=True)
class Weights:
    """The matrices of one adapter, by layer, and the factor of their product."""

    pairs: Mapping[str, Pair]
    rank: int
    scale: float


@dataclass
class Rows:
    """Which adapter each row of a pass goes through."""

    adapters: Sequence[Weights | None]
    places: Tensor
    """[P]: places in `adapters`."""
    _stacks: dict[str, tuple[Tensor, Tensor] | None] = field(default_factory=dict)
    _masks: dict[str, Tensor] = field(default_factory=dict)

    def stack(self, layer: str) -> tuple[Tensor, Tensor] | None:
        """All A below each other [sum of r, in] and all B beside each other, scaled [out, sum of r]."""
        if layer not in self._stacks:
            found = [(w.pairs[layer], w.scale) for w in self.adapters if w is not None and layer in w.pairs]
            self._stacks[layer] = (
                (torch.cat([a for (a, _), _ in found]), torch.cat([b * s for (_, b), s in found], dim=1))
                if found
                else None
            )
        return self._stacks[layer]

    def others(self, layer: str) -> Tensor:
        """[P, sum of r]: True where a column is not of the row's adapter."""
        owners = [i for i, w in enumerate(self.adapters) if w is not None and layer in w.pairs]
        key = ",".join(map(str, owners))  # layers with the same adapters share their mask
        if key not in self._masks:
            columns = torch.tensor([i for i in owners for _ in range(self._rank(i))], device=self.places.device)
            self._masks[key] = self.places[:, None] != columns
        return self._masks[key]

    def _rank(self, place: int) -> int:
        weights = self.adapters[place]
        return 0 if weights is None else weights.rank


class Router:
    """What the passes go through; one for all layers of a model."""

    def __init__(self) -> None:
        self.route: Weights | Rows | None = None

    @contextlib.contextmanager
    def through(self, route: Weights | Rows | None) -> Iterator[None]:
        """Have passes go through an adapter, or each of their rows through its own."""
        before, self.route = self.route, route
        try:
            yield
        finally:
            self.route = before


class AdaptedLinear(nn.Module):
    """A linear layer with the adapters that its router names added to it."""

    def __init__(self, base: nn.Module, name: str, router: Router) -> None:
        super().__init__()
        self.base = base
        self.name = name
        self._router = router

    @property
    def weight(self) -> Tensor:
        """The base's."""
        weight = self.base.weight
        assert isinstance(weight, Tensor)
        return weight

    def forward(self, x: Tensor) -> Tensor:
        """[*, in] -> [*, out]."""
        out: Tensor = self.base(x)
        route = self._router.route
        if isinstance(route, Rows):
            if len(route.adapters) > 1:
                return self._by_row(route, x, out)
            route = route.adapters[0]
        pair = None if route is None else route.pairs.get(self.name)
        if route is None or pair is None:
            return out
        return (out + adapted(x, *pair) * route.scale).to(out.dtype)

    def _by_row(self, route: Rows, x: Tensor, out: Tensor) -> Tensor:
        stack = route.stack(self.name)
        if stack is None:
            return out
        down, up = stack
        flat = x.reshape(len(route.places), -1, x.shape[-1])
        if len(down) > SIDE_BY_SIDE:
            added = self._one_by_one(route, flat, len(up))
        else:
            # Filled, not multiplied: a product with 0 would keep what is not finite of another client's.
            inner = F.linear(flat.to(down.dtype), down).masked_fill(route.others(self.name)[:, None], 0.0)
            added = F.linear(inner, up)
        return (out + added.view_as(out)).to(out.dtype)

    def _one_by_one(self, route: Rows, flat: Tensor, width: int) -> Tensor:
        added = flat.new_zeros((*flat.shape[:2], width))
        for place, weights in enumerate(route.adapters):
            if weights is None or self.name not in weights.pairs:
                continue
            rows = (route.places == place).nonzero()[:, 0]
            part = adapted(flat.index_select(0, rows), *weights.pairs[self.name]) * weights.scale
            added.index_copy_(0, rows, part.to(added.dtype))
        return added


def adapted(x: Tensor, down: Tensor, up: Tensor) -> Tensor:
    """What an adapter makes of x [*, in], before its factor: [*, out]."""
    return F.linear(F.linear(x.to(down.dtype), down), up)
