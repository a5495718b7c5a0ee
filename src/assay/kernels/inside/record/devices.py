"""Host code that names a device, on tensors without memory: it is noted where they would be (`places`).

Reads of values that PyTorch answers without asking an operator (`tolist`, `numpy`, `data_ptr`) are caught here.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils import _device
from torch.utils._device import _device_constructors
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from assay.kernels.inside.pretend_cuda import DEVICE, OnCpu
from assay.kernels.inside.record import streams
from assay.kernels.inside.record.host import answers, known, plain
from assay.kernels.inside.record.host.addresses import SeenStorage, Version
from assay.kernels.inside.record.places import HOST, NO_DATA, NOWHERE, device_from, device_named, parsed_to
from assay.kernels.inside.record.reads import RAISED, NotRecordableError, plain_dict, raised
from assay.kernels.inside.record.tape import Tape

META = torch.device("meta")
_READS = (
    *("item", "tolist", "numpy", "__bool__", "__int__", "__float__", "__index__", "__complex__", "__array__"),
    *("__contains__", "__dlpack__", "storage", "__repr__", "__format__", "__reduce_ex__", "apply_", "map_", "map2_"),
)
_COMPARED = (torch.equal, torch.Tensor.equal, torch.allclose, torch.Tensor.allclose)
"""What compares the values of two tensors."""
_ANSWERED = ("__dlpack_device__", "_typed_storage", "is_shared", "share_memory_")
"""What is asked of the device itself, or of memory that is not there."""
_FROM_DATA = frozenset({torch.tensor, torch.as_tensor, torch.asarray, torch.scalar_tensor})
"""Makers of tensors from Python's numbers; with a device that has no memory they would drop them."""
_COPIED = frozenset({torch.tensor, torch.scalar_tensor})
"""Those whose tensors have memory of their own; the others may show that of an array."""


