"""Tensors without PyTorch: a dtype's name, a shape and bytes, as they travel between processes.

NumPy has no bfloat16, so the bytes are the truth and `array` widens where it must. A value that a problem's `forward`
takes is a tensor, a plain Python constant, or a tuple of values.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from assay.types import Json

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
MAX_STORAGE_BYTES = 1 << 38
"""Of the memory that tensors with a layout of their own lie in."""
_MOST_STORAGES = 1024


@dataclass(frozen=True, slots=True)
class Layout:
    """Where the elements of a tensor lie that is not dense in memory of its own. Counts are of elements."""

    storage: int
    """Tensors among the arguments of a call that have one number lie in the same memory, and have one dtype."""
    extent: int
    """Elements of that memory."""
    stride: tuple[int, ...]
    """0 along a dimension whose elements are one and the same."""
    offset: int

    def to_json(self) -> Json:
        """As `layout_of` reads it."""
        return [self.storage, self.extent, list(self.stride), self.offset]


def layout_of(found: Json) -> Layout | None:
    """The layout that an entry of a header names; None where it names none.

    Raises:
        TypeError, ValueError: it has another form. Its numbers are for `check_layout`.
    """
    if found is None:
        return None
    storage, extent, stride, offset = found
    return Layout(storage, extent, tuple(stride), offset)


def check_layout(layout: Layout, dtype: str, shape: Sequence[int]) -> None:
    """See to it that a tensor of some dtype and shape fits into its memory, each of its elements at a place of its own.

    Raises:
        ValueError: it does not.
    """
    numbers = (layout.storage, layout.extent, layout.offset, *layout.stride)
    if len(layout.stride) != len(shape) or any(type(number) is not int or number < 0 for number in numbers):
        raise ValueError("a layout has numbers that are none")
    if layout.storage >= _MOST_STORAGES or layout.extent * _NUMPY[dtype].itemsize > MAX_STORAGE_BYTES:
        raise ValueError(f"tensors lie in more than {MAX_STORAGE_BYTES >> 30} GiB")
    reach = 0
    for stride, size in sorted(zip(layout.stride, shape, strict=True)):
        if stride and size > 1:
            if stride <= reach:
                raise ValueError("elements of a tensor overlap, as those of `unfold` do: give it memory of its own")
            reach += stride * (size - 1)
    if math.prod(shape) and layout.offset + reach >= layout.extent:
        raise ValueError("a tensor reaches beyond its memory")


@dataclass(frozen=True, slots=True)
class HostTensor:
    """A tensor. `dtype` is PyTorch's name without `torch.`; `data` are its elements, densely in row-major order."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes
    layout: Layout | None = None
    """How an argument lies in memory; None where it is dense in memory of its own."""

    def __post_init__(self) -> None:
        if self.dtype not in _NUMPY:
            raise ValueError(f"dtype {self.dtype!r} is not one of {sorted(_NUMPY)}")
        if len(self.data) != size_in_bytes(self.dtype, self.shape):
            raise ValueError(f"{len(self.data)} bytes are not a {self.dtype} tensor of shape {self.shape}")
        if self.layout is not None:
            check_layout(self.layout, self.dtype, self.shape)

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


