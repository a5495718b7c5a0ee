"""The program under way: storages as they appear, windows of tensors, operations and launches in their order."""

from __future__ import annotations

import base64
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from triton.runtime import _allocation

from assay.kernels.inside import submission
from assay.kernels.inside.record import streams
from assay.kernels.inside.record.host import arithmetic
from assay.kernels.inside.record.host.addresses import Address
from assay.kernels.inside.record.host.known import KnownValues
from assay.kernels.inside.record.host.room import Room
from assay.kernels.inside.record.places import Places
from assay.kernels.inside.record.reads import RAISED, HostReadError, NotRecordableError
from assay.kernels.operators import normal_name
from assay.kernels.program.form import DTYPES
from assay.kernels.program.limits import Limits
from assay.kernels.program.operations import RANDOM
from assay.types import Json

_PLAIN = torch._C._dispatch_keys(torch.empty(0, device="meta")).raw_repr()
_PLAIN |= torch._C._dispatch_keys(torch.empty(0)).raw_repr()
"""What PyTorch may ask of a tensor that is one, as bits of its keys."""
_SCRATCH, _ALIGNMENT = (4096, 1 << 26), 128
"""Bytes that an allocator is asked for, one after the other, and what their address has to divide by."""
_RESIZED = (
    "the memory of a tensor has {0} bytes where it is used, and {1} by now: a GPU takes and gives back memory where it "
    "grows and shrinks (resize_(), out= of an empty tensor), and what was launched before sees the memory of then. "
    "Make it as large as it has to be (torch.empty(shape)), and views of it"
)


