"""Tensors without PyTorch: a dtype's name, a shape and bytes, as they travel between processes.

NumPy has no bfloat16, so the bytes are the truth and `array` widens where it must. A value that a problem's `forward`
takes is a tensor, a plain Python constant, or a tuple of values.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.generic]
Exact = npt.NDArray[np.float64]

_NUMPY: dict[str, np.dtype[np.generic]] = {
    name: np.dtype(name)
    for name in (
        *("float16", "float32", "float64", "complex64", "complex128", "uint8", "int8", "int16", "int32", "int64"),
        *("bool", "uint16", "uint32", "uint64"),
    )
}
_NUMPY["bfloat16"] = np.dtype("uint16")
FLOATS = ("float16", "bfloat16", "float32", "float64")
"""Names of the floating dtypes, as PyTorch spells them."""

DIGEST_CHARACTERS = 16
"""Of what tells whether two tensors hold the same."""


@dataclass(frozen=True, slots=True)
class HostTensor:
    """A dense tensor in row-major order. `dtype` is PyTorch's name without `torch.`; `data` are its bytes."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes

    def __post_init__(self) -> None:
        if self.dtype not in _NUMPY:
            raise ValueError(f"dtype {self.dtype!r} is not one of {sorted(_NUMPY)}")
        if len(self.data) != size_in_bytes(self.dtype, self.shape):
            raise ValueError(f"{len(self.data)} bytes are not a {self.dtype} tensor of shape {self.shape}")

    @property
    def is_float(self) -> bool:
        """Whether its elements are floating-point numbers."""
        return self.dtype in FLOATS

    def array(self) -> Array:
        """Its elements; bfloat16 as float32, everything else in its own type. Read-only where nothing was widened."""
        raw = np.frombuffer(self.data, dtype=_NUMPY[self.dtype]).reshape(self.shape)
        if self.dtype == "bool":
            return np.not_equal(raw.view(np.uint8), 0)  # a stranger's bytes may be other than 0 and 1
        return _widened(raw) if self.dtype == "bfloat16" else raw


Value = HostTensor | int | float | bool | str | None | tuple["Value", ...]
"""What a problem hands to `forward` or to its constructor."""


def size_in_bytes(dtype: str, shape: tuple[int, ...]) -> int:
    """Bytes of a dense tensor."""
    return math.prod(shape) * _NUMPY[dtype].itemsize


def host_tensor(array: npt.ArrayLike, dtype: str) -> HostTensor:
    """A tensor of the named dtype with the elements of an array, rounded to nearest where it is narrower."""
    values = np.asarray(array)
    if dtype == "bfloat16":
        return HostTensor(dtype, values.shape, _narrowed(values.astype(np.float32)).tobytes())
    with np.errstate(over="ignore", invalid="ignore"):
        return HostTensor(dtype, values.shape, np.ascontiguousarray(values.astype(_NUMPY[dtype])).tobytes())


def _widened(raw: Array) -> npt.NDArray[np.float32]:
    return (raw.astype(np.uint32) << np.uint32(16)).view(np.float32)


def _narrowed(values: npt.NDArray[np.float32]) -> npt.NDArray[np.uint16]:
    """Bits of bfloat16, rounded to nearest, ties to even; NaN stays NaN."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return np.where(np.isnan(values), np.uint32(0x7FC0), rounded).astype(np.uint16)
