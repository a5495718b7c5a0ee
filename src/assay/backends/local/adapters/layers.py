"""Linear layers through which each pass takes the adapters that it is told to: none, one, or one for each row.

The base weights are shared and frozen, the adapters lie beside them, and nothing is swapped. A pass of one adapter has
gradients for its own weights alone. A pass of many (sampling) takes rows of different adapters in one product with all
their matrices side by side, in which each row keeps only what its own adapter gave, so that clients with adapters of
their own share a batch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

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


Stack = tuple[Tensor, Tensor, tuple[int, ...]]
"""All A below each other [sum of r, in], all B beside each other, scaled [out, sum of r], and whose they are."""


class Stacks:
    """Adapters that share a batch, with their matrices side by side, made once for each layer."""

    def __init__(self, adapters: Sequence[Weights | None]) -> None:
        self.adapters = tuple(adapters)
        self.places = {id(weights): place for place, weights in enumerate(self.adapters)}
        self._stacks: dict[str, Stack | None] = {}

    def __getitem__(self, layer: str) -> Stack | None:
        """That of a layer; None where no adapter changes it."""
        if layer not in self._stacks:
            found = [(i, w) for i, w in enumerate(self.adapters) if w is not None and layer in w.pairs]
            self._stacks[layer] = None
            if found:
                down = torch.cat([w.pairs[layer][0] for _, w in found])
                up = torch.cat([w.pairs[layer][1] * w.scale for _, w in found], dim=1)
                self._stacks[layer] = down, up, tuple(i for i, w in found for _ in range(w.rank))
        return self._stacks[layer]


class Rows:
    """Which adapter each row of a pass goes through."""

    def __init__(self, stacks: Stacks, places: Tensor) -> None:
        """`places` [P] are those in the stacks' adapters."""
        self.stacks = stacks
        self.places = places
        self._masks: dict[tuple[int, ...], Tensor] = {}

    def others(self, owners: tuple[int, ...]) -> Tensor:
        """[P, sum of r]: True where a column is not of the row's adapter; `owners` as in `Stack`."""
        if owners not in self._masks:  # most layers have the same
            self._masks[owners] = self.places[:, None] != torch.tensor(owners, device=self.places.device)
        return self._masks[owners]


def rows_through(weights: Sequence[Weights | None], device: torch.device, before: Stacks | None) -> Rows:
    """A route for rows with an adapter each.

    Args:
        before: stacks of an earlier route, which are used again where they have all adapters and not too many more:
            rows come and go far more often than adapters do.
    """
    wanted = {id(one): one for one in weights}
    if before is None or not wanted.keys() <= before.places.keys() or len(before.adapters) > 2 * len(wanted):
        before = Stacks([wanted[key] for key in sorted(wanted)])
    return Rows(before, torch.tensor([before.places[id(one)] for one in weights], device=device))


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
            if len(route.stacks.adapters) > 1:
                return self._by_row(route, x, out)
            route = route.stacks.adapters[0]
        pair = None if route is None else route.pairs.get(self.name)
        if route is None or pair is None:
            return out
        return added(out, F.linear(x.to(pair[0].dtype), pair[0]), pair[1], route.scale)

    def _by_row(self, route: Rows, x: Tensor, out: Tensor) -> Tensor:
        stack = route.stacks[self.name]
        if stack is None:
            return out
        down, up, owners = stack
        flat = x.reshape(len(route.places), -1, x.shape[-1])
        if len(down) > SIDE_BY_SIDE:
            return (out + self._one_by_one(route, flat, len(up)).view_as(out)).to(out.dtype)
        # Filled, not multiplied: a product with 0 would keep what is not finite of another client's.
        inner = F.linear(flat.to(down.dtype), down).masked_fill(route.others(owners)[:, None], 0.0)
        return added(out, inner, up, 1.0)

    def _one_by_one(self, route: Rows, flat: Tensor, width: int) -> Tensor:
        found = flat.new_zeros((*flat.shape[:2], width))
        for place, weights in enumerate(route.stacks.adapters):
            if weights is None or self.name not in weights.pairs:
                continue
            rows = (route.places == place).nonzero()[:, 0]
            down, up = weights.pairs[self.name]
            part = F.linear(F.linear(flat.index_select(0, rows).to(down.dtype), down), up) * weights.scale
            found.index_copy_(0, rows, part.to(found.dtype))
        return found


def added(out: Tensor, inner: Tensor, up: Tensor, scale: float) -> Tensor:
    """What a base layer gives, out [*, out], with what adapters add to it: scale * inner [*, r] up^T."""
    flat = inner.reshape(-1, inner.shape[-1])
    if out.dtype != up.dtype:
        return (out + (F.linear(flat, up) * scale).view_as(out)).to(out.dtype)
    # One operation in place of three: in small models their number is what costs.
    return torch.addmm(out.reshape(-1, out.shape[-1]), flat, up.t(), alpha=scale).view_as(out)
