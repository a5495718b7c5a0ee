"""Bytes of a job's buffers as tensors, and a candidate's output as bytes, with every property checked on the way.

An entry stands for a value in a job's header: `{"dtype", "shape", "blob"}` for a tensor whose bytes are that buffer of
the round, with its `layout` where it has one, a list for a tuple, anything else for itself (the form of
`assay.kernels.frames`).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from typing import Any

import torch

from assay.kernels.arrays import DIGEST_CHARACTERS, Layout, Lying, layout_of, meetings
from assay.types import Json

_contiguous = torch.Tensor.contiguous
_detach = torch.Tensor.detach
_to = torch.Tensor.to
_view = torch.Tensor.view
_numpy = torch.Tensor.numpy


class WrongOutputError(Exception):
    """The output is not of the form that the reference's has. The text says how, for the author of the kernel."""


def is_plain(value: Any) -> bool:
    """Whether a value is a tensor that is compared. One of a class that is derived may override everything, and a class
    what it is equal to."""
    kind = type(value)
    return kind is torch.Tensor or kind is torch.nn.Parameter


def hidden(tensor: torch.Tensor) -> str:
    """The first attribute of PyTorch's that one of the tensor's own hides; empty where none is."""
    return next((str(name) for name in vars(tensor) if hasattr(type(tensor), name)), "")


_OF_ANY_CLASS = frozenset({"__module__", "__doc__", "__dict__", "__weakref__", "__qualname__", "__annotations__"})


def hidden_by_class(kind: type) -> str:
    """The first attribute of PyTorch's that a class derived from a tensor's hides; empty where none is."""
    own = kind.__mro__[: kind.__mro__.index(torch.Tensor)] if torch.Tensor in kind.__mro__ else ()
    names = (name for each in own if each is not torch.nn.Parameter for name in vars(each))
    return next((str(name) for name in names if name not in _OF_ANY_CLASS and hasattr(torch.Tensor, name)), "")


def structure_of(value: Any) -> Json:
    """How the tensors of an output lie in it: None for a tensor or a number, a list for a list or a tuple, a dictionary
    for itself, in its order. What is neither is left out."""
    if isinstance(value, list | tuple):
        return [structure_of(part) for part in value if _has_place(part)]
    if isinstance(value, dict):
        return {str(name): structure_of(part) for name, part in value.items() if _has_place(part)}
    return None


def _has_place(value: Any) -> bool:
    return isinstance(value, torch.Tensor | list | tuple | dict | bool | int | float)


def structure_text(structure: Json) -> str:
    """The same in words that a message has room for."""
    if isinstance(structure, list):
        return f"({', '.join(map(structure_text, structure))})"
    if isinstance(structure, dict):
        return f"{{{', '.join(f'{name}: {structure_text(part)}' for name, part in structure.items())}}}"
    return "tensor"


def meeting(tensors: Sequence[torch.Tensor]) -> frozenset[tuple[int, int]]:
    """The pairs of tensors that lie in the same memory, by their places (`arrays.meetings`)."""
    places = [(place, tensor) for place, tensor in enumerate(tensors) if tensor.layout is torch.strided]
    found = meetings(
        [
            Lying(
                tensor.untyped_storage()._cdata,
                tensor.element_size(),
                tuple(tensor.size()),
                tuple(tensor.stride()),
                int(tensor.storage_offset()),
            )
            for _, tensor in places
        ]
    )
    return frozenset((places[one][0], places[other][0]) for one, other in found)


def digest(tensor: torch.Tensor) -> str:
    """A text that is the same for the same elements in the same dtype, and for no others that turn up."""
    dense = tensor.detach().cpu().contiguous().flatten()
    content = dense.view(torch.uint8).numpy().tobytes() if dense.numel() else b""
    return hashlib.sha256(f"{tensor.dtype} {tuple(tensor.shape)} ".encode() + content).hexdigest()[:DIGEST_CHARACTERS]


def tensors_of(entries: Sequence[Json], blobs: Sequence[memoryview], device: str) -> list[Any]:
    """The values that some entries stand for, on `device`. Tensors lie as they say: each in memory of its own, unless
    they have a layout."""
    memory: dict[int, torch.Tensor] = {}
    return [_value(entry, blobs, device, memory) for entry in entries]


