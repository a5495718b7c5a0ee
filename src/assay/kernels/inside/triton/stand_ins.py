"""Arguments of a recorded launch as Triton's launcher takes them, with no tensor behind them.

Triton compiles a kernel for the dtype of a tensor and for whether its address divides by 16. A stand-in has both: every
storage begins at an address that divides by 256, as PyTorch's allocations on a GPU do, and a window follows its offset.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from assay.kernels.program.form import DTYPES, Descriptor, Function, Name, Value, Window

STORAGE = 1 << 40
"""Bytes between the beginnings of two storages; far more than one may have."""


@dataclass(frozen=True, slots=True)
class DType:
    """A dtype of PyTorch, to whoever goes by its name."""

    name: str

    def __str__(self) -> str:
        return f"torch.{self.name}"

    __repr__ = __str__

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return DTYPES[self.name]

    @property
    def is_floating_point(self) -> bool:
        """Whether it has fractions and is real."""
        return "float" in self.name


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor, to whoever asks for its dtype, its address and its shape."""

    dtype: DType
    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def data_ptr(self) -> int:
        """The address of its first element."""
        return self.address

    def stride(self) -> tuple[int, ...]:
        """In elements."""
        return self.strides


def tensor(window: Window) -> Tensor:
    """The stand-in for a window."""
    address = (window.storage + 1) * STORAGE + window.offset * DTYPES[window.dtype]
    return Tensor(DType(window.dtype), address, window.size, window.stride)


def argument(value: Value, function: Callable[[int], Any]) -> Any:
    """An argument as Triton takes it.

    Args:
        value: As it was recorded.
        function: The kernel of a number.

    Raises:
        AssertionError, ValueError: a tensor descriptor that no GPU takes.
    """
    if isinstance(value, Window):
        return tensor(value)
    if isinstance(value, Descriptor):
        sizes = (list(part) for part in (value.shape, value.strides, value.block))
        return TensorDescriptor(tensor(value.base), *sizes, padding=value.padding)
    if isinstance(value, Function):
        return function(value.kernel)
    if isinstance(value, Name):
        return DType(value.text) if value.kind == "dtype" else getattr(tl, value.text)
    if isinstance(value, tuple):
        return tuple(argument(part, function) for part in value)
    return value
