"""What PyTorch promises no order of: equal elements that `topk`, `sort` and the like choose among.

with AnyOrder(seed):
    output = model(*inputs)        # another choice among equal elements, and nothing else

Where such a choice shows in the outputs, they are one right answer of several.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from assay.kernels.arrays import HostTensor
from assay.kernels.operators import normal_name

UNORDERED = frozenset({"topk", "sort", "kthvalue", "median", "nanmedian", "mode"})
"""Operators that give places, along a dimension, of elements that may be equal. `argmax` promises the first one."""
_CLOSE = 1e-6
"""Sums of the same numbers in another order are this close."""


def chooses(operators: Collection[str]) -> bool:
    """Whether one of the operators that a reference runs promises no order among equal elements."""
    return any(normal_name(name) in UNORDERED for name in operators)


def same(outputs: Sequence[HostTensor], others: Sequence[HostTensor]) -> bool:
    """Whether two passes gave the same but for the order of sums."""
    if [output.shape for output in outputs] != [other.shape for other in others]:
        return False
    pairs = [(one.array(), other.array()) for one, other in zip(outputs, others, strict=True)]
    return all(np.allclose(one, other, rtol=_CLOSE, atol=_CLOSE, equal_nan=True) for one, other in pairs)


class AnyOrder(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Lets such operators find their operand's elements in another order."""

    supports_higher_order_operators = True

    def __init__(self, seed: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._chance = torch.Generator().manual_seed(seed)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # True would import the compiler, which takes seconds, to keep it away from this class.
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run one operator."""
        named = dict(kwargs or {})
        if not args or normal_name(func.name()) not in UNORDERED or named.get("stable"):
            return func(*args, **named)
        given = {argument.name: argument.default_value for argument in func._schema.arguments}
        given |= dict(zip(given, args, strict=False)) | named
        values, dim = given["self"], given.get("dim")
        if dim is None or not values.dim():
            return func(*args, **named)
        order = torch.randperm(values.shape[dim], generator=self._chance).to(values.device)
        found, places = func(values.index_select(dim, order), *args[1:], **named)
        return found, order[places]
