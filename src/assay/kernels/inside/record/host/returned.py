"""What forward returned: what is compared of it, and what its caller could not use as it uses the reference's."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import torch

from assay.kernels.inside.pretend_cuda import DEVICE
from assay.kernels.inside.record.places import HOST, Places
from assay.kernels.inside.tensors import WrongOutputError, hidden, is_plain, structure_of, structure_text
from assay.types import Json

_MOST = 256
"""Characters of how tensors lie that a message has room for."""


def check_returned(value: Any, returned: Sequence[torch.Tensor], header: Json, places: Places, held: Any) -> None:
    """Raises WrongOutputError for what lies otherwise than in the reference's output, or is no plain tensor of the GPU.

    Args:
        value, returned: What forward returned, and its tensors.
        header: Of the job.
        places: Where tensors are.
        held: The tensors that its caller holds, which may be returned as they are.
    """
    if "structure" in header:
        _check_structure(structure_of(value), header["structure"])
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


def _check_structure(found: Json, wanted: Json) -> None:
    """As text: two dictionaries are equal to Python in whatever order they are."""
    if json.dumps(found) != json.dumps(wanted):
        raise WrongOutputError(
            f"forward returned {structure_text(found)[:_MOST]}, the reference returns {structure_text(wanted)[:_MOST]}"
        )


def tensors_in(value: Any, returned: bool = False) -> list[torch.Tensor]:
    """The tensors of an argument or of what forward returned, in the order in which they are compared.

    Raises:
        WrongOutputError: forward returned what cannot be compared.
    """
    kind = type(value)  # of a class of its own, whoever uses it would run its code
    if is_plain(value):
        return [value]
    if kind is list or kind is tuple:
        return [tensor for part in value for tensor in tensors_in(part, returned)]
    if kind is dict and all(type(name) is str for name in value):
        return [tensor for name in sorted(value) for tensor in tensors_in(value[name], returned)]
    if returned:
        raise WrongOutputError(
            f"forward returned a {kind.__name__:.80}; torch.Tensor and torch.nn.Parameter are compared, and tuples, "
            "lists and dictionaries (by strings) of them: return one of these classes, none that is derived from it"
        )
    return []
