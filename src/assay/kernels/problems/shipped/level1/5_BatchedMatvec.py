import torch
import torch.nn as nn


class Model(nn.Module):
    """One matrix-vector product per batch entry."""

    def forward(self, a: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """a has shape (batch_size, M, K), x has shape (batch_size, K)."""
        return torch.einsum("bmk,bk->bm", a, x)


batch_size = 6
M = 48
K = 56


def get_inputs():
    return [torch.randn(batch_size, M, K), torch.randn(batch_size, K)]


def get_init_inputs():
    return []