class Listed(tuple[Value, ...]):
    """A list among such values; a plain tuple stands for a tuple."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Lying:
    """Where the elements of a tensor lie. Strides and offset count elements."""

    storage: int
    """Tensors with one number lie in the same memory."""
    itemsize: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    """None is negative."""
    offset: int

    @property
    def begin(self) -> int:
        """Its first byte."""
        return self.offset * self.itemsize

    @property
    def end(self) -> int:
        """The byte after its last one."""
        last = sum((size - 1) * stride for size, stride in zip(self.size, self.stride, strict=True))
        return (self.offset + last + 1) * self.itemsize

    def steps(self) -> list[tuple[int, int]]:
        """Bytes and counts of the steps that lead from its first byte to each other."""
        pairs = zip(self.stride, self.size, strict=True)
        return [(stride * self.itemsize, size - 1) for stride, size in pairs] + [(1, self.itemsize - 1)]


_MOST_LOOKED_AT = 1 << 16
"""Pairs of tensors, and ways from one to the other, that are looked at before they are taken to meet."""


def meetings(tensors: Sequence[Lying]) -> frozenset[tuple[int, int]]:
    """The pairs of tensors that show a byte in common, the smaller number first; a tensor and itself where it shows a
    byte twice. Where tensors are so interleaved that this takes too long to tell, they are taken to meet."""
    left = [_MOST_LOOKED_AT]
    there = [(place, tensor) for place, tensor in enumerate(tensors) if math.prod(tensor.size)]
    found = {(place, place) for place, tensor in there if _repeats(tensor, left)}
    there.sort(key=lambda pair: (pair[1].storage, pair[1].begin))
    for number, (place, tensor) in enumerate(there):
        for other, behind in there[number + 1 :]:
            if behind.storage != tensor.storage or behind.begin >= tensor.end:
                break
            steps = [(size, 0, count) for size, count in tensor.steps()]
            steps += [(size, -count, 0) for size, count in behind.steps()]
            left[0] -= 1
            if left[0] < 0 or _leads(behind.begin - tensor.begin, _joined(steps), left):
                found.add((min(place, other), max(place, other)))
    return frozenset(found)


def _repeats(tensor: Lying, left: list[int]) -> bool:
    """Whether a tensor shows an element at two places: whether there is a way, other than none, back to where it began.
    The longest step in it may be taken to go forward."""
    steps = sorted(((size, count) for size, count in tensor.steps() if count), reverse=True)
    return any(
        _leads(
            -size, _joined([(size, 0, count - 1), *((each, -most, most) for each, most in steps[place + 1 :])]), left
        )
        for place, (size, count) in enumerate(steps)
    )


Steps = list[tuple[int, int, int, int, int]]
"""Bytes of a step, the least and the most of them, and the least and the most bytes of all steps behind it."""


def _joined(steps: Sequence[tuple[int, int, int]]) -> Steps:
    """Steps by their length, the longest first, with how far those behind each lead."""
    counts: dict[int, tuple[int, int]] = {}
    for size, least, most in steps:
        before = counts.get(size, (0, 0))
        counts[size] = before[0] + least, before[1] + most
    found: Steps = []
    back = forth = 0
    for size in sorted(size for size in counts if size):
        least, most = counts[size]
        found.append((size, least, most, back, forth))
        back, forth = back + least * size, forth + most * size
    return found[::-1]


def _leads(distance: int, steps: Steps, left: list[int], at: int = 0) -> bool:
    """Whether some count of each step leads so many bytes away. `left`: the ways that may yet be looked at."""
    if at == len(steps):
        return distance == 0
    size, least, most, back, forth = steps[at]
    least, most = max(least, -((forth - distance) // size)), min(most, (distance - back) // size)
    if least <= most and size == 1:
        return True
    for count in range(least, most + 1):
        left[0] -= 1
        if left[0] < 0 or _leads(distance - count * size, steps, left, at + 1):
            return True
    return False


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


def settled(values: Sequence[Value]) -> tuple[Value, ...]:
    """The arguments of a call, alike where they share memory: an element has there what was written last.

    Raises:
        ValueError: two lie in one memory and have other dtypes, or say that it has another size.
    """
    memory: dict[int, tuple[str, Array]] = {}
    for tensor in host_tensors(values):
        if tensor.layout is not None:
            raw = np.frombuffer(tensor.data, dtype=_NUMPY[tensor.dtype])
            _shown(tensor, tensor.layout, memory)[...] = raw.reshape(tensor.shape)
    return tuple(_settled(value, memory) for value in values) if memory else tuple(values)


def same_value(one: Value, other: Value) -> bool:
    """Whether two values are equal. A number that is NaN equals NaN: it is the same argument."""
    if isinstance(one, tuple) and isinstance(other, tuple):
        return len(one) == len(other) and all(map(same_value, one, other))
    if isinstance(one, float) and isinstance(other, float) and math.isnan(one):
        return math.isnan(other)
    return one == other


def host_tensors(values: Sequence[Value]) -> Iterator[HostTensor]:
    """The tensors among some values, nested ones included."""
    for value in values:
        if isinstance(value, HostTensor):
            yield value
        elif isinstance(value, tuple):
            yield from host_tensors(value)


def _settled(value: Value, memory: dict[int, tuple[str, Array]]) -> Value:
    if isinstance(value, tuple):
        return type(value)(_settled(part, memory) for part in value)
    if not isinstance(value, HostTensor) or value.layout is None:
        return value
    return HostTensor(value.dtype, value.shape, _shown(value, value.layout, memory).tobytes(), value.layout)


def _shown(tensor: HostTensor, layout: Layout, memory: dict[int, tuple[str, Array]]) -> Array:
    """The elements of a tensor where they lie."""
    dtype = _NUMPY[tensor.dtype]
    if layout.storage not in memory:
        memory[layout.storage] = tensor.dtype, np.zeros(layout.extent, dtype)
    name, whole = memory[layout.storage]
    if name != tensor.dtype or len(whole) != layout.extent:
        raise ValueError("tensors of several dtypes lie in one memory: give each its own")
    strides = tuple(stride * dtype.itemsize for stride in layout.stride)
    return np.lib.stride_tricks.as_strided(whole[layout.offset :], tensor.shape, strides)
