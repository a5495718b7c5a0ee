import torch
import torch.nn as nn


class Model(nn.Module):
    """Channels rescaled by gates that two linear layers make from their means."""

    def __init__(self, channels, reduced):
        super().__init__()
        self.reduce = nn.Linear(channels, reduced)
        self.expand = nn.Linear(reduced, channels)
        nn.init.uniform_(self.expand.weight, -2.0, 2.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x has shape (batch_size, channels, height, width)."""
        gates = torch.sigmoid(self.expand(torch.relu(self.reduce(x.mean(dim=(2, 3))))))
        return x * gates[:, :, None, None]


batch_size = 3
channels = 16
reduced = 6
height = 9
width = 11


def get_inputs():
    return [torch.randn(batch_size, channels, height, width) + 0.5]


def get_init_inputs():
    return [channels, reduced]
