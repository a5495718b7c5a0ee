import torch
import torch.nn as nn


class Model(nn.Module):
    """Softmax over the last dimension of x / temperature."""

    def __init__(self, temperature):
        super().__init__()
        self.temperature = temperature

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x has shape (batch_size, features)."""
        return torch.softmax(x / self.temperature, dim=-1)


batch_size = 24
features = 150
temperature = 0.7


def get_inputs():
    return [torch.randn(batch_size, features)]


def get_init_inputs():
    return [temperature]
