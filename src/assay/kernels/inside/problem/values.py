"""Inputs and outputs of a problem as plain data, and back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from assay.kernels.arrays import HostTensor, Layout, Listed, Value, check_layout
from assay.kernels.inside.tensors import laid_out


def to_value(value: Any) -> Value:
    """A value of a problem as plain data.

    Raises:
        TypeError: it is none that can travel.
    """
    if isinstance(value, torch.Tensor):
        tensor = value.detach().to("cpu").resolve_conj().resolve_neg().contiguous()
        raw = tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor
        return HostTensor(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), raw.numpy().tobytes())
    if type(value) is list:
        return Listed(to_value(part) for part in value)
    if type(value) in (tuple, torch.Size):
        return tuple(to_value(part) for part in value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(
        f"an input or output of type {type(value).__name__} cannot be compared; only tensors, constants, lists, tuples"
    )


def to_arguments(values: Sequence[Any], lying: Sequence[Layout | None]) -> tuple[Value, ...]:
    """The arguments of a call as plain data. `lying`: how their tensors are to lie in memory (`layouts_of`).

    Raises:
        TypeError, ValueError: one of them cannot travel.
    """
    layouts = iter(lying)
    return tuple(_with_layout(to_value(value), layouts) for value in values)


def _with_layout(value: Value, layouts: Iterator[Layout | None]) -> Value:
    if isinstance(value, tuple):
        return type(value)(_with_layout(part, layouts) for part in value)
    if not isinstance(value, HostTensor) or (layout := next(layouts)) is None:
        return value
    return replace(value, layout=layout)


def layouts_of(tensors: Sequence[torch.Tensor], dtypes: Sequence[torch.dtype]) -> list[Layout | None]:
    """How each of the tensors of a call lies in memory; None where it is dense in memory of its own.

    Args:
        tensors: As the problem makes them.
        dtypes: Those in which a submission is given them.

    Raises:
        ValueError: they lie so that no submission could be given the same.
    """
    places = [_storage_of(tensor) for tensor in tensors]
    numbers = {place: number for number, place in enumerate(dict.fromkeys(places))}
    made = {place: tensor.dtype for place, tensor in zip(places, tensors, strict=True)}
    found: list[Layout | None] = []
    for place, tensor, dtype in zip(places, tensors, dtypes, strict=True):
        shared = place is not None and places.count(place) > 1
        if place is None or (not shared and not tensor.storage_offset() and tensor.is_contiguous()):
            found.append(None)
            continue
        if made[place] != tensor.dtype:
            raise ValueError("get_inputs returns tensors of two dtypes in one memory: give each its own")
        extent = tensor.untyped_storage().nbytes() // tensor.element_size()
        layout = Layout(numbers[place], extent, tuple(tensor.stride()), int(tensor.storage_offset()))
        check_layout(layout, str(dtype).removeprefix("torch."), tensor.shape)
        found.append(layout)
    return found


def _storage_of(tensor: torch.Tensor) -> int | None:
    """What tells the memory of one tensor from that of another; None where it has none."""
    return tensor.untyped_storage()._cdata if tensor.layout is torch.strided and tensor.numel() else None


def from_arguments(values: Sequence[Value], dtype: torch.dtype | None, device: str) -> list[Any]:
    """The arguments that PyTorch takes, floating tensors in `dtype`, complex ones no narrower than they are."""
    memory: dict[int, torch.Tensor] = {}
    return [_argument(value, dtype, device, memory) for value in values]


def _argument(value: Value, dtype: torch.dtype | None, device: str, memory: dict[int, torch.Tensor]) -> Any:
    if isinstance(value, HostTensor):
        name = "uint16" if value.dtype == "bfloat16" else value.dtype
        array = np.frombuffer(bytearray(value.data), dtype=name)
        tensor = torch.from_numpy(array)
        if value.dtype == "bfloat16":
            tensor = tensor.view(torch.bfloat16)
        tensor = tensor.reshape(value.shape)
        if dtype is not None and tensor.is_floating_point():
            tensor = tensor.to(dtype)
        elif dtype == torch.float64 and tensor.is_complex():
            tensor = tensor.to(torch.complex128)
        tensor = tensor.to(device)
        return tensor if value.layout is None else laid_out(tensor, value.layout, memory)
    if isinstance(value, tuple):
        return (list if isinstance(value, Listed) else tuple)(_argument(part, dtype, device, memory) for part in value)
    return value


def flat_outputs(output: Any) -> list[HostTensor]:
    """The tensors of an output, as plain data."""
    return [value for tensor in tensors_of_output(output) if isinstance(value := to_value(tensor), HostTensor)]


def tensors_of_output(output: Any) -> list[torch.Tensor]:
    """The tensors of an output, however nested, in the order in which they are compared."""
    if isinstance(output, torch.Tensor):
        return [output]
    if isinstance(output, list | tuple):
        return [tensor for part in output for tensor in tensors_of_output(part)]
    if isinstance(output, dict):
        return [tensor for part in output.values() for tensor in tensors_of_output(part)]
    return []


def tensors_in(value: Any) -> list[torch.Tensor]:
    """The tensors among arguments, in their order."""
    if isinstance(value, torch.Tensor):
        return [value]
    return [tensor for part in value for tensor in tensors_in(part)] if isinstance(value, list | tuple) else []
