"""What PyTorch's operators take on a GPU: numbers of the host among tensors of the GPU, and uncommon dtypes.

Tensors without memory are taken everywhere, and a processor has kernels that a GPU lacks.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from assay.kernels.inside.record.reads import NotRecordableError
from assay.kernels.program.operations import CONSTANT_FILLS, COPIES

_OF_TWO = frozenset(
    {
        *("add", "sub", "rsub", "mul", "div", "true_divide", "floor_divide", "remainder", "fmod", "pow", "maximum"),
        *("minimum", "clamp_min", "clamp_max", "eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or"),
        *("logical_xor", "bitwise_and", "bitwise_or", "bitwise_xor", "__and__", "__or__", "__xor__", "__lshift__"),
        "__rshift__",
    }
)
_NUMBERS: Mapping[str, frozenset[str]] = {
    **dict.fromkeys(_OF_TWO, frozenset({"self", "other", "exponent", "min", "max"})),
    **dict.fromkeys(("fill", "masked_fill", "index_fill"), frozenset({"value"})),
    "where": frozenset({"condition", "self", "other"}),
    "lerp": frozenset({"weight"}),
    "addcmul": frozenset({"tensor2"}),
}
"""Operators -> the arguments that may be a tensor of the host without a dimension, where others are on the GPU."""
_COMMON = frozenset(
    {
        *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16),
        *(torch.float32, torch.float64, torch.complex64, torch.complex128),
    }
)
_OF_ANY_TYPE = COPIES | CONSTANT_FILLS | {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"}
"""Operators, besides views, that a GPU has kernels of for all dtypes."""


def numbers_of_the_host(base: str, given: Mapping[str, Any]) -> list[torch.Tensor]:
    """Tensors among the arguments of an operator that may be numbers of the host, wherever the others are.

    Args:
        base: The operator's name, without the underscore of one that works in place.
        given: Its arguments by name.
    """
    values = [value for name, value in given.items() if name in _NUMBERS.get(base, ())]
    return [value for value in values if isinstance(value, torch.Tensor) and not value.dim()]


def check_dtypes(base: str, tensors: Sequence[torch.Tensor]) -> None:
    """Raises NotRecordableError for an operator on a dtype of which a GPU need not have a kernel."""
    odd = next((tensor.dtype for tensor in tensors if tensor.dtype not in _COMMON), None)
    if odd is not None and base not in _OF_ANY_TYPE:
        raise NotRecordableError(
            f"{base} of {odd}, which PyTorch need not have for a GPU: tensors of this dtype are made, filled, copied, "
            "cast and viewed. Cast it (to(torch.float32)) or view it (view(torch.uint8)) before"
        )