def _value(entry: Json, blobs: Sequence[memoryview], device: str, memory: dict[int, torch.Tensor]) -> Any:
    if isinstance(entry, dict):
        dtype: torch.dtype = getattr(torch, entry["dtype"])
        if not math.prod(entry["shape"]):
            return torch.empty(entry["shape"], dtype=dtype, device=device)
        dense = torch.frombuffer(blobs[entry["blob"]], dtype=dtype).reshape(entry["shape"]).to(device)
        return as_laid_out(dense, entry, memory)
    return [_value(part, blobs, device, memory) for part in entry] if isinstance(entry, list) else entry


def as_laid_out(dense: torch.Tensor, entry: Json, memory: dict[int, torch.Tensor]) -> torch.Tensor:
    """A tensor that lies as its entry says. `memory`: storages that the tensors of a call share, by number, to which
    those not made yet are added."""
    layout = layout_of(entry.get("layout"))
    return dense if layout is None else laid_out(dense, layout, memory)


def laid_out(dense: torch.Tensor, layout: Layout, memory: dict[int, torch.Tensor]) -> torch.Tensor:
    """A tensor with the elements of `dense` that lies as a layout says. `memory`: as in `as_laid_out`."""
    whole = memory.get(layout.storage)
    if whole is None:
        whole = memory[layout.storage] = dense.new_zeros(layout.extent)
    found = whole.as_strided(dense.shape, layout.stride, layout.offset)
    write(found, dense)
    return found


def write(place: torch.Tensor, values: torch.Tensor) -> None:
    """Copy into a tensor, which may show elements several times along a dimension of stride 0."""
    if 0 in place.stride():
        once = tuple(slice(None) if stride else slice(1) for stride in place.stride())
        place, values = place[once], values[once]
    place.copy_(values)


def output_bytes(value: Any, outputs: Sequence[Json], device: str) -> list[memoryview]:
    """The bytes of each output, row by row.

    Args:
        value: What the candidate returned: a tensor, a number, or a list, tuple or dictionary of such.
        outputs: `[dtype, shape]` of each tensor that the reference returns.
        device: Where they have to be.

    Raises:
        WrongOutputError: another number of tensors, or one of another type, dtype, shape, layout or device.
    """
    found = list(_flat(value))
    if len(found) != len(outputs):
        raise WrongOutputError(f"forward returned {len(found)} tensors, the reference returns {len(outputs)}")
    return [_bytes(tensor, dtype, shape, device) for tensor, (dtype, shape) in zip(found, outputs, strict=True)]


def _flat(value: Any) -> list[torch.Tensor]:
    kind = type(value)
    if is_plain(value):
        return [value]
    if kind is list or kind is tuple:
        return [tensor for part in value for tensor in _flat(part)]
    if kind is dict and all(type(name) is str for name in value):  # comparing other names would run their code
        return [tensor for name in sorted(value) for tensor in _flat(value[name])]
    if kind in (bool, int, float):
        return [torch.tensor(value)]
    raise WrongOutputError(f"forward returned a {kind.__name__}; only plain tensors, numbers and tuples are compared")


def _bytes(tensor: torch.Tensor, dtype: str, shape: Sequence[int], device: str) -> memoryview:
    given = str(tensor.dtype).removeprefix("torch.")
    if list(tensor.shape) != list(shape):
        raise WrongOutputError(f"the output has shape {tuple(tensor.shape)}, the reference has {tuple(shape)}")
    if given != dtype:
        raise WrongOutputError(f"the output has dtype {given}, the reference has {dtype}")
    if tensor.layout is not torch.strided or tensor.device.type != device:
        raise WrongOutputError(
            f"the output is a {tensor.layout} tensor on {tensor.device}; a dense one on {device} counts"
        )
    dense = torch.resolve_neg(torch.resolve_conj(_contiguous(_to(_detach(tensor), "cpu"))))
    raw = _view(dense, torch.uint16) if dense.dtype == torch.bfloat16 else dense
    return _numpy(raw).data.cast("B") if raw.numel() else memoryview(b"")
