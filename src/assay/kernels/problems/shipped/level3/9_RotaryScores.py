import torch
import torch.nn as nn


class Model(nn.Module):
    """Scores of queries and keys that are first turned by their positions."""

    def __init__(self, base):
        super().__init__()
        self.base = base

    def forward(self, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        """Both have shape (length, dim) with an even dim; the result has shape (length, length)."""
        half = q.shape[-1] // 2
        frequency = self.base ** (-torch.arange(half, device=q.device, dtype=q.dtype) / half)
        angle = torch.arange(q.shape[0], device=q.device, dtype=q.dtype)[:, None] * frequency
        cos, sin = angle.cos(), angle.sin()
        q1, q2, k1, k2 = q[:, :half], q[:, half:], k[:, :half], k[:, half:]
        q = torch.cat([q1 * cos - q2 * sin, q1 * sin + q2 * cos], dim=-1)
        k = torch.cat([k1 * cos - k2 * sin, k1 * sin + k2 * cos], dim=-1)
        return q @ k.T


length = 42
dim = 32
base = 100.0


def get_inputs():
    return [torch.randn(length, dim), torch.randn(length, dim)]


def get_init_inputs():
    return [base]
