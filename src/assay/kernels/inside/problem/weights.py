"""Other values of a model's weights, as training would leave them, and further off."""

from __future__ import annotations

import torch

FLIPPED, GROWN, GROWTH = 0.25, 0.125, 10.0
"""Share of elements that change their sign, and of those that grow, where weights are moved far; and by how much."""


def is_constant(weight: torch.Tensor) -> bool:
    """Whether all elements of a parameter are equal."""
    return weight.numel() > 0 and bool((weight == weight.flatten()[0]).all())


def constant_buffers(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The buffers of a state that hold one finite fraction everywhere (running statistics, say)."""
    kept = model.state_dict()
    return {
        name: buffer
        for name, buffer in model.named_buffers()
        if name in kept and buffer.is_floating_point() and is_constant(buffer) and bool(buffer.isfinite().all())
    }


def move(weight: torch.Tensor, far: bool = False) -> None:
    """Move every element at random, in place; `far`: some change their sign, and some are ten times as large."""
    spread = 0.1 * (weight.std() if weight.numel() > 1 else weight.abs().mean()) + 0.05
    weight.mul_(1 + 0.25 * (2 * torch.rand_like(weight) - 1)).add_(spread * torch.randn_like(weight))
    if far:
        weight.mul_(torch.where(torch.rand_like(weight) < FLIPPED, -1.0, 1.0).to(weight.dtype))
        weight.mul_(torch.where(torch.rand_like(weight) < GROWN, GROWTH, 1.0).to(weight.dtype))
