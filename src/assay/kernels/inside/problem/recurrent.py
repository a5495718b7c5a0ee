"""Shapes and work of recurrent layers, without the steps that they take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.overrides import TorchFunctionMode

_RECURRENT = ("lstm", "gru", "rnn_tanh", "rnn_relu")


class RecurrentLayers(TorchFunctionMode):
    """Gives tensors without memory the shapes that a recurrent layer gives them, at once: PyTorch would take each step
    of it, a minute for a long sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: dict[str, tuple[int, int]] = {}
        """Calls and work of each kind of layer: each weight once for each sample and step."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        if name not in _RECURRENT or len(args) != 9 or not isinstance(args[2], list):
            return func(*args, **(kwargs or {}))
        sequence, hidden, weights, bidirectional = args[0], args[1], args[2], args[7]
        states = hidden if isinstance(hidden, list | tuple) else (hidden,)
        features = states[0].shape[-1] * (2 if bidirectional else 1)
        steps = sequence.numel() // max(1, sequence.shape[-1])
        calls, work = self.operations.get(name, (0, 0))
        work += steps * sum(weight.numel() for weight in weights if weight.dim() == 2)
        self.operations[name] = calls + 1, work
        made = sequence.new_empty((*sequence.shape[:-1], features))
        return (made, *(state.clone() for state in states))
