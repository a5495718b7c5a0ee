import torch
import torch.nn as nn


class Model(nn.Module):
    """A linear layer, then the largest of each run of `pieces` outputs."""

    def __init__(self, in_features, units, pieces):
        super().__init__()
        self.pieces = pieces
        self.linear = nn.Linear(in_features, units * pieces)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x has shape (batch_size, in_features); the result has shape (batch_size, units)."""
        return self.linear(x).view(x.shape[0], -1, self.pieces).amax(dim=-1)


batch_size = 34
in_features = 40
units = 24
pieces = 4


def get_inputs():
    return [torch.randn(batch_size, in_features)]


def get_init_inputs():
    return [in_features, units, pieces]
