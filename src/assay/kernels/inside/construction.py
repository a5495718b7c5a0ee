"""How much a reference's constructor computes of what it draws, counted as a submission's is, and which draws the
numbers of a tensor come from.

with ConstructionTrace(init_inputs) as trace:
    model = Model(*init_inputs)
trace.amount
trace.origin_of(model.weight).draws
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from assay.kernels.operators import kind_of
from assay.kernels.program.form import DTYPES, Operation, Value, Window
from assay.kernels.program.operations import base_name, role_of
from assay.kernels.program.weight_work import storages_read, tainted_by, work_on

ELEMENTWISE = ("pointwise", "free", "index")
"""Kinds of operators of which an element depends on no others of an operand."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where the numbers of a tensor come from."""

    draws: frozenset[int] = frozenset()
    """Calls of random operators, by number."""
    drawn: int = 0
    """How many numbers those drew together."""
    mixed: bool = False
    """Whether an element may depend on several of them (a norm, a product, a sum)."""


class ConstructionTrace(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts arithmetic on random numbers and on the constructor's inputs. Changes no result."""

    supports_higher_order_operators = True

    def __init__(self, init_inputs: Any) -> None:
        """`init_inputs`: the constructor's arguments, however nested."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.amount = 0
        """Arithmetic operations, as `program.weight_work` counts them."""
        self._numbers: dict[int, int] = {}
        self._seen: list[StorageWeakRef] = []
        self._tainted = {self._window(tensor).storage for tensor in _tensors(init_inputs) if _has_form(tensor)}
        self._drawn: list[int] = []
        self._draws: dict[int, frozenset[int]] = {}
        self._mixed: set[int] = set()

    def origin_of(self, tensor: torch.Tensor) -> Origin:
        """Where the numbers of a tensor come from that the constructor made."""
        if not _has_form(tensor):
            return Origin()
        place = self._window(tensor).storage
        draws = self._draws.get(place, frozenset())
        return Origin(draws, sum(self._drawn[draw] for draw in draws), place in self._mixed)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # True would import the compiler, which takes seconds, to keep it away from this class.
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run one operator and count it."""
        named = dict(kwargs or {})
        schema = getattr(func, "_schema", None)
        if schema is None:
            return func(*args, **named)
        if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"):
            with self:
                return func.decompose(*args, **named)
        result = func(*args, **named)
        if any(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns):
            return result
        outs = tuple(self._window(out) for out in _tensors(result) if _has_form(out))
        given = tuple(self._value(value) for value in args)
        operation = Operation(schema.name, given, tuple((name, self._value(named[name])) for name in named), outs, 0)
        self.amount += work_on(operation, self._tainted)
        self._tainted |= tainted_by(operation, self._tainted)
        self._follow(operation)
        return result

    def _follow(self, operation: Operation) -> None:
        """Note which draws the numbers come from that an operation writes."""
        read = storages_read(operation)
        mixed = bool(read & self._mixed) or kind_of(base_name(operation)) not in ELEMENTWISE
        draws = frozenset[int]().union(*(self._draws.get(place, ()) for place in read))
        if role_of(operation) == "random":
            mixed, draws = False, draws | {len(self._drawn)}
            self._drawn.append(sum(out.elements for out in operation.outs))
        for out in operation.outs if draws else ():
            self._draws[out.storage] = self._draws.get(out.storage, frozenset()) | draws
            self._mixed |= {out.storage} if mixed else set()

    def _value(self, found: Any) -> Value:
        if isinstance(found, list | tuple):
            return tuple(self._value(part) for part in found)
        return self._window(found) if isinstance(found, torch.Tensor) and _has_form(found) else None

    def _window(self, tensor: torch.Tensor) -> Window:
        storage = tensor.untyped_storage()
        number = self._numbers.get(storage._cdata)
        if number is None:
            # A weak reference keeps the address, not the memory, so no other storage comes to have this number.
            number = self._numbers[storage._cdata] = len(self._seen)
            self._seen.append(StorageWeakRef(storage))  # type: ignore[no-untyped-call]
        dtype = str(tensor.dtype).removeprefix("torch.")
        return Window(number, dtype, tuple(tensor.shape), tuple(tensor.stride()), int(tensor.storage_offset()))


def _has_form(tensor: torch.Tensor) -> bool:
    return tensor.layout is torch.strided and str(tensor.dtype).removeprefix("torch.") in DTYPES


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _tensors(part)
