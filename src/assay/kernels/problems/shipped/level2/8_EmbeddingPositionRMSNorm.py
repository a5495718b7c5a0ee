import torch
import torch.nn as nn


class Model(nn.Module):
    """Token embedding plus position embedding, then RMS normalisation."""

    def __init__(self, vocabulary, length, features):
        super().__init__()
        self.token = nn.Embedding(vocabulary, features)
        self.position = nn.Parameter(torch.randn(length, features))
        self.gain = nn.Parameter(torch.rand(features) + 0.5)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """tokens has shape (batch_size, length) and values in [0, vocabulary)."""
        x = self.token(tokens) + self.position[: tokens.shape[1]]
        return x * torch.rsqrt(x.pow(2).mean(dim=-1, keepdim=True) + 1e-6) * self.gain


batch_size = 3
length = 15
vocabulary = 60
features = 44


def get_inputs():
    return [torch.randint(0, vocabulary, (batch_size, length))]


def get_init_inputs():
    return [vocabulary, length, features]
