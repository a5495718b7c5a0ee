"""Host code that names a device, on tensors without memory: whatever it names, tensors stay where they are.

Reads of values that PyTorch answers without asking an operator (`tolist`, `numpy`, `data_ptr`) are caught here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from assay.kernels.inside.pretend_cuda import OnCpu
from assay.kernels.inside.record.reads import Address
from assay.kernels.inside.record.tape import Tape

META = torch.device("meta")
_READS = (
    *("item", "tolist", "numpy", "__bool__", "__int__", "__float__", "__index__", "__complex__", "__array__"),
    *("__contains__", "__dlpack__", "storage"),
)
_FROM_DATA = frozenset({torch.tensor, torch.as_tensor, torch.asarray, torch.scalar_tensor})
"""Makers of tensors from Python's numbers; with a device that has no memory they would drop them."""


class Pretended(OnCpu):
    """While active, every device means the one without memory, and tensors say that they are on a CUDA device."""

    def __init__(self, tape: Tape) -> None:
        """`tape` gives tensors their pretended addresses and takes note of reads."""
        super().__init__()
        self._special |= {
            torch.Tensor.cpu: lambda tensor, *_, **__: tensor,
            torch.Tensor.is_meta.__get__: lambda *_: False,  # type: ignore[attr-defined]
            torch.Tensor.data_ptr: lambda tensor: Address(tape.address(tensor)),
            torch.Tensor.untyped_storage: lambda tensor: _storage_of(tensor),
            **{getattr(torch.Tensor, name): _read(tape, name) for name in _READS},
        }

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        if (instead := self._special.get(func)) is not None:
            return instead(*args, **given)
        if func in _FROM_DATA:
            given.pop("device", None)
        elif "device" in given:
            given["device"] = META
        given.pop("pin_memory", None)
        given.pop("non_blocking", None)
        return func(*(_placed(argument) for argument in args), **given)


def _storage_of(tensor: torch.Tensor) -> torch.UntypedStorage:
    with torch._C.DisableTorchFunction():
        return tensor.untyped_storage()


def _read(tape: Tape, name: str) -> Callable[..., Any]:
    def read(*_: Any, **__: Any) -> Any:
        raise tape.read(f"Tensor.{name}()")

    return read


def _placed(value: Any) -> Any:
    """The device without memory where a value names a device, and the value itself otherwise."""
    if isinstance(value, torch.device):
        return META
    if isinstance(value, str) and value.partition(":")[0] in ("cuda", "cpu"):
        return META
    return value
