"""Which tensors would be on the host, where a GPU runs the submission: those that nobody put anywhere else.

Inputs are on the GPU, and so is what `model.to("cuda")` puts there of a model once it is built. All tensors of a
recording are without memory or hold literal values, so that this is only noted.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import torch

from assay.kernels.inside.pretend_cuda import DEVICE

HOST = torch.device("cpu")
NOWHERE = torch.device("meta")
"""Where host code asks for shapes alone: what is made there has no memory on any machine."""
_ACROSS = frozenset({"copy", "_to_copy"})
"""Operators that take tensors of two devices."""
_INDEXED = frozenset({"index", "index_put", "_index_put_impl", "_unsafe_index", "_unsafe_index_put"})
"""Those that work where their first tensor is, and take indices of the host too."""
_MIXED = (
    "{0}: Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu. A tensor is "
    "made on the host unless it is given a device (device=x.device)"
)
_LEFT = (
    "it is memory that the constructor made, of which model.to('cuda') moves parameters and buffers alone, each to "
    "memory of its own. Use the parameter or the buffer itself in forward, and make views of it there"
)
_MADE = (
    "it was made without a device, and is on the host where there is a GPU. Make it with device=x.device in forward, "
    "or register it as a buffer in the constructor"
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
        self._pinned: dict[int, torch.UntypedStorage] = {}
        self.pretending = 0
        """How many calls are under way in which the device without memory stands for the GPU."""
        self.implied: Callable[[], torch.device] = lambda: DEVICE
        """Where the call under way makes what it makes of its own accord."""
        self._shared: dict[int, torch.UntypedStorage] = {}
        self.copying = False
        """Whether a tensor is being made of a copy of Python's numbers."""
        self.casting = False
        """Whether PyTorch would cast operands that are on the GPU (`torch.autocast`)."""
        self.strict = False
        """Whether devices must not be mixed: in calls of forward. A constructor may run on either."""

    def known(self) -> Collection[int]:
        """The storages that were put anywhere, by their places."""
        return self._known.keys()

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

    def is_put(self, tensor: torch.Tensor, device: torch.device) -> bool:
        """Whether a tensor was made or put on a device, and not only taken to be there."""
        with torch._C.DisableTorchFunction():
            known = self._known.get(tensor.untyped_storage()._cdata) if tensor.layout is torch.strided else None
            return known is not None and known[1] == device

    def is_on_host(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is on the host."""
        return self.device_of(tensor) == HOST

    def put(self, tensor: torch.Tensor, device: torch.device) -> None:
        """Note where the storage of a tensor is. It is held, so that its place is not another's."""
        with torch._C.DisableTorchFunction():
            if tensor.layout is torch.strided:  # what has no storage is in no program
                storage = tensor.untyped_storage()
                self._known[storage._cdata] = (storage, device)

    def pin(self, tensor: torch.Tensor) -> None:
        """Note that a storage is pinned memory of the host."""
        with torch._C.DisableTorchFunction():
            storage = tensor.untyped_storage()
            self._pinned[storage._cdata] = storage

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is in pinned memory of the host."""
        with torch._C.DisableTorchFunction():
            return tensor.layout is torch.strided and tensor.untyped_storage()._cdata in self._pinned

    def share(self, tensor: torch.Tensor) -> None:
        """Note that a storage shows memory that host code sees without PyTorch."""
        with torch._C.DisableTorchFunction():
            storage = tensor.untyped_storage()
            self._shared[storage._cdata] = storage

    def is_shared(self, storage: torch.UntypedStorage) -> bool:
        """Whether a storage shows such memory."""
        return storage._cdata in self._shared

    def leave(self, tensor: torch.Tensor) -> None:
        """Note that a storage stays behind where a tensor in it is copied to another device."""
        with torch._C.DisableTorchFunction():
            if tensor.layout is torch.strided:
                storage = tensor.untyped_storage()
                self._why[storage._cdata] = storage, _LEFT

    def why_away(self, tensor: torch.Tensor) -> str:
        """Why a tensor is not on the GPU, and what to do."""
        if self.device_of(tensor) == NOWHERE:
            return _NO_MEMORY
        with torch._C.DisableTorchFunction():
            return self._why.get(tensor.untyped_storage()._cdata, (None, _MADE))[1]

    def note(
        self,
        base: str,
        asked: torch.device | None,
        makes: bool,
        given: Sequence[torch.Tensor],
        outs: Sequence[torch.Tensor],
        numbers: Sequence[torch.Tensor] = (),
    ) -> None:
        """Note where an operator's results are.

        Args:
            base: The operator's name, without the underscore of one that works in place.
            asked: The device that it was asked for.
            makes: Whether it can be asked for one.
            given: The tensors that it was given.
            outs: Its results; those that were there before stay where they are.
            numbers: Those of the given ones that may be numbers of the host.

        Raises:
            RuntimeError: it was given tensors of two devices, as PyTorch raises it.
        """
        if makes and asked is not None:
            implied = self.implied() if asked.type == "meta" and self.pretending else NOWHERE
            device = HOST if asked.type == "cpu" else DEVICE if asked.type == "cuda" else implied
        elif makes:
            device = self.device_of(given[0]) if given else HOST
        else:
            device = self._joined(base, given, numbers)
        before = {tensor.untyped_storage()._cdata for tensor in given if tensor.layout is torch.strided}
        for out in outs:
            if out.layout is not torch.strided:
                continue
            if out.untyped_storage()._cdata not in before:
                self.put(out, device)
            elif self.strict and not makes and base not in _ACROSS and self.device_of(out) != device:
                raise RuntimeError(_MIXED.format(base))

    def _joined(self, base: str, given: Sequence[torch.Tensor], numbers: Sequence[torch.Tensor]) -> torch.device:
        """Where an operator works.

        Raises:
            RuntimeError: it was given tensors of two devices, as PyTorch raises it.
        """
        places = [(self.device_of(tensor), tensor.dim()) for tensor in given]
        may_be = {id(tensor) for tensor in (numbers if self.strict else given)}
        there = {
            place
            for (place, dim), tensor in zip(places, given, strict=True)
            if dim or id(tensor) not in may_be or (self.strict and place == DEVICE)
        }
        if not self.strict and base not in _ACROSS and len({p for p in self._put(given) if p != NOWHERE}) > 1:
            raise RuntimeError(_MIXED.format(base))
        if NOWHERE in there and len(there) > 1:
            raise NotImplementedError(f"{base}: {NO_DATA}")
        if self.strict and base in _INDEXED:
            (own, _), (last, dim) = places[0], places[-1]
            if (own == HOST and DEVICE in there) or (dim and last != own and base != "index"):
                raise RuntimeError(_MIXED.format(base))
            return own
        if len(there) > 1 and self.strict and base not in _ACROSS:
            raise RuntimeError(_MIXED.format(base))
        there = there or {self.device_of(tensor) for tensor in given}
        return next((device for device in (DEVICE, NOWHERE) if device in there), HOST)

    def _put(self, given: Sequence[torch.Tensor]) -> Iterator[torch.device]:
        """Where those tensors are, numbers aside, that host code has put anywhere: a constructor may run on either
        device, and its arguments may be on either."""
        for tensor in given:
            if tensor.dim() and tensor.layout is torch.strided:
                known = self._known.get(tensor.untyped_storage()._cdata)
                if known is not None:
                    yield known[1]


def device_from(*named: Any, **given: Any) -> torch.device:
    """`torch.device`, of which a number alone names a GPU."""
    alone = len(named) == 1 and not given and type(named[0]) is int
    return torch.device("cuda", *named) if alone else torch.device(*named, **given)


def parsed_to(*named: Any, **given: Any) -> Any:
    """`torch._C._nn._parse_to`, by which modules read the arguments of `to`: a number names a GPU."""
    if named and type(named[0]) is int:
        named = (device_from(named[0]), *named[1:])
    if type(given.get("device")) is int:
        given["device"] = device_from(given["device"])
    return torch._C._nn._parse_to(*named, **given)


def device_named(device: Any) -> torch.device | None:
    """A device that host code names, as `cuda:0`, the host or nowhere; None for none.

    Raises:
        RuntimeError: there is no such device.
    """
    if device is None:
        return None
    found = device_from(device)
    if found.type == "cuda" and (found.index or 0) > 0:
        raise RuntimeError(f"CUDA error: invalid device ordinal: {found} is named, and there is one GPU, {DEVICE}")
    if found.type not in _KINDS:
        raise RuntimeError(f"there is no device {found}: there is one GPU, {DEVICE}. Make tensors with device=x.device")
    return _KINDS[found.type]
