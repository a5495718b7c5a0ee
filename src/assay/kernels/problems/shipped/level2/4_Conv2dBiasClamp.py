import torch
import torch.nn as nn


class Model(nn.Module):
    """A 3x3 convolution, a bias per channel, and a clamp to a band."""

    def __init__(self, in_channels, out_channels, kernel_size, low, high):
        super().__init__()
        self.conv = nn.Conv2d(in_channels, out_channels, kernel_size, bias=False)
        self.bias = nn.Parameter(torch.randn(out_channels, 1, 1) * 0.3)
        self.low = low
        self.high = high

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x has shape (batch_size, in_channels, height, width)."""
        return torch.clamp(self.conv(x) + self.bias, self.low, self.high)


batch_size = 2
in_channels = 5
out_channels = 8
height = 14
width = 18
kernel_size = 3
low = -0.6
high = 0.9


def get_inputs():
    return [torch.randn(batch_size, in_channels, height, width)]


def get_init_inputs():
    return [in_channels, out_channels, kernel_size, low, high]
