"""Half-precision copies of weights, at addresses that stay: what a captured decoding step reads.

Autocast would cast every weight again, in memory that it frees when it is left; a graph captured under it would then
read freed memory.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D


class HalfCopies:
    """bfloat16 copies of the float32 weights of a model's linear layers."""

    def __init__(self, model: nn.Module, apart: nn.Module | None) -> None:
        """`apart` is a layer that keeps its precision."""
        self._copies = [
            (module, name, nn.Parameter(weight.detach().to(torch.bfloat16), requires_grad=False))
            for module in model.modules()
            if type(module) in (nn.Linear, Conv1D) and module is not apart
            for name, weight in module.named_parameters(recurse=False)
            if weight.dtype == torch.float32
        ]

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """Bring the copies up to date, and have the model use them for the duration."""
        originals = [(module, name, module._parameters[name]) for module, name, _ in self._copies]
        for (module, name, copy), (_, _, original) in zip(self._copies, originals, strict=True):
            assert original is not None
            copy.data.copy_(original.data)
            module._parameters[name] = copy
        try:
            yield
        finally:
            for module, name, original in originals:
                module._parameters[name] = original
