import torch
import torch.nn as nn


class Model(nn.Module):
    """Depthwise 3x3 convolution, pointwise convolution, and a leaky ReLU."""

    def __init__(self, in_channels, out_channels, slope):
        super().__init__()
        self.depthwise = nn.Conv2d(in_channels, in_channels, 3, padding=1, groups=in_channels)
        self.pointwise = nn.Conv2d(in_channels, out_channels, 1)
        self.slope = slope

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x has shape (batch_size, in_channels, height, width); height and width stay."""
        return nn.functional.leaky_relu(self.pointwise(self.depthwise(x)), self.slope)


batch_size = 2
in_channels = 8
out_channels = 12
height = 10
width = 12
slope = 0.1


def get_inputs():
    return [torch.randn(batch_size, in_channels, height, width)]


def get_init_inputs():
    return [in_channels, out_channels, slope]