class Pretended(OnCpu):
    """While active, every device means the one without memory; where each tensor would be is noted (`places`)."""

    def __init__(self, tape: Tape) -> None:
        """`tape` gives tensors their pretended addresses and takes note of reads."""
        super().__init__()
        self._tape, self._places = tape, tape.places
        self._storages: dict[int, SeenStorage] = {}
        self.held: Sequence[torch.Tensor] = ()
        """Parameters and buffers of the model, once it is built."""
        self.versions: dict[int, torch.Tensor] = {}
        """Tensors of which host code asked the `_version`, by id."""
        self.operators: Any = None
        """The mode that notes operators."""
        places = tape.places
        self._special |= {
            **{torch.device: device_from, torch._C._nn._parse_to: parsed_to},  # a device is only named, not used
            torch.Tensor.cuda: self._to_gpu,
            torch.Tensor.cpu: self._to_host,
            torch.Tensor.get_device: lambda tensor: -1 if places.is_away(tensor) else 0,
            torch.Tensor.is_cuda.__get__: lambda tensor, *_: not places.is_away(tensor),  # type: ignore[attr-defined]
            torch.Tensor.is_cpu.__get__: lambda tensor, *_: places.device_of(tensor) == HOST,  # type: ignore[attr-defined]
            torch.Tensor.device.__get__: lambda tensor, *_: places.device_of(tensor),
            torch.Tensor.is_meta.__get__: lambda tensor, *_: places.device_of(tensor) == NOWHERE,  # type: ignore[attr-defined]
            torch.Tensor.data_ptr: tape.address,
            torch.Tensor.untyped_storage: self._storage_of,
            torch.Tensor.type: self._type,
            torch.Tensor.type_as: lambda tensor, other: self._moved(torch.Tensor.to, (tensor, other), {}),
            torch.Tensor.pin_memory: self._pinned,
            torch.Tensor.is_pinned: lambda tensor, device=None: _is_pinned(places, tensor, device),
            torch.Tensor.copy_: self._copied,
            torch.Tensor.new_tensor: self._new_tensor,
            torch.Tensor.new: self._new,
            torch.Tensor.__deepcopy__: self._deepcopied,
            torch.Tensor._version.__get__: self._version,  # type: ignore[attr-defined]
            torch.Tensor.__eq__: self._equal,
            torch.Tensor.real.__set__: lambda tensor, value: self._set_part(torch.real, tensor, value),  # type: ignore[attr-defined]
            torch.Tensor.imag.__set__: lambda tensor, value: self._set_part(torch.imag, tensor, value),  # type: ignore[attr-defined]
            torch.Tensor.__cuda_array_interface__.__get__: _refused("__cuda_array_interface__"),
            **{getattr(torch.Tensor, name): _read(tape, name) for name in _READS},
            **{func: _told(tape, func) for func in _COMPARED},
            **{getattr(torch.Tensor, name): _refused(name) for name in _ANSWERED},
        }

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        plain.check_alone()
        if func not in _TAKING_FUNCTIONS:
            plain.check((*args, *given.values()))
        if (instead := self._special.get(func)) is not None:
            return instead(*args, **given)
        pinned = given.pop("pin_memory", None)
        if func is torch.Tensor.to:
            return self._moved(func, args, given)
        if given.pop("non_blocking", None):
            raise NotRecordableError(
                f"{getattr(func, '__name__', func)!s:.80} with non_blocking=True: call Tensor.copy_, Tensor.to or "
                "Tensor.cuda, of which that is recorded, or leave it out"
            )
        asked = given.pop("device", None)
        if asked is None and func in _device_constructors():
            asked = _device.CURRENT_DEVICE  # as torch.set_default_device has it, which comes after this
        if func in _FROM_DATA:
            made = self._from_data(func, args, given, asked)
            return self._pin(made) if pinned else made
        if (device := device_named(asked)) is not None:
            given["device"] = HOST if device == HOST else META
        if any(mode is not self.operators for mode in _get_current_dispatch_mode_stack()):
            raise NotRecordableError(
                "a TorchDispatchMode of the submission's own is shown the tensors of a recording, which have no memory "
                "and no device: leave it out"
            )
        call = func if device == NOWHERE else functools.partial(self._called, func)
        try:
            made = call(*map(_placed, args), **given)
        except RAISED as error:
            raised(getattr(func, "__name__", str(func)), error, view=getattr(func, "__name__", "") in _VIEWS)
            raise
        if made is not None or given.get("out") is None:
            answers.check(func, made)
        if device == NOWHERE and isinstance(made, torch.Tensor):
            self._places.put(made, NOWHERE)
        return self._pin(made) if pinned and isinstance(made, torch.Tensor) else made

    def _called(self, func: Any, *args: Any, **given: Any) -> Any:
        """What a function gives where the device without memory stands for the GPU."""
        outer, self._places.implied = self._places.implied, functools.partial(self._implied, args, given)
        self._places.pretending += 1
        self._places.casting = torch.is_autocast_enabled("cuda")
        try:
            return func(*args, **given)
        finally:
            self._places.implied = outer
            self._places.pretending -= 1
            self._places.casting = False

    def _implied(self, args: Sequence[Any], given: Mapping[str, Any]) -> torch.device:
        """Where a function makes tensors of its own accord: on the host where all that it is given is there, and
        nothing else was asked for."""
        values = (*args, *given.values())
        tensors = [value for value in values if isinstance(value, torch.Tensor)]
        named = "device" in given or any(value is META for value in values)
        return HOST if tensors and not named and all(map(self._places.is_on_host, tensors)) else DEVICE

    def _storage_of(self, tensor: torch.Tensor) -> SeenStorage:
        with torch._C.DisableTorchFunction():
            size = tensor.untyped_storage().nbytes()
            place = tensor.untyped_storage()._cdata
        address, device = self._tape.address(tensor, whole=True), self._places.device_of(tensor)
        seen = self._storages.get(place)
        if seen is None or seen.nbytes() != size or seen.device != device:
            seen = self._storages[place] = SeenStorage(size, lambda: address, device)
        return seen

    def _to_gpu(
        self, tensor: torch.Tensor, device: Any = None, non_blocking: bool = False, memory_format: Any = None
    ) -> torch.Tensor:
        """`Tensor.cuda`."""
        _check_format(memory_format)
        if device is not None and type(device) is not int and torch.device(device).type != "cuda":
            raise RuntimeError(f"Invalid device, must be cuda device, not {device}")
        return self._at(tensor, tensor, 0 if device is None else device, non_blocking)

    def _to_host(self, tensor: torch.Tensor, memory_format: Any = None) -> torch.Tensor:
        """`Tensor.cpu`."""
        _check_format(memory_format)
        return self._at(tensor, tensor, "cpu")

    def _new_tensor(
        self, tensor: torch.Tensor, data: Any, *, dtype: Any = None, device: Any = None, **named: Any
    ) -> torch.Tensor:
        """`Tensor.new_tensor`: as `torch.tensor`, of the tensor's dtype and where it is."""
        place = self._places.device_of(tensor) if device is None else device
        return self._from_data(torch.tensor, (data,), {"dtype": dtype or tensor.dtype, **named}, place)

    def _new(self, tensor: torch.Tensor, *sizes: Any, **named: Any) -> torch.Tensor:
        """`Tensor.new`, of sizes: an empty tensor."""
        if named or not all(type(size) is int or isinstance(size, torch.Size) for size in sizes):
            raise NotRecordableError("Tensor.new with values: call new_tensor")
        made: torch.Tensor = tensor.new_empty(*sizes) if sizes else tensor.new_empty(0)
        return made

    def _deepcopied(self, tensor: torch.Tensor, memo: dict[Any, Any]) -> torch.Tensor:
        """`Tensor.__deepcopy__`, which copies all memory that a tensor is in, once for all that are in it."""
        if id(tensor) in memo:
            return memo[id(tensor)]  # type: ignore[no-any-return]
        with torch._C.DisableTorchFunction():
            held = tensor.untyped_storage()
            fills = tensor.numel() * tensor.element_size() == held.nbytes() and tensor.storage_offset() == 0
            fills &= _is_dense(tensor) and not plain_dict(tensor, "a tensor") and tensor.grad is None
            place = ("memory", held._cdata)
        if not fills or place in memo:
            raise NotRecordableError(
                "copy.deepcopy of a view, of two tensors in one memory, or of one with attributes or a gradient, which "
                "it copies as a whole: clone() each"
            )
        with torch.no_grad():
            made = tensor.clone()
        made.requires_grad_(tensor.requires_grad)
        memo[id(tensor)], memo[place] = made, made
        return made

    def _version(self, tensor: torch.Tensor, *_: Any) -> Any:
        if not isinstance(tensor, torch.nn.Parameter) and not any(tensor is one for one in self.held):
            raise NotRecordableError(
                "host code asks the _version of a tensor that is neither a parameter nor a buffer: what PyTorch counts "
                "there differs between devices. Remember what you have changed"
            )
        self.versions[id(tensor)] = tensor
        return Version(torch.Tensor._version.__get__(tensor), (id(tensor),))  # type: ignore[attr-defined]

    def _equal(self, tensor: torch.Tensor, other: Any) -> Any:
        if other is None:
            return False
        return self._called(torch.Tensor.__eq__, tensor, other)

    def _set_part(self, part: Any, tensor: torch.Tensor, value: Any) -> None:
        part(tensor).copy_(value) if isinstance(value, torch.Tensor) else part(tensor).fill_(value)

    def _type(self, tensor: torch.Tensor, dtype: Any = None, non_blocking: bool = False) -> Any:
        if isinstance(dtype, torch.dtype):
            return self._moved(torch.Tensor.to, (tensor, dtype), {})
        if dtype is not None:
            raise NotRecordableError(f"type({dtype!s:.40}) of a tensor: give a dtype, or use to(device, dtype)")
        said: Any = torch.Tensor.type(tensor)
        return f"torch.{'' if self._places.is_away(tensor) else 'cuda.'}{said.rpartition('.')[2]}"

    def _pinned(self, tensor: torch.Tensor, device: Any = None) -> torch.Tensor:
        streams.gpu_named(device)
        return tensor if self._places.is_pinned(tensor) else self._pin(tensor, tensor.clone)

    def _pin(self, tensor: torch.Tensor, copied: Callable[[], torch.Tensor] | None = None) -> torch.Tensor:
        """A tensor in pinned memory of the host.

        Raises:
            RuntimeError: it is not on the host, as PyTorch raises it.
        """
        if (device := self._places.device_of(tensor)) != HOST:
            raise RuntimeError(f"cannot pin a tensor on {device}: only those on the host can be")
        if copied is not None and not _is_dense(tensor):
            raise NotRecordableError("pin_memory of a tensor with gaps, which a copy keeps: call contiguous() first")
        made = tensor if copied is None else copied()
        self._places.put(made, HOST)
        self._places.pin(made)
        return made

    def _copied(self, tensor: torch.Tensor, other: Any, non_blocking: bool = False) -> torch.Tensor:
        """`Tensor.copy_`."""
        made = self._called(torch.Tensor.copy_, tensor, other)
        if isinstance(other, torch.Tensor):
            self._note_copy(other, made, non_blocking)
        return made  # type: ignore[no-any-return]

    def _note_copy(self, source: torch.Tensor, made: torch.Tensor, non_blocking: Any) -> None:
        """Take note of a copy from one device to another: the host waits for it, unless it is told not to."""
        devices = self._places.device_of(source), self._places.device_of(made)
        if not self._tape.follows_streams or devices[0] == devices[1] or NOWHERE in devices:
            return
        if non_blocking:
            with torch._C.DisableTorchFunction():
                held = (source if devices[0] == HOST else made).untyped_storage()
            streams.order.copies(held._cdata)
        elif devices[1] == HOST:
            streams.order.current.synchronize()

    def _from_data(self, func: Any, args: tuple[Any, ...], given: dict[str, Any], asked: Any) -> torch.Tensor:
        if len(args) > _PLACE_OF_DEVICE:  # as as_tensor takes it
            asked, args = args[_PLACE_OF_DEVICE], args[:_PLACE_OF_DEVICE]
        self._places.copying = func in _COPIED
        try:
            made, device = self._called(func, *args, **given), device_named(asked)
        finally:
            self._places.copying = False
        if func not in _COPIED and device in (None, HOST) and not isinstance(args[0] if args else None, torch.Tensor):
            self._places.share(made)
        if device is not None:
            return self._at(made, made, device) if args and made is args[0] else self._put(made, device)
        if not (args and isinstance(args[0], torch.Tensor)):
            self._places.put(made, HOST)
        return made  # type: ignore[no-any-return]

    def _moved(self, func: Any, args: tuple[Any, ...], given: dict[str, Any]) -> torch.Tensor:
        """`Tensor.to`, whose device may stand among its arguments, or be another tensor's."""
        tensor, *rest = args
        first = rest[0] if rest else None
        names = next((after for kind, after in _TO if isinstance(first, kind)), _TO_DEVICE)
        asked = {**dict(zip(names, rest, strict=False)), **given}
        non_blocking = asked.pop("non_blocking", None)
        like, device = asked.pop("other", None), asked.pop("device", None)
        if like is not None:
            device, asked["dtype"] = self._places.device_of(like), like.dtype
        kept = {name: value for name, value in asked.items() if value is not None}
        # With nothing but a device: the tensor is one without memory already, or literal values that stay such.
        cast = kept.keys() - {"copy"}
        made = self._called(func, tensor, **kept) if cast else tensor.clone() if kept.get("copy") else tensor
        return self._at(tensor, made, device, non_blocking)

    def _at(self, tensor: torch.Tensor, made: torch.Tensor, named: Any, non_blocking: Any = False) -> torch.Tensor:
        """What was made of a tensor, at a device: a copy where it is none yet and the device is another one. Without
        waiting it is made in pinned memory, where it is made on the host.

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
        self._put(made, device)
        if before != device:
            self._note_copy(tensor, made, non_blocking)
            if non_blocking and device == HOST:
                self._places.pin(made)
        return made

    def _put(self, made: torch.Tensor, device: torch.device) -> torch.Tensor:
        self._places.put(made, device)
        return made


_PLACE_OF_DEVICE = 2
"""Among the arguments of `torch.as_tensor`."""
_TO_DEVICE = ("device", "dtype", "non_blocking", "copy")
_TO: tuple[tuple[type, tuple[str, ...]], ...] = (
    (torch.Tensor, ("other", "non_blocking", "copy")),
    (torch.dtype, ("dtype", "non_blocking", "copy")),
)
"""Kinds of the first argument of `Tensor.to` -> the names of its arguments; otherwise it is a device, or none."""


_TAKING_FUNCTIONS = frozenset({torch.Tensor.register_hook, torch.Tensor.register_post_accumulate_grad_hook})
_VIEWS = frozenset({"view", "view_as", "as_strided", "expand", "expand_as", "unflatten"})
"""Whether they can be made follows from strides."""


def _is_pinned(places: Any, tensor: torch.Tensor, device: Any) -> bool:
    streams.gpu_named(device)
    return bool(places.is_pinned(tensor))


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether a copy lies as the tensor does: no element at two places, and none between them."""
    return bool(torch.ops.aten.is_non_overlapping_and_dense(tensor))


