"""Bytes of a job's buffers as tensors, and a candidate's output as bytes, with every property checked on the way.

An entry stands for a value in a job's header: `{"dtype", "shape", "blob"}` for a tensor whose bytes are that buffer of
the round (`assay.kernels.frames`).
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from types import GetSetDescriptorType
from typing import Any

import torch

from assay.kernels.arrays import DIGEST_CHARACTERS, Layout, Lying, layout_of, meetings
from assay.kernels.frames import value_of
from assay.types import Json

_contiguous = torch.Tensor.contiguous
_detach = torch.Tensor.detach
_to = torch.Tensor.to
_view = torch.Tensor.view
_numpy = torch.Tensor.numpy
bases_of = type.__dict__["__mro__"].__get__
"""The classes that a class is made of, whatever its metaclass says."""


class WrongOutputError(Exception):
    """The output is not of the form that the reference's has. The text says how, for the author of the kernel."""


def is_plain(value: Any) -> bool:
    """Whether a value is a tensor that is compared. One of a class that is derived may override everything, and a class
    what it is equal to."""
    kind = type(value)
    return kind is torch.Tensor or kind is torch.nn.Parameter


def in_precision(model: torch.nn.Module, dtype: torch.dtype, device: str) -> torch.nn.Module:
    """A model moved to a device, its fractions in a dtype and its complex numbers in the least one that holds both.
    PyTorch's `to` would drop their imaginary parts."""
    complex_dtype = torch.promote_types(dtype, torch.complex64)

    def moved(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.is_complex():
            return tensor.to(device, complex_dtype)
        return tensor.to(device, dtype) if tensor.is_floating_point() else tensor.to(device)

    made: torch.nn.Module = model._apply(moved)  # type: ignore[no-untyped-call]
    return made


def hidden(tensor: torch.Tensor) -> str:
    """The first attribute of PyTorch's that one of the tensor's own hides; empty where none is. A `dict` of a derived
    class may show others than Python finds in it."""
    own = kept_by(tensor)
    if type(own) is not dict:
        return "__dict__"
    return next((str(name) for name in own if hasattr(type(tensor), name)), "")


def kept_by(thing: Any) -> Any:
    """The dict in which Python finds the attributes of an object, whatever its class says that it is."""
    own = (vars(kind).get("__dict__") for kind in bases_of(type(thing)))
    return next((each.__get__(thing) for each in own if type(each) is GetSetDescriptorType), {})


_KEYS = (str, int, bool)
_CONSTANTS = (bool, int, float, str, type(None))
_MOST = 256
"""Characters of a structure that a message has room for."""
_OF_ANY_CLASS = frozenset({"__module__", "__doc__", "__dict__", "__weakref__", "__qualname__", "__annotations__"})


def hidden_by_class(kind: type) -> str:
    """The first attribute of PyTorch's that a class derived from a tensor's hides; empty where none is."""
    own = kind.__mro__[: kind.__mro__.index(torch.Tensor)] if torch.Tensor in kind.__mro__ else ()
    names = (name for each in own if each is not torch.nn.Parameter for name in vars(each))
    return next((str(name) for name in names if name not in _OF_ANY_CLASS and hasattr(torch.Tensor, name)), "")


def structure_of(value: Any) -> Json:
    """What an output is beside the elements of its tensors: None for a tensor, a list for a list or a tuple,
    `{"dict": [[key, part], ...]}` for a dictionary in its order, `{"is": value}` for a constant.

    Raises:
        TypeError: it holds anything else.
    """
    if isinstance(value, torch.Tensor):
        return None
    if isinstance(value, list | tuple):
        return [structure_of(part) for part in value]
    if isinstance(value, dict) and all(_is_one_of(type(name), _KEYS) for name in value):
        return {"dict": [[name, structure_of(part)] for name, part in value.items()]}
    if _is_one_of(type(value), _CONSTANTS):
        return {"is": value}
    raise TypeError(
        f"an output of type {type(value).__name__:.80} cannot be compared; only tensors, constants, and lists, tuples "
        "and dictionaries (by texts and whole numbers) of them"
    )


def _is_one_of(kind: type, kinds: tuple[type, ...]) -> bool:
    """Whether a class is one of some, without asking it: it may say that it equals them all."""
    return any(kind is each for each in kinds)


def structure_text(structure: Json) -> str:
    """The same in words that a message has room for."""
    if isinstance(structure, list):
        return f"({', '.join(map(structure_text, structure))})"
    if structure is None:
        return "tensor"
    if "is" in structure:
        return repr(structure["is"])
    return f"{{{', '.join(f'{name!r}: {structure_text(part)}' for name, part in structure['dict'])}}}"


def check_structure(value: Any, wanted: Json) -> None:
    """Raises WrongOutputError for an output that is something else than the reference's beside its elements. They are
    compared as text: to Python 1, 1.0 and True are equal, and so are dictionaries in whatever order."""
    found = structure_of(value)
    if json.dumps(found) != json.dumps(wanted):
        raise WrongOutputError(
            f"forward returned {structure_text(found)[:_MOST]}, the reference returns {structure_text(wanted)[:_MOST]}"
        )


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

    def tensor(entry: Json) -> torch.Tensor:
        dtype: torch.dtype = getattr(torch, entry["dtype"])
        if not math.prod(entry["shape"]):
            return torch.empty(entry["shape"], dtype=dtype, device=device)
        dense = torch.frombuffer(blobs[entry["blob"]], dtype=dtype).reshape(entry["shape"]).to(device)
        return as_laid_out(dense, entry, memory)

    return [value_of(entry, tensor) for entry in entries]


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
        value: What the candidate returned: a tensor, a constant, or a list, tuple or dictionary of such.
        outputs: `[dtype, shape]` of each tensor that the reference returns.
        device: Where they have to be.

    Raises:
        WrongOutputError: another number of tensors, or one of another type, dtype, shape, layout or device.
    """
    found = flat_tensors(value)
    if len(found) != len(outputs):
        raise WrongOutputError(f"forward returned {len(found)} tensors, the reference returns {len(outputs)}")
    return [_bytes(tensor, dtype, shape, device) for tensor, (dtype, shape) in zip(found, outputs, strict=True)]


def flat_tensors(value: Any) -> list[torch.Tensor]:
    """The tensors of what a candidate returned, in the order in which they are compared.

    Raises:
        WrongOutputError: it cannot be compared.
    """
    kind = type(value)  # of a class of its own, whoever uses it would run its code
    if is_plain(value):
        return [value]
    if kind is list or kind is tuple:
        return [tensor for part in value for tensor in flat_tensors(part)]
    if kind is dict and all(_is_one_of(type(name), _KEYS) for name in value):
        return [tensor for part in value.values() for tensor in flat_tensors(part)]
    if _is_one_of(kind, _CONSTANTS):
        return []
    raise WrongOutputError(
        f"forward returned a {kind.__name__:.80}; torch.Tensor and torch.nn.Parameter are compared, constants, and "
        "tuples, lists and dictionaries (by texts and whole numbers) of them: return one of these classes, none that "
        "is derived from it"
    )


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
