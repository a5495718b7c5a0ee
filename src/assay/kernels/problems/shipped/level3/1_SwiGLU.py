import torch
import torch.nn as nn


class Model(nn.Module):
    """Feed-forward block of a transformer: (silu(x W1) * (x W2)) W3."""

    def __init__(self, dim, hidden):
        super().__init__()
        self.gate = nn.Linear(dim, hidden, bias=False)
        self.up = nn.Linear(dim, hidden, bias=False)
        self.down = nn.Linear(hidden, dim, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x has shape (tokens, dim); so has the result."""
        return self.down(nn.functional.silu(self.gate(x)) * self.up(x))


tokens = 36
dim = 40
hidden = 64


def get_inputs():
    return [torch.randn(tokens, dim)]


def get_init_inputs():
    return [dim, hidden]
