import torch
import torch.nn as nn


class Model(nn.Module):
    """Largest minus smallest value along the middle dimension."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x has shape (batch_size, length, features); the result has shape (batch_size, features)."""
        return x.amax(dim=1) - x.amin(dim=1)


batch_size = 8
length = 45
features = 33


def get_inputs():
    return [torch.randn(batch_size, length, features)]


def get_init_inputs():
    return []
