import torch
import torch.nn as nn


class Model(nn.Module):
    """A linear layer whose output is gated by the SiLU of a second one."""

    def __init__(self, in_features, out_features):
        super().__init__()
        self.gate = nn.Linear(in_features, out_features)
        self.value = nn.Linear(in_features, out_features)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x has shape (batch_size, in_features); the result has shape (batch_size, out_features)."""
        return nn.functional.silu(self.gate(x)) * self.value(x)


batch_size = 40
in_features = 48
out_features = 56


def get_inputs():
    return [torch.randn(batch_size, in_features)]


def get_init_inputs():
    return [in_features, out_features]