class Tape:
    """What was recorded so far. Every storage that was seen is held, so that none comes back as another one."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self.follows_streams = False
        """Whether steps on two streams must be in order: in calls of forward."""
        self.places = Places()
        self.room = Room()
        self.values = KnownValues()
        self.steps: list[Json] = []
        """Of the phase under way."""
        self.doing = "importing the module"
        """What the submission is at, in words."""
        self.constants: list[tuple[int, str]] = []
        self.reads: HostReadError | None = None
        """The first read of a value, which a candidate may have caught."""
        self.replaced = ""
        """What a call did to an input or a parameter otherwise than by writing into it."""
        self._numbers: dict[int, int] = {}
        self._held: list[torch.UntypedStorage] = []
        self._bytes: list[int] = []
        """Of each, as it was when it was first used."""
        self._literals: dict[int, tuple[torch.UntypedStorage, bytes]] = {}
        """Storages of literal values, and what was in them when they were taken in."""
        self._shown: dict[int, torch.UntypedStorage] = {}
        """Those of them whose memory is something else's of the host (`torch.from_numpy`), by number."""
        self._left: dict[int, tuple[int, Json]] = {}
        """What moves have left behind and nothing has used since: its number -> that of what moved, and the step that
        copies it back, empty as yet."""
        self.outside = self.steps
        """Steps of no phase, such as those of finalizers between two calls."""
        self._literal_bytes = 0
        self.asks = False
        """Whether what Triton was told to ask for memory is asked at each launch, as if each needed some."""
        self._allocators: list[tuple[Json, Any]] = []
        """Launches, and what Triton would ask for memory there."""
        self._scratch: dict[int, torch.UntypedStorage] = {}
        """What it gave."""

    @contextmanager
    def phase(self, doing: str = "") -> Iterator[list[Json]]:
        """Record what happens in a block into a list of its own; `doing` says what it does, for messages."""
        before, self.steps = self.steps, []
        self.doing = doing or self.doing
        try:
            yield self.steps
        finally:
            self.steps = before

    def read(self, call: str) -> HostReadError:
        """The error of a read, noted."""
        error = HostReadError(call)
        self.reads = self.reads or error
        return error

    def known(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """A tensor with its values, where they follow from what host code wrote down; None where it has none here."""
        if not self.places.is_on_host(tensor) or self.places.is_pinned(tensor):
            return None
        with torch._C.DisableTorchFunction():
            number = self._numbers.get(tensor.untyped_storage()._cdata)
            if number is None:  # literal values that nothing has used, or what nothing has written
                return None if tensor.device.type == "meta" else tensor
            return self.values.of(self.window(tensor), self._bytes.__getitem__)

    def told(self, call: str, func: Any, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """What a function tells of tensors, where the values of all of them are known.

        Raises:
            HostReadError: they are not. `call` names the function.
        """
        tensors = [one for one in (*args, *named.values()) if isinstance(one, torch.Tensor)]
        held = {id(one): self.known(one) for one in tensors}
        if any(one is None for one in held.values()):
            raise self.read(call)
        with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
            return func(*(held.get(id(one), one) for one in args), **{k: held.get(id(v), v) for k, v in named.items()})

    def sizes(self) -> list[int]:
        """Bytes of each storage; none where a move has left it behind and nothing uses it.

        Raises:
            NotRecordableError: one has grown or shrunk since it was first used.
        """
        for number, storage in enumerate(self._held):
            self._check_size(number, storage)
        return [0 if number in self._left else size for number, size in enumerate(self._bytes)]

    def _check_size(self, number: int, storage: torch.UntypedStorage) -> None:
        """Raises NotRecordableError where a storage is no longer as large as it was."""
        if (now := storage.nbytes()) != self._bytes[number]:
            raise NotRecordableError(_RESIZED.format(self._bytes[number], now))

    def storage(self, tensor: torch.Tensor) -> int:
        """The number of a tensor's storage; one that was made from literal values is taken in with them."""
        with torch._C.DisableTorchFunction():
            held = tensor.untyped_storage()
        number = self._numbers.get(held._cdata)
        if number is None:
            number = self._numbers[held._cdata] = len(self._held)
            self._held.append(held)
            self._bytes.append(held.nbytes())
            if tensor.device.type != "meta":
                self._add_constant(number, held)
        elif number in self._left:
            moved, step = self._left.pop(number)
            whole = ["uint8", [held.nbytes()], [1], 0]
            step |= {"op": "clone.default", "args": [{"window": [moved, *whole]}], "kwargs": {}}
            step |= {"outs": [[number, *whole]], "line": 0}
        self._check_size(number, held)
        if (shown := self._shown.get(number)) is not None:
            self.check_constant(shown)
        return number

    def moved(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy of a tensor in memory of its own, as a move to another device makes it.

        Where the tensor fills its memory, the copy goes on under its number in the program, and what is left behind
        becomes a copy of it once something uses that: nothing does, as a rule, and then the move is no step.
        """
        with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
            _check_as_in_memory(tensor)
            copied = tensor.clone()
            storage = tensor.untyped_storage()
        fills = storage.nbytes() == copied.untyped_storage().nbytes() and copied.stride() == tensor.stride()
        if not fills:
            with torch._C.DisableTorchFunction():
                return tensor.clone()
        number, left = self.storage(tensor), len(self._held)
        self._numbers |= {place: left for place, known in self._numbers.items() if known == number}
        self._held.append(self._held[number])
        self._bytes.append(self._bytes[number])
        self.same(copied, number)
        step: Json = {}
        self._left[left] = number, step
        self.steps.append(step)
        return copied

    def _add_constant(self, number: int, storage: torch.UntypedStorage) -> None:
        self._literal_bytes += storage.nbytes()
        if self._literal_bytes > self.limits.literal_bytes:
            raise NotRecordableError(
                f"tensors made from literal values have more than {self.limits.literal_bytes} bytes. "
                "Compute them in a kernel or with PyTorch's random or ranging functions."
            )
        content = _content(storage)
        self._literals[storage._cdata] = storage, content  # kept, so that its place is not another's
        self.constants.append((number, base64.b64encode(content).decode()))
        self.values.literal(number, content)
        if not storage.resizable():
            self._shown[number] = storage

    def check_constant(self, storage: torch.UntypedStorage) -> None:
        """Raises NotRecordableError where literal values are no longer what they were, as where a NumPy array changed
        of which a tensor shows the memory."""
        held, content = self._literals.get(storage._cdata, (None, b""))
        if held is not None and _content(storage) != content:
            raise NotRecordableError(
                "memory of the host that a tensor shows (torch.from_numpy, as_tensor of an array) changed after it was "
                "used: make a tensor of a copy, torch.tensor(array)"
            )

    def check_constants(self) -> None:
        """The same of all literal values."""
        for storage, _ in self._literals.values():
            self.check_constant(storage)

    def same(self, tensor: torch.Tensor, number: int) -> None:
        """Let the storage of a tensor stand for one that has a number."""
        held = tensor.untyped_storage()
        self._numbers[held._cdata] = number
        self._held[number] = held

    def address(self, tensor: torch.Tensor, whole: bool = False) -> Address:
        """Where a tensor begins, or the storage that it is in."""
        with torch._C.DisableTorchFunction():
            self.storage(tensor)  # which holds it, so that its place is not another's
            offset = 0 if whole else int(tensor.storage_offset()) * tensor.element_size()
            return Address(tensor.untyped_storage(), offset, not whole and not tensor.numel())

    def window(self, tensor: torch.Tensor) -> list[Json]:
        """A tensor as the window that it is.

        Raises:
            NotRecordableError: it is not a plain strided one.
        """
        with torch._C.DisableTorchFunction():
            dtype = str(tensor.dtype).removeprefix("torch.")
            _check_as_in_memory(tensor)
            if tensor.layout is not torch.strided or dtype not in DTYPES:
                raise NotRecordableError(f"a tensor of dtype {tensor.dtype} and layout {tensor.layout}")
            if torch._C._dispatch_keys(tensor).raw_repr() & ~_PLAIN:
                raise NotRecordableError(
                    "a tensor that stands for another or has no memory (of torch.func.functionalize, vmap, "
                    "_efficientzerotensor): a launch takes addresses. Make it by torch.empty, torch.zeros and the like"
                )
            if tensor.untyped_storage()._cdata in self._scratch:
                raise NotRecordableError(
                    "a tensor in memory that the function given to triton.set_allocator has returned, in which a "
                    "launch writes what it needs: make a tensor of its own"
                )
            place = [self.storage(tensor), dtype, list(tensor.shape), list(tensor.stride())]
            return [*place, tensor.storage_offset()]

    def value(self, found: Any) -> Json:
        """An argument of an operation or of a launch.

        Raises:
            NotRecordableError: there is no form for it.
        """
        if isinstance(found, torch.Tensor):
            return {"window": self.window(found)}
        if type(found) is Address:
            raise self.read("an address from data_ptr() as an argument")
        if found is None or type(found) in (bool, int, str):
            return found
        if isinstance(found, float | np.floating):
            number = float(found)
            return number if math.isfinite(number) else {"float": str(number)}
        if isinstance(found, int | np.integer):
            return int(found)
        if isinstance(found, torch.dtype):
            return {"dtype": str(found).removeprefix("torch.")}
        if isinstance(found, list | tuple):
            return [self.value(part) for part in found]
        raise NotRecordableError(
            f"an argument of type {type(found).__name__}: {' '.join(str(found)[:200].split())[:60]}"
        )

    def add_operation(
        self, name: str, args: Any, kwargs: dict[str, Any], outs: list[torch.Tensor], given: Sequence[torch.Tensor]
    ) -> None:
        """Note an operator that made or changed tensors; `given` are those that it took."""
        step: Json = {
            "op": name,
            "args": [self.value(argument) for argument in args],
            "kwargs": {key: self.value(value) for key, value in kwargs.items()},
            "outs": [self.window(out) for out in outs],
            "line": submission.line(),
        }
        self._add(step)
        if any(map(self.places.is_on_host, outs)):
            plain = all(self.places.is_on_host(one) and not self.places.is_pinned(one) for one in (*given, *outs))
            draws = normal_name(name.partition(".")[0]) in RANDOM
            self.values.note(step, follows=plain and not draws and "::" not in name)

    def add_launch(self, kernel: int, variants: list[Json], tuning: list[list[Json]] | None = None) -> None:
        """Note a launch, and what an autotuner does around those that it tries before: `program.form.Tuning`."""
        step: Json = {"launch": kernel, "variants": variants, "line": submission.line()}
        step |= {"tuning": tuning} if tuning is not None else {}
        # As Triton's launcher asks for it, of whatever made the call.
        if (allocator := _allocation._allocator.get()) is not _allocation._NULL_ALLOCATOR:
            self._allocators.append((step, allocator))
            if self.asks:
                self._asked(allocator, _SCRATCH[0], ())
        self._add(step)

    @property
    def has_allocators(self) -> bool:
        """Whether any launch came after Triton was given a function to ask for memory."""
        return bool(self._allocators)

    def ask_allocators(self) -> None:
        """Note of launches whether what Triton asks for memory beside tensors gives as much as it is asked for, on the
        GPU and of its own."""
        known, given = {*self._numbers, *self.places.known()}, dict[int, bool]()  # by id: it need not have a hash
        self.places.strict = True  # as in the call that launches
        for step, allocator in self._allocators:
            if id(allocator) not in given:
                given[id(allocator)] = all(self._asked(allocator, size, known) for size in _SCRATCH)
            step |= {"allocator": True} if given[id(allocator)] else {}
        self.places.strict = False

    def _asked(self, allocator: Any, size: int, known: Collection[int]) -> bool:
        """Whether an allocator gives so many bytes, of none of the known storages.

        Raises:
            NotRecordableError: it does something else too, which a GPU does at launches that need memory alone.
        """
        follows, self.follows_streams = self.follows_streams, False
        try:
            with self.phase() as steps:
                given = allocator(size, _ALIGNMENT, None)
        except RAISED:
            # As on a GPU, where the launch needs memory. A read of a value ends the recording here as anywhere else.
            return False
        finally:
            self.follows_streams = follows
        if steps:
            raise NotRecordableError(
                f"the function that was given to triton.set_allocator makes {steps[0].get('op', 'a launch or a copy')} "
                "beside memory, and only some launches call it. Let it do nothing but return "
                "torch.empty(size, dtype=torch.int8, device='cuda')"
            )
        if not isinstance(given, torch.Tensor) or self.places.is_away(given):
            return False
        with torch._C.DisableTorchFunction():
            held = given.untyped_storage()
            self._scratch[held._cdata] = held
            return held._cdata not in known and given.numel() * given.element_size() >= size

    def _add(self, step: Json) -> None:
        arithmetic.check()
        if len(self.steps) >= self.limits.steps:
            raise NotRecordableError(f"one call makes more than {self.limits.steps} operations and launches")
        if self.follows_streams:
            streams.order.add(step, self._held)
        self.steps.append(step)


def _content(storage: torch.UntypedStorage) -> bytes:
    with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
        return bytes(torch.empty(0, dtype=torch.uint8).set_(storage).numpy().tobytes())


def _check_as_in_memory(tensor: torch.Tensor) -> None:
    """Raises NotRecordableError for a tensor whose numbers are others than its memory holds."""
    if tensor.is_conj() or tensor.is_neg():
        raise NotRecordableError(
            "a tensor whose numbers PyTorch conjugates or negates where they are read (conj(), imag of a conj()), not "
            "in memory, where a kernel would read them: compute with the parts of torch.view_as_real"
        )
