"""`nn.init.trunc_normal_` without a look at what it draws.

PyTorch draws again until all numbers fit, and asks a tensor whether they do: host code that is recorded has no values
to answer with. Here each number is drawn once, from the inverse of the distribution function. References and
submissions are built by the same rule, so that a seed gives both the same weights.
"""

from __future__ import annotations

import math

import torch


def install() -> None:
    """Take this one in place of PyTorch's, for good."""
    torch.nn.init._no_grad_trunc_normal_ = truncated_normal


@torch.no_grad()
def truncated_normal(
    tensor: torch.Tensor, mean: float, std: float, a: float, b: float, generator: torch.Generator | None = None
) -> torch.Tensor:
    """Fill a tensor of any shape from a normal distribution between `a` and `b`, and return it."""
    low, high = (math.erf((end - mean) / (std * math.sqrt(2.0))) for end in (a, b))
    tensor.uniform_(low, high, generator=generator)
    return tensor.erfinv_().mul_(std * math.sqrt(2.0)).add_(mean).clamp_(min=a, max=b)
