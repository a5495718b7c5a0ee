import torch
import torch.nn as nn


class Model(nn.Module):
    """Attention without softmax: the feature map elu(x) + 1, normalised by the sum of the keys."""

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """All have shape (heads, length, dim); so has the result."""
        q, k = nn.functional.elu(q) + 1, nn.functional.elu(k) + 1
        state = k.transpose(-2, -1) @ v
        return (q @ state) / (q @ k.sum(dim=1)[:, :, None])


heads = 4
length = 36
dim = 32


def get_inputs():
    return [torch.randn(heads, length, dim) for _ in range(3)]


def get_init_inputs():
    return []
