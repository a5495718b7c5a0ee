"""Weights at which every part of a network matters, put in place for a check and taken away again.

A freshly initialised network is nearly linear: its attention is uniform, its logits are small, its adapters are zero.
There, a soft cap, another scale of the attention or an adapter that is passed by changes nothing that a comparison
could see. Matrices are scaled up to the size of trained ones, vectors are moved, zeros are filled, and afterwards each
weight has its former bits.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

SPREAD = 2.0
"""Standard deviation of what a matrix makes of a normalised input."""
SHIFT = 0.2
"""Standard deviation of what is added to vectors: norms, biases."""
FILL = 0.1
"""What stands where there were zeros, relative to other matrices: adapters have a large factor behind them."""
SAMPLED = 4096
"""Numbers of a matrix from which its spread is estimated."""
SMALL = 2**16
"""Tensors up to this many numbers are kept as a copy; larger ones are scaled by a power of two, and back."""


@contextlib.contextmanager
def lively(model: nn.Module) -> Iterator[None]:
    """For the duration, the model's floating point weights are of a size at which each part changes the logits.

    No global random state is used, the change is the same each time, and every weight gets its bits back.
    """
    undo: list[Callable[[], object]] = []
    generator = torch.Generator().manual_seed(0)
    try:
        for parameter in model.parameters():
            if parameter.is_floating_point() and parameter.numel():
                undo.append(_enliven(parameter.data, generator))
        yield
    finally:
        for restore in reversed(undo):
            restore()


def _enliven(weight: Tensor, generator: torch.Generator) -> Callable[[], object]:
    """Change one weight in place; returns what brings it back."""
    if weight.ndim < 2:
        kept = weight.clone()
        weight.add_(_normal(weight, generator), alpha=SHIFT)
        return lambda: weight.copy_(kept)
    target = SPREAD / math.sqrt(max(weight.shape[-2:]))
    part = weight.flatten()[:: max(1, weight.numel() // SAMPLED)].float()
    spread = float(part.square().mean().sqrt())
    if spread == 0:
        kept = weight.clone()
        weight.copy_(_normal(weight, generator).mul_(target * FILL))
        return lambda: weight.copy_(kept)
    factor = 2.0 ** max(0, round(math.log2(target / spread))) if math.isfinite(spread) else 1.0
    if factor == 1:
        return lambda: None
    scaled = weight * factor
    if weight.numel() <= SMALL or not torch.equal(scaled / factor, weight):
        kept = weight.clone()
        weight.copy_(scaled)
        return lambda: weight.copy_(kept)
    weight.copy_(scaled)  # without a copy, since those of all layers may not fit
    return lambda: weight.div_(factor)


def _normal(weight: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randn(weight.shape, generator=generator).to(weight)
