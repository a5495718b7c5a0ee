"""Which tensors would be on the host, where a GPU runs the submission: those that nobody put anywhere else.

Inputs are on the GPU, and so is a model's state once it is built, as by `model.to("cuda")`. All tensors of a recording
are without memory or hold literal values, so that this is only noted.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from assay.kernels.inside.pretend_cuda import DEVICE

HOST = torch.device("cpu")
_ACROSS = frozenset({"copy", "_to_copy", "index", "index_put", "_index_put_impl", "_unsafe_index_put", "set"})
"""Operators that take tensors of two devices."""


class Places:
    """The storages that are on the host."""

    def __init__(self) -> None:
        self._host: dict[int, torch.UntypedStorage] = {}
        self._literals: dict[int, torch.UntypedStorage] = {}
        """Those of literal values that are on the GPU."""
        self.strict = False
        """Whether devices must not be mixed: in calls of forward. A constructor may run on either."""

    def is_host(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is on the host."""
        with torch._C.DisableTorchFunction():
            if tensor.layout is not torch.strided:
                return False
            place = tensor.untyped_storage()._cdata
            return place in self._host if tensor.device.type == "meta" else place not in self._literals

    def device_of(self, tensor: torch.Tensor) -> torch.device:
        """What host code is told."""
        return HOST if self.is_host(tensor) else DEVICE

    def put(self, tensor: torch.Tensor, host: bool) -> None:
        """Note where the storage of a tensor is. It is held, so that its place is not another's."""
        with torch._C.DisableTorchFunction():
            if tensor.layout is not torch.strided:
                return  # what has no storage is in no program
            storage, literal = tensor.untyped_storage(), tensor.device.type != "meta"
        known = self._literals if literal else self._host
        if literal == host:
            known.pop(storage._cdata, None)
        else:
            known[storage._cdata] = storage

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
            host = asked.type == "cpu"
        elif makes:
            host = self.is_host(given[0]) if given else True
        else:
            host = self._joined(base, given)
        before = {tensor.untyped_storage()._cdata for tensor in given if tensor.layout is torch.strided}
        for out in outs:
            if out.layout is torch.strided and out.untyped_storage()._cdata not in before:
                self.put(out, host)

    def _joined(self, base: str, given: Sequence[torch.Tensor]) -> bool:
        there = {self.is_host(tensor) for tensor in given if tensor.dim()}
        if len(there) > 1 and self.strict and base.rstrip("_") not in _ACROSS:
            raise RuntimeError(
                f"{base}: Expected all tensors to be on the same device, but found at least two devices, cuda:0 and "
                "cpu. A tensor is made on the host unless it is given a device (device=x.device)"
            )
        return False not in (there or {self.is_host(tensor) for tensor in given}) and bool(given)


def gpu_or_host(device: Any) -> torch.device | None:
    """A device that host code names, as `cuda:0` or the host; None for none.

    Raises:
        RuntimeError: there is no such GPU.
    """
    if device is None:
        return None
    found = torch.device("cuda", device) if type(device) is int else torch.device(device)
    if found.type == "cuda" and (found.index or 0) > 0:
        raise RuntimeError(f"CUDA error: invalid device ordinal: {found} is named, and there is one GPU, {DEVICE}")
    return HOST if found.type == "cpu" else DEVICE
