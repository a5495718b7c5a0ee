"""Host code that names a device, on tensors without memory: it is noted where they would be (`places`).

Reads of values that PyTorch answers without asking an operator (`tolist`, `numpy`, `data_ptr`) are caught here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils import _device
from torch.utils._device import _device_constructors

from assay.kernels.inside.pretend_cuda import OnCpu
from assay.kernels.inside.record.places import HOST, NO_DATA, NOWHERE, device_named
from assay.kernels.inside.record.reads import Address
from assay.kernels.inside.record.tape import Tape

META = torch.device("meta")
_READS = (
    *("item", "tolist", "numpy", "__bool__", "__int__", "__float__", "__index__", "__complex__", "__array__"),
    *("__contains__", "__dlpack__", "storage"),
)
_FROM_DATA = frozenset({torch.tensor, torch.as_tensor, torch.asarray, torch.scalar_tensor})
"""Makers of tensors from Python's numbers; with a device that has no memory they would drop them."""


class Pretended(OnCpu):
    """While active, every device means the one without memory; where each tensor would be is noted (`places`)."""

    def __init__(self, tape: Tape) -> None:
        """`tape` gives tensors their pretended addresses and takes note of reads."""
        super().__init__()
        self._tape, self._places = tape, tape.places
        places = tape.places
        self._special |= {
            **{name: name for name in (torch.device, torch._C._nn._parse_to)},  # a device is only named, not used
            torch.Tensor.cuda: lambda tensor, device=None, *_, **__: self._at(tensor, tensor, device or 0),
            torch.Tensor.cpu: lambda tensor, *_, **__: self._at(tensor, tensor, "cpu"),
            torch.Tensor.get_device: lambda tensor, *_, **__: -1 if places.is_away(tensor) else 0,
            torch.Tensor.is_cuda.__get__: lambda tensor, *_: not places.is_away(tensor),  # type: ignore[attr-defined]
            torch.Tensor.is_cpu.__get__: lambda tensor, *_: places.device_of(tensor) == HOST,  # type: ignore[attr-defined]
            torch.Tensor.device.__get__: lambda tensor, *_: places.device_of(tensor),
            torch.Tensor.is_meta.__get__: lambda tensor, *_: places.device_of(tensor) == NOWHERE,  # type: ignore[attr-defined]
            torch.Tensor.data_ptr: lambda tensor: Address(tape.address(tensor)),
            torch.Tensor.untyped_storage: lambda tensor: _storage_of(tensor),
            **{getattr(torch.Tensor, name): _read(tape, name) for name in _READS},
        }

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        if (instead := self._special.get(func)) is not None:
            return instead(*args, **given)
        given.pop("pin_memory", None)
        given.pop("non_blocking", None)
        if func is torch.Tensor.to:
            return self._moved(func, args, given)
        asked = given.pop("device", None)
        if asked is None and func in _device_constructors():
            asked = _device.CURRENT_DEVICE  # as torch.set_default_device has it, which comes after this
        if func in _FROM_DATA:
            return self._from_data(func(*args, **given), args, asked)
        if (device := device_named(asked)) is None:
            return func(*map(_placed, args), **given)
        made = func(*map(_placed, args), **given, device=HOST if device == HOST else META)
        return self._put(made, NOWHERE) if device == NOWHERE and isinstance(made, torch.Tensor) else made

    def _from_data(self, made: torch.Tensor, args: tuple[Any, ...], asked: Any) -> torch.Tensor:
        device = device_named(asked)
        if device is not None:
            return self._at(made, made, device) if args and made is args[0] else self._put(made, device)
        if not (args and isinstance(args[0], torch.Tensor)):
            self._places.put(made, HOST)
        return made

    def _moved(self, func: Any, args: tuple[Any, ...], given: dict[str, Any]) -> torch.Tensor:
        """`Tensor.to`, whose device may stand among its arguments, or be another tensor's."""
        tensor, *rest = args
        first = rest[0] if rest else None
        names = next((after for kind, after in _TO if isinstance(first, kind)), _TO_DEVICE)
        asked = {**dict(zip(names, rest, strict=False)), **given}
        asked.pop("non_blocking", None)
        like, device = asked.pop("other", None), asked.pop("device", None)
        if like is not None:
            device, asked["dtype"] = self._places.device_of(like), like.dtype
        kept = {name: value for name, value in asked.items() if value is not None}
        # With nothing but a device: the tensor is one without memory already, or literal values that stay such.
        made = func(tensor, **kept) if kept.keys() - {"copy"} else tensor.clone() if kept.get("copy") else tensor
        return self._at(tensor, made, device)

    def _at(self, tensor: torch.Tensor, made: torch.Tensor, named: Any) -> torch.Tensor:
        """What was made of a tensor, at a device: a copy where it is none yet and the device is another one.

        Raises:
            NotImplementedError: the tensor is nowhere, and the device is not.
        """
        device = device_named(named)
        if device is None:
            return made
        before = self._places.device_of(tensor)
        if before == NOWHERE != device:
            raise NotImplementedError(NO_DATA)
        with torch._C.DisableTorchFunction():
            same = made is tensor or (
                made.layout is tensor.layout is torch.strided
                and made.untyped_storage()._cdata == tensor.untyped_storage()._cdata
            )
            if before != device and not self._places.strict:
                self._places.leave(tensor)
            if same and before != device:
                # What forward copies is counted.
                made = made.clone() if self._places.strict else self._tape.moved(made)
        return self._put(made, device)

    def _put(self, made: torch.Tensor, device: torch.device) -> torch.Tensor:
        self._places.put(made, device)
        return made


_TO_DEVICE = ("device", "dtype", "non_blocking", "copy")
_TO: tuple[tuple[type, tuple[str, ...]], ...] = (
    (torch.Tensor, ("other", "non_blocking", "copy")),
    (torch.dtype, ("dtype", "non_blocking", "copy")),
)
"""Kinds of the first argument of `Tensor.to` -> the names of its arguments; otherwise it is a device, or none."""


def _storage_of(tensor: torch.Tensor) -> torch.UntypedStorage:
    with torch._C.DisableTorchFunction():
        return tensor.untyped_storage()


def _read(tape: Tape, name: str) -> Callable[..., Any]:
    def read(*_: Any, **__: Any) -> Any:
        raise tape.read(f"Tensor.{name}()")

    return read


def _placed(value: Any) -> Any:
    """The device without memory where a value names a GPU, and the value itself otherwise."""
    if isinstance(value, torch.device) or (
        isinstance(value, str) and value.partition(":")[0] in ("cuda", "cpu", "meta")
    ):
        return HOST if device_named(value) == HOST else META
    return value
