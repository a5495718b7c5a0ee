import torch
import torch.nn as nn


class Model(nn.Module):
    """A residual branch of LayerNorm, linear, GELU (tanh form) and linear."""

    def __init__(self, dim, hidden):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        nn.init.uniform_(self.norm.weight, 0.5, 1.5)
        self.up = nn.Linear(dim, hidden)
        self.down = nn.Linear(hidden, dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x has shape (tokens, dim); so has the result."""
        hidden = nn.functional.gelu(self.up(self.norm(x)), approximate="tanh")
        return x + self.down(hidden)


tokens = 30
dim = 32
hidden = 64


def get_inputs():
    return [torch.randn(tokens, dim) * 1.5 + 0.2]


def get_init_inputs():
    return [dim, hidden]
