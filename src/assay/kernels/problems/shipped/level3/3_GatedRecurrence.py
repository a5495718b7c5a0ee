import torch
import torch.nn as nn


class Model(nn.Module):
    """A gated linear recurrence over time: h = f h + (1 - f) x, with gates from the input."""

    def __init__(self, dim):
        super().__init__()
        self.gate = nn.Linear(dim, dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x has shape (batch_size, length, dim); the result has every state, in the same shape."""
        forget = torch.sigmoid(self.gate(x))
        state = torch.zeros_like(x[:, 0])
        states = []
        for step in range(x.shape[1]):
            state = forget[:, step] * state + (1 - forget[:, step]) * x[:, step]
            states.append(state)
        return torch.stack(states, dim=1)


batch_size = 4
length = 20
dim = 32


def get_inputs():
    return [torch.randn(batch_size, length, dim)]


def get_init_inputs():
    return [dim]
