"""A model that carries adapters: which layers can have one, how an adapter begins, and its optimizer."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from assay.backends.config import LocalBackend
from assay.backends.local.adapters.layers import AdaptedLinear, Pair, Router, Weights
from assay.backends.local.network import Network
from assay.backends.local.optimizer import adamw
from assay.errors import ModelError

Part = Literal["attn", "mlp", "unembed"]
PARTS: tuple[Part, ...] = ("attn", "mlp", "unembed")


@dataclass(frozen=True)
class Shape:
    """What an adapter is: its rank, the parts of the model that it changes, and the seed of its first weights."""

    rank: int
    parts: frozenset[Part]
    seed: int


@dataclass
class Adapter:
    """An adapter in training."""

    shape: Shape
    weights: Weights
    optimizer: torch.optim.AdamW
    steps: int = 0
    """Optimizer steps so far."""
    trained: Mapping[str, Tensor] = field(default_factory=dict)
    """Every matrix by the name that it has in a file."""

    def snapshot(self) -> Weights:
        """A copy of the weights as they are, which later steps do not change.

        Raises:
            ModelError: they are not finite; a batch that they are sampled in would be of no use to anybody.
        """
        pairs = {name: (a.detach().clone(), b.detach().clone()) for name, (a, b) in self.weights.pairs.items()}
        if not all(bool(torch.isfinite(t).all()) for pair in pairs.values() for t in pair):
            raise ModelError(
                f"After {self.steps} optimizer steps the adapter has weights that are not finite, so nothing can be "
                "sampled from it. Start again from an earlier checkpoint, with a lower learning rate."
            )
        return Weights(pairs, self.weights.rank, self.weights.scale)


class AdapterBank:
    """A frozen model on its device, and the adapters that passes can go through."""

    def __init__(self, model: Any, local: LocalBackend, device: torch.device) -> None:
        """Freeze `model`, and put a place for adapters round each of its linear layers, in place.

        Raises:
            ModelError: the model has no linear layers, or cannot be run (see `Network.of`).
        """
        self.router = Router()
        self.local = local
        self.layers: dict[str, tuple[AdaptedLinear, Part]] = {}
        for parameter in model.parameters():
            parameter.requires_grad_(False)
        head = model.get_output_embeddings()
        for name, module in list(linear_layers(model)):
            part: Part = "unembed" if module is head else part_of(name)
            layer = AdaptedLinear(module, name, self.router)
            parent, _, leaf = name.rpartition(".")
            setattr(model.get_submodule(parent) if parent else model, leaf, layer)
            self.layers[name] = (layer, part)
        if not self.layers:
            raise ModelError(f"{type(model).__name__} has no linear layers that an adapter could change.")
        self.network = Network.of(model, local, device)

    @property
    def device(self) -> torch.device:
        """Where everything is."""
        return self.network.device

    def create(self, shape: Shape) -> Adapter:
        """A new adapter, which changes nothing yet; the same seed gives the same weights as the local backend's.

        Raises:
            ModelError: no layer of the model belongs to the parts.
        """
        pairs: dict[str, Pair] = {}
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(shape.seed % 2**63)
            for name in self.chosen(shape.parts):
                pairs[name] = self._pair(self.layers[name][0].base, shape.rank)
        if not pairs:
            raise ModelError(f"The model has no layers of the parts {', '.join(sorted(shape.parts))} to adapt.")
        weights = Weights(pairs, shape.rank, self.local.lora_alpha / shape.rank)
        trained = {
            f"{name}.lora_{k}.weight": t for name, pair in pairs.items() for k, t in zip("AB", pair, strict=True)
        }
        return Adapter(shape, weights, adamw(trained.values(), self.local.adamw), trained=trained)

    def chosen(self, parts: frozenset[Part]) -> list[str]:
        """The layers that belong to some parts, in the model's order."""
        return [name for name, (_, part) in self.layers.items() if part in parts]

    def _pair(self, base: nn.Module, rank: int) -> Pair:
        inside, outside = sizes(base)
        # Drawn as peft draws it: it makes both layers, whose own first values use up random numbers, then draws A.
        down, _ = nn.Linear(inside, rank, bias=False), nn.Linear(rank, outside, bias=False)
        nn.init.kaiming_uniform_(down.weight, a=math.sqrt(5))
        a = down.weight.detach().to(self.device).requires_grad_()
        return a, torch.zeros(outside, rank, device=self.device).requires_grad_()


def linear_layers(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The layers that can have an adapter, by name, in the model's order."""
    for name, module in model.named_modules():
        if isinstance(module, (nn.Linear, Conv1D)):
            yield name, module


def part_of(name: str) -> Part:
    """Which part of a transformer a layer of its blocks belongs to."""
    return "attn" if any("attn" in word or "attention" in word for word in name.lower().split(".")) else "mlp"


def sizes(layer: nn.Module) -> tuple[int, int]:
    """Width of what goes into a linear layer, and of what comes out."""
    weight = layer.weight
    assert isinstance(weight, Tensor)
    outside, inside = weight.shape
    return (outside, inside) if isinstance(layer, Conv1D) else (inside, outside)
