"""Which tensors would be on the host, where a GPU runs the submission: those that nobody put anywhere else.

Inputs are on the GPU, and so is what `model.to("cuda")` puts there of a model once it is built. All tensors of a
recording are without memory or hold literal values, so that this is only noted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from assay.kernels.inside.pretend_cuda import DEVICE

HOST = torch.device("cpu")
NOWHERE = torch.device("meta")
"""Where host code asks for shapes alone: what is made there has no memory on any machine."""
_ACROSS = frozenset({"copy", "_to_copy", "index", "index_put", "_index_put_impl", "_unsafe_index_put", "set"})
"""Operators that take tensors of two devices."""
_LEFT = (
    "it is memory that the constructor made, of which model.to('cuda') moves parameters and buffers alone, each to "
    "memory of its own. Use the parameter or the buffer itself in forward, and make views of it there"
)
_MADE = (
    "it was made without a device, and is on the host where there is a GPU. Make it with device=x.device in forward, "
    "or register it as a buffer in the constructor"
)
_STAYED = (
    "it is a parameter or a buffer that stays on the host when the model is moved by model.to('cuda'). Leave to(), "
    "_apply() and the like as PyTorch has them"
)
_NO_MEMORY = "it is on the device 'meta', where tensors have no memory. Make it with device=x.device"
NO_DATA = "a tensor on the device 'meta' has no memory of which anything could be copied. Make it with device=x.device"
"""What is said where something is taken of a tensor that is nowhere."""
_KINDS = {"cuda": DEVICE, "cpu": HOST, "meta": NOWHERE}


class Places:
    """Where storages are."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[torch.UntypedStorage, torch.device]] = {}
        """Each that was put anywhere. Others are on the host if they hold literal values, on the GPU if they do not."""
        self._why: dict[int, tuple[torch.UntypedStorage, str]] = {}
        """What is to be said of one that is on the host."""
        self.strict = False
        """Whether devices must not be mixed: in calls of forward. A constructor may run on either."""

    def device_of(self, tensor: torch.Tensor) -> torch.device:
        """Where a tensor is: on the GPU, on the host, or nowhere."""
        with torch._C.DisableTorchFunction():
            if tensor.layout is not torch.strided:
                return DEVICE
            default = DEVICE if tensor.device.type == "meta" else HOST
            return self._known.get(tensor.untyped_storage()._cdata, (None, default))[1]

    def is_away(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is not on the GPU."""
        return self.device_of(tensor) != DEVICE

    def put(self, tensor: torch.Tensor, device: torch.device) -> None:
        """Note where the storage of a tensor is. It is held, so that its place is not another's."""
        with torch._C.DisableTorchFunction():
            if tensor.layout is torch.strided:  # what has no storage is in no program
                storage = tensor.untyped_storage()
                self._known[storage._cdata] = (storage, device)

    def leave(self, tensor: torch.Tensor) -> None:
        """Note that a storage stays behind where a tensor in it is copied to another device."""
        self._say(tensor, _LEFT)

    def stays(self, tensor: torch.Tensor) -> None:
        """Note that a parameter or a buffer is where it was, once its model was moved."""
        self._say(tensor, _STAYED)

    def _say(self, tensor: torch.Tensor, why: str) -> None:
        with torch._C.DisableTorchFunction():
            if tensor.layout is torch.strided:
                storage = tensor.untyped_storage()
                self._why[storage._cdata] = storage, why

    def why_away(self, tensor: torch.Tensor) -> str:
        """Why a tensor is not on the GPU, and what to do."""
        if self.device_of(tensor) == NOWHERE:
            return _NO_MEMORY
        with torch._C.DisableTorchFunction():
            return self._why.get(tensor.untyped_storage()._cdata, (None, _MADE))[1]

    def note(
        self, base: str, asked: torch.device | None, makes: bool, given: Sequence[Any], outs: Sequence[Any]
    ) -> None:
        """Note where an operator's results are.

        Args:
            base: The operator's name.
            asked: The device that it was asked for.
            makes: Whether it can be asked for one.
            given: The tensors that it was given.
            outs: Its results; those that were there before stay where they are.

        Raises:
            RuntimeError: it was given tensors of two devices, as PyTorch raises it.
        """
        if makes and asked is not None:
            device = HOST if asked.type == "cpu" else DEVICE
        elif makes:
            device = self.device_of(given[0]) if given else HOST
        else:
            device = self._joined(base, given)
        before = {tensor.untyped_storage()._cdata for tensor in given if tensor.layout is torch.strided}
        for out in outs:
            if out.layout is torch.strided and out.untyped_storage()._cdata not in before:
                self.put(out, device)

    def _joined(self, base: str, given: Sequence[torch.Tensor]) -> torch.device:
        there = {self.device_of(tensor) for tensor in given if tensor.dim()}
        if NOWHERE in there and len(there) > 1:
            raise NotImplementedError(f"{base}: {NO_DATA}")
        if len(there) > 1 and self.strict and base.rstrip("_") not in _ACROSS:
            raise RuntimeError(
                f"{base}: Expected all tensors to be on the same device, but found at least two devices, cuda:0 and "
                "cpu. A tensor is made on the host unless it is given a device (device=x.device)"
            )
        there = there or {self.device_of(tensor) for tensor in given}
        return next((device for device in (DEVICE, NOWHERE) if device in there), HOST)


def device_named(device: Any) -> torch.device | None:
    """A device that host code names, as `cuda:0`, the host or nowhere; None for none.

    Raises:
        RuntimeError: there is no such device.
    """
    if device is None:
        return None
    found = torch.device("cuda", device) if type(device) is int else torch.device(device)
    if found.type == "cuda" and (found.index or 0) > 0:
        raise RuntimeError(f"CUDA error: invalid device ordinal: {found} is named, and there is one GPU, {DEVICE}")
    if found.type not in _KINDS:
        raise RuntimeError(f"there is no device {found}: there is one GPU, {DEVICE}. Make tensors with device=x.device")
    return _KINDS[found.type]
