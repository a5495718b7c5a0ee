import torch
import torch.nn as nn


class Model(nn.Module):
    """Product of a matrix and the transpose of another: C = A B^T."""

    def forward(self, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        """a has shape (M, K), b has shape (N, K)."""
        return torch.matmul(a, b.T)


M = 60
N = 84
K = 72


def get_inputs():
    return [torch.randn(M, K), torch.randn(N, K)]


def get_init_inputs():
    return []