def _check_format(memory_format: Any) -> None:
    if memory_format not in (None, torch.preserve_format):
        raise NotRecordableError(
            "a move to another device in another memory_format: call contiguous(memory_format=...)"
        )


def _read(tape: Tape, name: str) -> Callable[..., Any]:
    call, of_values = f"Tensor.{name}()", known.method(name)

    def read(*args: Any, **named: Any) -> Any:
        if of_values is None:
            raise tape.read(call)
        return tape.told(call, of_values, args, named)

    return read


def _told(tape: Tape, func: Any) -> Callable[..., Any]:
    return lambda *args, **named: tape.told(f"torch.{func.__name__}()", func, args, named)


def _refused(name: str) -> Callable[..., Any]:
    def refused(*_: Any, **__: Any) -> Any:
        raise NotRecordableError(
            f"host code asks {name} of a tensor, which tells of the memory of this machine and not of a GPU's: decide "
            "by shapes, strides, dtypes and x.device"
        )

    return refused


def _placed(value: Any) -> Any:
    """The device without memory where a value names a GPU, and the value itself otherwise."""
    if isinstance(value, torch.device) or (
        isinstance(value, str) and value.partition(":")[0] in ("cuda", "cpu", "meta")
    ):
        return HOST if device_named(value) == HOST else META
    return value
