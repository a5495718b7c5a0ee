import torch
import torch.nn as nn


class Model(nn.Module):
    """LayerNorm of the sum of an input and a projected residual."""

    def __init__(self, features):
        super().__init__()
        self.scale = nn.Parameter(torch.rand(features) * 2.0 - 1.0)
        self.norm = nn.LayerNorm(features)
        nn.init.uniform_(self.norm.weight, 0.5, 1.5)
        nn.init.uniform_(self.norm.bias, -0.5, 0.5)

    def forward(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """Both have shape (batch_size, features)."""
        return self.norm(x + self.scale * residual)


batch_size = 26
features = 120


def get_inputs():
    return [torch.randn(batch_size, features), torch.randn(batch_size, features)]


def get_init_inputs():
    return [features]
