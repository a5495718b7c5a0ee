"""Inputs and outputs of a problem as plain data, and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from assay.kernels.arrays import HostTensor, Value


def to_value(value: Any) -> Value:
    """A value of a problem as plain data.

    Raises:
        TypeError: it is none that can travel.
    """
    if isinstance(value, torch.Tensor):
        tensor = value.detach().to("cpu").resolve_conj().resolve_neg().contiguous()
        raw = tensor.view(torch.uint16) if tensor.dtype == torch.bfloat16 else tensor
        return HostTensor(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), raw.numpy().tobytes())
    if isinstance(value, list | tuple):
        return tuple(to_value(part) for part in value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"an input or output of type {type(value).__name__} cannot be compared; only tensors and constants")


def from_value(value: Value, dtype: torch.dtype | None, device: str) -> Any:
    """The value that PyTorch takes, floating tensors in `dtype`, complex ones no narrower than they are."""
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
        return tensor.to(device)
    return [from_value(part, dtype, device) for part in value] if isinstance(value, tuple) else value


def flat_outputs(output: Any) -> list[HostTensor]:
    """The tensors of an output, as plain data."""
    return [value for tensor in tensors_of_output(output) if isinstance(value := to_value(tensor), HostTensor)]


def tensors_of_output(output: Any) -> list[torch.Tensor]:
    """The tensors of an output, however nested, in the order in which they are compared; numbers become tensors without
    dimensions."""
    if isinstance(output, torch.Tensor):
        return [output]
    if isinstance(output, list | tuple):
        return [tensor for part in output for tensor in tensors_of_output(part)]
    if isinstance(output, dict):
        return [tensor for name in sorted(output) for tensor in tensors_of_output(output[name])]
    if isinstance(output, bool | int | float):
        return [torch.tensor(output)]
    return []


def tensors_in(value: Any) -> list[torch.Tensor]:
    """The tensors among arguments, in their order."""
    if isinstance(value, torch.Tensor):
        return [value]
    return [tensor for part in value for tensor in tensors_in(part)] if isinstance(value, list) else []
