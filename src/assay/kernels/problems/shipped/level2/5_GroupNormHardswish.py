import torch
import torch.nn as nn


class Model(nn.Module):
    """Group normalisation with learned affine parameters, then hardswish."""

    def __init__(self, groups, channels):
        super().__init__()
        self.norm = nn.GroupNorm(groups, channels)
        nn.init.uniform_(self.norm.weight, 0.5, 1.5)
        nn.init.uniform_(self.norm.bias, -0.5, 0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x has shape (batch_size, channels, length)."""
        return nn.functional.hardswish(self.norm(x) * 2.0)


batch_size = 4
channels = 24
length = 21
groups = 6


def get_inputs():
    return [torch.randn(batch_size, channels, length) * 1.5 + 0.3]


def get_init_inputs():
    return [groups, channels]
