"""What a caller gives to forward and gets of it: arguments without memory, what is returned that it could not use as it
uses the reference's, and what is left of lists and of PyTorch's defaults."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from assay.kernels.arrays import layout_of
from assay.kernels.frames import value_of
from assay.kernels.inside.pretend_cuda import DEVICE
from assay.kernels.inside.record.devices import META
from assay.kernels.inside.record.places import HOST, Places
from assay.kernels.inside.record.reads import NotRecordableError
from assay.kernels.inside.tensors import WrongOutputError, check_structure, hidden
from assay.types import Json


def check_returned(value: Any, returned: Sequence[torch.Tensor], header: Json, places: Places, held: Any) -> None:
    """Raises WrongOutputError for what lies otherwise than in the reference's output, or is no plain tensor of the GPU.

    Args:
        value, returned: What forward returned, and its tensors.
        header: Of the job.
        places: Where tensors are.
        held: The tensors that its caller holds, which may be returned as they are.
    """
    if "structure" in header:
        check_structure(value, header["structure"])
    if name := next(filter(None, map(hidden, returned)), ""):
        raise WrongOutputError(f"forward returned a tensor with a {name:.80} of its own in the place of PyTorch's")
    if away := [place for place, tensor in enumerate(returned) if places.is_away(tensor)]:
        where = "the host" if places.device_of(returned[away[0]]) == HOST else "the device 'meta'"
        raise WrongOutputError(
            f"output {away[0]} is on {where}, where the inputs are on {DEVICE}: it was copied there, or made "
            "without a device. Make it with device=x.device"
        )
    new = [tensor for tensor in returned if not any(tensor is each for each in held)]
    if any(tensor.requires_grad or tensor.grad is not None for tensor in new):
        raise WrongOutputError(
            "forward, called under torch.no_grad(), returned a tensor that requires a gradient, or has one, which "
            "its caller can neither make an array of nor change in place: leave requires_grad_() and enable_grad() "
            "out, or detach it"
        )


def check_dtype() -> None:
    """Raises NotRecordableError where host code changes what PyTorch makes without a dtype, for its caller too."""
    if torch.get_default_dtype() is not torch.float32:
        raise NotRecordableError(
            f"host code sets the default dtype to {torch.get_default_dtype()}, for the reference and its caller too: "
            "give dtype= where a tensor is made"
        )


class Lists:
    """The lists among arguments, which whoever gave them still holds."""

    def __init__(self, arguments: Sequence[Any]) -> None:
        self._arguments = arguments
        self._parts = _parts_of(arguments)

    def forget(self) -> None:
        """Hold them no longer."""
        self._arguments, self._parts = (), []

    def check(self, doing: str) -> None:
        """Raises WrongOutputError where one has other parts than at the start."""
        now = _parts_of(self._arguments)
        if len(now) != len(self._parts) or any(one is not other for one, other in zip(now, self._parts, strict=True)):
            raise WrongOutputError(
                f"{doing} changes a list among its arguments, which its caller still holds: change a copy, list(x)"
            )


def _parts_of(value: Any) -> list[Any]:
    """A value, and those in it."""
    if type(value) not in (list, tuple):
        return [value]
    return [value, *(each for part in value for each in _parts_of(part))]


def arguments_of(entries: Sequence[Json]) -> list[Any]:
    """What the entries of a job stand for, with tensors that have no memory."""
    memory: dict[int, torch.Tensor] = {}
    return [value_of(entry, lambda tensor: _without_values(tensor, memory)) for entry in entries]


def _without_values(entry: Json, memory: dict[int, torch.Tensor]) -> torch.Tensor:
    shape, dtype = entry["shape"], getattr(torch, entry["dtype"])
    if (layout := layout_of(entry.get("layout"))) is None:
        return torch.empty(shape, dtype=dtype, device=META)
    if layout.storage not in memory:
        memory[layout.storage] = torch.empty(layout.extent, dtype=dtype, device=META)
    return memory[layout.storage].as_strided(shape, layout.stride, layout.offset)
